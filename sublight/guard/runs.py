"""This file knows about operators of the host that one run has and the other has not, whatever they cost: an `.item()`
on the CPU takes microseconds, and is what stalls a GPU; one block in float64 hides among others of its name.

Counted are operators of all threads in the compared repetitions of CPU-only runs, by name and, where shapes were
recorded, by the number format of their first input. On a GPU kernels tell it: their names hold the format.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sublight.guard.typical import Typical
from sublight.trace import Trace

FORMATS = {"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16",
           "long int": "int64", "int": "int32", "bool": "bool"}
WRAPPERS = ("autograd::engine::",)       # events around others that run as often
RAGGED = 0.02                            # of the larger count: what is less may be cut ends, where counts vary
LISTED = 6


@dataclass(frozen=True, slots=True)
class Count:
    """Of one operator in one run: runs a step, the same in every repetition or not; time a step, what it calls
    included."""

    runs: float = 0.0
    steady: bool = True
    ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Runs:
    """An operator on both sides. format: of its first input; empty where it was not recorded."""

    name: str
    format: str
    a: Count
    b: Count

    @property
    def differ(self) -> bool:
        apart = abs(self.a.runs - self.b.runs)
        steady = self.a.steady and self.b.steady
        return apart > 0 if steady else apart > RAGGED * max(self.a.runs, self.b.runs)


def differing(a: Typical, b: Typical) -> tuple[Runs, ...]:
    """Operators of which the two sides run different numbers, those that take longest first. Empty unless both are
    CPU-only."""
    if not all(m.view.cpu_only for run in (a, b) for m in run.members):
        return ()
    by_format = all(m.view.trace.recording.shapes for run in (a, b) for m in run.members)
    of_a, of_b = _counts(a, by_format), _counts(b, by_format)
    rows = [Runs(*key, of_a.get(key, Count()), of_b.get(key, Count())) for key in sorted({*of_a, *of_b})]
    return tuple(sorted((row for row in rows if row.differ), key=lambda row: (-max(row.a.ns, row.b.ns), row.name)))


def words(a: Typical, b: Typical) -> tuple[str, ...]:
    """What differs, a line each: what one side alone runs, in formats that it alone uses, what it runs more often."""
    rows = differing(a, b)
    out = []
    for side, other in (("B", "A"), ("A", "B")):
        alone = [row for row in rows if _of(row, side).runs and not _of(row, other).runs]
        known = {row.name for row in rows if _of(row, other).runs} | _names(a if other == "A" else b)
        if fresh := [row for row in alone if row.name not in known]:
            out.append(f"{side} alone runs, a step: {_listed(fresh, side)}")
        cast: dict[str, list[Runs]] = defaultdict(list)
        for row in alone:
            if row.name in known and row.format:
                cast[row.format].append(row)
        out += [f"{side} alone runs in {form}, a step: {_listed(cast[form], side)}" for form in sorted(cast)]
    if often := [row for row in rows if row.a.runs and row.b.runs]:
        said = [f"{_titled(row)} {row.a.runs:.4g} → {row.b.runs:.4g}" for row in often[:LISTED]]
        out.append(f"runs a step: {', '.join(said)}{_more(len(often))}")
    return tuple(out)


def _of(row: Runs, side: str) -> Count:
    return row.b if side == "B" else row.a


def _listed(rows: list[Runs], side: str) -> str:
    counts: dict[str, float] = defaultdict(float)
    for row in rows:                     # of several formats
        counts[row.name] += _of(row, side).runs
    return ", ".join(f"{name} ×{count:.3g}" for name, count in [*counts.items()][:LISTED]) + _more(len(counts))


def _more(count: int) -> str:
    return f" and {count - LISTED} more operators" if count > LISTED else ""


def _titled(row: Runs) -> str:
    return f"{row.name} ({row.format})" if row.format else row.name


def _names(run: Typical) -> set[str]:
    return {name for name, _ in _counts(run, False)}


def _counts(run: Typical, by_format: bool) -> dict[tuple[str, str], Count]:
    """A step, by (name, format)."""
    by_repetition: dict[tuple[str, str], np.ndarray] = {}
    spent: dict[tuple[str, str], float] = defaultdict(float)
    offset = 0
    for m in run.members:
        trace, width = m.view.trace, len(m.kept.windows)
        starts, ends = (np.array(column) for column in zip(*m.kept.windows, strict=True))
        last = np.searchsorted(starts, trace.ops.ts_ns, "right") - 1
        rows = np.flatnonzero((last >= 0) & (trace.ops.ts_ns < ends[np.maximum(last, 0)]))
        pairs, which = np.unique(np.stack([trace.ops.name[rows], trace.ops.args[rows]]), axis=1, return_inverse=True)
        table = np.zeros((pairs.shape[1], width))
        np.add.at(table, (which.ravel(), last[rows]), 1)
        times = np.bincount(which.ravel(), trace.ops.dur_ns[rows], minlength=pairs.shape[1])
        for column, (name, args) in enumerate(pairs.T.tolist()):
            if trace.names[name].startswith(WRAPPERS):
                continue
            key = trace.names[name], _format(trace, args) if by_format else ""
            row = by_repetition.setdefault(key, np.zeros(run.repetitions))
            row[offset : offset + width] += table[column]
            spent[key] += float(times[column])
        offset += width
    return {key: Count(float(row.mean()), bool((row == row[0]).all()), spent[key] / run.repetitions)
            for key, row in by_repetition.items()}


def _format(trace: Trace, args: int) -> str:
    if args < 0 or not trace.op_args[args].types:
        return ""
    types = json.loads(trace.op_args[args].types)
    first = next((kind for kind in types if isinstance(kind, str) and kind), "") if isinstance(types, list) else ""
    return FORMATS.get(first, "")
