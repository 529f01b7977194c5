"""This file knows about verdicts: whether B is better than A, with the evidence."""

from __future__ import annotations

from dataclasses import dataclass

STATES = ("better", "same", "worse", "cannot tell")


@dataclass(frozen=True, slots=True)
class Verdict:
    """change: B over A, as a share ("+0.05" is 5 % more), with an interval; positive is worse where `lower_is_better`.

    more_runs: at least how many more of each side it takes to tell, where it cannot tell; None where nobody can say.
    """

    state: str                           # of STATES
    quantity: str
    change: float
    low: float
    high: float
    lower_is_better: bool
    method: str                          # "bootstrap of the difference of medians", …
    evidence: tuple[str, ...] = ()
    more_runs: int | None = None
