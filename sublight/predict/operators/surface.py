"""This file knows about ratios of measured to modelled times: between measured points, in log space."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any


@dataclass(frozen=True, slots=True)
class Curve:
    """ln ratio along ln x, held beyond its ends."""

    xs: tuple[float, ...]                # rising
    ys: tuple[float, ...]

    @classmethod
    def of(cls, points: Mapping[float, float]) -> Curve:
        """points: x -> ratio."""
        rising = sorted(points)
        return cls(tuple(log(x) for x in rising), tuple(log(points[x]) for x in rising))

    def at(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        after = bisect_right(xs, x)
        if after == 0:
            return ys[0]
        if after == len(xs):
            return ys[-1]
        low = xs[after - 1]
        share = (x - low) / (xs[after] - low)
        return ys[after - 1] + share * (ys[after] - ys[after - 1])


@dataclass(frozen=True, slots=True)
class Surface:
    """Curves along ln x at rising ln b; between two of them by their share."""

    bs: tuple[float, ...]
    curves: tuple[Curve, ...]

    @classmethod
    def of(cls, points: Mapping[tuple[float, float], float]) -> Surface:
        """points: (b, x) -> ratio."""
        by_b: dict[float, dict[float, float]] = {}
        for (b, x), ratio in points.items():
            by_b.setdefault(b, {})[x] = ratio
        rising = sorted(by_b)
        return cls(tuple(log(b) for b in rising), tuple(Curve.of(by_b[b]) for b in rising))

    def at(self, b: float, x: float) -> float:
        bs = self.bs
        after = bisect_right(bs, b)
        if after == 0:
            return self.curves[0].at(x)
        if after == len(bs):
            return self.curves[-1].at(x)
        low, high = self.curves[after - 1].at(x), self.curves[after].at(x)
        return low + (b - bs[after - 1]) / (bs[after] - bs[after - 1]) * (high - low)


def groups(columns: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Rows of a table that agree in these columns: (their values, indices of the rows)."""
    import numpy as np

    code = np.zeros(len(columns[keys[0]]), np.int64)
    for name in keys:
        values = columns[name].tolist()              # a dictionary is faster than sorting texts
        known = {value: at for at, value in enumerate(dict.fromkeys(values))}
        code = code * len(known) + np.fromiter((known[value] for value in values), np.int64, len(values))
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        if len(rows):
            yield tuple(columns[name][rows[0]].item() for name in keys), rows
