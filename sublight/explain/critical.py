"""This file knows about the critical path: what the length of a replayed window is made of.

It is walked backwards from the activity that ends last: from each node to what held it back. Where activities overlap
on a stream, the earlier one is charged until the later one starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sublight.budget import COMMUNICATION, EXPOSED_COPIES, PARTS
from sublight.explain.dependencies import Dependencies
from sublight.explain.play import Change, Played, moved

# What a critical path is made of, beside the categories of kernels.
LAUNCH, HOST, SYNCHRONISATION = "launch latency", "host", "synchronisation"
TURNAROUND, TAIL = "turnaround", "after the last activity"
PLAIN = {part: category for category, part in COMMUNICATION.items()} | {EXPOSED_COPIES: "copies"}


Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Path:
    """A replay as the walk reads it: no columns of numpy, because it goes node by node."""

    deps: Dependencies
    played: Played
    free_host: bool
    names: list[str]
    part: bytes                    # the part that a node is charged to, by its place among the names
    before: memoryview
    lag_ns: memoryview
    held: bytes                    # its end is that of the node before it on its stream
    point: memoryview
    launch_ns: memoryview


def critical_path(deps: Dependencies, change: Change, played: Played) -> dict[str, int]:
    """Nanoseconds of each part on the longest path, largest first: they sum to played.total_ns."""
    names = [PLAIN.get(part, part) for part in PARTS]
    ends = np.frombuffer(played.end_ns, np.int64)
    held = deps.in_order & (ends > np.frombuffer(played.start_ns, np.int64) + change.length_ns)
    path = _Path(deps, played, change.free_host, names, deps.part.astype(np.uint8).tobytes(), _numbers(deps.before),
                 _numbers(deps.lag_ns), held.tobytes(), _numbers(deps.point), _numbers(deps.launch_ns))
    spent: dict[str, int] = {}
    charged = [0] * len(names)
    stops = np.searchsorted(deps.window, np.arange(len(deps.windows) + 1))
    for k, (floor, _) in enumerate(deps.windows):
        first, stop = int(stops[k]), int(stops[k + 1])
        _charge(spent, TAIL, int(deps.tail_ns[k]))
        if stop > first:
            node = first + int(np.argmax(ends[first:stop]))
            if played.end_ns[node] > floor:
                _walk(path, node, floor, charged, spent)
    for name, ns in zip(names, charged, strict=True):
        _charge(spent, name, ns)
    return dict(sorted(spent.items(), key=lambda item: (-item[1], item[0])))


def _numbers(column: Any) -> memoryview:
    """The column as it lies there, for one number at a time, which numpy itself is slow at."""
    laid: Any = np.ascontiguousarray(column)
    return memoryview(laid)


def _charge(spent: dict[str, int], part: str, ns: int) -> None:
    if ns > 0:
        spent[part] = spent.get(part, 0) + ns


def _walk(path: _Path, node: int, floor: int, charged: list[int], spent: dict[str, int]) -> None:
    """Charge one window's path, from the end of `node` back to the window's start; `charged` is of the parts that own
    nodes, by their place among the names."""
    start_ns, end_ns, joins = path.played.start_ns, path.played.end_ns, path.deps.joins
    part, befores, lags = path.part, path.before, path.lag_ns
    now = end_ns[node]
    while True:
        start, before = start_ns[node], befores[node]
        if path.held[node] and now == end_ns[node]:
            node = before
            continue
        if now > start:
            charged[part[node]] += now - start
        now = start
        if now <= floor:
            return
        edges: Edges = ((before, lags[node]),) if before >= 0 else ()
        for j, lag in edges + joins[node] if node in joins else edges:
            allowed, begun = end_ns[j] + lag, start_ns[j]
            if (allowed if allowed > begun else begun) == start:
                node = j
                if lag > 0:
                    _charge(spent, TURNAROUND, lag)
                if end_ns[node] < now:
                    now = end_ns[node]
                break
        else:
            point, called = _launched(path, node, floor)
            reached = max(min(now, called), floor)
            _charge(spent, LAUNCH, now - reached)
            waited = _walk_host(path, point, reached, floor, spent)
            if waited is None:
                return
            node, now = waited, end_ns[waited]


def _launched(path: _Path, node: int, floor: int) -> tuple[int, int]:
    """(host point, time) of the call that launched a node, as played."""
    point, launch = path.point[node], path.launch_ns[node]
    if point < 0:
        return point, min(launch, floor) if path.free_host else launch
    reached = path.played.point_ns[point]
    return point, reached if path.free_host else reached + launch - path.deps.points.at_ns[point]


def _walk_host(path: _Path, point: int, now: int, floor: int, spent: dict[str, int]) -> int | None:
    """Charge the host's share from `now` back to the end of the node that it waited for; None: to the window's
    start."""
    points, played = path.deps.points, path.played
    while point >= 0 and now > floor:
        reached = max(min(now, played.point_ns[point]), floor)
        _charge(spent, HOST, now - reached)
        now = reached
        source, previous = points.source[point], points.previous[point]
        if source is not None:
            own = moved(path.deps, previous, points.called_ns[point], point, played.point_ns, path.free_host)
            other = moved(path.deps, source, points.at_ns[point], point, played.point_ns, path.free_host)
            point = source if other >= own else previous
            continue
        ready = max(now - points.return_ns[point], floor)
        _charge(spent, SYNCHRONISATION, now - ready)
        now = ready
        for node in points.waited[point] if now > floor else ():
            if played.end_ns[node] == ready:
                return node
        point = previous
    _charge(spent, HOST, now - floor)
    return None
