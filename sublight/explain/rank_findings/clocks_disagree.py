"""SL106: after their clocks were aligned, the ranks still disagree when collectives ended."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.clocks import FAR_APART_NS
from sublight.explain.ranks import Ranks
from sublight.explain.words import ms, number
from sublight.finding import Finding

CODE, TITLE = "SL106", "clocks disagree"


def find_ranks(ranks: Ranks) -> Iterable[Finding]:
    """Fires where the ends of more than half of the collectives are over 100 µs apart. Waiting is then refused."""
    left = ranks.residual
    if left is None or 2 * left.apart <= left.collectives:
        return
    grouped = any(group.label.startswith("process group") for group in ranks.groups)
    evidence = [f"the ends of {left.apart} of {number(left.collectives, 'collective')} are more than "
                f"{ms(FAR_APART_NS)} apart: median {ms(left.median_ns)}, at most {ms(left.max_ns)}; they "
                "should be microseconds"]
    if not grouped:
        evidence.append("the records name no process group, so kernels were matched by their order on a stream: "
                        "ranks of different groups may stand side by side")
    yield Finding(
        CODE, TITLE,
        "the ranks do not agree when their collectives ended: who came last, and who waited how long, is not told",
        tuple(evidence),
        "Record all ranks over the same steps, with a PyTorch whose NCCL kernels name their process group (2.3 or "
        "later), and check that the hosts' clocks are not set during the run (NTP, PTP)",
        "high",
    )
