"""This file knows about the shift from one sample to another: how far B lies above A, with an exact interval.

    two samples   Hodges-Lehmann: the median of all differences b − a. Its interval inverts the Mann-Whitney test:
                  the k-th smallest and the k-th largest difference
    pairs         the median of all means of two differences (Walsh averages); its interval inverts Wilcoxon's
                  signed-rank test

No shape of the noise is assumed. Two samples: values are independent, and B's are A's but for a shift. Pairs: the
differences are independent and symmetric about the shift. Where A and B come from one source, the interval misses zero
in at most 1 − confidence of cases, whatever the noise; ties make that less.
Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963) 598; Hollander and Wolfe, Nonparametric Statistical
Methods, sections 3.3 and 4.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

EXACT_UP_TO = 60                         # values of each sample, or pairs: the normal approximation is as good above
MOST_VALUES = 1_500                      # of a sample that all differences are made of


@dataclass(frozen=True, slots=True)
class Shift:
    """The shift, and an interval that holds it with the confidence asked for; infinite where too few values tell."""

    estimate: float
    low: float
    high: float

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def of_two(a: np.ndarray, b: np.ndarray, confidence: float) -> Shift:
    """How far sample `b` lies above sample `a`.

    >>> of_two(np.array([1.0, 2, 3, 4, 5]), np.array([11.0, 12, 13, 14, 15]), 0.98)
    Shift(estimate=10.0, low=7.0, high=13.0)
    """
    rank = _rank_of_two(len(a), len(b), confidence)
    few_a, few_b = _thinned(a), _thinned(b)
    differences = np.subtract.outer(few_b, few_a).ravel()
    return _between(differences, rank / (len(a) * len(b)))


def of_pairs(differences: np.ndarray, confidence: float) -> Shift:
    """How far the second of each pair lies above the first. `differences`: second less first, a pair each."""
    n = len(differences)
    rank = _rank_of_pairs(n, confidence)
    few = _thinned(differences)
    rows, columns = np.triu_indices(len(few))
    return _between((few[rows] + few[columns]) / 2, rank / (n * (n + 1) // 2))


def fewest_of_two(confidence: float) -> int:
    """Values of each sample from which an interval is bounded.

    >>> fewest_of_two(0.98), fewest_of_two(0.95)
    (5, 4)
    """
    return next(n for n in range(1, EXACT_UP_TO) if _rank_of_two(n, n, confidence))


def fewest_pairs(confidence: float) -> int:
    """Pairs from which an interval is bounded.

    >>> fewest_pairs(0.98), fewest_pairs(0.95)
    (7, 6)
    """
    return next(n for n in range(1, EXACT_UP_TO) if _rank_of_pairs(n, confidence))


def _between(values: np.ndarray, share: float) -> Shift:
    """The median of values, and those that lie `share` of all from either end."""
    values = np.sort(values)
    rank = round(share * len(values))
    middle = float((values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2)
    if rank < 1:
        return Shift(middle, -math.inf, math.inf)
    return Shift(middle, float(values[rank - 1]), float(values[-rank]))


def _thinned(values: np.ndarray) -> np.ndarray:
    """Values evenly spaced in order, where there are many: what differences are made of grows with the square."""
    if len(values) <= MOST_VALUES:
        return values
    at = (np.arange(MOST_VALUES) + 0.5) / MOST_VALUES * len(values)
    out: np.ndarray = np.sort(values)[at.astype(int)]
    return out


@cache
def _rank_of_two(m: int, n: int, confidence: float) -> int:
    """The rank k of the differences that bound the interval; 0 where no difference does."""
    if min(m, n) < 1:
        return 0
    if max(m, n) > EXACT_UP_TO:
        return _normal_rank(m * n / 2, m * n * (m + n + 1) / 12, confidence)
    return _exact_rank(_ways_of_two(m, n), confidence)


@cache
def _rank_of_pairs(n: int, confidence: float) -> int:
    if n < 1:
        return 0
    if n > EXACT_UP_TO:
        return _normal_rank(n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24, confidence)
    ways = np.ones(1)
    for rank in range(1, n + 1):         # each rank counts for the second of its pair, or not
        ways = np.convolve(ways, np.concatenate([[0.5], np.zeros(rank - 1), [0.5]]))
    return _exact_rank(ways, confidence)


def _ways_of_two(m: int, n: int) -> np.ndarray:
    """Probability of each Mann-Whitney count: the coefficients of the Gaussian binomial, which is symmetric in q.

    p(m, n) = n/(m+n)·p(m, n−1) + m/(m+n)·q^n·p(m−1, n): the largest value of all is one of either sample's.
    """
    row = [np.ones(1) for _ in range(n + 1)]                         # no a's: no count but 0
    for i in range(1, m + 1):
        fresh = [np.ones(1)]
        for j in range(1, n + 1):
            out = np.zeros(i * j + 1)
            out[: i * (j - 1) + 1] += fresh[j - 1] * j / (i + j)
            out[j:] += row[j] * i / (i + j)
            fresh.append(out)
        row = fresh
    return row[n]


def _exact_rank(ways: np.ndarray, confidence: float) -> int:
    """How many of the smallest counts are together no more likely than half of what may be missed."""
    return int(np.searchsorted(np.cumsum(ways), (1 - confidence) / 2 * (1 + 1e-12), side="right"))


def _normal_rank(mean: float, variance: float, confidence: float) -> int:
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    return max(0, math.floor(mean - z * math.sqrt(variance)))
