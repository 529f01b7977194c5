"""SL103: communication kernels that only wait for their peers."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.budget import COMMUNICATION
from sublight.explain.findings.sms_held import held_blocks
from sublight.explain.view import View
from sublight.explain.words import of_window, percent, top
from sublight.finding import Finding

CODE, TITLE = "SL103", "waiting for other ranks"
SMALLEST_SHARE = 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where kernels that only wait or notify run for at least 1 % of the window."""
    wait = view.budget.communication.wait_ns
    if not wait or view.share(wait) < SMALLEST_SHARE:
        return
    part = COMMUNICATION["communication: wait"]
    rows = view.of_parts([part])
    total = sum(row.ns for row in view.communication_kernels)
    exposed = view.budget[part]
    held, sms = held_blocks(view), view.sms
    hidden_cost = (wait - exposed) * min(held, sms) // sms if held and sms else 0
    gain = min(view.budget.communication.exposed_ns + hidden_cost, view.budget.window_ns)
    yield Finding(
        CODE, TITLE,
        f"kernels that only wait or notify run for {of_window(view, wait)}, {percent(wait / total)} of the time of "
        "all communication kernels",
        (f"exposed: {of_window(view, exposed)}; the rest is beside compute and holds SMs", *top(rows)),
        "Compare when the ranks arrive: uneven experts, uneven sequence lengths or a slow rank make the others wait",
        "high", gain,
        ("an upper limit: all exposed communication, which may stand behind the waiting, and the SMs that hidden "
         "waiting holds", "one rank shows that it waits, not for whom: read the same steps of all ranks",),
    )
