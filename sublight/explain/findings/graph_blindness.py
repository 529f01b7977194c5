"""SL002: kernels under CUDA-graph launches, which carry no operator, shape or stack."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import ms, number, percent
from sublight.finding import Finding

CODE, TITLE = "SL002", "CUDA graphs hide the operators"
SMALLEST_SHARE = 0.10


def find(view: View) -> Iterable[Finding]:
    """Fires where at least 10 % of kernel time runs under graph launches."""
    links = view.links
    if links is None or not links.kernel_ns or links.graph_ns < SMALLEST_SHARE * links.kernel_ns:
        return
    yield Finding(
        CODE, TITLE,
        f"{percent(links.graph_ns / links.kernel_ns)} of kernel time ({ms(links.graph_ns)}) runs under "
        f"{number(links.graph_launches, 'graph launch')}: which operator it belongs to is not in the file",
        (f"{links.linked_to_op} of {links.activities} activities are linked to an operator",),
        "Times here are right. For names and shapes record a second run with graphs off (vLLM: --enforce-eager; "
        "SGLang: --disable-cuda-graph) and read it beside this one",
        "high",
    )
