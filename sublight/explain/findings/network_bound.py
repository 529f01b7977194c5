"""SL107: communication that runs at the rate which its fabric allows."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.fabric import AT_RATE, row_words
from sublight.explain.view import View
from sublight.explain.words import ms, of_window
from sublight.finding import Finding

CODE, TITLE = "SL107", "network-bound communication"
SMALLEST_SHARE = 0.01
LATENCY = "base latency"                 # as expected times name it
FEWER_BYTES = ("Send fewer bytes (a narrower format, routing limited to fewer nodes), hide more of it behind compute, "
               "or take a faster network; tuning the library will not help")
FEWER_CALLS = ("Join small calls into fewer, hide them behind compute, or use kernels that start faster (custom or "
               "symmetric-memory all-reduces, launched by CUDA graphs); fewer bytes or a faster network will not help")


def find(view: View) -> Iterable[Finding]:
    """Fires where calls at the expected rate take at least 1 % of the window."""
    held = view.fabric
    rows = [row for row in held.rows if row.verdict == AT_RATE] if held is not None else []
    spent = sum(row.transfer_ns * row.count for row in rows)
    if held is None or view.share(spent) < SMALLEST_SHARE:
        return
    started = sum(row.transfer_ns * row.count for row in rows if row.expected.limiter == LATENCY)
    latency = 2 * started > spent
    limiters = {row.expected.limiter for row in rows}
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, spent)} of communication runs no slower than {held.title} lets one expect: "
        + ("the latency of its calls, not their bytes, is the limit" if latency else
           "the network, not its use, is the limit"),
        (*(row_words(row) for row in rows[:3]), f"what limits: {', '.join(sorted(limiters))}"),
        FEWER_CALLS if latency else FEWER_BYTES,
        "medium" if held.given else "low", None,
        (*(() if held.given else (held.told_by,)),
         f"{ms(spent)} in all calls together, as if each were as short as the shortest of its kind"),
    )
