"""This file knows about a Timeline: one device's whole span cut into stretches, each with one owner.

Owners of busy time are read from the device's streams only. The causes of idle time are decided on the whole trace;
a window is cut out afterwards, so that windows add up. docs/idle.md draws each cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublight.budget import (
    BLOCKED,
    COMMUNICATION,
    COMPUTE,
    DEPENDENCY,
    EXPOSED_COPIES,
    OUTSIDE_STEP,
    OVERHEAD,
    PART_INDEX,
    PARTS,
    STARVED,
    UNEXPLAINED,
    Budget,
    Communication,
    Part,
)
from sublight.explain.columns import covered, distinct, joined, present
from sublight.explain.links import Links, calls_matching
from sublight.observe.kernel_name import classify
from sublight.trace import I32, I64, KERNEL, B, Trace

Windows = Sequence[tuple[int, int]]
FIRST_NOT_COMPUTE = len(COMPUTE)
AT_ONCE = 1 << 16                          # stretches that are summed at a time


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """Stretches of one device (or one thread), from its first to its last activity.

    Shapes: edges_ns n + 1; owner (index into budget.PARTS) and communicating n.
    """

    edges_ns: I64
    owner: I32
    communicating: B

    @property
    def span(self) -> tuple[int, int]:
        return int(self.edges_ns[0]), int(self.edges_ns[-1])

    def cut(self, windows: Windows) -> tuple[I64, I32, B]:
        """(length in ns, owner, communicating) of every stretch inside the windows, which must be disjoint."""
        at, starts, ends = self.pieces(windows)
        return ends - starts, self.owner[at], self.communicating[at]

    def pieces(self, windows: Windows) -> tuple[I64, I64, I64]:
        """(index, start, end) of every stretch inside the windows, which must be disjoint; times are cut to them."""
        none = np.zeros(0, np.int64)
        at, starts, ends = [none], [none], [none]
        for start, end in windows:
            low = max(int(np.searchsorted(self.edges_ns, start, "right")) - 1, 0)
            high = int(np.searchsorted(self.edges_ns, end, "left"))
            edges = np.clip(self.edges_ns[low : high + 1], start, end)
            at.append(np.arange(low, low + max(len(edges) - 1, 0)))
            starts.append(edges[:-1])
            ends.append(edges[1:])
        return np.concatenate(at), np.concatenate(starts), np.concatenate(ends)

    def _blocks(self, windows: Windows) -> Iterator[tuple[int, I64]]:
        """(index of its first stretch, its edges cut to the window) of blocks of stretches that make up the windows."""
        for start, end in windows:
            first = max(int(np.searchsorted(self.edges_ns, start, "right")) - 1, 0)
            last = int(np.searchsorted(self.edges_ns, end, "left"))
            for low in range(first, last, AT_ONCE):
                yield low, np.clip(self.edges_ns[low : min(low + AT_ONCE, last) + 1], start, end)

    def stretches(self, part: str, windows: Windows) -> tuple[I64, I64]:
        """(starts, ends) in ns of the stretches of a part inside the windows, whole: touching pieces are one."""
        mine = np.flatnonzero(self.owner == PART_INDEX[part])
        starts, ends = joined(self.edges_ns[mine], self.edges_ns[mine + 1])
        cut = [(np.clip(starts, a, b), np.clip(ends, a, b)) for a, b in windows]
        some = [(s[e > s], e[e > s]) for s, e in cut]
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *(s for s, _ in some)]), np.concatenate([none, *(e for _, e in some)])

    def budget(self, windows: Windows, wait_ns: int | None = None, undivided_ns: int = 0) -> Budget:
        """The budget of disjoint windows inside the span."""
        parts, union, hidden = np.zeros(len(PARTS), np.int64), 0, 0
        for low, edges in self._blocks(windows):
            lengths, some = np.diff(edges), slice(low, low + len(edges) - 1)
            owner, communicating = self.owner[some], self.communicating[some]
            parts += np.bincount(owner, weights=lengths, minlength=len(PARTS)).astype(np.int64)
            union += int(lengths[communicating].sum())
            hidden += int(lengths[communicating & (owner < FIRST_NOT_COMPUTE)].sum())
        return Budget(
            window_ns=sum(end - start for start, end in windows),
            parts=tuple(Part(name, int(ns)) for name, ns in zip(PARTS, parts, strict=True) if ns),
            communication=Communication(union, hidden, union - hidden, wait_ns, undivided_ns),
        )


def part_of_name(trace: Trace) -> I32:
    """For each name of the trace that a kernel has: the part that owns its time. Shape: names."""
    out = np.full(len(trace.names) + 1, PART_INDEX["unclassified"], np.int32)
    a = trace.activities
    for i in present(a.name[a.kind == KERNEL]):
        category = classify(trace.names[i]).category
        out[i] = PART_INDEX[COMMUNICATION.get(category, category)]
    return out


def part_of_activity(trace: Trace) -> I32:
    """For each device activity the part that owns its time, while nothing of higher rank runs beside it."""
    a = trace.activities
    out: I32 = np.where(a.kind == KERNEL, part_of_name(trace)[a.name], PART_INDEX[EXPOSED_COPIES]).astype(np.int32)
    return out


def timeline(trace: Trace, links: Links, device: int, part: I32, step_windows: Windows) -> Timeline | None:
    """The timeline of one device; None if none of its activities takes any time.

    `part` is part_of_activity(trace); `step_windows` are the device's steps, disjoint.
    """
    a = trace.activities
    here = np.flatnonzero((a.device == device) & (a.dur_ns > 0))
    if not len(here):
        return None
    ts, end, launch_ns = a.ts_ns[here], a.end_ns[here], links.launch_ns[here]
    span = (int(ts.min()), int(end.max()))
    syncs = calls_matching(trace, "synchronising")
    sync_ts, sync_end = trace.calls.ts_ns[syncs], trace.calls.end_ns[syncs]
    steps = np.array(step_windows, np.int64).reshape(-1, 2)
    reached = np.maximum.accumulate(end)                                # rows are in start order
    after_gap = np.flatnonzero(ts[1:] > reached[:-1]) + 1
    edges = distinct(np.clip(np.concatenate([
        ts, end, launch_ns[after_gap], sync_ts, sync_end, steps.ravel(), trace.overhead.ts_ns, trace.overhead.end_ns,
    ]), *span))

    owner: Any = np.full(len(edges) - 1, -1, np.int8)
    communicating = np.zeros(len(edges) - 1, bool)
    for p in reversed(present(part[here])):      # the highest rank last, on top
        mine = part[here] == p
        inside = covered(edges, ts[mine], end[mine])
        owner[inside] = p
        if PARTS[p] in COMMUNICATION.values():
            communicating |= inside

    idle = np.flatnonzero(owner < 0)
    at = edges[idle]
    upcoming = np.searchsorted(ts, at, "left")                          # the next activity
    idle_since = reached[upcoming - 1]
    call = links.call[here][upcoming]
    linked = call >= 0
    early = links.before_recording[here][upcoming] | (linked & (launch_ns[upcoming] < idle_since))
    starved = linked & ~early

    blocked = np.zeros(len(idle), bool)
    sync_thread = trace.calls.thread[syncs]
    if len(sync_ts):
        blocked |= ~linked & ~early & covered(edges, sync_ts, sync_end)[idle]
        held_up = starved & (at < launch_ns[upcoming])                  # a call after the launch held nothing up
        launcher = np.where(held_up, trace.calls.thread[call], -1)
        for thread in np.intersect1d(sync_thread, launcher[held_up]).tolist():
            its = sync_thread == thread
            blocked |= (launcher == thread) & covered(edges, sync_ts[its], sync_end[its])[idle]
    outside = ~covered(edges, steps[:, 0], steps[:, 1])[idle] if len(steps) else np.zeros(len(idle), bool)
    overhead = covered(edges, trace.overhead.ts_ns, trace.overhead.end_ns)[idle]
    owner[idle] = np.select(
        [blocked, starved, early, outside, overhead],
        [PART_INDEX[p] for p in (BLOCKED, STARVED, DEPENDENCY, OUTSIDE_STEP, OVERHEAD)],
        PART_INDEX[UNEXPLAINED],
    )
    return Timeline(edges, owner, communicating)
