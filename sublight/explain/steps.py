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
    for kind in runtime_catalog()["step"]:
        pattern = re.compile(kind["match"])
        matches = {i: match for i in present(table.name) if (match := pattern.match(trace.names[i]))}
        found: list[Mark] = []
        for row in range(len(table.name)):
            match = matches.get(int(table.name[row]))
            if match is not None:
                start = int(table.ts_ns[row])
                label = match.groupdict().get("label") or str(len(found))
                found.append(Mark(label, start, start + int(table.dur_ns[row])))
        if found:
            return kind["kind"], _outermost(found)
    return None, ()


def _outermost(found: list[Mark]) -> tuple[Mark, ...]:
    """Marks that lie in no longer mark: engines mark a step on several threads. They come in start order."""
    out: list[Mark] = []
    for mark in sorted(found, key=lambda m: (m.start_ns, -m.end_ns)):
        if not out or mark.end_ns > out[-1].end_ns:
            out.append(mark)
    return tuple(out)


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
