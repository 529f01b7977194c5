"""This file knows about traces without device activity: each host thread that runs operators is a device.

    op A      ├──────────────┤               A owns what its callees do not
     └ op B       ├────┤                     the innermost running operator owns the nanosecond
    gloo                       ├─────┤       on another thread: exposed where this thread runs no operator
    owner     A   B    A       comm   idle

What runs inside an operator's native threads is not in the file, so a thread's time is the operator's own.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources

import numpy as np

from sublight.budget import COMMUNICATION, OTHER_THREADS, OUTSIDE_OPS, PART_INDEX
from sublight.explain.columns import covered, distinct, present
from sublight.explain.steps import Mark
from sublight.explain.timeline import Timeline
from sublight.trace import I32, I64, Trace

COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|c10d):")


@cache
def _rules() -> tuple[tuple[str, re.Pattern[str]], ...]:
    text = resources.files("sublight.catalog").joinpath("operators.toml").read_text("utf-8")
    return tuple((category, re.compile(f"(?:{pattern})")) for category, pattern in tomllib.loads(text).items())


@cache
def category_of_operator(name: str) -> str:
    """Category of a framework operator by its name: one of budget.COMPUTE, or "communication"."""
    plain = re.sub(r"\.\w+$", "", name).rstrip("_")
    for category, pattern in _rules():
        if pattern.fullmatch(plain) or pattern.fullmatch(name):
            return category
    return "unclassified"


def busy_threads(trace: Trace) -> tuple[int, ...]:
    """Threads that run operators, the busiest first."""
    count = np.bincount(trace.ops.thread, weights=trace.ops.dur_ns, minlength=len(trace.threads))
    return tuple(sorted(present(trace.ops.thread), key=lambda t: (-count[t], t)))


def innermost(ts_ns: I64, end_ns: I64) -> tuple[I64, I64, I32]:
    """Stretches (start, end, row) owned by the innermost running operator: of those that run, the one that began
    last. Rows must be in start order, longest first. Crossing ranges are tolerated."""
    starts: list[int] = []
    ends: list[int] = []
    rows: list[int] = []
    stack: list[tuple[int, int]] = []                  # (end, row), in start order

    def run_to(until: int, now: int) -> int:
        while stack and now < until:
            end, row = stack[-1]
            stop = min(end, until)
            if stop > now:
                starts.append(now)
                ends.append(stop)
                rows.append(row)
                now = stop
            if end <= now:
                stack.pop()
        return now

    now = 0
    for row, (ts, end) in enumerate(zip(ts_ns.tolist(), end_ns.tolist(), strict=True)):
        run_to(ts, now)
        now = ts
        if end > ts:
            stack.append((end, row))
    run_to(int(end_ns.max(initial=0)) + 1, now)
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(rows, np.int32)


def thread_timeline(
    trace: Trace, thread: int, step_marks: tuple[Mark, ...], marked_here: bool
) -> tuple[Timeline, I64, I64, I32] | None:
    """The timeline of one thread, and its stretches (start, end, index into Trace.ops)."""
    mine = np.flatnonzero(trace.ops.thread == thread)
    ts, end = trace.ops.ts_ns[mine], trace.ops.end_ns[mine]
    start_ns, end_ns, row = innermost(ts, end)
    if not len(row):
        return None
    names = trace.names
    part_of = {i: _part(names[i]) for i in present(trace.ops.name[mine])}
    part = np.array([part_of[i] for i in trace.ops.name[mine[row]].tolist()], np.int32)

    marks = np.array([(m.start_ns, m.end_ns) for m in step_marks], np.int64).reshape(-1, 2)
    low, high = int(start_ns[0]), int(end_ns[-1])
    if marked_here and len(marks):
        low, high = min(low, int(marks[:, 0].min())), max(high, int(marks[:, 1].max()))
    in_flight = np.array([bool(COLLECTIVE.match(n)) for n in names] or [False])
    table = trace.annotations
    collective = in_flight[table.name] & (table.thread != thread) if len(table.name) else np.zeros(0, bool)
    comm_ts, comm_end = table.ts_ns[collective], table.end_ns[collective]
    others = trace.ops.thread != thread
    other_ts, other_end = _union(trace.ops.ts_ns[others], trace.ops.end_ns[others])
    edges = distinct(np.clip(np.concatenate([
        [low, high], start_ns, end_ns, comm_ts, comm_end, other_ts, other_end, marks.ravel(),
    ]), low, high))
    communicating, elsewhere = covered(edges, comm_ts, comm_end), covered(edges, other_ts, other_end)
    at = np.maximum(np.searchsorted(start_ns, edges[:-1], "right") - 1, 0)
    busy = (start_ns[at] <= edges[:-1]) & (edges[:-1] < end_ns[at])
    exposed = PART_INDEX[COMMUNICATION["communication"]]
    owner = np.select(
        [busy, communicating, elsewhere], [part[at], exposed, PART_INDEX[OTHER_THREADS]], PART_INDEX[OUTSIDE_OPS],
    ).astype(np.int32)
    communicating = communicating | (owner == exposed)
    return Timeline(edges, owner, communicating), start_ns, end_ns, mine[row].astype(np.int32)


def _union(ts_ns: I64, end_ns: I64) -> tuple[I64, I64]:
    """Disjoint intervals that cover what these cover. They come in start order."""
    if not len(ts_ns):
        return ts_ns, end_ns
    order = np.argsort(ts_ns, kind="stable")
    ts, reached = ts_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.concatenate([[True], ts[1:] > reached[:-1]])
    return ts[first], reached[np.concatenate([first[1:], [True]])]


def _part(name: str) -> int:
    category = category_of_operator(name)
    return PART_INDEX[COMMUNICATION.get(category, category)]
