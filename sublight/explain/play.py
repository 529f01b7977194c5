"""This file knows about playing a window again: every node starts as soon as its dependencies allow."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sublight.explain.dependencies import Dependencies, before_on_stream
from sublight.trace import I64

AT_ONCE = 1 << 13                          # nodes whose numbers are Python's at a time
NEVER = 1 << 63                            # after every time, and after every node


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """What is different in a replay. length_ns: each node's duration."""

    length_ns: I64
    free_host: bool = False            # launches take no time, the host none between its waiting calls


@dataclass(frozen=True, eq=False, slots=True)
class Played:
    """What came of a replay: one entry a node or host point. Arrays of the standard library: they are asked for one
    entry at a time, which numpy is slow at, and take a fifth of a list's memory."""

    start_ns: array[int]
    end_ns: array[int]
    point_ns: array[int]               # when each host point is reached
    total_ns: int


def hide(deps: Dependencies) -> Dependencies:
    """The same nodes, with communication beside the stream: it waits for what it waited for, but only
    communication waits for it."""
    comm = deps.communication
    before = np.where(comm, deps.before, before_on_stream(deps.stream, deps.window, ~comm))
    lag = np.where(before >= 0, np.minimum(deps.turnaround_ns, deps.start_ns - deps.end_ns[before]), 0)
    in_order = (before >= 0) & (lag < 0) & (deps.end_ns >= deps.end_ns[before])
    joins = {i: kept for i, several in deps.joins.items()
             if (kept := tuple((j, lag_ns) for j, lag_ns in several if comm[i] or not comm[j]))}
    # Communication on one stream stays in its own order, though compute may stand between.
    after = before_on_stream(deps.stream, deps.window, comm)
    for i in np.flatnonzero(comm & (after >= 0) & (after != before)).tolist():
        j = int(after[i])
        apart = min(deps.turnaround_ns, int(deps.start_ns[i] - deps.end_ns[j]))
        joins[i] = (*joins.get(i, ()), (j, apart))
    return replace(deps, before=before, lag_ns=lag, in_order=in_order, joins=joins)


def play(deps: Dependencies, change: Change, *, delays: bool = False) -> Played:
    """Play all windows once; `delays` restores what no dependency explains. `hide` must have been applied already.

    One loop over nodes and host points in measured order: an edge always points forwards in it.
    """
    free, start_ns, end_ns, point_ns = change.free_host, array("q"), array("q"), array("q")
    keys, joins = [*deps.points.at_ns, NEVER], deps.joins
    joined = iter([*sorted(joins), NEVER])
    start_at, end_at = start_ns.append, end_ns.append
    k, next_joined = 0, next(joined)
    for i, (measured, start, before, lag, in_order, point, since, late, length) in enumerate(_rows(
            deps, change, delays)):
        while keys[k] <= measured:
            point_ns.append(_reach(deps, k, point_ns, end_ns, free, delays))
            k += 1
        if before >= 0:
            allowed = end_ns[before] + lag
            if lag < 0 and allowed < start_ns[before]:
                allowed = start_ns[before]
            if allowed > start:
                start = allowed
        if point >= 0:
            allowed = point_ns[point] + since
            if allowed > start:
                start = allowed
        if i == next_joined:
            next_joined = next(joined)
            for j, lag in joins[i]:
                allowed = max(end_ns[j] + lag, start_ns[j])
                if allowed > start:
                    start = allowed
        start += late
        end = start + length
        if in_order and end < end_ns[before]:
            end = end_ns[before]
        start_at(start)
        end_at(end)
    while k < len(deps.points):
        point_ns.append(_reach(deps, k, point_ns, end_ns, free, delays))
        k += 1
    return Played(start_ns, end_ns, point_ns, _total(deps, end_ns))


def _rows(deps: Dependencies, change: Change, delays: bool) -> Iterator[tuple[Any, ...]]:
    """What the replay asks of each node, some nodes at a time: as Python's numbers, all of them would take five times
    the memory. (measured start, earliest start, node before it, lag, in order?, host point, from that to the earliest
    start, delay, length)

    The earliest start is the window's, or what a launch allows that no host point moves: where its point is -1 its
    call keeps its place, unless the host is free: then it starts with the window.
    """
    free = change.free_host
    least = min(deps.latency_ns, 0) if free else deps.latency_ns
    at_ns = np.array([*deps.points.at_ns, 0], np.int64)
    for low in range(0, len(deps.start_ns), AT_ONCE):
        some = slice(low, low + AT_ONCE)
        floor, launch, point = deps.floor_ns[some], deps.launch_ns[some], deps.point[some]
        fixed = deps.linked[some] & (point < 0)
        if free:
            fixed &= launch <= floor
        columns = (
            deps.start_ns[some], np.where(fixed, np.maximum(floor, launch + least), floor), deps.before[some],
            deps.lag_ns[some], deps.in_order[some], point,
            np.full(len(point), least, np.int64) if free else launch - at_ns[point] + least,
            deps.delay_ns[some] if delays else np.zeros(len(point), np.int64), change.length_ns[some])
        yield from zip(*(column.tolist() for column in columns), strict=True)


def _reach(deps: Dependencies, k: int, point_ns: array[int], end_ns: array[int], free: bool, delays: bool) -> int:
    """When host point k is reached."""
    points = deps.points
    source = points.source[k]
    if source is not None:                                     # a hand-over: as the other thread's calls move
        at = moved(deps, source, points.at_ns[k], k, point_ns, free)
        return max(at, moved(deps, points.previous[k], points.called_ns[k], k, point_ns, free))
    ready = moved(deps, points.previous[k], points.called_ns[k], k, point_ns, free)
    for node in points.waited[k]:
        ready = max(ready, end_ns[node])
    return ready + points.return_ns[k] + (points.delay_ns[k] if delays else 0)


def moved(deps: Dependencies, point: int, measured_ns: int, k: int, point_ns: array[int], free: bool) -> int:
    """When a call happens that was measured at `measured_ns`, after a host point of its thread (or -1)."""
    if free:
        return point_ns[point] if point >= 0 else min(measured_ns, deps.windows[deps.points.window[k]][0])
    return measured_ns + (point_ns[point] - deps.points.at_ns[point] if point >= 0 else 0)


def _total(deps: Dependencies, end_ns: array[int]) -> int:
    """Windows' lengths, summed: from each one's start to its last activity's end, and the tail after that."""
    first = np.array([low for low, _ in deps.windows], np.int64)
    last = first.copy()
    np.maximum.at(last, deps.window, np.frombuffer(end_ns, np.int64))
    return int((last - first).sum() + deps.tail_ns.sum())
