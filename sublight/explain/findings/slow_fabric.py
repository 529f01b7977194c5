"""SL108: communication that takes longer than its fabric needs, even at its best."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.fabric import SLOWER, row_words
from sublight.explain.view import View
from sublight.explain.words import of_window
from sublight.finding import Finding

CODE, TITLE = "SL108", "slower than the fabric"
SMALLEST_SHARE = 0.01
FEW = 3                      # calls on one rank that may all have waited for peers


def find(view: View) -> Iterable[Finding]:
    """Fires where the shortest of alike calls exceed what is expected by 1 % of the window, all together."""
    held = view.fabric
    rows = [row for row in held.rows if row.verdict == SLOWER] if held is not None else []
    excess = sum(round((row.transfer_ns - row.expected.high * 1e9) * row.count) for row in rows)
    if held is None or view.share(excess) < SMALLEST_SHARE:
        return
    most = sum(row.measured_ns - row.expected_ns[0] for row in rows)      # if the fabric were as fast as it may be
    few = not held.several_ranks and max(row.count for row in rows) < FEW
    yield Finding(
        CODE, TITLE,
        f"communication exceeds what {held.title} lets one expect by {of_window(view, excess)}, as if every call were "
        "as short as the shortest of its kind",
        tuple(row_words(row) for row in rows[:3]),
        "Compare NCCL's choice (sublight comm nccl) and measurements of the cluster (sublight comm doctor); look for "
        "waiting inside the kernels, for few SMs, and for traffic that shares the links",
        "low" if few or not held.given else "medium", min(most, view.budget.communication.exposed_ns),
        (*(() if held.several_ranks else ("one rank's file: even its shortest call may have waited for peers",)),
         *(() if not view.budget.communication.hidden_ns else
           ("expected times are of communication alone: beside compute it shares memory and links",)),
         *(() if held.given else (held.told_by,))),
    )
