"""This file knows about the predicted time of an operator: terms of the rates that make it, and how sure it is.

The form of every operator's time:

    seconds = ratio · (fixed + (Σ term_i^p)^(1/p)),     term_i = amount_i / (efficiency_i · rate_i)

It is homogeneous of degree -1 in the rates (fixed costs are one of them), so elasticities sum to -1 exactly. `ratio` is
measured over modelled where tables have the operator, else 1; it does not depend on the rates, so what-ifs stay true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sublight.predict.machine import Machine


@dataclass(frozen=True, slots=True)
class OpTime:
    """Seconds of one call. shares: of machine.RATES, summing to 1: -share is the elasticity of the time to that rate.

    spread: standard deviation of ln(measured / predicted) of such operators. least: the bound's seconds, 0 if none.
    """

    seconds: float
    shares: Mapping[str, float]
    spread: float
    basis: str                           # "table", "constants", "transfer", "judgement"
    least: float = 0.0                   # at the speed of light (bound), 0 where it is unknown

    @property
    def limiter(self) -> str:
        return max(self.shares, key=lambda rate: self.shares[rate])


def combined(
    terms: Mapping[str, float], where: Machine, *, fixed: float = 0.0, p: float = 2.0, ratio: float = 1.0,
    spread: float, basis: str, least: float = 0.0,
) -> OpTime:
    """The form above. terms: rate -> seconds at the catalog's rates; fixed: seconds that no rate but "fixed" moves.

    Several terms of one rate may not be given: add them first. What-if factors are applied here.
    """
    scaled = {rate: seconds / where.factor(rate) for rate, seconds in terms.items() if seconds > 0}
    fixed = fixed / where.factor("fixed")
    largest = max(scaled.values(), default=0.0)
    powers = {rate: (seconds / largest) ** p for rate, seconds in scaled.items()}
    total = sum(powers.values())
    body = largest * total ** (1 / p) if powers else 0.0
    whole = fixed + body
    if whole <= 0:
        return OpTime(0.0, {"fixed": 1.0}, spread, basis, least)
    shares = {rate: body / whole * power / total for rate, power in powers.items()}
    shares["fixed"] = fixed / whole
    return OpTime(ratio * whole, shares, spread, basis, least)


def mixed_shares(parts: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Shares of a sum of (seconds, shares)."""
    sums: dict[str, float] = {}
    total = 0.0
    for seconds, shares in parts:
        total += seconds
        for rate, share in shares.items():
            sums[rate] = sums.get(rate, 0.0) + seconds * share
    return {rate: value / total for rate, value in sums.items()} if total > 0 else {"fixed": 1.0}
