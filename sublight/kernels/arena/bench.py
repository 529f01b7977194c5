"""This file knows about timing kernels against each other: one run, interleaved calls, the same inputs for all.

    for each round:   inputs change · a sample of every ceiling · each kernel once, in an order drawn anew
    in some rounds, drawn at random, and in the last:   outputs of every kernel are judged against float64

So what moves the machine moves all kernels of a round, and their ratio within rounds tells them apart.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from sublight.bound import Bound
from sublight.device import Limits
from sublight.kernels.arena import ceilings as ceiling
from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.honesty import clock_tolerance, faster_than_light, least, untruths, worked_ahead
from sublight.kernels.arena.outcome import CHEATED, REFUSED, Ended, Outcome
from sublight.kernels.arena.process import Arena, Call, KernelProcess
from sublight.kernels.arena.trial import Setup, begin, change_inputs, exact, judged, set_up, watched
from sublight.kernels.contract import Case, Contract

WARM_UP = 3                              # rounds that count for nothing: the process cannot tell them from others
LOOKS = 3                                # rounds whose outputs are judged, besides the first and the last
FEW = 3                                  # in one round of so many, and in the last, only few elements change
HOT, COLD = "hot", "cold"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to measure: seconds for each kernel, within a least and a most number of rounds."""

    seconds: float = 1.0
    least: int = 15
    most: int = 200


@dataclass(slots=True)
class Lane:
    """One kernel of a run: its process until it ends, its calls by round, what was found."""

    entry: Entry
    key: Mapping[str, str] = field(default_factory=dict)
    process: KernelProcess | None = None
    outcome: Outcome = field(default_factory=Outcome)
    calls: list[Call] = field(default_factory=list)
    errors: tuple[Any, ...] = ()
    tolerance_ns: float = 0.0            # by how much its clock could be wrong unnoticed

    def end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.process:
            self.process.close()
            self.process = None

    @property
    def ns(self) -> tuple[int, ...]:
        return tuple(call.took_ns for call in self.calls)

    @property
    def cpu_ns(self) -> tuple[int | None, ...]:
        return tuple(call.cpu_ns for call in self.calls)


@dataclass(frozen=True, slots=True)
class Idle:
    """A process without a kernel, that makes its caches ready and answers in every round as the others do: what an
    exchange takes by itself. Caches that were emptied make it three to ten times as long."""

    process: KernelProcess
    calls: list[Call] = field(default_factory=list)

    def turn(self, cache: str) -> None:
        self.process.ready(cache)
        self.calls.append(self.process.call())


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of all kernels on one shape."""

    contract: Contract
    shape: Any
    cache: str                           # HOT: all buffers were read just before each call; COLD: evicted
    threads: int
    lanes: tuple[Lane, ...]
    working_set: int
    ceilings: ceiling.Ceilings | None
    bound: Bound | None
    note: str | None                     # why there is no bound


def measure(arena: Arena, contract: Contract, shape: Any, entries: Sequence[Entry], *, cache: str = HOT,
            pace: Pace | None = None, device: str | None = None, limits: Limits | None = None, seed: int | None = None,
            done: Callable[[int, int], None] | None = None) -> Measured:
    """Time kernels on a shape, interleaved. What a kernel does wrong is its lane's outcome, never an exception.

    limits: of the device, where it is no CPU; else they are measured in the same run. seed: of the inputs and of every
    draw; None: nobody knows it beforehand. done(so many, of so many rounds).
    """
    seed = secrets.randbits(32) if seed is None else seed
    random, pace = np.random.default_rng(seed), pace or Pace()
    setup = set_up(arena, contract, Case(shape, contract.values[0], seed))
    cold = cache == COLD
    evict = ceiling.evicting_bytes() if cold else 0
    lanes = tuple(_opened(arena, setup, entry, device, evict) for entry in entries)
    found, sample, note = _ceilings(setup, arena.threads, cold, measured_here=limits is None and device is None)
    idle = _without_kernel(arena, setup, evict) if device is None else None
    try:
        _run(setup, lanes, idle, cache, pace, random, sample, done)
    finally:
        if idle:
            idle.process.close()
        for lane in lanes:
            if lane.process:
                nulls = idle.calls if idle else lane.process.nulls
                lane.tolerance_ns = clock_tolerance(nulls, lane.calls) if lane.calls else 0.0
                lane.outcome = _truth(lane, nulls, idle.process.readied_ns if idle else (), arena.threads)
                lane.process.close()
                lane.process = None
    limits = found.limits() if found else limits
    lowest = least(contract.op(shape).work(), limits, cold=cold, cache_bytes=ceiling.cache_bytes()) if limits else None
    _against_light(lanes, lowest)
    return Measured(contract, shape, cache, arena.threads, lanes, setup.region.working_set, found, lowest, note)


def _opened(arena: Arena, setup: Setup, entry: Entry, device: str | None, evict_bytes: int) -> Lane:
    lane = Lane(entry)
    try:
        lane.process = arena.start(entry)
        lane.key = {"file": entry.source, **lane.process.described["key"]}
        outcome = begin(lane.process, setup, device=device, evict_bytes=evict_bytes)
        if outcome.kind == REFUSED:
            lane.end(outcome)
    except Ended as ended:
        lane.end(ended.outcome)
    return lane


def _without_kernel(arena: Arena, setup: Setup, evict_bytes: int) -> Idle:
    process = arena.start(None)
    process.shape(setup.case.shape, setup.region, evict_bytes=evict_bytes)
    return Idle(process)


def _ceilings(setup: Setup, threads: int, cold: bool, *, measured_here: bool,
              ) -> tuple[ceiling.Ceilings | None, Callable[[], None], str | None]:
    if not measured_here:
        return None, _no_sample, None
    if why := ceiling.refusal():
        return None, _no_sample, f"no ceiling was measured ({why}): nothing is held against its bound"
    found, sample = ceiling.prober(setup.region.working_set, threads=threads, cold=cold)
    return found, sample, None


def _no_sample() -> None:
    pass


def _run(setup: Setup, lanes: Sequence[Lane], idle: Idle | None, cache: str, pace: Pace,
         random: np.random.Generator, sample: Callable[[], None], done: Callable[[int, int], None] | None) -> None:
    """Warm up, see how long a round takes, then as many as the pace allows."""
    took = 0.0
    for number in range(WARM_UP):
        since = time.perf_counter()
        change_inputs(setup, random, whole=True)
        sample()
        _round(setup, lanes, idle, cache, random, look=number == 0)
        took = time.perf_counter() - since
    for lane in lanes:
        lane.calls.clear()
    count = max(1, len(_running(lanes)))
    rounds = int(min(pace.most, max(pace.least, pace.seconds * count / max(took, 1e-9))))
    # The last one too: else a kernel could see, by how often it was looked at, that nobody will look again.
    looks = {rounds - 1, *random.choice(rounds, min(LOOKS, rounds), replace=False).tolist()}
    for number in range(rounds):
        if not _running(lanes):
            return
        change_inputs(setup, random, whole=number % FEW != 0 and number != rounds - 1)
        sample()
        _round(setup, lanes, idle, cache, random, look=number in looks)
        if done:
            done(number + 1, rounds)


def _running(lanes: Iterable[Lane]) -> list[Lane]:
    return [lane for lane in lanes if lane.process]


def _round(setup: Setup, lanes: Sequence[Lane], idle: Idle | None, cache: str, random: np.random.Generator,
           *, look: bool) -> None:
    """Every kernel once. Times count of those that are still running at its end."""
    running = _running(lanes)
    right = exact(setup) if look and running else None
    turns: list[Lane | Idle] = [*running, *((idle,) if idle else ())]
    for at in random.permutation(len(turns)):
        lane = turns[at]
        if isinstance(lane, Idle):
            lane.turn(cache)
            continue
        assert lane.process is not None
        try:
            seen = watched(lane.process, setup, cache=cache, look=look)
            lane.calls.append(seen.call)
            if seen.broken:
                lane.end(Outcome(CHEATED, seen.broken))
            elif right is not None:
                found = judged(setup, seen, right)
                lane.errors = found.errors
                if not found.outcome.ok:
                    lane.end(found.outcome)
            if lane.process:
                lane.process.drop()
        except Ended as ended:
            lane.end(ended.outcome)


def _truth(lane: Lane, nulls: Sequence[Call], readied: Sequence[int], threads: int) -> Outcome:
    assert lane.process is not None
    said = untruths(nulls, lane.calls, threads=threads) if lane.calls else ()
    if ahead := worked_ahead(lane.process.readied_ns, readied):
        said = (*said, ahead)
    return Outcome(CHEATED, said) if said else lane.outcome


def _against_light(lanes: Iterable[Lane], lowest: Bound | None) -> None:
    for lane in lanes:
        if lane.outcome.ok and lane.calls:
            said = faster_than_light(median(lane.ns) / 1e9, lowest)
            if said:
                lane.outcome = Outcome(CHEATED, (said,))
