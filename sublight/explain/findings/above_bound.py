"""SL302: operators whose kernels take much longer than the device could need for them."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, of_window
from sublight.finding import Finding

CODE, TITLE = "SL302", "operators far above their bound"
FAR, SMALLEST_SHARE = 0.5, 0.02
FLOOR_NS = 2_000             # what a kernel takes that has nothing to do: no tile or library makes it shorter


def find(view: View) -> Iterable[Finding]:
    """Fires where calls that take more than twice their bound, and more than twice the time that streaming their bytes
    from memory takes, spend 2 % of the window above the bound. Calls under 2 µs each are left to SL203."""
    if view.bounds is None:
        return
    far = [row for row in view.bounds.calls if max(row.bound_ns, row.streamed_ns) < FAR * row.owned_ns
           and not row.category.startswith("exposed") and row.owned_ns >= FLOOR_NS * row.count]
    above = sum(row.owned_ns - row.bound_ns for row in far)
    if not far or view.share(above) < SMALLEST_SHARE:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, above)} is spent above the bound by operators that take more than twice as long as the "
        "device needs for their arithmetic or for streaming their bytes",
        tuple(f"{row.name} ({cut(row.ops, 48)}): {ms(row.owned_ns)} in {number(row.count, 'call')}; bound "
              f"{ms(row.bound_ns)} ({row.limiter}), bytes streamed from memory {ms(row.streamed_ns)}"
              f"{' at least; inferred' if row.inferred else ''}" for row in far[:5]),
        "Look at the largest first: another library or tile for its shape, a number format that the device is fast in, "
        "or fusion where the operator is too small to fill it",
        "medium", above,
        ("bounds assume the dense peak at the maximum clock and whatever fits into L2 in L2: nobody reaches them all",),
    )
