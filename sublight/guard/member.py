"""This file knows about one device of a run: what owns each nanosecond of its repetitions, by part, operator, kernel.

    busy   part of the kernel that owns it · operator that launched it · kernel
    idle   cause · operator that launches what ends the gap · the kernel that ends it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublight.budget import COMPUTE, GROUPS, OTHER_THREADS, PARTS
from sublight.explain import View
from sublight.explain.bounds import owned_ns
from sublight.explain.calls import innermost_operators
from sublight.explain.links import Links
from sublight.explain.steps import in_launch_order
from sublight.explain.timeline import part_of_activity
from sublight.explain.view import inside
from sublight.guard.repetitions import Kept, kept
from sublight.observe.kernel_name import classify
from sublight.trace import I32, I64, KERNEL, B, Trace

IDLE = np.array([GROUPS[part] == "idle" for part in PARTS])
MOST_LOOKED_AT = 64                      # repetitions that may lend their sequence


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What a nanosecond of a step is charged to. operator: "" where none is known."""

    part: str                            # of budget.PARTS
    operator: str
    name: str                            # of the kernel or operator; of idle time: of what ends the gap

    @property
    def gap(self) -> bool:
        """Does nothing run? Then the name is that of what ends the gap."""
        return GROUPS[self.part] == "idle" and self.part != OTHER_THREADS


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Member:
    """One device. Shapes: keys; by_repetition (keys, repetitions). Sums are over the kept repetitions."""

    label: str
    rank: int | None
    view: View
    kept: Kept
    keys: tuple[Key, ...]
    owned_ns: I64                        # sums to the windows
    spent_ns: I64                        # durations inside the windows, owned or not; of idle time: what is owned
    runs: I64                            # activities that begin in the windows; of idle time: gaps
    bound_ns: I64                        # least time of what is owned, where it is known
    known_ns: I64                        # owned by what has a known bound
    by_repetition: I64
    hidden_ns: int                       # communication with compute beside it
    sequence: tuple[tuple[str, str], ...]    # (operator, name) of one repetition, in launch order
    streams: tuple[str, ...] = ()        # names of the same, stream by stream in the order of starts; "" ends a stream

    @property
    def window_ns(self) -> int:
        return sum(end - start for start, end in self.kept.windows)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Pieces:
    """Owned stretches or activities, each with its key in parts. Shapes: pieces."""

    part: I32
    operator: I32                        # index into Trace.names, -1 where unknown
    name: I32
    at_ns: I64
    owned_ns: I64
    spent_ns: I64
    run: B                               # counts as one run
    bound_ns: I64                        # -1: unknown


def member(view: View) -> Member:
    """One device's repetitions by key."""
    assert view.links is not None
    which, operator = kept(view), _operators(view, view.links)
    pieces = [_busy(view, operator, which), _idle(view, operator, which)]
    budget = view.timeline.budget(which.windows)
    rows = _one_repetition(view, which)
    names = [_name(view.trace, n) for n in view.trace.activities.name[rows].tolist()]
    sequence = tuple((_operator(view.trace, o), name) for o, name in zip(operator[rows].tolist(), names, strict=True))
    return replace(grouped(view, which, pieces, budget.communication.hidden_ns, sequence),
                   streams=_by_stream(view, rows, names))


def grouped(
    view: View, which: Kept, several: Sequence[Pieces], hidden_ns: int, sequence: tuple[tuple[str, str], ...],
) -> Member:
    """Pieces summed by key. Their owned time sums to the windows."""
    part, operator, name, at, owned, spent, run, bound = (
        np.concatenate([getattr(p, field) for p in several]) for field in Pieces.__slots__)
    trace, size = view.trace, len(view.trace.names) + 1
    code = (part.astype(np.int64) * size + operator + 1) * size + name
    found, index = np.unique(code, return_inverse=True)
    starts = np.array([start for start, _ in which.windows])
    repetition = np.maximum(np.searchsorted(starts, at, "right") - 1, 0)
    table = np.zeros((len(found), len(starts)), np.int64)
    np.add.at(table, (index, repetition), owned)
    total = table.sum(axis=1)
    assert total.sum() == sum(end - start for start, end in which.windows), "the keys do not sum to the windows"
    keys = [Key(PARTS[c // size // size], _operator(trace, c // size % size - 1), _name(trace, c % size))
            for c in found.tolist()]

    def summed(values: I64) -> I64:
        return np.bincount(index, weights=values, minlength=len(found)).astype(np.int64)

    known = bound >= 0
    rank = "" if trace.rank is None else f"rank {trace.rank}, "
    return Member(
        f"{rank}{view.device_label}", trace.rank, view, which, tuple(keys), total, summed(spent), summed(run),
        summed(np.where(known, bound, 0)), summed(np.where(known, owned, 0)), table, hidden_ns, sequence)


def _operator(trace: Trace, index: int) -> str:
    return trace.names[index] if index >= 0 else ""


def _name(trace: Trace, index: int) -> str:
    return classify(trace.names[index]).name


def _busy(view: View, operator: I32, which: Kept) -> Pieces:
    """Activities inside the windows."""
    a, trace = view.trace.activities, view.trace
    part = part_of_activity(trace)
    assert not isinstance(view.device, str)
    owned = owned_ns(trace, view.timeline, view.device, part, which.windows)
    spent = inside(a.ts_ns, a.end_ns, which.windows)
    rows = np.flatnonzero((a.device == view.device) & (spent > 0))
    begins = in_windows(a.ts_ns[rows], which)
    bound = np.full(len(rows), -1, np.int64)
    if view.bounds is not None:
        least = view.bounds.of_activity_ns[rows]
        share = np.minimum(least * owned[rows] // np.maximum(a.dur_ns[rows], 1), owned[rows])
        bound = np.where((least >= 0) & (part[rows] < len(COMPUTE)), share, -1)
    return Pieces(part[rows], operator[rows], a.name[rows], a.ts_ns[rows], owned[rows], spent[rows],
                  begins, bound)


def _idle(view: View, operator: I32, which: Kept) -> Pieces:
    """Gaps inside the windows, each charged to what ends it."""
    a, line = view.trace.activities, view.timeline
    at, starts, ends = line.pieces(which.windows)
    gap = IDLE[line.owner[at]]
    at, starts, ends = at[gap], starts[gap], ends[gap]
    here = np.flatnonzero((a.device == view.device) & (a.dur_ns > 0))
    next_one = here[np.minimum(np.searchsorted(a.ts_ns[here], starts, "left"), len(here) - 1)]
    first = np.concatenate([[True], next_one[1:] != next_one[:-1]])      # one gap, whatever its causes
    unknown = np.full(len(at), -1, np.int64)
    return Pieces(line.owner[at], operator[next_one], a.name[next_one], starts, ends - starts,
                  ends - starts, first[: len(at)], unknown)


def _operators(view: View, links: Links) -> I32:
    """Per activity the name of its innermost operator, -1 where none is known.

    A kernel whose launch is not in the file (it came before the recording) is taken to be of the operator that
    launches all its other runs: else a cut at the start of a file would look like fewer runs.
    """
    row = innermost_operators(view.trace, links)
    names = np.append(view.trace.ops.name, np.int32(-1))       # the last stands for "none", at index -1
    out: I32 = names[row]
    kernel = view.trace.activities.name
    known = out >= 0
    first, last = np.full(len(view.trace.names), np.iinfo(np.int32).max), np.full(len(view.trace.names), -1)
    np.minimum.at(first, kernel[known], out[known])
    np.maximum.at(last, kernel[known], out[known])
    alone = (links.call < 0) & ~known & (first == last)[kernel]
    out[alone] = last[kernel[alone]]
    return out


def in_windows(ts_ns: I64, which: Kept) -> B:
    starts, ends = (np.array(column) for column in zip(*which.windows, strict=True))
    at = np.searchsorted(starts, ts_ns, "right") - 1
    out: B = (at >= 0) & (ts_ns < ends[at])
    return out


def _one_repetition(view: View, which: Kept) -> I64:
    """Kernels of the repetition that has the median number of them, as rows of its activities, in launch order."""
    assert not isinstance(view.device, str)
    a, trace = view.trace.activities, view.trace
    rows = in_launch_order(trace, view.device)
    rows = rows[a.kind[rows] == KERNEL]
    ts = a.ts_ns[rows]
    of_each = [rows[(ts >= start) & (ts < end)] for start, end in which.windows[:MOST_LOOKED_AT]]
    out: I64 = sorted(of_each, key=len)[len(of_each) // 2]
    return out


def _by_stream(view: View, rows: I64, names: Sequence[str]) -> tuple[str, ...]:
    """Names of these kernels, stream by stream."""
    a = view.trace.activities
    out, before = list[str](), None
    for at in np.lexsort((a.ts_ns[rows], a.stream[rows])).tolist():
        stream = int(a.stream[rows[at]])
        if before is not None and stream != before:
            out.append("")
        out.append(names[at])
        before = stream
    return (*out, "")
