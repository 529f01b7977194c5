"""This file knows about clusters: nodes of one kind, and the fabric that joins them.

    >>> pod = parse("2x8xH100")
    >>> pod.nodes, pod.gpus_per_node, pod.node.key, pod.ranks, pod.domain
    (2, 8, 'hgx-h100', 16, 8)
    >>> parse("72xGB200").domain                 # one NVLink domain over 18 trays
    72
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from sublight.device import Device, by_key
from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the catalog, or one that a file describes. Rates are bytes per second and direction."""

    key: str                             # "hgx-h100"
    title: str
    device: Device
    gpus: int                            # in one operating system
    nvlink: str                          # "switch", "mesh", "none"
    links: int                           # NVLinks of one GPU; 0 without
    domain: int                          # GPUs that NVLink joins: gpus, or more where trays share switches
    nics: int                            # network ports for GPU traffic
    nic_bytes_per_second: float          # of one port; 0 without
    pcie_bytes_per_second: float         # of one GPU, as the slot's generation and width allow
    gpus_per_switch: int                 # GPUs that share a PCIe switch with their NICs; 0: behind the CPU
    cpu: Mapping[str, str]               # arch, vendor, familyid, modelid: as NCCL reads them
    sources: Mapping[str, str]
    c2c_bytes_per_second: float = 0.0    # of one GPU to its CPU (NVLink-C2C); 0 without


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of one kind in a fabric. gpus_per_node: how many of a node's GPUs take part."""

    node: Node
    nodes: int
    gpus_per_node: int
    fabric: str = "infiniband"           # or "roce"
    layout: str = "rail"                 # "rail": NIC i of all nodes under one leaf; "fat-tree": a node under one leaf
    nodes_per_leaf: int = 32             # nodes whose rail (or whose all) ends in one leaf
    oversubscription: float = 1.0        # downlinks over uplinks of a leaf: 2.0 halves what leaves it

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def domain(self) -> int:
        """Ranks that NVLink joins (PCIe, where a node has none)."""
        return min(self.ranks, self.gpus_per_node * max(1, self.node.domain // self.node.gpus))


REQUIRED = {"title", "device", "gpus", "nvlink", "links", "domain", "nics", "nic_gbit", "pcie_gb_per_second",
            "gpus_per_switch", "cpu", "sources"}
OPTIONAL = {"c2c_gb_per_second"}


@cache
def catalog() -> tuple[Node, ...]:
    """Every node that we know, from catalog/nodes.toml."""
    rows = tomllib.loads(resources.files("sublight.catalog").joinpath("nodes.toml").read_text("utf-8"))
    return tuple(_node(key, row) for key, row in rows.items())


def _node(key: str, row: Mapping[str, Any]) -> Node:
    return Node(
        key=key, title=row["title"], device=by_key(row["device"]), gpus=row["gpus"], nvlink=row["nvlink"],
        links=row["links"], domain=row["domain"], nics=row["nics"], nic_bytes_per_second=row["nic_gbit"] * 1e9 / 8,
        pcie_bytes_per_second=row["pcie_gb_per_second"] * 1e9, gpus_per_switch=row["gpus_per_switch"],
        cpu=dict(row["cpu"]), sources=dict(row["sources"]),
        c2c_bytes_per_second=row.get("c2c_gb_per_second", 0) * 1e9,
    )


# "2x8xH100", "8xH100", "72xGB200", "4xhgx-h100": nodes, GPUs, what; options after a colon
SHAPE = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?([A-Za-z][A-Za-z0-9.-]*)(?::(.+))?")
# the node that a bare name of a GPU means
USUAL = {
    "a100": "hgx-a100", "h100": "hgx-h100", "h200": "hgx-h200", "h800": "hgx-h800", "h20": "hgx-h20",
    "b200": "hgx-b200", "b300": "hgx-b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "l40s": "pcie-l40s",
    "rtx-pro-6000": "pcie-rtx-pro-6000", "h100-pcie": "pcie-h100", "a100-pcie": "pcie-a100", "l4": "pcie-l4",
}
MOST_NODES = 1 << 20


def named(key: str) -> Node:
    """The node of the catalog with that key, or the usual one of a GPU ("H100", or the device's key, "h100-sxm").

    Raises InputError naming the nearest.
    """
    import difflib

    wanted = key.lower()
    nodes = {node.key: node for node in catalog()}
    devices = {node.device.key: node for node in catalog()}
    found = nodes.get(USUAL.get(wanted, wanted)) or devices.get(wanted)
    if found is None:
        known = sorted({*USUAL, *nodes, *devices})
        near = difflib.get_close_matches(wanted, known, 3, 0.4) or known
        raise InputError(f"no node '{key}' in the catalog; nearest: {', '.join(near)}")
    return found


def parse(text: str) -> Cluster:
    """The cluster that a short text means.

        NODESxGPUSxNODE    2x8xH100: two nodes, eight GPUs of each
        GPUSxNODE          8xH100, 72xGB200: as few nodes as hold them
        NODE               hgx-h100: one whole node
        …:option=value     fabric=infiniband|roce, layout=rail|fat-tree, nodes_per_leaf=N, oversubscription=R,
                           nics=4x200 (ports of a node, Gbit/s of each)

    Raises InputError for what is not of this form, is not in the catalog, or does not fit.
    """
    shape = SHAPE.fullmatch(text.strip())
    if shape is None:
        raise InputError(f"'{text}' is no cluster; expected NODESxGPUSxNODE such as 2x8xH100, or 72xGB200")
    first, second, name, options = shape.groups()
    node = named(name)
    if second is not None:
        nodes, gpus = int(first), int(second)
    elif first is not None:
        gpus = min(int(first), node.gpus)
        nodes = -(-int(first) // node.gpus)
        if nodes * gpus != int(first):
            raise InputError(f"{text}: {first} GPUs do not fill nodes of {node.gpus}; say NODESx{node.gpus}x{name}")
    else:
        nodes, gpus = 1, node.gpus
    if not 1 <= gpus <= node.gpus or nodes < 1:
        raise InputError(f"{text}: a node {node.key} has {node.gpus} GPUs, got {nodes} nodes of {gpus}")
    if nodes > MOST_NODES:
        raise InputError(f"{text}: more than {MOST_NODES:,} nodes")
    return _with_options(Cluster(node, nodes, gpus), options, text)


def _with_options(cluster: Cluster, options: str | None, text: str) -> Cluster:
    seen: set[str] = set()
    for option in (options or "").split(",") if options else ():
        name, _, value = option.partition("=")
        if name in seen:
            raise InputError(f"{text}: {name} is given twice")
        seen.add(name)
        try:
            if name == "nics":
                count, _, gbit = value.partition("x")
                node = replace(cluster.node, nics=int(count), nic_bytes_per_second=float(gbit) * 1e9 / 8)
                if not 1 <= node.nics <= 64 or not 0 < node.nic_bytes_per_second < 1e13:
                    raise ValueError(value)
                cluster = replace(cluster, node=node)
            elif name == "nodes_per_leaf" and int(value) > 0:
                cluster = replace(cluster, nodes_per_leaf=int(value))
            elif name == "oversubscription" and 1 <= float(value) < 1000:
                cluster = replace(cluster, oversubscription=float(value))
            elif name == "fabric" and value in ("infiniband", "roce"):
                cluster = replace(cluster, fabric=value)
            elif name == "layout" and value in ("rail", "fat-tree"):
                cluster = replace(cluster, layout=value)
            else:
                raise ValueError(value)
        except ValueError:
            raise InputError(f"{text}: '{option}' is no option; expected fabric=infiniband|roce, layout=rail|fat-tree, "
                             "nodes_per_leaf=N, oversubscription=R (1 or more), nics=COUNTxGBIT") from None
    return cluster
