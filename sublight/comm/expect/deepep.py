"""This file knows about the time of DeepEP's and NCCL EP's kernels between and inside nodes.

Normal kernels copy through SMs and NVLink and send one copy of a token to each node over the network:

    copies   (distinct ranks + distinct nodes) x row x tokens' / SMs      tokens' counts the first twice: pipelines fill
    rail     distinct remote nodes x row x tokens' / port rate
    time     base + (copies^4 + rail^4)^(1/4), and no less than all copies over NVLink

Low-latency kernels send a copy for each expert straight to its rank:

    time     base x f^g + payload x f / port rate                         f = share of ranks on other nodes
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
from sublight.comm.expect.experts import SPREADING, Exchange, Traffic, traffic
from sublight.comm.expect.rails import MEASURED, MEASURED_GBIT, box_of, leaving
from sublight.comm.expected import Expected
from sublight.errors import InputError

JOIN = 4.0                               # exponent that joins SM copies and the network
USUAL_SMS = 20                           # DeepEP V1: Buffer.num_sms
MOST_TOKENS = 256                        # of low-latency kernels between nodes that were measured


@dataclass(frozen=True, slots=True)
class Normal:
    """Constants of one normal kernel, dispatch or combine. Times in seconds."""

    inside_base_s: float                 # one node
    inside_copy_s: float                 # of one SM for one byte
    base_s: float                        # several nodes
    base_power: float                    # of the share of ranks on other nodes
    copy_s: float                        # of one SM for one byte
    start_tokens: float
    share: float                         # of a port's line rate
    nvlink_share: float                  # of a GPU's link rate, counting the own rank's copies
    width: float                         # half an 80 % interval of the part that grows with tokens
    base_width: float


@dataclass(frozen=True, slots=True)
class LowLatency:
    """Constants of one low-latency kernel."""

    inside_base_s: float                 # one node
    inside_share: float                  # of a GPU's link rate
    base_s: float
    base_power: float
    share: float                         # of a port's line rate
    width: float
    base_width: float


@dataclass(frozen=True, slots=True)
class Inside:
    """Constants of one kernel on one node of one device. copy_s is 0 for low-latency kernels, which use all SMs."""

    base_s: float
    copy_s: float                        # of one SM for one byte
    share: float                         # of a GPU's link rate
    width: float                         # half an 80 % interval of the part that grows with tokens
    base_width: float
    ranks: int                           # that were measured
    source: str


@dataclass(frozen=True, slots=True)
class Library:
    """Constants of both phases of one kernel family, and where they are from."""

    phases: Mapping[str, Normal | LowLatency]
    source: str


@cache
def shipped() -> Mapping[str, Library]:
    """The families of catalog/comm/experts.toml by mode."""
    return parsed(tomllib.loads(resources.files("sublight.catalog").joinpath("comm/experts.toml").read_text("utf-8")))


def parsed(table: Mapping[str, Any]) -> dict[str, Library]:
    """The families of a document in the form of catalog/comm/experts.toml."""
    found: dict[str, Library] = {}
    for mode in ("normal", "deepep-v2", "low-latency", "nccl-ep"):
        kind = Normal if mode in SPREADING else LowLatency
        found[mode] = Library({phase: kind(**table[mode][phase]) for phase in ("dispatch", "combine")},
                              table[mode]["source"])
    return found


@cache
def shipped_inside() -> Mapping[tuple[str, str, str], Inside]:
    """Constants inside one node by (mode, phase, device), of catalog/comm/experts-inside.toml."""
    text = resources.files("sublight.catalog").joinpath("comm/experts-inside.toml").read_text("utf-8")
    table = tomllib.loads(text)
    return {(mode, phase, device): Inside(**row, source=table["source"][device])
            for mode in ("normal", "low-latency") for phase in ("dispatch", "combine")
            for device, row in table[mode][phase].items()}


@dataclass(frozen=True, slots=True)
class Parts:
    """Terms of one exchange in seconds, the sum that the model makes of them, and the base within it."""

    seconds: float
    base_s: float
    terms: Mapping[str, float]


def normal(exchange: Exchange, cluster: Cluster, constants: Normal) -> Parts:
    """The parts of a normal dispatch or combine."""
    found = traffic(exchange)
    sms = min(exchange.sms or USUAL_SMS, cluster.node.device.sms)    # constants of deepep-v2 have no SM term
    link = _link(cluster)
    if exchange.nodes == 1:
        volume = exchange.tokens * exchange.row_bytes * found.ranks * found.hot_rank
        copies, wires = volume * constants.inside_copy_s / sms, volume / (link * constants.nvlink_share)
        terms = {"base latency": constants.inside_base_s, "SM copies": copies, "NVLink": wires}
        return Parts(constants.inside_base_s + max(copies, wires), constants.inside_base_s, terms)
    tokens = exchange.tokens + constants.start_tokens * (1 - math.exp(-exchange.tokens / constants.start_tokens))
    volume = tokens * exchange.row_bytes
    copies = volume * (found.ranks * found.hot_rank + found.nodes * found.hot_node) * constants.copy_s / sms
    rail, spine = _network(volume * found.remote_nodes * found.hot_node, exchange, cluster, constants.share)
    wires = volume * found.ranks * found.hot_rank / (link * constants.nvlink_share)
    base = constants.base_s * _remote(exchange) ** constants.base_power
    joined = (copies**JOIN + max(rail, spine) ** JOIN) ** (1 / JOIN)
    terms = {"base latency": base, "SM copies": copies, "NVLink": wires, "rail": rail, "spine": spine}
    return Parts(base + max(joined, wires), base, terms)


def low_latency(exchange: Exchange, cluster: Cluster, constants: LowLatency) -> Parts:
    """The parts of a low-latency dispatch or combine."""
    found = traffic(exchange)
    if exchange.nodes == 1:
        wires = exchange.payload_bytes * found.hot_rank / (_link(cluster) * constants.inside_share)
        return Parts(constants.inside_base_s + wires, constants.inside_base_s,
                     {"base latency": constants.inside_base_s, "NVLink": wires})
    share = _remote(exchange)
    rail, spine = _network(exchange.payload_bytes * share * _hot(found), exchange, cluster, constants.share)
    base = constants.base_s * share**constants.base_power
    return Parts(base + max(rail, spine), base, {"base latency": base, "rail": rail, "spine": spine})


def inside(exchange: Exchange, cluster: Cluster, constants: Inside) -> Parts:
    """The parts of a dispatch or combine on one node."""
    found = traffic(exchange)
    if constants.copy_s:
        volume = exchange.tokens * exchange.row_bytes * found.ranks * found.hot_rank
        copies = volume * constants.copy_s / min(exchange.sms or USUAL_SMS, cluster.node.device.sms)
    else:
        volume, copies = exchange.payload_bytes * found.hot_rank, 0.0
    wires = volume / (_link(cluster) * constants.share)
    terms = {"base latency": constants.base_s, "SM copies": copies, "NVLink": wires}
    return Parts(constants.base_s + max(copies, wires), constants.base_s, terms)


def _hot(found: Traffic) -> float:
    return max(found.hot_node, found.hot_rank)


def _remote(exchange: Exchange) -> float:
    """Share of ranks that lie on other nodes."""
    return (exchange.nodes - 1) / exchange.nodes


def _link(cluster: Cluster) -> float:
    rate = cluster.node.device.limits.link_bytes_per_second
    if not cluster.node.links or not rate:
        raise InputError(f"{cluster.node.key} has no NVLink, which these kernels need inside a node")
    return rate


def _network(nbytes: float, exchange: Exchange, cluster: Cluster, share: float) -> tuple[float, float]:
    """(rail, spine): seconds for what one rank sends to other nodes, if its node's ports are shared evenly.

    Normal kernels stay on their rail: the same local rank takes a node's copy and spreads it. The others write straight
    to the expert's rank, which is on another rail but for one in as many as there are.
    """
    box = box_of(cluster)
    rail = nbytes * box.gpus / box.nics / (cluster.node.nic_bytes_per_second * share)
    crossing = leaving(cluster, exchange.nodes)
    if exchange.mode not in SPREADING and cluster.layout == "rail":
        crossing = 1 - (1 - crossing) / box.nics
    return rail, rail * crossing * cluster.oversubscription


def expected(exchange: Exchange, cluster: Cluster, *, library: Library | None = None) -> Expected:
    """What an exchange of these kernels should take, with an 80 % interval. Raises InputError for what is not known."""
    _refuse_form(exchange, cluster)
    if exchange.nodes == 1 and library is None:
        known = shipped_inside().get((exchange.mode, exchange.phase, cluster.node.device.key))
        if known is not None:
            return _inside(exchange, cluster, known)
    family = library or shipped()[exchange.mode]
    constants = family.phases[exchange.phase]
    parts = (normal(exchange, cluster, constants) if isinstance(constants, Normal)
             else low_latency(exchange, cluster, constants))
    extra, notes = transfer(exchange, cluster)
    half = width(parts, constants, extra=extra)
    terms = {name: value for name, value in parts.terms.items() if value}
    return Expected(parts.seconds, parts.seconds * math.exp(-half), parts.seconds * math.exp(half), terms,
                    max(terms, key=lambda name: terms[name]), family.source + ("; by transfer" if extra else ""),
                    (*_assumed(exchange), *notes))


def _refuse_form(exchange: Exchange, cluster: Cluster) -> None:
    form, device = exchange.row_form, cluster.node.device
    if form == "nvfp4" or (form == "fp8" and exchange.phase == "combine"):
        raise InputError(f"{exchange.mode}: a {exchange.phase} of {form} rows was not measured; expected bf16"
                         + (" or fp8" if exchange.phase == "dispatch" else ""))
    if form == "fp8" and (device.capability or (0, 0)) < (8, 9):
        raise InputError(f"{exchange.mode}: {device.title} has no fp8; expected rows of bf16 (--form bf16)")


def _inside(exchange: Exchange, cluster: Cluster, constants: Inside) -> Expected:
    parts = inside(exchange, cluster, constants)
    far = abs(math.log2(exchange.ranks / constants.ranks))
    half = width(parts, constants, extra=0.10 * far)
    notes = (f"{exchange.ranks} ranks instead of {constants.ranks}",) if far else ()
    terms = {name: value for name, value in parts.terms.items() if value}
    return Expected(parts.seconds, parts.seconds * math.exp(-half), parts.seconds * math.exp(half), terms,
                    max(terms, key=lambda name: terms[name]), constants.source, (*_assumed(exchange), *notes))


def width(parts: Parts, constants: Normal | LowLatency | Inside, *, extra: float = 0.0) -> float:
    """Half of the 80 % interval in natural logarithms."""
    share = parts.base_s / parts.seconds
    return math.sqrt((constants.base_width * share) ** 2 + (constants.width * (1 - share)) ** 2 + extra**2)


def _assumed(exchange: Exchange) -> tuple[str, ...]:
    rows = f"{exchange.row_form} rows" + (" with a scale for 128 values" if exchange.row_form == "fp8" else "")
    even = "even routing" if exchange.routing.even else "uneven routing: the busiest rank and node are charged"
    sms = (f"{exchange.sms or USUAL_SMS} SMs",) if exchange.mode == "normal" else ()
    if exchange.mode == "deepep-v2":
        sms = ("with as many SMs as it takes itself, 6 to 12 between nodes; fewer were not measured",)
    limit = (f"each token goes to at most {exchange.group_limit} nodes",) if exchange.group_limit else ()
    apart = ("the notify kernel before it is not in it",) if exchange.mode == "normal" and exchange.nodes > 1 else ()
    return (rows, even, *sms, *limit, *apart)


def transfer(exchange: Exchange, cluster: Cluster) -> tuple[float, tuple[str, ...]]:
    """(extra half width, notes) for each step away from what was measured. Widths of steps are judgements."""
    node, steps = cluster.node, list[tuple[float, str]]()
    if node.device.key != MEASURED:
        steps.append((0.08, f"taken over to {node.device.title}"))
    gbit = node.nic_bytes_per_second * 8 / 1e9
    if exchange.nodes > 1 and abs(gbit / MEASURED_GBIT - 1) > 0.01:
        steps.append((0.10, f"ports of {gbit:g} Gbit/s instead of {MEASURED_GBIT:g}"))
    if exchange.nodes > 1 and cluster.fabric != "infiniband":
        steps.append((0.10, f"{cluster.fabric} instead of infiniband"))
    fitted = 4 if exchange.mode in SPREADING else 8
    if exchange.nodes > fitted:
        steps.append(((0.2 if exchange.mode in SPREADING else 0.05) * math.log2(exchange.nodes / 4),
                      f"{exchange.nodes} nodes: more than the {fitted} that were fitted"))
    if exchange.mode == "low-latency" and exchange.nodes > 1 and exchange.tokens > MOST_TOKENS:
        steps.append((0.05 * math.log2(exchange.tokens / MOST_TOKENS),
                      f"{exchange.tokens} tokens: more than the {MOST_TOKENS} that were measured between nodes"))
    if exchange.per_node != 8:
        steps.append((0.10, f"{exchange.per_node} ranks a node instead of 8"))
    if exchange.nodes > cluster.nodes_per_leaf or cluster.oversubscription > 1:
        steps.append((0.10, "traffic over spines, balanced over all uplinks"))
    return math.sqrt(sum(size**2 for size, _ in steps)), tuple(text for _, text in steps)
