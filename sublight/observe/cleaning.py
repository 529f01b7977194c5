"""This file knows about time stamps that cannot be: which activities are counted but kept out of the time line, and
which durations are cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sublight.trace import NO_ID, Activities, in_order

DISPLACED_GAP_NS = 3600 * 10**9
LONGEST_NS = 30 * 24 * 3600 * 10**9      # no recording is longer; sums of what lies within it are exact in a double
OVERRUN_SUCCESSORS = 8


def _keep(table: Any, rows: Any) -> Any:
    return replace(table, **{f.name: getattr(table, f.name)[rows] for f in fields(table)})


def forward_only(table: Any, untimed: Counter[str]) -> Any:
    """Without what no recording can hold: events that end before they start, and damaged digits."""
    bad = table.dur_ns < 0
    if bad.any():
        untimed["ends before it starts"] += int(bad.sum())
        table = _keep(table, ~bad)
    far = table.dur_ns > LONGEST_NS
    if len(far) and table.ts_ns.max() - table.ts_ns.min() > LONGEST_NS:
        middle = np.partition(table.ts_ns, len(far) // 2)[len(far) // 2]
        far |= np.abs(table.ts_ns - middle) > LONGEST_NS
    if far.any():
        untimed["more than a month long, or away from the rest"] += int(far.sum())
        table = _keep(table, ~far)
    return table


def usable_times(activities: Activities, base_ns: int, untimed: Counter[str]) -> Activities:
    """Without the records that CUPTI garbled: start and length zero, ends before starts, or hours away from all
    the others (kineto#109, parcagpu#23)."""
    relative = activities.ts_ns - base_ns
    zero = (relative == 0) & (activities.dur_ns == 0)
    if zero.any() and not zero.all() and np.abs(relative[~zero]).min() > 10**9:
        untimed["start and duration are zero"] += int(zero.sum())
        activities = _keep(activities, ~zero)
    activities = forward_only(activities, untimed)
    if len(activities.ts_ns) > 2:
        starts = np.sort(activities.ts_ns)
        jumps = np.flatnonzero(np.diff(starts) > DISPLACED_GAP_NS)
        if len(jumps):                            # keep the largest group that hangs together
            edges = np.concatenate([[0], jumps + 1, [len(starts)]])
            largest = int(np.argmax(np.diff(edges)))
            low, high = starts[edges[largest]], starts[edges[largest + 1] - 1]
            inside = (activities.ts_ns >= low) & (activities.ts_ns <= high)
            if inside.mean() >= 0.9:
                untimed["more than an hour away from the rest"] += int((~inside).sum())
                activities = _keep(activities, inside)
    return activities


def clip_overruns(activities: Activities) -> tuple[Activities, int]:
    """Cut durations that run past many whole successors on their own stream (TraceLens#669).

    A stream is in order. A kernel may overlap its successor or two (programmatic dependent launch), and branches of
    a CUDA graph do run side by side; but eight kernels that ran one after another cannot all have begun and ended
    while the one before them still ran.
    """
    a, many = activities, OVERRUN_SUCCESSORS
    n = len(a.ts_ns)
    if n <= many:
        return activities, 0
    order = np.lexsort((a.ts_ns, a.stream, a.device))
    starts, ends = a.ts_ns[order], a.end_ns[order]
    track = a.device[order].astype(np.int64) * (1 << 40) + a.stream[order]
    in_turn = np.concatenate([[0], np.cumsum((starts[1:] >= ends[:-1]) & (ends[1:] > starts[1:]))])
    over = np.zeros(n, bool)
    turns = in_turn[many:] - in_turn[1 : n - many + 1]               # of the successors 1 … many, one after another
    over[: n - many] = (track[: n - many] == track[many:]) & (turns == many - 1) & (ends[: n - many] > ends[many:])
    if not over.any():
        return activities, 0
    _, inverse, counts = np.unique(a.correlation, return_inverse=True, return_counts=True)
    over &= ~((counts[inverse] > 1) | (a.graph_node != NO_ID))[order]
    rows = np.flatnonzero(over)
    if not len(rows):
        return activities, 0
    duration = a.dur_ns.copy()
    duration[order[rows]] = starts[rows + 1] - starts[rows]
    return in_order(replace(a, dur_ns=duration)), len(rows)
