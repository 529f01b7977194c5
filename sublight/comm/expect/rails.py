"""This file knows about the time of a collective between NVLink domains: bytes over the network ports, and latency.

    wire     bytes through one port / (line rate x share)                share: fitted
    latency  factor x what NCCL states for what it takes                 factor: fitted
    ring     sqrt(wire² + latency²)      steps hide behind data of other chunks
    tree     wire + latency              the pipeline fills and drains once
    others   wire + base + each peer     all-to-all, send and receive

Which algorithm and protocol NCCL takes is asked of its own model (protocol.py); so the switch points are NCCL's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.cluster import Cluster
from sublight.comm.bus import bus_bytes
from sublight.comm.expect.inside import in_box, inside_s, kind_of
from sublight.comm.expect.protocol import Box, Protocol, chain_latency_s, protocols
from sublight.comm.expect.wire import inside_bytes, wire_bytes
from sublight.comm.expected import Expected
from sublight.errors import InputError
from sublight.work import Message

FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
             "broadcast": "Broadcast", "reduce": "Reduce"}
PEER_TO_PEER = ("all_to_all", "send_recv")
PEERS = "send and receive"
# Bytes of payload over bytes on the wire. LL: 4 of 8; LL128: 0.92 (NCCL, src/graph/tuning.cc)
PAYLOAD = {"Simple": 1.0, "LL128": 0.92, "LL": 0.5}
MEASURED = "h100-sxm"                    # the device, and the line rate, of the nodes that were measured
MEASURED_GBIT, MEASURED_DOMAINS, MEASURED_RANKS = 400.0, 10, 80
SMALLEST = 32 << 20                      # bytes; nothing smaller was measured between nodes
UNKNOWN = 256 << 10                      # bytes; from here down latency is as unknown as it gets, see `_unknown`
CROWDED = 8                              # ports of a domain that are busy at once
DOUBTFUL = 1.5                           # times slower than another algorithm: the interval reaches down to that one
OVERLAP = 6.0                            # exponent that joins network and NVLink where both are busy, see `moving`


@dataclass(frozen=True, slots=True)
class Rails:
    """Fitted constants. Widths are half an 80 % interval, in natural logarithms, of one part of the time."""

    share: Mapping[str, float]           # of a port's line rate, by "ring", "all_to_all", "send_recv"
    share_per_doubling: Mapping[str, float]      # added to 1 / share for each doubling of a domain's GPUs
    latency_factor: float                # measured latency over the one that NCCL states
    base_s: Mapping[str, float]          # of all-to-all and of send and receive
    peer_s: Mapping[str, float]          # added for each peer of another domain
    nvlink_share: Mapping[str, float]    # of a GPU's link rate, inside, by collective
    wire_width: float
    latency_width: float
    overlap_width: float                 # times the logarithm of what overlap adds
    crowded_factor: float                # on the wire where a domain uses 8 ports or more, but of all-to-all
    crowded_width: float
    source: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Parts of one collective in seconds. hidden: latency hides behind data, as in a ring."""

    latency_s: float
    rail_s: float
    nvlink_s: float
    spine_s: float
    hidden: bool
    name: str                            # what NCCL takes: "Ring/Simple"
    ports: int = 1                       # that a domain uses
    unknown: float = 0.0                 # 0: latency as fitted, 1: halfway, in logarithms, to what NCCL states

    @property
    def moving_s(self) -> float:
        """Network and NVLink side by side: a norm, so that the slower one leads and equal ones disturb each other."""
        network = max(self.rail_s, self.spine_s)
        slower, faster = max(network, self.nvlink_s), min(network, self.nvlink_s)
        return slower * (1 + (faster / slower) ** OVERLAP) ** (1 / OVERLAP) if slower else 0.0

    @property
    def seconds(self) -> float:
        return math.hypot(self.latency_s, self.moving_s) if self.hidden else self.latency_s + self.moving_s


@cache
def shipped() -> Rails:
    """The constants of catalog/comm/rails.toml."""
    return parsed(tomllib.loads(resources.files("sublight.catalog").joinpath("comm/rails.toml").read_text("utf-8")))


def parsed(table: Mapping[str, Any]) -> Rails:
    """The constants of a document in the form of catalog/comm/rails.toml."""
    rails = table["rails"]
    return Rails(
        share=dict(rails["share"]), share_per_doubling=dict(rails["share_per_doubling"]),
        latency_factor=rails["latency_factor"],
        base_s={k: v * 1e-6 for k, v in rails["base_us"].items()},
        peer_s={k: v * 1e-6 for k, v in rails["peer_us"].items()}, nvlink_share=dict(rails["nvlink_share"]),
        wire_width=rails["width"]["wire"], latency_width=rails["width"]["latency"],
        overlap_width=rails["width"]["overlap"],
        crowded_factor=rails["crowded_factor"], crowded_width=rails["width"]["crowded"], source=rails["source"],
    )


def box_of(cluster: Cluster) -> Box:
    """What NCCL's model reads of the domains of a cluster. Raises InputError for ranks that do not fill domains."""
    node, domain = cluster.node, cluster.domain
    if cluster.ranks % domain:
        raise InputError(f"{cluster.ranks} ranks do not fill NVLink domains of {domain}; expected a multiple of them")
    if node.nics < 1:
        raise InputError(f"{node.key} has no network port: nothing is expected between nodes; say nics=COUNTxGBIT")
    trays = max(1, domain // node.gpus)
    used = node.nics * trays if domain >= node.gpus else _near(cluster.gpus_per_node, node.gpus, node.nics)
    capability = node.device.capability or (0, 0)
    return Box(domain, cluster.ranks // domain, used, node.nic_bytes_per_second * 8 / 1e9,
               capability[0] * 10 + capability[1], node.links, node.nvlink == "switch", node.cpu.get("vendor", ""))


def _near(gpus: int, of_gpus: int, nics: int) -> int:
    """NICs that some of a node's GPUs use: each its own, and no more than there are."""
    return gpus * nics // of_gpus if nics >= of_gpus else min(nics, gpus)


def costs(message: Message, cluster: Cluster, *, dtype: str, rails: Rails) -> tuple[Cost, ...]:
    """The parts of a collective between domains, by each algorithm and protocol, that of NCCL's choice first. Raises
    InputError for a collective that is not known."""
    box = box_of(cluster)
    name = message.collective
    if name in PEER_TO_PEER:
        return (_peer_to_peer(message, cluster, box, rails),)
    if name not in FUNCTIONS:
        known = ", ".join([*FUNCTIONS, *PEER_TO_PEER])
        raise InputError(f"no expected time of '{name}' between nodes; expected one of {known}")
    candidates = protocols(FUNCTIONS[name], message.nbytes, box, dtype=_nccl_type(name, dtype))
    return tuple(_collective(message, cluster, box, taken, dtype=dtype, rails=rails) for taken in candidates)


def cost(message: Message, cluster: Cluster, *, dtype: str, rails: Rails) -> Cost:
    """The parts of a collective by what NCCL takes for it. Raises InputError as `costs` does."""
    return costs(message, cluster, dtype=dtype, rails=rails)[0]


def _collective(
    message: Message, cluster: Cluster, box: Box, taken: Protocol, *, dtype: str, rails: Rails,
) -> Cost:
    name = message.collective
    ring = taken.algorithm in ("Ring", "PAT")
    payload = PAYLOAD[taken.protocol]
    wire = wire_bytes(message, box.domains, ring=ring) / payload
    rail = wire / box.nics / (cluster.node.nic_bytes_per_second * rails.share["ring"])
    inside = inside_bytes(message, box.gpus, taken.algorithm)
    spine = rail * _ring_uplinks(cluster, box) * cluster.oversubscription
    if box.nics >= CROWDED:
        rail *= rails.crowded_factor
    if taken.protocol == "LL":                       # slower than half the wire; NCCL's own rate, not measured
        rail = max(rail, taken.moving_s)
    unknown = _unknown(message.nbytes, taken.protocol)
    stated = chain_latency_s(taken.protocol, box) if name in ("broadcast", "reduce") else taken.latency_s
    return Cost(latency_s=stated * rails.latency_factor ** (1 - unknown / 2), rail_s=rail,
                nvlink_s=inside_s(message, inside, cluster, dtype=dtype,
                                  share=payload * rails.nvlink_share[kind_of(name, taken.algorithm, box.sm)]),
                spine_s=spine, hidden=ring, name=f"{taken.algorithm}/{taken.protocol}",
                ports=box.nics, unknown=unknown)


def _nccl_type(name: str, dtype: str) -> str:
    """NCCL's type: what is not reduced are bytes; fp8 is E4M3, tf32 lies in memory as fp32."""
    if name not in ("all_reduce", "reduce_scatter", "reduce"):
        return "uint8"
    return {"fp8": "fp8e4m3", "tf32": "fp32"}.get(dtype, dtype)


def _unknown(nbytes: int, protocol: str) -> float:
    """How little is known of latency: nothing below 32 MiB was measured, nor LL at any size. So the factor on what NCCL
    states falls, in logarithms, to half at 256 KiB and for LL, in small steps, and the interval grows."""
    if protocol == "LL":
        return 1.0
    return min(max(math.log2(SMALLEST / nbytes) / math.log2(SMALLEST / UNKNOWN), 0.0), 1.0)


def _ring_uplinks(cluster: Cluster, box: Box) -> float:
    """Share of a leaf's nodes whose ring hop leaves the leaf: one of them, where there are several leaves."""
    per_leaf = min(cluster.nodes_per_leaf, box.domains)
    return 0.0 if box.domains <= cluster.nodes_per_leaf else 1 / per_leaf


def leaving(cluster: Cluster, domains: int) -> float:
    """Share of an even all-to-all's network bytes that leaves the leaf: the others' nodes under other leaves."""
    if domains <= cluster.nodes_per_leaf:
        return 0.0
    return (domains - cluster.nodes_per_leaf) / (domains - 1)


def _peer_share(name: str, box: Box, rails: Rails) -> float:
    """Share of the line rate: the more GPUs a domain has, up to 8, the better its ports are filled."""
    return 1 / (1 / rails.share[name] + rails.share_per_doubling[name] * math.log2(min(box.gpus, 8)))


def _peer_to_peer(message: Message, cluster: Cluster, box: Box, rails: Rails) -> Cost:
    name, ranks = message.collective, cluster.ranks
    if name == "send_recv":                          # nccl-tests: each rank to the next; one pair of a node crosses
        out, peers, crossing = float(message.nbytes), 1, 0.0
        inside = 0.0 if box.links or box.gpus == 1 else out          # NVLink is never the slower one
        rail = out / (cluster.node.nic_bytes_per_second * _peer_share(name, box, rails))
    else:
        out = message.nbytes * (ranks - box.gpus) / ranks
        inside = message.nbytes * (box.gpus - 1) / ranks
        peers, crossing = ranks - box.gpus, leaving(cluster, box.domains)
        rail = out * box.gpus / box.nics / (cluster.node.nic_bytes_per_second * _peer_share(name, box, rails))
    return Cost(latency_s=rails.base_s[name] + peers * rails.peer_s[name], rail_s=rail,
                nvlink_s=inside_s(message, inside, cluster, share=rails.nvlink_share["all_to_all"]),
                spine_s=rail * crossing * cluster.oversubscription, hidden=False, name=PEERS, ports=box.nics)


def width(cost: Cost, rails: Rails, *, extra: float = 0.0) -> float:
    """Half of the 80 % interval in natural logarithms: each part's own, as far as it decides the time.

    From 8 ports a domain on, twice what was measured, latency counts as twice (of trees as three times) and the wire as
    1.5 times as uncertain; and there public clusters differ in how well trees fill all ports at once. Judgements, not
    fits.
    """
    moving, many = cost.moving_s, cost.ports >= CROWDED
    parts = (cost.latency_s**2, moving**2) if cost.hidden else (cost.latency_s, moving)
    of = sum(parts) or 1.0
    tree = many and not cost.hidden and cost.name != PEERS
    latency = rails.latency_width * (3 if tree else 2 if many else 1)
    latency = max(latency, cost.unknown * math.log(rails.latency_factor) / 2)
    busiest = max(cost.rail_s, cost.spine_s, cost.nvlink_s) or 1.0
    overlap = rails.overlap_width * math.log(moving / busiest) if moving else 0.0
    crowded = rails.crowded_width * parts[1] / of if tree else 0.0
    wire = rails.wire_width * (1.5 if many else 1)
    squares = (latency * parts[0] / of, wire * parts[1] / of, overlap, crowded, extra)
    return math.sqrt(sum(part**2 for part in squares))


def across(message: Message, cluster: Cluster, *, dtype: str = "bf16", rails: Rails | None = None) -> Expected:
    """What a collective should take over all ranks of a cluster of several domains: seconds with an 80 % interval.

    Raises InputError for a collective that is not known or a cluster that has no way out.
    """
    constants = rails or shipped()
    found, *others = costs(message, cluster, dtype=dtype, rails=constants)
    extra, basis, notes = transfer(message, cluster)
    half = width(found, constants, extra=extra)
    seconds = found.seconds
    inside = "NVLink" if cluster.node.links else "PCIe"
    terms = {"base latency": found.latency_s, inside: found.nvlink_s, "rail": found.rail_s, "spine": found.spine_s}
    terms = {name: value for name, value in terms.items() if value}
    said = (f"NCCL's model takes {found.name}",) if found.name != PEERS else ()
    low = seconds * math.exp(-half)
    quickest = min(others, key=lambda other: other.seconds, default=found)
    if quickest.seconds * DOUBTFUL < seconds:        # another version of NCCL, or a tuner, may choose otherwise
        low = min(low, quickest.seconds * math.exp(-half))
        said = (*said, f"by these constants {quickest.name} would take {quickest.seconds / seconds:.0%} of that")
    return Expected(seconds, low, seconds * math.exp(half), terms,
                    max(terms, key=lambda name: terms[name]), f"{constants.source}{basis}", (*said, *notes))


def transfer(message: Message, cluster: Cluster) -> tuple[float, str, tuple[str, ...]]:
    """(extra half width, what to add to the basis, notes) for each step away from what was measured.

    The steps' widths are judgements, not fits: one cluster was measured at one line rate. The one for many ranks: an
    all-reduce over 1,440 GB200 took 1.35 to 1.65 times as long as these constants say (coreweave/nccl-tests README).
    """
    box, node = box_of(cluster), cluster.node
    steps: list[tuple[float, str]] = []
    if node.device.key != MEASURED:
        steps.append((0.05, f"taken over to {node.device.title}"))
    if abs(box.gbit / MEASURED_GBIT - 1) > 0.01:
        steps.append((0.10, f"ports of {box.gbit:g} Gbit/s instead of {MEASURED_GBIT:g}"))
    if cluster.fabric != "infiniband":
        steps.append((0.10, f"{cluster.fabric} instead of infiniband"))
    if box.gpus > 8 or box.nics != min(box.gpus, 8):
        steps.append((0.15, f"{box.nics} ports for {box.gpus} GPUs"))
    if cluster.ranks > 2 * MEASURED_RANKS:
        steps.append((0.12 * math.log2(cluster.ranks / MEASURED_RANKS), f"{cluster.ranks} ranks"))
    if (far := abs(math.log2(box.domains / MEASURED_DOMAINS))) > 0.5:
        steps.append((0.03 * far, f"{box.domains} domains instead of {MEASURED_DOMAINS}"))
    if message.nbytes < SMALLEST:
        steps.append((0.10 * math.log2(SMALLEST / message.nbytes) ** 0.5, "smaller than the 32 MiB that were measured"))
    if box.domains > cluster.nodes_per_leaf or cluster.oversubscription > 1:
        steps.append((0.10, "traffic over spines, balanced over all uplinks"))
    if not node.links and box.gpus > 1:
        alone = in_box(message, bus_bytes(message) or 1.0, cluster)
        steps.append((math.log(alone.high / alone.seconds), "inside a PCIe box as long as in one alone"))
    if message.collective == "send_recv":
        steps.append((0.04, "one pair of ranks gets half a port: 24.9, 25.2, 26.2 GB/s with 1, 2, 4 GPUs a node"))
    if message.collective in ("broadcast", "reduce"):
        steps.append((0.20, f"no {message.collective} was measured; wire rate of all-gather"))
    notes = tuple(text for _, text in steps)
    return math.sqrt(sum(size**2 for size, _ in steps)), "; by transfer" if steps else "", notes

