"""This file knows about the time of collectives in a step: custom all-reduces, NCCL, exchanges of tokens with experts.

Times are sublight.comm.expect's, worked out at KNOTS sizes in each octave and interpolated between in log space:

    all-reduce up to 4 MiB in one NVLink domain, by an engine    one-shot or two-shot kernels under a CUDA graph
    all-to-all, by an engine                                     DeepEP, or the exchange of NVL72
    everything else                                              NCCL; several domains over network ports

Groups are packed: they fill NVLink domains one after the other. A message between two stages leaves the domain where
the cluster has several. Where the engine's own all-reduce was measured and its table is installed, the ratio to it is
used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, log, log2

from sublight import ops
from sublight.bound import bound
from sublight.cluster import Cluster
from sublight.comm.expect import Exchange, expect, expected_exchange
from sublight.comm.expect.custom import LARGEST, Shots, parts, shipped
from sublight.comm.expected import Expected
from sublight.errors import InputError
from sublight.ops.op import Op, Operand
from sublight.predict.machine import Machine
from sublight.predict.operators import silicon
from sublight.predict.operators.constants import distance
from sublight.predict.optime import OpTime, combined
from sublight.work import Message

ENGINES = ("vllm", "sglang", "trtllm")   # whose own all-reduces and exchanges are taken; others call NCCL
RATES = {"base latency": "fixed", "host": "fixed", "NVLink": "nvlink", "PCIe": "nvlink", "SM copies": "vector",
         "rail": "nic", "spine": "nic"}
EIGHTY = 1.2816                          # half an 80 % interval in standard deviations
FEWEST_BYTES = 256
KNOTS = 2
# An exchange's message does not say how many copies a token has, nor how wide it is: those of DeepSeek-V3, 8 of 7168.
COPIES, WIDTH, EXPERTS = 8, 7168, 256
LOW_LATENCY = 256                        # tokens of a rank, up to which engines take DeepEP's low-latency kernels
SPREAD_TABLE = 0.05
# Tables of all-reduces that are another library's measurement: bench/fit_operators.py --report.
COPIED = {("l40s", "trtllm")}
# Base latency of an engine's all-reduces over that of all three together, on Hopper and Blackwell: medians of graph
# rows up to 32 KiB, 2 to 8 ranks, H100 to GB300 (aiconfigurator-core 0.12.0, comm). On A100 all three agree.
BASES = {"vllm": 1.38, "sglang": 0.85, "trtllm": 0.95}
SPREAD_UNKNOWN = 0.7


@dataclass(frozen=True, slots=True)
class Knot:
    """Seconds by rate at one size."""

    fixed: float
    nvlink: float
    nic: float
    vector: float
    spread: float
    transfer: bool

    @property
    def seconds(self) -> float:
        return self.fixed + self.nvlink + self.nic + self.vector


def time(op: Op, where: Machine) -> OpTime:
    """Of a Communication; nothing where one rank is all there is."""
    assert isinstance(op, ops.Communication)
    nbytes = Operand(op.elements, op.form).nbytes
    if op.group < 2 or nbytes < 1:
        return OpTime(0.0, {"fixed": 1.0}, 0.0, "constants")
    least = bound(op.work(), where.device.limits)
    knot = _between(op.collective, op.group, op.form, nbytes, where)
    ratio = _table_ratio(op, nbytes, knot, where)
    return combined({"nvlink": knot.nvlink, "nic": knot.nic, "vector": knot.vector}, where, fixed=knot.fixed, p=1.0,
                    ratio=1.0 if ratio is None else ratio, spread=knot.spread if ratio is None else SPREAD_TABLE,
                    basis="table" if ratio is not None else "transfer" if knot.transfer else "constants",
                    least=least.seconds if least else 0.0)


def _between(collective: str, group: int, form: str, nbytes: int, where: Machine) -> Knot:
    """Between two knots."""
    place = KNOTS * log2(max(nbytes, FEWEST_BYTES))
    low = int(place)
    one = _knot(collective, group, form, low, where)
    share = place - low
    if not share:
        return one
    other = _knot(collective, group, form, low + 1, where)
    left = 1 - share
    seconds = exp(left * log(one.seconds) + share * log(other.seconds))
    scale = seconds / (left * one.seconds + share * other.seconds)
    left, share = scale * left, scale * share
    return Knot(left * one.fixed + share * other.fixed, left * one.nvlink + share * other.nvlink,
                left * one.nic + share * other.nic, left * one.vector + share * other.vector,
                max(one.spread, other.spread), one.transfer)


def _knot(collective: str, group: int, form: str, place: int, where: Machine) -> Knot:
    key = ("collective", collective, group, form if collective == "all_to_all" else "bf16", place)
    if key not in where.memo:
        cluster = _holding(where.cluster, collective, group)
        where.memo[key] = _by_rate(_expected(collective, group, form, round(2 ** (place / KNOTS)), cluster, where))
    found: Knot = where.memo[key]
    return found


def _holding(cluster: Cluster, collective: str, group: int) -> Cluster:
    """The cluster, or one with as many nodes as the group needs; group 2 of stages in two domains, where there are."""
    nodes = ceil(group / cluster.gpus_per_node)
    if collective == "send_recv" and cluster.ranks > cluster.domain:
        nodes = max(nodes, 2 * cluster.domain // cluster.gpus_per_node)
    return cluster if nodes <= cluster.nodes else replace(cluster, nodes=nodes)


def _expected(
    collective: str, group: int, form: str, nbytes: int, cluster: Cluster, where: Machine,
) -> Expected:
    inside = group <= cluster.domain
    if where.library in ENGINES and cluster.node.links:
        if collective == "all_reduce" and inside and nbytes <= LARGEST:
            found = _custom(group, nbytes, cluster, where.library)
            if found is not None:
                return found
        if collective == "all_to_all":
            try:
                return expected_exchange(_exchange(group, form, nbytes, cluster), cluster)
            except InputError:           # not measured there: NCCL's
                pass
    if collective == "send_recv" and cluster.ranks > cluster.domain:
        group = 2 * cluster.domain
    elif not inside:
        group = ceil(group / cluster.gpus_per_node) * cluster.gpus_per_node
    try:
        return expect(Message(collective, group, nbytes), cluster)
    except InputError:
        return _link_bound(Message(collective, group, nbytes), cluster)


def _custom(group: int, nbytes: int, cluster: Cluster, library: str) -> Expected | None:
    """The faster of one-shot and two-shot; of a device that was not measured, the nearest one's, at its own links."""
    device = cluster.node.device
    key, shots = nearest_shots(cluster)
    if group > max(shots.largest_group, 8):
        return None
    donor, own = _link(key), device.limits.link_bytes_per_second or 0.0
    slower = donor / own if own else 1.0
    base, moving = min((parts(shots, kind=kind, ranks=group, nbytes=nbytes) for kind in ("one-shot", "two-shot")),
                       key=lambda part: part[0] + part[1] * slower)
    base *= BASES[library] if (device.capability or (9, 0)) >= (9, 0) else 1.0
    moving, width = moving * slower, shots.width + (0.0 if key == device.key else 0.25)
    seconds = base + moving
    return Expected(seconds, seconds * exp(-width), seconds * exp(width), {"base latency": base, "NVLink": moving},
                    "NVLink" if moving > base else "base latency", "" if key == device.key else "by transfer")


def nearest_shots(cluster: Cluster) -> tuple[str, Shots]:
    """Whose all-reduce constants stand for a device: (its key, constants)."""
    from sublight.device import by_key

    known = shipped().shots
    device = cluster.node.device
    key = device.key if device.key in known else min(known, key=lambda other: distance(device, by_key(other)))
    return key, known[key]


def _link(key: str) -> float:
    from sublight.device import by_key

    return by_key(key).limits.link_bytes_per_second or 0.0


def _exchange(group: int, form: str, nbytes: int, cluster: Cluster) -> Exchange:
    """A dispatch where rows are fp8, else a combine; what the message does not say is DeepSeek-V3's."""
    tokens = max(1, round(nbytes / Operand(COPIES * WIDTH, form).nbytes))
    wide = cluster.node.domain > cluster.node.gpus and group > cluster.node.gpus
    mode = "nvl72-alltoall" if wide else "low-latency" if tokens <= LOW_LATENCY else "normal"
    return Exchange("dispatch" if form == "fp8" else "combine", tokens=tokens, top_k=COPIES, hidden=WIDTH,
                    experts=ceil(EXPERTS / group) * group, ranks=group, per_node=min(cluster.domain, group), mode=mode)


def _link_bound(message: Message, cluster: Cluster) -> Expected:
    """Where no constants reach: 10 us, and the bytes at half of the slowest link's rate. A judgement."""
    inside = message.group <= cluster.domain
    node = cluster.node
    rate = (node.device.limits.link_bytes_per_second or node.pcie_bytes_per_second) if inside else (
        node.nic_bytes_per_second * max(1, node.nics) / node.gpus)
    factor = 2.0 if message.collective == "all_reduce" else 1.0
    moving = factor * message.nbytes / (0.5 * (rate or 1e10))
    seconds = 1e-5 + moving
    return Expected(seconds, seconds * exp(-EIGHTY * SPREAD_UNKNOWN), seconds * exp(EIGHTY * SPREAD_UNKNOWN),
                    {"base latency": 1e-5, "NVLink" if inside else "rail": moving}, "rail", "by transfer")


def _by_rate(found: Expected) -> Knot:
    """What is not base latency is shared by the terms, which overlap, in proportion to their squares."""
    fixed = min(found.seconds, sum(s for name, s in found.terms.items() if RATES[name] == "fixed"))
    moving: Mapping[str, float] = {name: s for name, s in found.terms.items() if RATES[name] != "fixed"}
    squares, rest = sum(s * s for s in moving.values()), found.seconds - fixed
    by_rate = {"nvlink": 0.0, "nic": 0.0, "vector": 0.0}
    for name, seconds in moving.items():
        by_rate[RATES[name]] += rest * seconds * seconds / squares if squares else 0.0
    if not squares:
        fixed = found.seconds
    return Knot(fixed, by_rate["nvlink"], by_rate["nic"], by_rate["vector"], log(found.high / found.low) / 2 / EIGHTY,
                "transfer" in found.basis)


def _table_ratio(op: ops.Communication, nbytes: int, knot: Knot, where: Machine) -> float | None:
    """Measured over modelled, of the engine's own all-reduce under a CUDA graph; None where there is no such row."""
    if op.collective != "all_reduce" or where.library not in ENGINES or not where.tables or nbytes > LARGEST:
        return None
    key = ("all-reduce rows", op.group)
    if key not in where.memo:
        where.memo[key] = graph_rows(where.device.key, where.library, op.group)
    sizes, seconds = where.memo[key]
    if not sizes or op.group > where.cluster.domain:
        return None
    return _at(sizes, seconds, nbytes) / knot.seconds


def graph_rows(device: str, library: str, group: int) -> tuple[list[float], list[float]]:
    """(bytes, seconds) of the all-reduces that a CUDA graph launched: eager ones hold the host's launch."""
    columns = silicon.table(device, "comm", library, "custom_allreduce_perf")
    if columns is None or (device, library) in COPIED:
        return [], []
    rows: dict[float, float] = {}
    for ranks, elements, ms, source in zip(columns["num_gpus"].tolist(), columns["message_size"].tolist(),
                                           columns["latency"].tolist(), columns["kernel_source"].tolist(), strict=True):
        if ranks == group and "eager" not in source and ms > 0:
            size = 2.0 * elements
            rows[size] = min(ms * silicon.MILLISECOND, rows.get(size, float("inf")))
    return sorted(rows), [rows[size] for size in sorted(rows)]


def _at(sizes: list[float], seconds: list[float], nbytes: float) -> float:
    """In log space; held below the smallest, at its rate above the largest."""
    right = bisect_right(sizes, nbytes)
    if right == 0:
        return seconds[0]
    if right == len(sizes):
        return seconds[-1] * nbytes / sizes[-1]
    low, high = sizes[right - 1], sizes[right]
    share = log(nbytes / low) / log(high / low)
    return exp((1 - share) * log(seconds[right - 1]) + share * log(seconds[right]))
