"""This file knows about one verdict: better, same, worse or cannot tell, from two lists of values.

    judge(a, b, …)     values are runs, or samples of one run each

Where a side has one run only, or too few, the interval is widened by what is known of how far runs lie apart
(catalog/verdicts.toml); without such knowledge no run tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sublight.errors import InputError
from sublight.explain.words import number, percent
from sublight.guard.noise import Allowance, by_block, levels, runs_to_tell, spread
from sublight.shift import Shift, fewest_of_two, fewest_pairs, of_pairs, of_two
from sublight.verdict import Verdict

MANY = 1e12                              # digits that nobody counts
SEEN = 1e-6                              # noise below is that of rounding


def judge(
    a: np.ndarray | Sequence[float], b: np.ndarray | Sequence[float], *, quantity: str = "value", unit: str = "",
    lower_is_better: bool = True, paired: bool = False, one_run: bool = False, allowed: Allowance | None = None,
    practical: float | None = None, confidence: float | None = None, evidence: Sequence[str] = (),
) -> Verdict:
    """Better, same, worse or cannot tell, from values of A and of B.

    one_run: the values are samples of one run each, in their order; else each is a run of its own. allowed: how far
    two runs lie apart, where there are too few to see it.
    """
    usual = levels()
    practical, confidence = usual.practical if practical is None else practical, confidence or usual.confidence
    raw_a, raw_b = np.asarray(a, float), np.asarray(b, float)
    if not (len(raw_a) and len(raw_b) and np.isfinite(raw_a).all() and np.isfinite(raw_b).all()):
        raise InputError(f"{quantity}: finite values on both sides expected, got {len(raw_a)} and {len(raw_b)}")
    left, right, is_log = _scaled(raw_a, raw_b)
    blocks = (by_block(left), by_block(right)) if one_run else (left, right)
    found, method = _shift(*blocks, confidence, paired)
    said = [_counts(raw_a, raw_b, blocks, unit, one_run)]
    fewest = fewest_of_two(confidence)
    if one_run or not found.bounded:
        found, note = _widened(found, blocks, allowed, one_run)
        said.append(note)
    margin = math.log1p(practical)
    state = _state(found, margin, lower_is_better)
    more, noise = None, spread(*blocks, paired=paired)
    if state == "cannot tell":
        short = one_run or min(len(left), len(right)) < fewest
        runs = 1 if one_run else min(len(left), len(right))
        needed = fewest if one_run or noise is None else runs_to_tell(found.estimate, noise, margin, confidence)
        more = None if needed is None else max(1, (max(needed, fewest) if short else needed) - runs)
    if noise is not None and noise > SEEN and not one_run:
        said.append(f"noise {percent(math.expm1(noise))} a run")
    change, low, high = (_share(x, is_log) for x in (found.estimate, found.low, found.high))
    return Verdict(state, quantity, change, low, high, lower_is_better, f"{method}, {confidence:.0%} interval",
                   (*said, *evidence), more)


def _scaled(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Logarithms, so that a change is a factor and B against A is the inverse of A against B; where a value is not
    positive, shares of A's median."""
    if min(a.min(), b.min()) > 0:
        return np.log(a), np.log(b), True
    usual = abs(float(np.median(a))) or abs(float(np.median(b))) or 1.0
    return a / usual, b / usual, False


def _share(x: float, is_log: bool) -> float:
    if not is_log or math.isinf(x):
        return max(x, -1.0) if is_log else x
    return math.expm1(x)


def _shift(a: np.ndarray, b: np.ndarray, confidence: float, paired: bool) -> tuple[Shift, str]:
    """Pairs are used where there are enough: how many is known before any value is."""
    if paired and len(a) == len(b) and len(a) >= fewest_pairs(confidence):
        return of_pairs(b - a, confidence), "Hodges-Lehmann shift of pairs (signed ranks)"
    return of_two(a, b, confidence), "Hodges-Lehmann shift (rank sums)"


def _counts(
    a: np.ndarray, b: np.ndarray, blocks: tuple[np.ndarray, np.ndarray], unit: str, one_run: bool,
) -> str:
    middle = f"medians {written(float(np.median(a)), unit)} and {written(float(np.median(b)), unit)}"
    if not one_run:
        return f"{number(len(a), 'run')} against {len(b)}; {middle}"
    if len(a) == len(b) == 1:
        return f"one figure each: {written(float(a[0]), unit)} and {written(float(b[0]), unit)}"
    alike = [f"{len(side):,} samples count as {len(block):,}" for side, block in zip((a, b), blocks, strict=True)
             if len(block) < len(side)]
    return f"one run each, of {len(a):,} and {len(b):,} samples; {middle}" + (
        f"; neighbours are alike: {' and '.join(alike)}" if alike else "")


def _widened(
    found: Shift, blocks: tuple[np.ndarray, np.ndarray], allowed: Allowance | None, one_run: bool,
) -> tuple[Shift, str]:
    """The interval with what two single runs of the same thing differ by added, or none at all."""
    if allowed is None:
        return Shift(found.estimate, -math.inf, math.inf), \
            ("one run each says nothing of how far runs lie apart, and nothing bounds that here" if one_run else
             "too few runs to see how far runs lie apart, and nothing else bounds that")
    low = found.low if found.bounded else found.estimate
    high = found.high if found.bounded else found.estimate
    if one_run and not found.bounded and min(map(len, blocks)) > 1:
        low, high = _outermost(*blocks)
    return Shift(found.estimate, low - allowed.log_ratio, high + allowed.log_ratio), \
        (f"too few runs to see how far runs lie apart: {percent(allowed.share)} allowed for {allowed.kind}s "
         f"({allowed.source.split(':')[0]})")


def _outermost(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest difference of values that are too few for an interval."""
    return float(b.min() - a.max()), float(b.max() - a.min())


def _state(found: Shift, margin: float, lower_is_better: bool) -> str:
    """A change that is there (the interval misses zero) and matters; a change that cannot matter; else neither."""
    if -margin < found.low and found.high < margin:
        return "same"
    if abs(found.estimate) >= margin and (found.low > 0 or found.high < 0):
        return "worse" if (found.estimate > 0) == lower_is_better else "better"
    return "cannot tell"


def written(value: float, unit: str) -> str:
    """A value in the unit that reads best."""
    if unit == "s":
        for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= scale:
                return f"{value / scale:.4g} {name}"
        return f"{value / 1e-9:.4g} ns"
    return f"{value:,.0f} {unit}".strip() if 1e4 <= abs(value) < MANY else f"{value:,.4g} {unit}".strip()
