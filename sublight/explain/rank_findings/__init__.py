"""One file per finding across ranks: `find_ranks(ranks)` yields it where the evidence is there. RANK_FINDINGS is all of
them.

A new one is one file here, one line below, a page in docs/findings, and a test with the fault planted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sublight.explain.rank_findings import clocks_disagree, compute_imbalance, straggler
from sublight.explain.ranks import Ranks
from sublight.finding import Finding


class RankFindingModule(Protocol):
    """What each file here offers."""

    CODE: str
    TITLE: str

    def find_ranks(self, ranks: Ranks) -> Iterable[Finding]:
        """The finding, where the ranks have evidence of it."""
        ...


RANK_FINDINGS: tuple[RankFindingModule, ...] = (straggler, compute_imbalance, clocks_disagree)


def find_ranks(ranks: Ranks) -> tuple[Finding, ...]:
    """Everything found across the ranks, by what it could save, largest first."""
    found = [finding for module in RANK_FINDINGS for finding in module.find_ranks(ranks)]
    return tuple(sorted(found, key=lambda f: (-(f.gain_ns_at_most or 0), f.code)))
