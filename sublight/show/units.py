"""This file knows about quantities in words: times, rates and bytes with three digits and a unit."""

from __future__ import annotations

from sublight.result import Result
from sublight.show.expect import time as seconds

__all__ = ["gib", "interval", "quantity", "seconds"]

SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"))


def quantity(value: float, unit: str) -> str:
    """A value of a Result.

    >>> quantity(0.0123, "s"), quantity(4.1e14, "FLOP/s"), quantity(1234.5, "tokens/s"), quantity(0.41, "")
    ('12.3 ms', '410 TFLOP/s', '1,234 tokens/s', '41.0 %')
    """
    if unit == "s":
        return seconds(value)
    if unit in ("", "1"):
        return f"{value:.1%}".replace("%", " %")
    for scale, letter in SCALES:
        if "FLOP" in unit and value >= scale:
            return f"{value / scale:.3g} {letter}{unit}"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def interval(result: Result) -> str:
    """The 80 % interval of a predicted result; empty where it has none."""
    if result.low is None or result.high is None:
        return ""
    return f"{quantity(result.low, result.unit)} – {quantity(result.high, result.unit)}"


def gib(nbytes: float) -> str:
    """As drivers count memory.

    >>> gib(80 * 2**30)
    '80.0 GiB'
    """
    return f"{nbytes / 2**30:,.1f} GiB"
