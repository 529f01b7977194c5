"""This file knows about which curves of time should resemble each other, and how closely: a covariance.

    log time      = base (a fixed start-up plus bytes over the link's rate) + what all systems of a kind of link share
                    + what a generation shares + what a board shares + what one system has of its own
    each of these = (a constant + a smooth curve + a rough curve, over size) that differs by collective and by ranks

Sizes are counted in octaves of bytes over what the link carries in the start-up time, so that a switch of protocol
or the end of a ramp stands at about the same place in all systems; far above it, where a curve is time in proportion
to bytes, octaves count as a fiftieth, so that it cannot bend there any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sublight.comm.expect.measured import F64, Box

START_S = 10e-6          # of a kernel and one exchange; only the scale of sizes hangs on it
FULL = 4.5               # octaves above start-up x rate from where a curve is straight
BEND = 0.5               # octaves over which it becomes so
STRAIGHT = 0.02          # what an octave counts there


@dataclass(frozen=True, slots=True)
class Share:
    """What one level of resemblance explains: standard deviations of log time, and the parts that differ by collective
    and by ranks."""

    level: str                           # "all", "family", "board", "own"
    constant: float
    smooth: float
    rough: float
    by_collective: float                 # 0: the same for all collectives; 1: unrelated
    by_ranks: float                      # the same for the number of ranks
    slope: float                         # standard deviation of a trend over log2(ranks), relative to the rest


@dataclass(frozen=True, slots=True)
class Kernel:
    """Shares, length scales in octaves, and noise of a measurement: at any size, and what small sizes add."""

    shares: tuple[Share, ...]
    smooth_octaves: float
    rough_octaves: float
    noise: float
    noise_small: float
    freedom: float | None = None         # of Student's t, for noise with outliers; None: normal


@dataclass(frozen=True, slots=True)
class Grid:
    """Places of a table: systems of one kind of link, collectives (by index), ranks, sizes."""

    boxes: tuple[Box, ...]
    collectives: tuple[int, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.boxes), len(self.collectives), len(self.ranks), len(self.sizes)


def base(boxes: Sequence[Box], sizes: Sequence[int]) -> F64:
    """log microseconds of start-up plus bytes over the link's rate: (system, size)."""
    rates = np.array([box.link_bytes_per_second for box in boxes])
    return np.asarray(np.log((START_S + np.array(sizes)[None, :] / rates[:, None]) * 1e6))


def octaves(boxes: Sequence[Box], sizes: Sequence[int]) -> F64:
    """log2 of a size over what the link carries in the start-up time: (system, size)."""
    rates = np.array([box.link_bytes_per_second for box in boxes])
    return np.asarray(np.log2(np.array(sizes)[None, :] / (rates[:, None] * START_S)))


def noise(kernel: Kernel, grid: Grid) -> F64:
    """Variance of one measurement at each place of the grid."""
    small = 1 / (1 + np.exp(octaves(grid.boxes, grid.sizes) / 1.5))
    variance = kernel.noise**2 + kernel.noise_small**2 * small
    return np.asarray(np.broadcast_to(variance[:, None, None, :], grid.shape), np.float64)


@cache
def covariance(kernel: Kernel, grid: Grid) -> F64:
    """Covariance of all places of the grid with each other, without noise: (places, places)."""
    system, collective, rank, size = (axis.ravel() for axis in np.indices(grid.shape))
    x = _stretched(octaves(grid.boxes, grid.sizes))[system, size]
    apart = np.abs(x[:, None] - x[None, :])
    smooth = _matern(apart / kernel.smooth_octaves)
    rough = np.exp(-apart / kernel.rough_octaves)
    same = (collective[:, None] == collective[None, :]).astype(float)
    step = np.log2(np.array(grid.ranks, float))[rank] - 2
    near, trend = np.exp(-np.abs(step[:, None] - step[None, :])), step[:, None] * step[None, :]
    total: F64 = np.zeros(apart.shape)
    for share in kernel.shares:
        kin = np.unique([_kin(box, share.level) for box in grid.boxes], return_inverse=True)[1][system]
        curve = share.constant**2 + share.smooth**2 * smooth + share.rough**2 * rough
        curve *= (1 - share.by_collective) + share.by_collective * same
        curve *= (1 - share.by_ranks) + share.by_ranks * near + share.slope**2 * trend
        total += np.where(kin[:, None] == kin[None, :], curve, 0.0)
    return total


def _kin(box: Box, level: str) -> str:
    return {"all": "", "family": box.family, "board": box.board, "own": box.device}[level]


def _stretched(x: F64) -> F64:
    over = np.logaddexp(0.0, (x - FULL) / BEND) * BEND
    return np.asarray(x - (1 - STRAIGHT) * over)


def _matern(r: F64) -> F64:
    return np.asarray((1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r))

