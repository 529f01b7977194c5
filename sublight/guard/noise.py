"""This file knows about noise: how many of a run's samples say something of their own, how far two single runs of the
same thing lie apart, and how many more runs would tell."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import NormalDist

import numpy as np

from sublight.shift import fewest_of_two

LEAST_TO_SEE_MEMORY = 10                 # samples from which their likeness to their neighbours can be seen at all
EFFICIENCY = 3 / math.pi                 # of ranks against means, where noise is normal
CHANCE = 0.8                             # with which the runs asked for should tell
MOST_RUNS = 1_000                        # nobody makes more


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far two single runs of the same thing lie apart, as the logarithm of their ratio."""

    kind: str
    log_ratio: float
    source: str

    @property
    def share(self) -> float:
        return math.expm1(self.log_ratio)


@dataclass(frozen=True, slots=True)
class Levels:
    """practical: a share that matters. confidence: of the interval."""

    practical: float
    confidence: float


def levels() -> Levels:
    """The thresholds that hold where nobody says others."""
    held = _catalogue()
    return Levels(held["practical"], held["confidence"])


@cache
def allowance(name: str) -> Allowance | None:
    """Of a quantity; None where nothing is known of how it repeats."""
    row = next((row for row in _catalogue()["allowance"] if name in row["names"]), None)
    return None if row is None else Allowance(row["kind"], row["log_ratio"], row["source"])


@cache
def _catalogue() -> dict:  # type: ignore[type-arg]
    return tomllib.loads(resources.files("sublight.catalog").joinpath("verdicts.toml").read_text("utf-8"))


def memory(samples: np.ndarray) -> float:
    """How many samples in a row count as one: 1 where neighbours do not resemble each other.

    The integrated autocorrelation time of their ranks, 1 + 2·(sum of autocorrelations), summed in pairs as long as a
    pair is positive (Geyer, Statistical Science 7 (1992) 473).
    """
    n = len(samples)
    if n < LEAST_TO_SEE_MEMORY or np.ptp(samples) == 0:
        return 1.0
    ranks = np.argsort(np.argsort(samples, kind="stable"), kind="stable") - (n - 1) / 2
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(ranks, size)
    correlation = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[:n]
    correlation /= correlation[0]
    total = 0.0
    for at in range(1, n - 1, 2):
        pair = float(correlation[at] + correlation[at + 1])
        if pair <= 0:
            break
        total += pair
    return max(1.0, 1 + 2 * total)


def by_block(samples: np.ndarray) -> np.ndarray:
    """Medians of as many samples in a row as count as one: values that say something of their own."""
    length = math.ceil(memory(samples) - 0.5)
    if length <= 1:
        return samples
    blocks = max(1, len(samples) // length)
    return np.array([np.median(part) for part in np.array_split(samples, blocks)])


def spread(a: np.ndarray, b: np.ndarray, *, paired: bool = False) -> float | None:
    """Standard deviation of one value, pooled over both sides (of pairs: what a pair's two differ by, over √2). None
    where no side has two values."""
    parts = [b - a] if paired else [side for side in (a, b) if len(side) > 1]
    free = sum(len(part) - 1 for part in parts)
    if free < 1:
        return None
    variance = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / free
    return math.sqrt(variance / 2 if paired else variance)


def runs_to_tell(change: float, noise: float, practical: float, confidence: float) -> int | None:
    """Runs of each side that would tell in four cases out of five, if the change is what it seems to be: that it is
    there, where it is larger than what matters; else that it is smaller. None where nobody makes as many.

    >>> runs_to_tell(0.05, 0.02, 0.01, 0.98), runs_to_tell(0.0, 0.02, 0.01, 0.98)
    (5, 85)
    """
    size = abs(change)
    margin = size if size > practical else practical - size
    if margin <= 0:
        return None
    normal = NormalDist()
    reach = normal.inv_cdf(0.5 + confidence / 2) + normal.inv_cdf(CHANCE)
    runs = math.ceil(2 * (reach * noise / margin) ** 2 / EFFICIENCY)
    return None if runs > MOST_RUNS else max(runs, fewest_of_two(confidence))
