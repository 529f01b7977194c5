"""This file knows about dependencies: why each activity of a window could not have started earlier.

    host     ── launch A ── launch B ──                   launch: not before its call began, plus the smallest
                    ↓ launch    ↓                         latency between a call and its activity seen here
    stream 7     ├── A ──┤├── B ──┤ delay ├── C ──┤       stream order: not before the one before it ended
    stream 20             join ↓├─── D ───┤               join: with the end of an activity on another stream

A node is one activity inside one window. What no dependency explains is that node's delay, and stays apart.
docs/replay.md draws each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sublight.budget import COMMUNICATION, PART_INDEX
from sublight.errors import InputError
from sublight.explain.hostpoints import HostPoints, host_points
from sublight.explain.joins import Nodes, ended_joins, event_joins, tail_joins
from sublight.explain.view import View
from sublight.trace import I32, I64, KERNEL, B, Trace

LATENCY_AT_MOST_NS = 20_000        # where every launch was early, the smallest latency is no property of launching
TURNAROUND_AT_MOST_NS = 2_000      # no hardware needs longer between two queued activities of one stream
TURNAROUND_EVIDENCE = 32           # so many queued neighbours must show it before any turnaround is believed

Joins = Mapping[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, eq=False, slots=True)
class Dependencies:
    """Nodes in start order, and their edges. Shapes: one entry a node; nodes are named by their index."""

    activity: I64                  # row of Trace.activities
    window: I64                    # index into `windows`
    floor_ns: I64                  # where its window begins: nothing starts earlier
    start_ns: I64                  # measured, cut to the window
    end_ns: I64
    part: I32                      # index into budget.PARTS
    stream: I64
    before: I64                    # node before it on its stream, or -1
    lag_ns: I64                    # from that one's end to its start at least; negative where they overlapped
    in_order: B                    # overlaps the one before it, and ends no earlier
    linked: B                      # its launch is in the file
    launch_ns: I64                 # start of that call
    point: I64                     # last host point of the launching thread before the call, or -1
    joins: Joins                   # node -> (node of another stream, lag)
    delay_ns: I64                  # between what its dependencies allow and its measured start
    points: HostPoints
    windows: tuple[tuple[int, int], ...]
    tail_ns: I64                   # per window: from its last activity to its end
    latency_ns: int                # from a launch call's start to its activity's at least
    turnaround_ns: int             # from an activity's end to a dependent one's start at least
    event_joins: int               # from event records and waits on the host
    inferred_joins: int            # from times alone

    @property
    def measured_ns(self) -> int:
        return sum(end - start for start, end in self.windows)

    @property
    def unexplained_ns(self) -> int:
        return int(self.delay_ns.sum()) + sum(self.points.delay_ns)

    @property
    def communication(self) -> B:
        """Which nodes are communication."""
        out: B = np.isin(self.part, [PART_INDEX[p] for p in COMMUNICATION.values()])
        return out


def dependencies(view: View) -> Dependencies:
    """The dependencies of one device's activities inside the view's windows.

    Raises InputError for a CPU-only trace: it has no device activities to replay.
    """
    if view.links is None:
        raise InputError(f"{view.title}: no device activities to replay; record with ProfilerActivity.CUDA")
    trace, links = view.trace, view.links
    a = trace.activities
    row, window, floor, ceiling = _nodes(view)
    activity = view.rows[row]
    start, end = np.maximum(a.ts_ns[activity], floor), np.minimum(a.end_ns[activity], ceiling)
    stream = a.stream[activity]
    linked = links.call[activity] >= 0
    launch = np.where(linked, links.launch_ns[activity], 0)
    latency = _latency(view)
    launchable = np.where(linked, launch + latency, floor)

    before = before_on_stream(stream, window)
    turnaround = _turnaround(start, end, before, linked & (launchable <= _at(end, before)))
    lag = np.where(before >= 0, np.minimum(turnaround, start - _at(end, before)), 0)
    allowed = np.maximum(floor, launchable)
    allowed = np.maximum(allowed, np.where(before >= 0, _at(end, before) + lag, floor))

    # Time stamps of whole microseconds are off by up to a tick: an end may seem to lie after the start it allowed.
    tick = trace.quality.clock_ns if trace.quality.clock_ns > 1 else 0
    joins: dict[int, list[tuple[int, int]]] = {}

    def join(later: I64, earlier: I64) -> None:
        most = np.minimum(turnaround, start[later] - end[earlier])
        np.maximum.at(allowed, later, end[earlier] + most)
        for i, j, lag_of in zip(later.tolist(), earlier.tolist(), most.tolist(), strict=True):
            joins.setdefault(i, []).append((j, lag_of))

    at = Nodes(window, stream, start, end, a.kind[activity] == KERNEL)
    later, earlier = event_joins(trace, links.call[activity], at, tick)
    events = len(later)
    join(later, earlier)
    inferred = 0
    for pairs in (ended_joins, tail_joins):
        later, earlier = pairs(at, allowed, tick)
        inferred += len(later)
        join(later, earlier)

    points = host_points(view, activity, window, start, end)
    last = np.array([low for low, _ in view.windows], np.int64)
    np.maximum.at(last, window, end)
    return Dependencies(
        activity=activity, window=window, floor_ns=floor, start_ns=start, end_ns=end, part=view.part[row],
        stream=stream, before=before, lag_ns=lag,
        in_order=(before >= 0) & (lag < 0) & (end >= _at(end, before)),
        linked=linked, launch_ns=launch,
        point=points.before(links.call[activity], trace, np.minimum(launch, start), window),
        joins={i: tuple(several) for i, several in joins.items()}, delay_ns=start - allowed, points=points,
        windows=view.windows, tail_ns=np.array([high for _, high in view.windows], np.int64) - last,
        latency_ns=latency, turnaround_ns=turnaround, event_joins=events, inferred_joins=inferred,
    )


def _nodes(view: View) -> tuple[I64, I64, I64, I64]:
    """(position in view.rows, window, its start, its end) of every node: an activity that reaches into two windows
    is a node in each."""
    a = view.trace.activities
    ts, end = a.ts_ns[view.rows], a.end_ns[view.rows]
    reached = np.maximum.accumulate(end) if len(end) else end
    rows, windows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for k, (low, high) in enumerate(view.windows):
        first, stop = np.searchsorted(reached, low, "left"), np.searchsorted(ts, high, "right")
        some = np.arange(first, stop)
        inside = np.minimum(end[some], high) - np.maximum(ts[some], low)
        some = some[(inside > 0) | ((inside == 0) & (ts[some] == end[some]))]
        rows.append(some)
        windows.append(np.full(len(some), k, np.int64))
    window = np.concatenate(windows)
    edges = np.array(view.windows, np.int64).reshape(-1, 2)
    return np.concatenate(rows), window, edges[window, 0], edges[window, 1]


def _at(values: I64, index: I64) -> I64:
    """values[index], for indices that may be -1 (their value means nothing)."""
    return values[np.maximum(index, 0)] if len(values) else values


def _latency(view: View) -> int:
    """The smallest time from a launch call's start to its activity's, over the whole trace. It is negative where the
    clocks of host and device differ by more."""
    assert view.links is not None
    linked = (view.links.call >= 0) & (view.trace.activities.device == view.device)
    seen = (view.trace.activities.ts_ns - view.links.launch_ns)[linked]
    return min(int(seen.min()), LATENCY_AT_MOST_NS) if len(seen) else 0


def before_on_stream(stream: I64, window: I64, among: B | None = None) -> I64:
    """For each node the last earlier node on its stream in its window (of those `among`), or -1."""
    order = np.lexsort((stream, window))                     # stable: start order stays inside each group
    group = np.concatenate([[0], np.cumsum((np.diff(stream[order]) != 0) | (np.diff(window[order]) != 0))])
    place = np.arange(len(order))
    counted = place if among is None else np.where(among[order], place, -1)
    latest = np.concatenate([[-1], np.maximum.accumulate(counted)[:-1]]) if len(order) else place
    same = (latest >= 0) & (group[np.maximum(latest, 0)] == group[: len(order)])
    out = np.full(len(order), -1, np.int64)
    out[order] = np.where(same, order[np.maximum(latest, 0)], -1) if len(order) else 0
    return out


def _turnaround(start: I64, end: I64, before: I64, queued: B) -> int:
    """The smallest gap that a stream leaves between an activity and the next one that was queued already."""
    gap = (start - _at(end, before))[queued & (before >= 0)]
    gap = gap[gap >= 0]
    return min(int(gap.min()), TURNAROUND_AT_MOST_NS) if len(gap) >= TURNAROUND_EVIDENCE else 0


def is_kernel(deps: Dependencies, trace: Trace) -> B:
    """Which nodes are kernels."""
    out: B = trace.activities.kind[deps.activity] == KERNEL
    return out
