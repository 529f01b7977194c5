"""This file knows about the topology tree that a job on nodes of the catalog would dump.

    >>> from sublight.cluster import parse
    >>> tree = system_of(parse("2x4xH100"))
    >>> [cpu.attributes["numaid"] for cpu in tree.children], len(tree.children[0].children)
    (['0', '1'], 4)
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from sublight.cluster import Cluster, Node
from sublight.comm.topology.xml import Tag
from sublight.errors import InputError

SWITCH = {"class": "0x060400", "vendor": "0x0000", "device": "0x0000", "subsystem_vendor": "0x0000",
          "subsystem_device": "0x0000"}
NIC = {"class": "0x020700", "vendor": "0x15b3", "device": "0x0000", "subsystem_vendor": "0x15b3",
       "subsystem_device": "0x0000"}
NVSWITCH, GPU = "0x068000", "0x030200"   # PCI classes
GENERATIONS = {16: "8.0 GT/s PCIe", 32: "16.0 GT/s PCIe", 64: "32.0 GT/s PCIe", 128: "64.0 GT/s PCIe"}  # by GB/s, x16


def system_of(cluster: Cluster) -> Tag:
    """The tree of one node of the cluster, or of all nodes that share an NVLink domain: GPUs that take part, all NICs.

    Where the catalog does not say it, GPUs and NICs lie evenly under two CPUs and their switches. Raises InputError for
    a node whose NVLink or PCIe the catalog describes in no way that NCCL knows.
    """
    node = cluster.node
    hosts = min(cluster.nodes, node.domain // node.gpus) if node.domain > node.gpus else 1
    cpus = [cpu for host in range(hosts) for cpu in _host(node, host, cluster.gpus_per_node)]
    return Tag("system", {"version": "1"}, tuple(cpus))


def _host(node: Node, host: int, gpus: int) -> list[Tag]:
    sockets = 2 if node.gpus > 1 else 1
    switches = max(1, node.gpus // node.gpus_per_switch) if node.gpus_per_switch else node.gpus
    rows: list[list[Tag]] = [[] for _ in range(sockets)]
    for switch in range(switches):
        inside = [_gpu(node, number, host * gpus + number) for number in range(gpus)
                  if number * switches // node.gpus == switch]
        inside += [_nic(node, host, number) for number in range(node.nics) if number * switches // node.nics == switch]
        if node.gpus_per_switch and inside:
            inside = [Tag("pci", {"busid": _bus(switch, 0), **SWITCH, **_link(node)}, tuple(inside))]
        rows[switch * sockets // switches] += inside
    common = {"host_hash": hex(host + 1), **node.cpu}
    return [Tag("cpu", {**common, "numaid": str(socket)}, tuple(row)) for socket, row in enumerate(rows)]


def _bus(one: int, other: int) -> str:
    return f"{one:04x}:{other:02x}:00.0"


def _gpu_bus(number: int) -> str:
    return _bus(0x100 + number, 0)


def _link(node: Node) -> dict[str, str]:
    rate = round(node.pcie_bytes_per_second / 1e9)
    if rate not in GENERATIONS:
        raise InputError(f"{node.key}: {rate} GB/s is no PCIe x16 slot; known: {', '.join(map(str, GENERATIONS))}")
    return {"link_speed": GENERATIONS[rate], "link_width": "16"}


def _gpu(node: Node, number: int, rank: int) -> Tag:
    if node.device.capability is None:
        raise InputError(f"{node.key}: its device {node.device.key} has no compute capability, which NCCL needs")
    major, minor = node.device.capability
    vendor, device = _pci_id(node.device.key)
    about = {"dev": str(number), "sm": str(major * 10 + minor), "rank": str(rank), "gdr": "1"}
    links = list(_nvlinks(node, number))
    if node.c2c_bytes_per_second:
        links.append(Tag("c2c", {"bw": str(round(node.c2c_bytes_per_second / 1e6)), "count": "1"}))
    card = {"busid": _gpu_bus(number), "class": GPU, "vendor": vendor, "device": device, "subsystem_vendor": vendor,
            "subsystem_device": "0x0000"}
    return Tag("pci", {**card, **_link(node)}, (Tag("gpu", about, tuple(links)),))


def _nvlinks(node: Node, number: int) -> list[Tag]:
    if node.nvlink == "none" or not node.links:
        return []
    if node.nvlink == "switch":
        return [Tag("nvlink", {"target": "0000:f0:00.0", "count": str(node.links), "tclass": NVSWITCH})]
    each, left = divmod(node.links, node.gpus - 1)
    if node.nvlink != "mesh" or left or not each:
        raise InputError(f"{node.key}: {node.links} NVLinks ({node.nvlink}) do not join {node.gpus} GPUs each with "
                         "each; give a topology file")
    return [Tag("nvlink", {"target": _gpu_bus(other), "count": str(each), "tclass": GPU})
            for other in range(node.gpus) if other != number]


def _nic(node: Node, host: int, number: int) -> Tag:
    port = {"name": f"mlx5_{number}", "dev": str(number), "speed": str(round(node.nic_bytes_per_second * 8 / 1e6)),
            "port": "1", "latency": "0.000000", "guid": hex((host << 8) + number + 1), "maxconn": "131072", "gdr": "1"}
    return Tag("pci", {"busid": _bus(0x200 + number, 0), **NIC, **_link(node)}, (Tag("nic", {}, (Tag("net", port),)),))


@cache
def _pci_ids() -> dict[str, str]:
    table = tomllib.loads(resources.files("sublight.catalog").joinpath("pci.toml").read_text("utf-8"))["gpus"]
    return {row["device"]: number for number, row in reversed(table.items())}


def _pci_id(device: str) -> tuple[str, str]:
    """Vendor and device as a topology file has them; NVIDIA's vendor and no device where the catalog has none."""
    vendor, _, number = _pci_ids().get(device, "10de:0000").partition(":")
    return f"0x{vendor}", f"0x{number}"
