"""This file knows about a CPU-only run: its busiest thread's repetitions, and what other threads run while that one
runs nothing.

    busiest    │ op A │ op B │            │ op A │       each nanosecond is the busiest thread's operator's; where it
    another           │ op C  op D │                     has none, that of the next busiest thread that runs one
    owner        A      B      D     idle   A
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sublight.budget import OTHER_THREADS, PART_INDEX
from sublight.explain import View, host
from sublight.explain.columns import distinct
from sublight.guard.member import IDLE, Member, Pieces, grouped
from sublight.guard.repetitions import Kept, kept
from sublight.trace import I32, I64

ELSEWHERE = PART_INDEX[OTHER_THREADS]


def thread_member(view: View) -> Member:
    """The run, as its busiest thread spends it."""
    which = kept(view)
    trace = view.trace
    made = [m for t in host.busy_threads(trace) if (m := host.thread_timeline(trace, t, (), False)) is not None]
    stretches = [(start, end, row) for _, start, end, row in made]
    edges = distinct(np.clip(np.concatenate([
        view.timeline.edges_ns, *(times for start, end, _ in stretches for times in (start, end)),
        np.array(which.windows, np.int64).ravel(),
    ]), which.windows[0][0], which.windows[-1][1]))
    at, length = edges[:-1], np.diff(edges)
    inside = _inside(at, which)
    at, length = at[inside], length[inside]
    line = view.timeline
    part = line.owner[np.clip(np.searchsorted(line.edges_ns, at, "right") - 1, 0, len(line.owner) - 1)]
    row, thread = _running(at, stretches)
    mine = thread == 0
    ends_gap = np.minimum(np.searchsorted(stretches[0][0], at, "left"), len(stretches[0][0]) - 1)
    idle = IDLE[part] & (part != ELSEWHERE)
    shown = np.where(mine | (part == ELSEWHERE), row, stretches[0][2][ends_gap])
    name = trace.ops.name[np.maximum(shown, 0)]
    collective = _collectives(view, at)
    alone = ~mine & ~idle & (part != ELSEWHERE) & (collective >= 0)        # in flight while the thread runs nothing
    name = np.where(alone, collective, name).astype(np.int32)
    begins = np.concatenate([[True], at[1:] != at[:-1] + length[:-1]])[: len(at)]      # a window, at least
    run = np.where(idle, begins | _changes(idle), alone & (begins | _changes(name)))
    run[np.unique(row, return_index=True)[1]] = True           # an operator runs once, however often it is interrupted
    run &= (row >= 0) | idle | alone
    pieces = Pieces(part, np.where(idle | alone, -1, name).astype(np.int32), name, at, length, length,
                    run, np.full(len(at), -1, np.int64))
    sequence = tuple((n, n) for n in (trace.names[i] for i in name[run & mine & _first_window(at, which)].tolist()))
    return grouped(view, which, [pieces], line.budget(which.windows).communication.hidden_ns, sequence)


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a value is not the one before it."""
    return np.concatenate([[True], values[1:] != values[:-1]])[: len(values)]


def _collectives(view: View, at: I64) -> I64:
    """At each time the name of the collective that is in flight, -1 where none is."""
    trace = view.trace
    n = trace.annotations
    out = np.full(len(at), -1, np.int64)
    known = [i for i, name in enumerate(trace.names) if host.COLLECTIVE.match(name)]
    for row in np.flatnonzero(np.isin(n.name, known)).tolist():
        low, high = np.searchsorted(at, [n.ts_ns[row], n.end_ns[row]], "left")
        out[low:high] = n.name[row]
    return out


def _inside(at: I64, which: Kept) -> np.ndarray:
    starts, ends = (np.array(column) for column in zip(*which.windows, strict=True))
    last = np.searchsorted(starts, at, "right") - 1
    return (last >= 0) & (at < ends[last])


def _first_window(at: I64, which: Kept) -> np.ndarray:
    start, end = which.windows[0]
    return (at >= start) & (at < end)


def _running(at: I64, threads: Sequence[tuple[I64, I64, I32]]) -> tuple[I64, I64]:
    """At each time the operator that runs on the first thread that runs one, and that thread's number; -1 for none."""
    row, which = np.full(len(at), -1, np.int64), np.full(len(at), -1, np.int64)
    for number, (starts, ends, rows) in enumerate(threads):
        last = np.maximum(np.searchsorted(starts, at, "right") - 1, 0)
        runs = (row < 0) & (starts[last] <= at) & (at < ends[last])
        row[runs], which[runs] = rows[last[runs]], number
    return row, which
