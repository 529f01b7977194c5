"""This file knows about checking kernels: every case of a contract, each kernel in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.outcome import REFUSED, Ended
from sublight.kernels.arena.process import Arena, KernelProcess
from sublight.kernels.arena.trial import Exact, Judged, Setup, begin, exact, judged, set_up, watched
from sublight.kernels.contract import Case, Contract


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel on one case."""

    entry: Entry
    case: Case
    judged: Judged


def check(arena: Arena, contract: Contract, entries: Sequence[Entry], cases: Sequence[Case], *,
          device: str | None = None, timeout: float | None = None,
          done: Callable[[int, int], None] | None = None) -> Iterator[Checked]:
    """Every kernel on every case, one after the other.

    Each process stays from case to case, as a kernel does in use; one that ended is started anew. done(so many, of so
    many) is told after each. Raises nothing for what a kernel does.
    """
    living: dict[Entry, KernelProcess] = {}
    count, total = 0, len(entries) * len(cases)
    try:
        for case in cases:
            setup, right = set_up(arena, contract, case), _Once()
            for entry in entries:
                yield Checked(entry, case, _tried(arena, living, entry, setup, right, device, timeout))
                count += 1
                if done:
                    done(count, total)
    finally:
        for process in living.values():
            process.close()


class _Once:
    """The exact result of a case, computed when the first kernel needs it. Final."""

    def __init__(self) -> None:
        self._exact: Exact | None = None

    def of(self, setup: Setup) -> Exact:
        if self._exact is None:
            self._exact = exact(setup)
        return self._exact


def _tried(arena: Arena, living: dict[Entry, KernelProcess], entry: Entry, setup: Setup, right: _Once,
           device: str | None, timeout: float | None) -> Judged:
    try:
        if entry not in living or not living[entry].living:
            living[entry] = arena.start(entry, timeout=timeout) if timeout else arena.start(entry)
        outcome = begin(living[entry], setup, device=device)
        if outcome.kind == REFUSED:
            return Judged(outcome)
        return judged(setup, watched(living[entry], setup), right.of(setup))
    except Ended as ended:
        if entry in living:
            living.pop(entry).close()
        return Judged(ended.outcome)
