"""This file knows about regret: how much slower NCCL's own choice is than the best that was measured, per size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from sublight.comm.nccl.choice import COLLECTIVES as FUNCTIONS
from sublight.comm.nccl.choice import Model, choose, full_channels
from sublight.comm.nccl.communicator import Communicator
from sublight.comm.tuner.grammar import ANY, MOST_BYTES, Row
from sublight.errors import InputError
from sublight.result import Result

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run. algorithm is None where NCCL chose itself; protocol too where it was not forced."""

    collective: str
    nodes: int
    ranks: int
    nbytes: int
    algorithm: str | None
    protocol: str | None
    channels: int | None
    seconds: float

    @property
    def name(self) -> str:
        if self.algorithm is None:
            return "NCCL's own"
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm


@dataclass(frozen=True, slots=True)
class Regret:
    """One size. own is what NCCL takes; own_seconds is None where that was not measured."""

    collective: str
    nodes: int
    ranks: int
    nbytes: int
    own: str
    own_seconds: float | None
    best: Run
    runs: tuple[Run, ...]

    @property
    def loss(self) -> float | None:
        """0.1: NCCL's own choice takes 10 % longer than the best. None where it, or anything beside it, was not
        measured."""
        if self.own_seconds is None or len({run.name for run in self.runs}) < 2:
            return None
        return self.own_seconds / self.best.seconds - 1


def runs_of(results: Iterable[Result]) -> tuple[Run, ...]:
    """The runs in Results named "time", whose variant is ALGORITHM/PROTOCOL/CHANNELS as observe.forced_runs has it."""
    found = []
    for result in results:
        if result.name != "time" or result.message is None or result.placement is None or not result.samples:
            continue
        algorithm, protocol, channels = [*result.variant.split("/"), "", ""][:3]
        own = algorithm in ("", DEFAULT)
        seconds = sorted(result.samples)[len(result.samples) // 2]
        found.append(Run(result.message.collective, result.placement.nodes, result.message.group, result.message.nbytes,
                         None if own else algorithm, protocol or None, int(channels) if channels else None, seconds))
    return tuple(found)


def regrets(
    runs: Sequence[Run], model: Model | None = None, *, dtype: str = "fp16", op: str = "sum",
) -> tuple[Regret, ...]:
    """NCCL's own choice against the best run of each size: the run without forcing where there is one, else what the
    model says NCCL takes. Raises InputError where neither is known."""
    groups: dict[tuple[str, int, int, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.collective, run.nodes, run.ranks, run.nbytes), []).append(run)
    return tuple(_regret(key, group, model, dtype, op) for key, group in sorted(groups.items()))


def _regret(key: tuple[str, int, int, int], runs: list[Run], model: Model | None, dtype: str, op: str) -> Regret:
    collective, nodes, ranks, nbytes = key
    forced = [run for run in runs if run.algorithm is not None]
    best = min(forced or runs, key=lambda run: run.seconds)
    own = min((run for run in runs if run.algorithm is None), key=lambda run: run.seconds, default=None)
    predicted = None
    if model is not None and _fits(model.comm, nodes, ranks) and collective in FUNCTIONS:
        predicted = choose(model, FUNCTIONS[collective], nbytes, dtype=dtype, op=op).best
    if own is not None:
        name = f"{predicted.name} (as predicted)" if predicted else "unforced run"
        return Regret(*key, name, own.seconds, min(best, own, key=lambda run: run.seconds), tuple(runs))
    if predicted is None:
        raise InputError(f"what NCCL takes itself for {collective} of {nbytes:,} B on {nodes} nodes, {ranks} ranks is "
                         "not known; add unforced runs (algorithm 'default') or name the topology of that job")
    same = [r for r in forced if r.algorithm == predicted.algorithm and r.protocol in (None, predicted.protocol)]
    seconds = min((run.seconds for run in same), default=None)
    return Regret(*key, predicted.name, seconds, best, tuple(runs))


def _fits(comm: Communicator, nodes: int, ranks: int) -> bool:
    return (comm.nodes, comm.ranks) == (nodes, ranks)


def rows(
    found: Sequence[Regret], model: Model | None, *, least: float, channels: int | None = None, dtype: str = "fp16",
    op: str = "sum",
) -> tuple[Row, ...]:
    """Rows that take the best run of each size where it gains more than `least` (0.02: 2 %), else NCCL's own choice.

    Between two measured sizes the border lies in their geometric middle; the last row has no end. Below the smallest
    size stands what the model takes; without a model of that job there is no row. channels: for every row; None takes
    the measured number, else the model's for large messages, else -1.
    """
    out: list[Row] = []
    jobs: dict[tuple[str, int, int], list[Regret]] = {}
    for regret in found:
        jobs.setdefault((regret.collective, regret.nodes, regret.ranks), []).append(regret)
    for (collective, nodes, ranks), sizes in jobs.items():
        sizes.sort(key=lambda regret: regret.nbytes)
        low = sizes[0].nbytes
        if model is not None and _fits(model.comm, nodes, ranks):
            below = pinned(model, [collective], dtype=dtype, op=op, channels=channels)
            out += [replace(row, high=min(row.high, low - 1)) for row in below if row.low < low]
        for place, regret in enumerate(sizes):
            high = _border(regret, sizes[place + 1]) if place + 1 < len(sizes) else MOST_BYTES
            algorithm, protocol, count = _taken(regret, model, least, channels, dtype, op)
            row = Row(collective, low, high, algorithm, protocol, count, nodes, ranks)
            if out and replace(out[-1], low=low, high=high) == row:
                row = replace(row, low=out.pop().low)
            out.append(row)
            low = high + 1
    return tuple(out)


def _border(one: Regret, two: Regret) -> int:
    return int(sqrt(one.nbytes * two.nbytes))


def _taken(
    regret: Regret, model: Model | None, least: float, channels: int | None, dtype: str, op: str,
) -> tuple[str, str, int]:
    """Algorithm, protocol and channels of a row."""
    best, choice = regret.best, None
    if model is not None and _fits(model.comm, regret.nodes, regret.ranks):
        choice = choose(model, FUNCTIONS[regret.collective], regret.nbytes, dtype=dtype, op=op)
    keep = regret.loss is not None and regret.loss <= least
    if choice is not None and (keep or best.algorithm is None):
        name = choice.best.algorithm
        return name, choice.best.protocol, _channels(channels, None, model, name)
    if best.algorithm is None:
        forced = [run for run in regret.runs if run.algorithm is not None]
        best = min(forced, key=lambda run: run.seconds) if forced else best
    if best.algorithm is None or best.protocol is None:
        raise InputError(f"the best run of {regret.collective} at {regret.nbytes:,} B does not say its algorithm and "
                         "protocol; force both (NCCL_ALGO and NCCL_PROTO) and name both in the table")
    fits = model if choice is not None else None
    return best.algorithm, best.protocol, _channels(channels, best.channels, fits, best.algorithm)


def _channels(asked: int | None, measured: int | None, model: Model | None, algorithm: str) -> int:
    """The first that is known; -1 leaves it to NCCL."""
    predicted = None if model is None else full_channels(model.comm, algorithm)
    return next((count for count in (asked, measured, predicted) if count is not None), ANY)


def pinned(
    model: Model, collectives: Sequence[str], *, dtype: str = "fp16", op: str = "sum", channels: int | None = None,
) -> tuple[Row, ...]:
    """Rows that fix what this model takes for every size, so that another version or topology takes the same."""
    from sublight.comm.nccl.choice import switches

    out = []
    for collective in collectives:
        function = FUNCTIONS[collective]
        first = choose(model, function, 1, dtype=dtype, op=op).best
        starts = [(0, (first.algorithm, first.protocol))]
        starts += [(switch.nbytes, switch.after) for switch in switches(model, function, dtype=dtype, op=op)]
        ends = [start - 1 for start, _ in starts[1:]] + [MOST_BYTES]
        out += [Row(collective, start, end, algorithm, protocol, _channels(channels, None, model, algorithm),
                    model.comm.nodes, model.comm.ranks)
                for (start, (algorithm, protocol)), end in zip(starts, ends, strict=True)]
    return tuple(out)


def spare(found: Sequence[Row], model: Model, *, channels: int | None = None) -> tuple[Row, ...]:
    """Rows to follow those of NVLS and PAT, which NCCL does not offer for every type and operation (an average, int8):
    what the model takes there. Without them the example plugin leaves such a call with one channel."""
    out: list[Row] = []
    for row in found:
        partial = row.algorithm in ("NVLS", "NVLSTree") or (row.algorithm, row.collective) == ("PAT", "reduce_scatter")
        if not partial or row.collective in ("all_gather", "broadcast") or not _fits(model.comm, row.nodes, row.ranks):
            continue
        try:
            others = pinned(model, [row.collective], dtype="int8", op="avg", channels=channels)
        except InputError:                           # nothing else is on
            continue
        out += [replace(other, low=max(other.low, row.low), high=min(other.high, row.high))
                for other in others if other.low <= row.high and row.low <= other.high]
    return tuple(out)
