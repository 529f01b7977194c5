"""This file knows about the typical step of a run: the mean over its kept repetitions, in integer nanoseconds by key.

Sums are over the repetitions of all devices of all ranks, then divided: each key is rounded down, and the nanoseconds
that are left go to the keys with the largest remainders, so that the keys sum to the step. It depends on the run alone:
differences of typical steps add up over several runs, key by key.

    typical(traces)    of one recording, a trace a rank
    pooled(runs)       of several recordings of the same thing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublight.device import Device
from sublight.errors import InputError
from sublight.explain import views_of
from sublight.guard.member import Key, Member, member
from sublight.guard.threads import thread_member
from sublight.trace import Trace


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a typical step. runs: a step; of idle time the gaps. scatter_ns: standard error of the mean, over
    repetitions, or over recordings where there are several; None where there is only one."""

    ns: int = 0
    spent_ns: float = 0.0                # durations, owned or not
    runs: float = 0.0
    bound_ns: int = 0                    # least time of what is owned, where it is known
    known_ns: int = 0                    # owned by what has a known bound
    scatter_ns: float | None = None

    @property
    def each_ns(self) -> float:
        """Duration of one run."""
        return self.spent_ns / self.runs if self.runs else 0.0


NOTHING = Entry()


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Typical:
    """The typical step of one run."""

    step_ns: int
    entries: Mapping[Key, Entry]         # sum to step_ns
    hidden_ns: int                       # communication with compute beside it
    repetitions: int
    members: tuple[Member, ...]
    bounded: bool                        # is the device in the catalog, and the bound of anything known?
    recordings: tuple[Typical, ...] = () # that it is the mean of, where there are several
    title: str = ""                      # how the run is called: the folder of its ranks

    def __getitem__(self, key: Key) -> Entry:
        """What is charged to a key; nothing where it is not part of this step."""
        return self.entries.get(key, NOTHING)

    @property
    def steps(self) -> int:
        """Steps in time: of several devices, which step together, those of one."""
        return self.repetitions // len(self.members)

    def step_samples_ns(self) -> tuple[int, ...]:
        """How long each kept repetition took, device by device."""
        return tuple(end - start for m in self.members for start, end in m.kept.windows)


def typical(traces: Sequence[Trace], *, device: Device | None = None, title: str = "") -> Typical:
    """The typical step of a run's ranks. title: how the run is called; empty: by its files."""
    views = views_of(traces, device=device)
    threads = [view for view in views if view.cpu_only]
    first = {id(view.trace): view for view in reversed(threads)}          # the busiest thread comes first
    members = [thread_member(view) if view.cpu_only else member(view) for view in views
               if not view.cpu_only or first[id(view.trace)] is view]
    if not any(m.window_ns for m in members):
        raise InputError("the run takes no time at all; expected a trace with activities that last")
    return replace(_of_members(members), title=title)


def pooled(runs: Sequence[Typical]) -> Typical:
    """The typical step of several recordings of the same thing: the mean over all their repetitions. How far it may
    be off is told by how far the recordings lie apart, never by repetitions of one."""
    if len(runs) == 1:
        return runs[0]
    whole = _of_members([m for run in runs for m in run.members])
    scatter = {key: np.std([run[key].ns for run in runs], ddof=1) / len(runs) ** 0.5 for key in whole.entries}
    entries = {key: replace(entry, scatter_ns=float(scatter[key])) for key, entry in whole.entries.items()}
    titles = [run.title for run in runs]
    return replace(whole, entries=entries, recordings=tuple(runs),
                   title=f"{titles[0]} … {titles[-1]}" if all(titles) else "")


def _of_members(members: Sequence[Member]) -> Typical:
    repetitions = sum(len(m.kept.windows) for m in members)
    total = sum(m.window_ns for m in members)
    step_ns = (2 * total + repetitions) // (2 * repetitions)
    entries = _entries(members, repetitions, step_ns)
    return Typical(
        step_ns, entries, round(sum(m.hidden_ns for m in members) / repetitions), repetitions, tuple(members),
        any(entry.known_ns for entry in entries.values()))


def _entries(members: Sequence[Member], repetitions: int, step_ns: int) -> dict[Key, Entry]:
    keys = sorted({key for m in members for key in m.keys})
    place = {key: i for i, key in enumerate(keys)}
    sums = {name: np.zeros(len(keys), np.int64) for name in ("owned_ns", "spent_ns", "runs", "bound_ns", "known_ns")}
    for m in members:
        at = np.array([place[key] for key in m.keys])
        for name, column in sums.items():
            np.add.at(column, at, getattr(m, name))
    owned = shared_out(sums["owned_ns"].tolist(), repetitions, step_ns)
    scatter = _standard_error(members, place)
    return {
        key: Entry(owned[i], float(sums["spent_ns"][i]) / repetitions, float(sums["runs"][i]) / repetitions,
                   round(int(sums["bound_ns"][i]) / repetitions), round(int(sums["known_ns"][i]) / repetitions),
                   None if scatter is None else float(scatter[i]))
        for i, key in enumerate(keys)
    }


def _standard_error(members: Sequence[Member], place: Mapping[Key, int]) -> np.ndarray | None:
    """Of the mean of each key. Devices step together: their mean in a step is one value, and ranks are no repetitions.
    Where devices have different numbers of steps, they are taken to move together altogether, which is the most that it
    can be."""
    tables = [np.zeros((len(place), len(m.kept.windows))) for m in members]
    for m, table in zip(members, tables, strict=True):
        table[[place[key] for key in m.keys]] = m.by_repetition
    counts = {table.shape[1] for table in tables}
    if max(counts) < 2:
        return None
    if len(counts) == 1:
        tables = [np.mean(tables, axis=0)]
    whole = sum(table.shape[1] for table in tables if table.shape[1] > 1)
    parts = [table.std(axis=1, ddof=1) * table.shape[1] ** 0.5 / whole for table in tables if table.shape[1] > 1]
    out: np.ndarray = np.sum(parts, axis=0)
    return out


def shared_out(totals: Sequence[int], divisor: int, whole: int) -> list[int]:
    """Totals divided so that they sum to `whole`: rounded down, then one more for the largest remainders.

    >>> shared_out([10, 10, 10], 4, 8)
    [3, 3, 2]
    """
    out = [total // divisor for total in totals]
    left = whole - sum(out)
    by_remainder = sorted(range(len(totals)), key=lambda i: (-(totals[i] % divisor), i))
    for i in by_remainder[:left]:
        out[i] += 1
    assert sum(out) == whole, "the shares do not sum to the step"
    return out
