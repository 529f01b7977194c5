"""This file knows about steps: which annotations mark them, and each step's window on a device.

    host    ├── ProfilerStep#7 ──┤├── ProfilerStep#8 ──┤
              launch  launch ┐        ↓
    device          ├─ first … last ─┤   the window of step 7: of the activities launched within it,
                                         from the start of the first to the end of the last
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sublight.explain.columns import present
from sublight.explain.links import Links, runtime_catalog
from sublight.trace import Trace


@dataclass(frozen=True, slots=True)
class Mark:
    """A step as the host marked it."""

    label: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step on one device. window_ns is None where nothing launched within it is in the file."""

    label: str
    window: tuple[int, int] | None       # start and end, ns
    activities: int                      # launched within it
    lost_launches: int                   # launches within it whose activity is not in the file


def marks(trace: Trace) -> tuple[str | None, tuple[Mark, ...]]:
    """The kind of step marks that the trace has (None: none), and the marks in order."""
    table = trace.annotations
    for row in runtime_catalog()["step"]:
        pattern = re.compile(row["match"])
        labels = {
            i: found for i in present(table.name) if (found := pattern.match(trace.names[i]))
        }
        rows = [r for r in range(len(table.name)) if int(table.name[r]) in labels]
        found: list[Mark] = []
        for ordinal, r in enumerate(rows):
            match = labels[int(table.name[r])]
            label = match.groupdict().get("label") or str(ordinal)
            start = int(table.ts_ns[r])
            found.append(Mark(label, start, start + int(table.dur_ns[r])))
        outer = [m for m in found if not any(
            o is not m and o.start_ns <= m.start_ns and m.end_ns <= o.end_ns
            and (o.end_ns - o.start_ns > m.end_ns - m.start_ns) for o in found
        )] if len(found) < 2000 else found
        if outer:
            return row["kind"], tuple(outer)
    return None, ()


def steps_on(trace: Trace, links: Links, step_marks: tuple[Mark, ...], device: int) -> tuple[Step, ...]:
    """Each marked step's window on a device. A launch belongs to the step during which its call began."""
    a = trace.activities
    here = (a.device == device) & (links.call >= 0)
    ts, end, launched = a.ts_ns[here], a.end_ns[here], links.launch_ns[here]
    order = np.argsort(launched, kind="stable")
    ts, end, launched = ts[order], end[order], launched[order]
    lost_at = np.sort(trace.calls.ts_ns[links.lost_launch])
    out = []
    for mark in step_marks:
        low, high = np.searchsorted(launched, [mark.start_ns, mark.end_ns], "left")
        lost = np.searchsorted(lost_at, [mark.start_ns, mark.end_ns], "left")
        window = (int(ts[low:high].min()), int(end[low:high].max())) if high > low else None
        out.append(Step(mark.label, window, int(high - low), int(lost[1] - lost[0])))
    return tuple(out)


def union(windows: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Disjoint windows in order, covering what the given ones cover."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return tuple(out)
