"""This file knows about NCCL's choice of an algorithm and a protocol for a message: the least predicted time.

    choose(model, "AllReduce", 1 << 20).algorithm

Sources: ncclTopoGetAlgoTime of src/graph/tuning.cc, updateCollCostTable and topoGetAlgoInfo of src/enqueue.cc, 2.30.7.
Times are in single precision, in NCCL's order of operations; of equal times the first in NCCL's order wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sublight.comm.nccl.communicator import Communicator, settle
from sublight.comm.nccl.constants import Constants, load
from sublight.comm.nccl.environment import Environment, read
from sublight.comm.nccl.graph import Searched
from sublight.comm.nccl.tuning import Key, Line, Single, table, thresholds
from sublight.errors import InputError

Times = NDArray[np.float32]
Sizes = NDArray[np.int64]

COLLECTIVES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter",
               "broadcast": "Broadcast", "reduce": "Reduce"}
NOT_IN_THE_MODEL = ("all_to_all", "send_recv", "gather", "scatter")
FP8 = ("fp8e4m3", "fp8e5m2")
TYPES = {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "fp16": 2, "bf16": 2, "fp32": 4,
         "fp64": 8, "fp8e4m3": 1, "fp8e5m2": 1}
OPERATIONS = ("sum", "prod", "min", "max", "avg", "premulsum")


@dataclass(frozen=True, slots=True)
class Model:
    """All that decides: the communicator, its table, the environment, the constants."""

    searched: Searched
    comm: Communicator
    lines: Mapping[Key, Line]
    environment: Environment
    constants: Constants


@dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm with one protocol for one message. off: why NCCL cannot take it; time_us is then None."""

    algorithm: str
    protocol: str
    time_us: float | None
    latency_us: float                    # as it counts here, 1.4 times in the plateau of a ring
    bandwidth: float                     # as it counts here, after the correction of trees; 10^9 bytes a second
    off: str = ""

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.protocol}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL takes for one message, and what it left. ranked: all candidates, the fastest first, then those off."""

    function: str
    nbytes: int
    ranked: tuple[Candidate, ...]
    channels: int
    warps: int

    @property
    def best(self) -> Candidate:
        return self.ranked[0]

    @property
    def runner_up(self) -> Candidate | None:
        return self.ranked[1] if len(self.ranked) > 1 and self.ranked[1].time_us is not None else None


def model(searched: Searched, given: Mapping[str, str] | None = None) -> Model:
    """NCCL's tuning model over searched graphs, under these variables."""
    constants = load()
    environment = read(given, constants=constants)
    comm = settle(searched, environment, constants)
    return Model(searched, comm, table(comm, environment, constants), environment, constants)


def function_of(collective: str) -> str:
    """NCCL's name of a collective. Raises InputError for those that its model does not cover."""
    if collective in COLLECTIVES:
        return COLLECTIVES[collective]
    if collective in NOT_IN_THE_MODEL:
        raise InputError(f"{collective} is not in NCCL's tuning model: it runs as send and receive over p2p channels, "
                         f"with no choice of an algorithm; expected {', '.join(COLLECTIVES)}")
    raise InputError(f"no collective '{collective}'; expected {', '.join(COLLECTIVES)}")


def choose(model: Model, function: str, nbytes: int, *, dtype: str = "fp16", op: str = "sum") -> Choice:
    """NCCL's choice for a message of so many bytes (the size that nccl-tests prints), alone in its group.

    Raises InputError where nothing is left to choose, as NCCL itself does.
    """
    sizes = np.array([nbytes], np.int64)
    refused = refusals(model, function, dtype, op)
    ranked, off = [], []
    for (algorithm, protocol), time in times(model, function, sizes, dtype=dtype, op=op).items():
        line = model.lines[function, algorithm, protocol]
        reason = refused.get(algorithm, "") or line.off
        latency, bandwidth = as_it_counts(model, line, sizes)
        if reason:
            off.append(Candidate(algorithm, protocol, None, float(line.latency_us), 0.0, reason))
        else:
            ranked.append(Candidate(algorithm, protocol, float(time[0]), float(latency[0]), float(bandwidth[0])))
    if not ranked:
        rules = dict.fromkeys(candidate.off for candidate in off if not candidate.off.endswith("with Simple only"))
        raise InputError(f"NCCL finds no algorithm for {function} of {dtype}: every one is off ({'; '.join(rules)})")
    ranked.sort(key=lambda candidate: candidate.time_us or 0.0)          # stable: NCCL's order among equals
    channels, warps = _channels_and_warps(model, ranked[0], nbytes)
    return Choice(function, nbytes, (*ranked, *off), channels, warps)


def refusals(model: Model, function: str, dtype: str, op: str) -> dict[str, str]:
    """Algorithms that this type or operation rules out, with the rule."""
    if dtype not in TYPES or op not in OPERATIONS:
        raise InputError(f"no reduction '{op}' of '{dtype}'; expected one of {', '.join(OPERATIONS)} of one of "
                         f"{', '.join(TYPES)}")
    comm, limits = model.comm, model.constants.limits
    found: dict[str, str] = {}
    reduces = function in ("AllReduce", "ReduceScatter", "Reduce")
    if reduces and dtype in FP8 and comm.sm_min < 90:
        raise InputError(f"NCCL reduces {dtype} from compute capability 9.0 on, this GPU has {comm.sm_min / 10:g}")
    if reduces and not _nvls_reduces(dtype, op):
        found |= dict.fromkeys(("NVLS", "NVLSTree"), f"NVLS does not reduce {dtype} with {op}")
    elif function != "AllReduce" and comm.local_ranks > limits["nvls_local_ranks"]:
        found |= dict.fromkeys(("NVLS", "NVLSTree"), f"NVLS is for {limits['nvls_local_ranks']} GPUs a node, not "
                                                     f"{comm.local_ranks}")
    if comm.local_ranks > limits["collnet_local_ranks"]:
        found |= dict.fromkeys(("CollNetDirect", "CollNetChain"),
                               f"CollNet is for {limits['collnet_local_ranks']} GPUs a node, not {comm.local_ranks}")
    if function == "ReduceScatter" and op in ("avg", "premulsum"):
        found["PAT"] = f"PAT does not reduce with {op}"
    return found


def _nvls_reduces(dtype: str, op: str) -> bool:
    """What the switch adds up: src/include/device.h. An average is a scaled sum, which it is not."""
    if dtype in ("int32", "uint32", "int64", "uint64", "fp16", "bf16"):
        return op in ("sum", "min", "max")
    return dtype in ("fp32", "fp64") and op == "sum"


def times(
    model: Model, function: str, sizes: Sizes, *, dtype: str = "fp16", op: str = "sum",
) -> dict[tuple[str, str], Times]:
    """Microseconds by algorithm and protocol, one per size, in NCCL's order; infinite where it is off."""
    refused = refusals(model, function, dtype, op)
    lossy = dtype in FP8 and function in ("AllReduce", "ReduceScatter", "Reduce") and (
        model.comm.ranks > model.constants.limits["fp8_ring_ranks"])
    found = {}
    for (of, algorithm, protocol), line in model.lines.items():
        if of != function:
            continue
        if line.off or algorithm in refused:
            found[algorithm, protocol] = np.full(len(sizes), np.inf, np.float32)
            continue
        latency, bandwidth = as_it_counts(model, line, sizes)
        time = latency + sizes.astype(np.float32) / (Single(1000) * bandwidth)
        if lossy and algorithm == "Ring":            # a long chain of fp8 sums loses digits: last resort
            time = time * Single(model.constants.limits["fp8_ring_factor"])
        found[algorithm, protocol] = time
    return found


def as_it_counts(model: Model, line: Line, sizes: Sizes) -> tuple[Times, Times]:
    """Latency and bandwidth of a line at each size."""
    comm, constants = model.comm, model.constants
    latency = np.full(len(sizes), line.latency_us, np.float32)
    bandwidth = np.full(len(sizes), line.bandwidth, np.float32)
    blackwell_x86 = comm.sm_min >= 100 and comm.cpu_arch == "x86_64"
    if line.function == "AllReduce" and (line.algorithm == "Tree" or (line.algorithm == "NVLSTree" and blackwell_x86)):
        factors = np.array(constants.correction[line.protocol], np.float32)
        entries = constants.tree_entries if line.algorithm == "Tree" else len(factors)
        place = np.array([(int(size) >> 6).bit_length() - 1 for size in sizes])
        inside = (place >= 0) & (place < entries)
        bandwidth = np.where(inside, bandwidth * factors[np.clip(place, 0, entries - 1)], bandwidth)
    if (line.function, line.algorithm, line.protocol) == ("AllReduce", "Ring", "Simple") and comm.nodes > 1:
        plateau = constants.latency["plateau"]
        factor = plateau["before_ampere" if comm.sm_min < 80 else "others"]
        full = sizes // (comm.channels * comm.ranks) >= plateau["bytes_per_channel_and_rank"]
        latency = np.where(full, (latency.astype(np.float64) * factor).astype(np.float32), latency)
    return latency, bandwidth


def winners(
    model: Model, function: str, sizes: Sizes, *, dtype: str = "fp16", op: str = "sum",
) -> list[tuple[str, str]]:
    """Algorithm and protocol that NCCL takes at each size."""
    table = times(model, function, sizes, dtype=dtype, op=op)
    names = list(table)
    first = np.argmin(np.stack([table[name] for name in names]), axis=0)         # of equals, the first
    return [names[i] for i in first]


@dataclass(frozen=True, slots=True)
class Switch:
    """From nbytes on, NCCL takes this; before, it took that."""

    nbytes: int
    before: tuple[str, str]
    after: tuple[str, str]


def switches(
    model: Model, function: str, *, low: int = 1, high: int = 1 << 33, dtype: str = "fp16", op: str = "sum",
) -> list[Switch]:
    """Every size between low and high at which the choice changes, exact to the byte.

    Between the steps of the model (powers of two of trees, the plateau of rings) times are lines, so a choice that is
    the same at both ends of a piece is the same inside it; the others are halved until they are one byte wide.
    """
    step = model.constants.latency["plateau"]["bytes_per_channel_and_rank"] * model.comm.channels * model.comm.ranks
    inner = {1 << power for power in range(6, 63)} | {step}
    edges = sorted({low, high} | {edge for edge in inner if low < edge < high})
    pieces = [(a, (b if b == high else b - 1)) for a, b in pairwise(edges)]
    points = sorted({point for piece in pieces for point in piece})
    found: dict[int, tuple[str, str]] = dict(zip(points, _at(model, function, points, dtype, op), strict=True))
    open_pieces = [(a, b) for a, b in pairwise(points) if found[a] != found[b]]
    switched = []
    while open_pieces:
        switched += [Switch(b, found[a], found[b]) for a, b in open_pieces if b == a + 1]
        wide = [(a, b) for a, b in open_pieces if b > a + 1]
        middles = [(a + b) // 2 for a, b in wide]
        found |= dict(zip(middles, _at(model, function, middles, dtype, op), strict=True))
        halves = [half for (a, b), m in zip(wide, middles, strict=True) for half in ((a, m), (m, b))]
        open_pieces = [(a, b) for a, b in halves if found[a] != found[b]]
    return sorted(switched, key=lambda switch: switch.nbytes)


def _at(model: Model, function: str, sizes: Sequence[int], dtype: str, op: str) -> list[tuple[str, str]]:
    return winners(model, function, np.array(sizes, np.int64), dtype=dtype, op=op) if sizes else []


def full_channels(comm: Communicator, algorithm: str) -> int:
    """The channels that an algorithm runs over when a message is large."""
    if algorithm == "NVLS" and comm.nodes > 1:
        return min(comm.nvls_channels, comm.channels)
    return comm.nvls_channels if algorithm in ("NVLS", "NVLSTree") else comm.channels


def _channels_and_warps(model: Model, best: Candidate, nbytes: int) -> tuple[int, int]:
    """Most channels and the warps of a block: fewer where a thread would have too little to do."""
    comm, limits, protocol = model.comm, model.constants.limits, best.protocol
    channels = comm.channels
    threads = comm.max_threads.get((best.algorithm, protocol), 0)
    each = thresholds(comm, model.environment, model.constants)[best.algorithm, protocol]
    if best.algorithm == "CollNetDirect":
        channels = _collnet_channels(channels, threads, each, nbytes, comm.collnet_heads)
    elif best.algorithm in ("NVLS", "NVLSTree"):
        channels = full_channels(comm, best.algorithm)
    else:
        while channels >= 2 and nbytes < channels * threads * each:
            channels -= 1
        while nbytes < channels * threads * each and threads % 128 == 0 and threads:
            threads //= 2
    warp = limits["warp"]
    if protocol == "Simple" and best.algorithm == "Ring":
        threads += warp                              # one more warp keeps step
    if best.algorithm in ("Tree", "PAT"):
        threads = limits["threads"]
    return channels, max(3, threads // warp)


def _collnet_channels(channels: int, threads: int, each: int, nbytes: int, heads: int) -> int:
    """Fewer channels, down to one, while a thread would have less than `each` bytes, of which half is enough each time
    that the channels have come down through 24, 12, 6 and 3."""
    while channels > 1 and nbytes < channels * threads * heads * each:
        if channels in (24, 12, 6, 3):
            each //= 2
        channels -= 1
    return channels
