"""SL003: kernels whose names say nothing to the taxonomy."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import ms, percent, top
from sublight.finding import Finding
from sublight.trace import WHOLE_GRAPHS

CODE, TITLE = "SL003", "unclassified kernels"
SMALLEST_SHARE = 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where more than 1 % of kernel time is unclassified."""
    if view.unclassified_share <= SMALLEST_SHARE or view.trace.quality.kept.get(WHOLE_GRAPHS):
        return                               # a graph that was recorded as a whole has no kernel's name to add
    rows = [row for row in view.kernels if row.category == "unclassified"]
    what = "operators" if view.cpu_only else "kernels"
    yield Finding(
        CODE, TITLE,
        f"{percent(view.unclassified_share)} of the time of {what} ({ms(view.unclassified_ns)}) has a name that the "
        "taxonomy does not know; it counts as compute",
        top(rows, 10),
        "If one of these communicates, the exposed communication above is too small. Report the names, or add a rule "
        f"to sublight/catalog/{'operators' if view.cpu_only else 'kernels'}.toml",
        "high",
    )
