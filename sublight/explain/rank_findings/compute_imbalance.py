"""SL105: ranks compute for unequally long."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.ranks import Ranks
from sublight.explain.words import ms, number, percent
from sublight.finding import Finding

CODE, TITLE = "SL105", "imbalance of compute"
SMALLEST_EXCESS, SMALLEST_SHARE = 0.05, 0.01


def find_ranks(ranks: Ranks) -> Iterable[Finding]:
    """Fires where, summed over steps, the longest compute exceeds the mean by 5 %, and by 1 % of the window."""
    steps = [row for row in ranks.imbalance if len(row.known) == len(ranks.views)]
    excess = sum(row.excess_ns for row in steps)
    total = sum(row.max_ns for row in steps)
    if not excess or excess < SMALLEST_EXCESS * (total - excess) or excess < SMALLEST_SHARE * ranks.window_ns:
        return
    worst = max(steps, key=lambda row: row.excess_ns)
    slowest = [row.slowest for row in steps]
    common = max(sorted(set(slowest)), key=slowest.count)
    whole = worst.label == "window"
    where = "the window" if whole else f"step {worst.label}"
    often = "" if whole else f" in {slowest.count(common)} of {number(len(steps), 'step')}"
    yield Finding(
        CODE, TITLE,
        f"ranks compute for unequally long: the longest exceeds the mean by {percent(excess / (total - excess))}, "
        f"{ms(excess)} ({percent(excess / ranks.window_ns)} of the window)",
        (f"{where}: from {ms(worst.min_ns)} to {ms(worst.max_ns)}, median {ms(worst.median_ns)}",
         f"{ranks.labels[common]} computes longest{often}"),
        "Spread the work evenly: tokens for each expert, sequence lengths, layers for each pipeline stage, rows of "
        "embedding tables; if kernels and grids are the same, compare the clocks of the devices",
        "medium", min(excess, ranks.window_ns),
        ("an upper limit: it assumes that the same work can be spread evenly, and that what exceeds the mean is hidden "
         "nowhere",),
    )
