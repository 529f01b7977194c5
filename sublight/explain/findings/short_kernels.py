"""SL203: many kernels so short that launching them costs more than running them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import DEPENDENCY, STARVED
from sublight.explain.view import View, inside, is_kernel
from sublight.explain.words import graphs, ms, of_window, percent, top
from sublight.finding import Finding
from sublight.trace import I64

CODE, TITLE = "SL203", "many short kernels"
SHORT_NS = 5_000             # about what a launch costs the host: 2 to 5 µs without a profiler
MANY, SMALLEST_SHARE = 0.5, 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where half of at least 20 kernels run under 5 µs and together take 1 % of the busy time."""
    kernels = is_kernel(view)
    if len(kernels) < 20:
        return
    rows_of = view.rows[kernels]
    a = view.trace.activities
    ns = a.dur_ns[rows_of]                     # not as cut by the window, which makes no kernel short
    short = ns < SHORT_NS
    total = _covered(a.ts_ns[rows_of[short]], a.end_ns[rows_of[short]], view)
    if short.mean() < MANY or not total or total < SMALLEST_SHARE * view.budget.busy_ns:
        return
    rows = [row for row in view.kernels if row.kind == "kernel" and row.ns < SHORT_NS * row.count]
    yield Finding(
        CODE, TITLE,
        f"{int(short.sum()):,} of {len(kernels):,} kernels run for less than {ms(SHORT_NS)} each, together "
        f"{of_window(view, total)}",
        (f"median of all kernels: {ms(float(np.median(ns)))}; {percent(float(short.mean()))} are short",
         *top(sorted(rows, key=lambda r: -r.count))),
        f"Fuse them (torch.compile, fused norm/activation/quantise kernels) or replay them: {graphs(view)}",
        "medium", total + _idle_before(view, rows_of[short]),
        ("an upper limit: their own time and the idle time before each; fused work does not vanish",),
    )


def _idle_before(view: View, rows: I64) -> int:
    """Idle time of the window that ends with the start of one of these activities."""
    a = view.trace.activities
    starts_at = np.unique(a.ts_ns[rows])
    total = 0
    for part in (STARVED, DEPENDENCY):
        starts, ends = view.timeline.stretches(part, view.windows)
        total += int((ends - starts)[np.isin(ends, starts_at)].sum())
    return total


def _covered(ts_ns: I64, end_ns: I64, view: View) -> int:
    """Time of the window in which any of these (in start order) runs: side by side they cost it once."""
    reached = np.maximum.accumulate(end_ns)
    before = np.concatenate([ts_ns[:1], reached[:-1]])
    start = np.maximum(ts_ns, before)
    return int(inside(start, np.maximum(start, end_ns), view.windows).sum())
