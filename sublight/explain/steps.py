"""This file knows about steps: which annotations mark them, or how they repeat where none does, and each one's window.

    host    ├── ProfilerStep#7 ──┤├── ProfilerStep#8 ──┤
              launch  launch ┐        ↓
    device          ├─ first … last ─┤   the window of step 7: of the activities launched within it,
                                         from the start of the first to the end of the last

    not marked   d e │ a b c d e │ a b c d e │ a b       a repetition's window ends where the next one's begins, since
    windows          ├───────────┼───────────┤           nothing says that the pause between them is no part of it
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sublight.explain.columns import present
from sublight.explain.links import Links, runtime_catalog
from sublight.observe.period import Period, Repetitions, period
from sublight.trace import I32, I64, Trace

REPETITION = "repetition"                # the kind of steps that were found, not marked


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


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one device. `words`: how they are known, or why there are none."""

    kind: str | None                     # of mark, or REPETITION; None: no steps
    steps: tuple[Step, ...]
    words: str

    @property
    def found(self) -> bool:
        """Were they found, not marked?"""
        return self.kind == REPETITION


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


def repetitions_on(trace: Trace, device: int) -> Steps:
    """Steps that nobody marked, from the order in which the device's activities were launched."""
    a = trace.activities
    rows = in_launch_order(trace, device)
    found = period(a.name[rows], a.ts_ns[rows])
    if found.repetitions is None:
        return Steps(None, (), not_found(found, "kernels"))
    starts, ends = a.ts_ns[rows], a.end_ns[rows]
    windows = repeated_windows(found.repetitions, starts, ends)
    steps = tuple(Step(str(i), window, found.repetitions.period, 0) for i, window in enumerate(windows))
    return Steps(REPETITION, steps, in_words(found.repetitions, "activities"))


def in_launch_order(trace: Trace, device: int) -> I64:
    """A device's activities in the order of their launches, which does not depend on how streams interleave.
    Correlation ids count up; those of one graph launch share one."""
    a = trace.activities
    rows = np.flatnonzero(a.device == device)
    out: I64 = rows[np.lexsort((a.ts_ns[rows], a.correlation[rows]))]
    return out


def repeated_windows(found: Repetitions, start_ns: I64, end_ns: I64) -> tuple[tuple[int, int], ...]:
    """Each repetition's window: up to where the next begins, that of the last to the first of what is cut off, or to
    its own end. Times are those of the sequence."""
    begins = [int(start_ns[at : at + found.period].min()) for at in found.starts]
    stop = found.stop
    last = int(end_ns[found.starts[-1] : stop].max())
    if stop < len(start_ns):
        last = max(int(start_ns[stop:].min()), begins[-1] + 1)
    begins = np.maximum.accumulate(begins).tolist()
    return tuple(zip(begins, [*begins[1:], max(last, begins[-1])], strict=True))


def in_words(found: Repetitions, what: str) -> str:
    """"16 repetitions of 157 activities, found, not marked; set apart: 8 before (cut), 116 after (cut)"."""
    apart = [f"{count:,} {where}" for count, where in (
        (found.warm_up, "of warm-up"), (found.cut_start, "cut off at the start"), (found.cut_end, "at the end"),
    ) if count]
    said = f"{len(found.starts):,} repetitions of {found.period:,} {what}, found, not marked"
    return said + (f"; set apart: {', '.join(apart)}" if apart else "")


def not_found(found: Period, what: str) -> str:
    """Why a sequence counts as one step."""
    said = f"no step is marked in the file, and its {what} hold one step at most"
    if found.inside is not None:
        said += f" ({found.inside.period:,} repeat {found.inside.times} times inside it, as layers do)"
    return said


def operator_repetitions(trace: Trace, thread: int) -> tuple[tuple[Mark, ...], str]:
    """Steps of a CPU-only trace that nobody marked, from the outermost operators of its busiest thread; in words."""
    mine = np.flatnonzero(trace.ops.thread == thread)
    ts, end = trace.ops.ts_ns[mine], trace.ops.end_ns[mine]
    reached = np.maximum.accumulate(end)
    outer = np.concatenate([[True], ts[1:] >= reached[:-1]]) if len(mine) else np.zeros(0, bool)
    names: I32 = trace.ops.name[mine][outer]
    found = period(names, ts[outer])
    if found.repetitions is None:
        return (), not_found(found, "operators")
    windows = repeated_windows(found.repetitions, ts[outer], end[outer])
    return tuple(Mark(str(i), *w) for i, w in enumerate(windows)), in_words(found.repetitions, "operators")


def union(windows: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Disjoint windows in order, covering what the given ones cover."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return tuple(out)
