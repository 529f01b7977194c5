"""Real traces with differences of known size planted into them, and real traces repeated.

Time is put in at one moment: everything that begins then or later moves, on the device and on the host.

    before   ├─ a ─┤├─ b ─┤          ├─ a ─┤├─ b ─┤
    after    ├─ a ─┤      ├─ b ─┤    ├─ a ─────┤├─ b ─┤      (a longer by what was put in at its end)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sublight.trace import I64, NO_ID, Activities, Trace, in_order

TABLES = ("activities", "calls", "ops", "annotations", "overhead")


@dataclass(frozen=True)
class Put:
    """`ns` more at a moment. `longer`: the activity that lasts that much longer; `stays`: one that does not move."""

    at_ns: int
    ns: int
    longer: int | None = None
    stays: int | None = None


def put_in(trace: Trace, puts: Sequence[Put]) -> Trace:
    """The trace with more time in it."""
    puts = sorted(puts, key=lambda p: p.at_ns)
    at = np.array([p.at_ns for p in puts])
    before = np.concatenate([[0], np.cumsum([p.ns for p in puts])])
    tables: dict[str, Any] = {}
    for name in TABLES:
        table = getattr(trace, name)
        start = table.ts_ns + before[np.searchsorted(at, table.ts_ns, "right")]
        end = table.end_ns + before[np.searchsorted(at, table.end_ns, "left")]
        none = table.dur_ns == 0
        end = np.where(none, start, end)
        if name == "activities":
            for p in puts:
                if p.longer is not None:
                    assert table.end_ns[p.longer] == p.at_ns
                    end[p.longer] += p.ns
                if p.stays is not None:
                    assert table.ts_ns[p.stays] <= p.at_ns < table.end_ns[p.stays]
                    end[p.stays] -= p.ns
        tables[name] = replace(table, ts_ns=start, dur_ns=end - start)
    return replace(trace, **{name: in_order(table) for name, table in tables.items()})


def slower(trace: Trace, rows: Collection[int], factor: float) -> tuple[list[Put], int]:
    """Kernels that take `factor` times as long; and how much that is."""
    a = trace.activities
    puts = [Put(int(a.end_ns[row]), round(int(a.dur_ns[row]) * (factor - 1)), longer=row) for row in rows]
    return puts, sum(p.ns for p in puts)


def replaced(trace: Trace, name: str, by: tuple[str, str], share: float = 0.4) -> Trace:
    """Each run of a kernel in two pieces with names of their own."""
    trace = renamed(trace, {*trace.names, *by})
    a, index = trace.activities, {n: i for i, n in enumerate(trace.names)}
    rows = np.flatnonzero(a.name == index[name])
    first = np.round(a.dur_ns[rows] * share).astype(np.int64)
    names, durations = a.name.copy(), a.dur_ns.copy()
    names[rows], durations[rows] = index[by[0]], first
    second = {f.name: getattr(a, f.name)[rows].copy() for f in fields(Activities)}
    second["name"][:] = index[by[1]]
    second["ts_ns"] = a.ts_ns[rows] + first
    second["dur_ns"] = a.dur_ns[rows] - first
    one = replace(a, name=names, dur_ns=durations)
    both = Activities(**{f.name: np.concatenate([getattr(one, f.name), second[f.name]]) for f in fields(Activities)})
    return replace(trace, activities=in_order(both))


def renamed(trace: Trace, names: set[str]) -> Trace:
    """The trace with these names, its own among them."""
    ordered = tuple(sorted(names))
    place = {name: i for i, name in enumerate(ordered)}
    new = np.array([place[name] for name in trace.names], np.int32)
    return replace(trace, names=ordered,
                   **{t: replace(getattr(trace, t), name=new[getattr(trace, t).name]) for t in TABLES})


def unmarked(trace: Trace) -> Trace:
    """Without any annotation."""
    n = trace.annotations
    return replace(trace, annotations=type(n)(**{f.name: getattr(n, f.name)[:0] for f in fields(n)}))


def repeated(trace: Trace, times: int, pause_ns: int = 100_000) -> Trace:
    """The trace again and again, as one run: each copy begins a pause after the last event of the one before it."""
    start = min(int(getattr(trace, t).ts_ns.min()) for t in TABLES if len(getattr(trace, t).ts_ns))
    stop = max(int(getattr(trace, t).end_ns.max()) for t in TABLES if len(getattr(trace, t).ts_ns))
    stride = stop - start + pause_ns
    ids = [getattr(trace, t) for t in ("activities", "calls", "ops")]
    most = 1 + max(int(column.max()) for table in ids for key in ("correlation", "external_id")
                   if len(column := getattr(table, key, np.zeros(0, np.int64))))
    out: dict[str, Any] = {}
    for name in TABLES:
        table = getattr(trace, name)
        columns: dict[str, list[Any]] = {f.name: [] for f in fields(table)}
        for i in range(times):
            for key, parts in columns.items():
                parts.append(_again(key, getattr(table, key), i, stride, most))
        out[name] = in_order(type(table)(**{key: np.concatenate(parts) for key, parts in columns.items()}))
    return replace(trace, **out)


def _again(key: str, column: I64, number: int, stride: int, most: int) -> I64:
    if key == "ts_ns":
        return column + number * stride
    if key in ("correlation", "external_id"):
        return np.where(column == NO_ID, column, column + number * most)
    return column


def joined(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of what intervals cover together."""
    total, reached = 0, -(1 << 62)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
