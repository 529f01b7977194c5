"""This file knows about how rows fall to experts: even, at random, by a power law or a histogram, on the busiest rank.

    balanced        every expert gets the same rows, as a benchmark that forces balance
    uniform         each token chooses at random, all experts alike
    power_law_A     popularity falls off as x^-A, as the tables' benchmark draws it (aiconfigurator-core: column
                    distribution): x from 1 to 0.8 tokens, or from 0.01 to 2 where there are fewer rows than experts
    (0.2, 0.1, …)   shares of the experts, in any unit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, log, log2
from random import Random

from sublight.errors import InputError

DRAWS = 4                                # placements of experts on groups that are averaged over
STEP = 4                                 # nodes an octave of tokens: between them loads are interpolated
LEAST_TILE, MOST_TILE = 16, 128          # rows of a tile of a grouped product


@dataclass(frozen=True, slots=True)
class Rows:
    """On the busiest group of experts."""

    rows: float
    used: float                          # distinct experts with a row
    padded: float                        # rows, each expert's filled up to whole tiles
    tiles: float
    most: float                          # rows of its busiest expert


Routing = str | tuple[float, ...]


@lru_cache(maxsize=100_000)
def rows(tokens: float, top_k: int, experts: int, groups: int, routing: Routing) -> Rows:
    """Between nodes of tokens, so that a simulation's many batch sizes cost one division each.

    >>> rows(64, 8, 256, 8, "balanced")
    Rows(rows=64.0, used=32.0, padded=512.0, tiles=32.0, most=2.0)
    """
    at = log2(max(tokens, 1.0)) * STEP
    low = int(at)
    share = at - low
    first = node(low, top_k, experts, groups, routing)
    if share < 1e-9:
        return first
    second = node(low + 1, top_k, experts, groups, routing)
    return Rows(*(_between(getattr(first, name), getattr(second, name), share)
                  for name in ("rows", "used", "padded", "tiles", "most")))


def _between(low: float, high: float, share: float) -> float:
    return exp((1 - share) * log(low) + share * log(high)) if low > 0 < high else low + share * (high - low)


@lru_cache(maxsize=50_000)
def node(at: int, top_k: int, experts: int, groups: int, routing: Routing) -> Rows:
    tokens = 2 ** (at / STEP)
    total, own = tokens * top_k, experts // groups
    if routing in ("balanced", "uniform"):
        each = total / experts
        used = own * (min(1.0, each) if routing == "balanced" else 1.0 - (1.0 - top_k / experts) ** tokens)
        return _told([total / groups / max(used, 1e-9)] * max(1, round(used)), used)
    shares = popularity(tokens, top_k, experts, routing)
    found = [_busiest([share * total for share in shares], groups, Random(draw)) for draw in range(DRAWS)]
    parts = [_told([m for m in group if m > 0], sum(min(1.0, m) if m < 1 else 1.0 for m in group)) for group in found]
    return Rows(*(sum(getattr(part, name) for part in parts) / DRAWS
                  for name in ("rows", "used", "padded", "tiles", "most")))


def _busiest(each: list[float], groups: int, dice: Random) -> Sequence[float]:
    if groups == 1:
        return each
    dice.shuffle(each)
    own = len(each) // groups
    return max((each[i * own:(i + 1) * own] for i in range(groups)), key=sum)


def _told(each: Sequence[float], used: float) -> Rows:
    """each: rows of the experts of a group; those below one row share the tiles of `used` experts."""
    total = sum(each)
    mean = total / max(used, 1e-9)
    tile = min(MOST_TILE, max(LEAST_TILE, 2 ** ceil(log2(max(mean, 1.0)))))
    tiles = sum(ceil(m / tile) for m in each if m >= 1) + max(0.0, used - sum(m >= 1 for m in each))
    return Rows(total, used, float(tiles * tile), float(tiles), float(max(each, default=0.0)))


def popularity(tokens: float, top_k: int, experts: int, routing: Routing) -> list[float]:
    """Shares of the experts; no token chooses one twice, so none has more than 1 / top_k of the rows."""
    if isinstance(routing, tuple):
        if len(routing) < 1 or min(routing) < 0 or sum(routing) <= 0:
            raise InputError(f"routing: expected shares of the experts, got {routing!r}")
        spread = [routing[i * len(routing) // experts] for i in range(experts)]     # of another number of experts
        return _capped(spread, 1 / top_k)
    try:
        power = float(routing.removeprefix("power_law_").removesuffix("_eplb"))
    except ValueError:
        raise InputError(f"routing {routing!r}: expected balanced, uniform, power_law_1.2 or shares") from None
    low, high = (1.0, max(0.8 * tokens, 1.5)) if tokens * top_k > experts else (0.01, 2.0)
    return _capped([_quantile((i + 0.5) / experts, power, low, high) for i in range(experts)], 1 / top_k)


def _quantile(u: float, power: float, low: float, high: float) -> float:
    if abs(power - 1) < 1e-9:
        return float(low * (high / low) ** u)
    flat = 1 - power
    found: float = (low ** flat + u * (high ** flat - low ** flat)) ** (1 / flat)
    return found


def _capped(weights: list[float], most: float) -> list[float]:
    total = sum(weights)
    shares = [min(weight / total, most) for weight in weights]
    lost = 1 - sum(shares)
    room = sum(most - share for share in shares)
    return [share + (lost * (most - share) / room if room > 0 else 0.0) for share in shares]
