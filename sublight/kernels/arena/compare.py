"""This file knows about which kernel of a run is the fastest, by how much, and whether that can be told.

Ratios are taken within rounds: the logarithms of both times of a round are a pair, and the shift of pairs is exact
(`sublight.shift`). Which one is the best is not known beforehand: each of the k(k-1)/2 pairs of kernels is held to its
share of what may go wrong (Bonferroni), so the statement about the best and all others holds with the confidence given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any

import numpy as np

from sublight.shift import Shift, of_pairs

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Standing:
    """One kernel of a run. times_best: its time over the fastest one's, with its interval; 1 of the fastest itself."""

    name: str
    seconds: float                       # the median
    low: float                           # of the median, with CONFIDENCE
    high: float
    times_best: float
    times_low: float
    times_high: float
    tied: bool                           # no difference from the fastest can be told

    def to_json(self) -> Mapping[str, Any]:
        return {"kernel": self.name, "seconds": self.seconds, "interval": [finite(self.low), finite(self.high)],
                "times_best": self.times_best, "times_best_interval": [finite(self.times_low),
                                                                       finite(self.times_high)], "tied": self.tied}


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def standings(ns: Mapping[str, tuple[int, ...]], *, confidence: float = CONFIDENCE) -> tuple[Standing, ...]:
    """All kernels, the fastest first, from their times by round: the same number of rounds each.

    >>> slow, fast = tuple(range(200, 220)), tuple(range(100, 120))
    >>> [(s.name, round(s.times_best, 1), s.tied) for s in standings({"slow": slow, "fast": fast})]
    [('fast', 1.0, True), ('slow', 1.9, False)]
    """
    logs = {name: np.log(np.maximum(1, np.asarray(times, dtype=float))) for name, times in ns.items() if times}
    if not logs:
        return ()
    order = sorted(logs, key=lambda name: float(np.median(logs[name])))
    best, each = order[0], 1 - (1 - confidence) / max(1, comb(len(order), 2))
    out = []
    for name in order:
        low, high = of_median(ns[name], confidence)
        beside = Shift(0.0, 0.0, 0.0) if name == best else of_pairs(logs[name] - logs[best], each)
        out.append(Standing(name, median(ns[name]) / 1e9, low / 1e9, high / 1e9,
                            math.exp(beside.estimate), _exp(beside.low), _exp(beside.high), beside.low <= 0))
    return tuple(out)


def of_median(times: tuple[int, ...], confidence: float) -> tuple[float, float]:
    """An interval of the median of what these are a sample of, whatever its shape: two order statistics, by the sign
    test (Hollander and Wolfe, Nonparametric Statistical Methods, section 3.6). The median of the sample lies within.

    >>> of_median(tuple(range(1, 16)), 0.95), of_median((3, 1, 2), 0.95)
    ((4, 12), (0.0, inf))
    """
    found, below, rank = sorted(times), 0.0, 0
    while rank < len(found) // 2:        # values outside of the interval on one side at most with this chance
        below += comb(len(found), rank) / 2 ** len(found)
        if 2 * below > 1 - confidence:
            break
        rank += 1
    return (found[rank - 1], found[-rank]) if rank else (0.0, math.inf)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
