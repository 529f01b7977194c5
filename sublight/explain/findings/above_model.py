"""SL308: operators of the model whose kernels take much longer than the device could need for them."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window
from sublight.finding import Finding

CODE, TITLE = "SL308", "operators of the model far above their bound"
FAR, SMALLEST_SHARE = 0.6, 0.01
RECORDED = 0.5               # share of kernel time whose bound the file tells: then SL302 says it
FLOOR_NS = 2_000             # what a kernel takes that has nothing to do


def find(view: View) -> Iterable[Finding]:
    """Fires where a model was given to a file without shapes, and operators that were matched to kernels of their own
    and take more than 1.7 times their bound and their bytes' time spend 1 % of the window above the bound."""
    held = view.model
    if held is None or held.contradiction or (view.bounds is not None and view.bounds.inferred_share > RECORDED):
        return
    far = [(row, row.measured_ns - row.least_ns) for row in held.rows
           if row.measured_ns is not None and row.least_ns is not None and row.category != "communication"
           and row.measured_ns >= FLOOR_NS * row.count and max(row.least_ns, row.memory_ns) < FAR * row.measured_ns]
    far.sort(key=lambda pair: -pair[1])
    above = sum(ns for _, ns in far)
    if not far or view.share(above) < SMALLEST_SHARE:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, above)} is spent above the bound by operators of {held.model} that take more than "
        f"{1 / FAR:.1f} times as long as the device needs for their arithmetic or for streaming their bytes",
        tuple(f"{row.label} ({cut(row.ops, 48)}): {ms(row.measured_ns or 0)} in {number(row.count, 'call')}; bound "
              f"{ms(row.least_ns or 0)} ({row.limiter})" for row, _ in far[:5]),
        "Look at the largest first: another library or tile for its shape, a number format that the device is fast in, "
        "or fusion where the operator is too small to fill it",
        "medium", above,
        ("kernels were matched to the model's operators by category and order; the file records no sizes",),
    )
