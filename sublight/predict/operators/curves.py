"""This file knows about measured over modelled times of matrix products: where it was measured, and between.

The ratio multiplies the model's form, so that what-ifs stay true. Rows of doubtful tables and steps are left out.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from math import exp, log
from typing import Any

import numpy as np

from sublight.device import by_key
from sublight.predict.operators.constants import Dense
from sublight.predict.operators.doubtful import steady
from sublight.predict.operators.silicon import MILLISECOND, table
from sublight.predict.operators.tiles import Rows

# Number formats by their names in the tables, bytes of an element of A and of B with its scales, the rate they run at.
FORMS = {
    "bf16": ("bfloat16", 2.0, 2.0, "bf16"), "fp8": ("fp8", 1.0, 1.0, "fp8"),
    "fp8_block": ("fp8_block", 1.0, 1 + 1 / 4096, "fp8"), "nvfp4": ("nvfp4", 0.5625, 0.5625, "fp4"),
    "int4_weights": ("int4_wo", 2.0, 0.5 + 1 / 64, "bf16"), "int8_weights": ("int8_wo", 2.0, 1.0, "bf16"),
    "int8": ("sq", 1.0, 1.0, "int8"),
}
NEIGHBOURS = 4
SHRINK = 0.7                             # of neighbours' ln ratio: bench/fit_operators.py, held-out shapes
SPREAD_EXACT, SPREAD_BETWEEN = 0.06, 0.14
KEPT = 20_000

Curve = tuple[list[float], list[float]]  # ln m, ln ratio


class Curves:
    """ln(measured / modelled) against ln m, by (n, k), of one table."""

    def __init__(self, constants: Dense, columns: Any) -> None:
        name, self.a_bytes, self.b_bytes, self.rate = FORMS[constants.form]
        self.constants, self.device = constants, by_key(constants.device)
        mine = columns["gemm_dtype"] == name
        m, n, k = (columns[side][mine].astype(np.int64) for side in "mnk")
        seconds = columns["latency"][mine] * MILLISECOND
        keep = steady(n * (1 << 20) + k, m, seconds) & (seconds > 0)
        order = np.lexsort((m[keep], k[keep], n[keep]))
        self.m, self.n, self.k, self.seconds = (column[keep][order] for column in (m, n, k, seconds))
        starts = np.flatnonzero(np.diff(self.n, prepend=-1) | np.diff(self.k, prepend=-1))
        ends = [*starts[1:].tolist(), len(self.n)]
        self.spans = {(int(self.n[at]), int(self.k[at])): slice(at, end)
                      for at, end in zip(starts.tolist(), ends, strict=True)}
        self.shapes = np.log(np.array(list(self.spans), float).reshape(-1, 2))
        self.known: dict[tuple[int, int], Curve] = {}

    def ratio(self, m: int, n: int, k: int) -> tuple[float, bool]:
        """Measured over modelled, and whether the shape (n, k) itself was measured."""
        curve = self.known.get((n, k))
        if curve is None:
            if len(self.known) > KEPT:
                self.known.clear()
            curve = self.known[n, k] = self._own(n, k) if (n, k) in self.spans else self._between(n, k)
        return exp(_at(curve, log(m))), (n, k) in self.spans

    def _own(self, n: int, k: int) -> Curve:
        span = self.spans[n, k]
        m = self.m[span].astype(float)
        moved = m * k * self.a_bytes + n * k * self.b_bytes + 2.0 * m * n
        shapes = {"m": m, "n": np.full_like(m, n), "k": np.full_like(m, k), "moved": moved,
                  "a_bytes": self.a_bytes, "b_bytes": self.b_bytes}
        rows = Rows(shapes, self.device.limits.sms, self.device.limits.l2_bytes)
        modelled = rows.seconds(self.constants.tiled, *rates(self.device, self.rate))
        return np.log(m).tolist(), np.log(self.seconds[span] / modelled).tolist()

    def _between(self, n: int, k: int) -> Curve:
        """Of the nearest shapes, each weighted by its nearness, and shrunk."""
        squares = ((self.shapes - np.log([n, k])) ** 2).sum(axis=1)
        near = np.argsort(squares, kind="stable")[:NEIGHBOURS]
        weights = 1 / (squares[near] + 0.05)
        names = list(self.spans)
        curves = [self._own(*names[at]) for at in near]
        grid = max((curve[0] for curve in curves), key=len)
        mean = sum(w * np.interp(grid, *curve) for w, curve in zip(weights / weights.sum(), curves, strict=True))
        return grid, (SHRINK * mean).tolist()


def rates(device: Any, rate: str) -> tuple[float, float]:
    """FLOP/s of a number format (of bf16 where the device does not multiply it), and bytes/s."""
    limits = device.limits
    flops = limits.flops_per_second("tensor", rate) or limits.flops_per_second("tensor", "bf16")
    return flops, limits.memory_bytes_per_second


def _at(curve: Curve, x: float) -> float:
    xs, ys = curve
    if x <= xs[0] or x >= xs[-1]:
        return ys[0] if x <= xs[0] else ys[-1]
    right = bisect_right(xs, x)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


@lru_cache(maxsize=64)
def _curves(device: str, library: str, form: str) -> Curves | None:
    from sublight.predict.operators.constants import dense

    columns = table(device, "gemm", library, "gemm_perf")
    if columns is None or not (columns["gemm_dtype"] == FORMS[form][0]).any():
        return None
    return Curves(dense(by_key(device), library, form), columns)


def curves(constants: Dense, device: str) -> Curves | None:
    """The curves of the table that these constants were fitted on, where it is this device's and is installed."""
    if constants.device != device:
        return None
    return _curves(constants.device, constants.library, constants.form)
