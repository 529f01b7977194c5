"""This file knows about fitting the constants of collectives in one domain to a table of measured times.

    table with holes -> completed: for each place of the grid log microseconds and how sure -> Surface

Two regressions for each kind of link (Gaussian processes; Rasmussen, Williams: Gaussian Processes for Machine
Learning, 2006, eq. 2.23-2.24): of the mean over the number formats, and, for collectives that do arithmetic, of half
their difference. What a system lacks comes from its own other curves and from the same curve of those like it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublight.comm.expect.kernel import Grid, Kernel, Share, base, covariance, noise, octaves
from sublight.comm.expect.measured import COLLECTIVES, F64, FORMS, REDUCING, Box, Mask, Table

# Standard deviations and lengths: round numbers near the maximum of the marginal likelihood over all systems, one set
# for all targets, chosen by the scoreboard of bench/fit_collectives.py (what that means: docs/comm-accuracy.md).
NVLINK = Kernel((
    Share("all", 0.7, 0.6, 0.1, 0.1, 0.1, 0.3), Share("family", 0.3, 0.3, 0.1, 0.3, 0.3, 0.3),
    Share("board", 0.05, 0.05, 0.03, 0.3, 0.3, 0.3), Share("own", 0.1, 0.1, 0.03, 0.3, 0.3, 0.3),
), 6.0, 2.0, 0.01, 0.03)
PCIE = Kernel((
    Share("all", 0.75, 0.45, 0.01, 0.05, 0.02, 0.6), Share("own", 0.13, 0.33, 0.05, 0.1, 0.35, 0.75),
), 5.5, 6.5, 0.007, 0.06, freedom=3.0)
NVLINK_FORMS = Kernel((
    Share("all", 0.02, 0.05, 0.02, 0.3, 0.3, 0.1), Share("family", 0.02, 0.05, 0.02, 0.3, 0.3, 0.1),
    Share("board", 0.01, 0.01, 0.01, 0.3, 0.3, 0.1), Share("own", 0.01, 0.01, 0.01, 0.3, 0.3, 0.1),
), 6.0, 2.0, 0.004, 0.02)
PCIE_FORMS = Kernel((
    Share("all", 0.01, 0.03, 0.01, 0.1, 0.8, 0.1), Share("own", 0.01, 0.03, 0.01, 0.3, 0.95, 0.1),
), 5.0, 6.0, 0.005, 0.02, freedom=3.0)

FULL_OCTAVES = 3.5       # octaves above start-up x rate from where a curve's last points say how it goes on
STEADY = 0.03            # how far the rates of its last three steps may differ for that
TRUST = 0.9              # what the line counts beside the regression if they do not
ROUNDS = 5               # of looking for outliers


@dataclass(frozen=True, slots=True, eq=False)
class Completed:
    """log microseconds of every place of a table, and the standard deviation of a measurement around it; NaN for
    systems that were not asked for."""

    log_us: F64                          # (system, collective, form, ranks, size)
    deviation: F64


def complete(table: Table, *, only: int | None = None) -> Completed:
    """Every place of the table's grid, measured or not, as fitted; of one system by index, or of all."""
    boxes = [Box.of(key) for key in table.systems]
    log_us, variance = np.full(table.log_us.shape, np.nan), np.full(table.log_us.shape, np.nan)
    for nvlink in (True, False):
        members = [i for i, box in enumerate(boxes) if box.nvlink == nvlink]
        if members and (only is None or only in members):
            wanted = members if only is None else [only]
            log_us[wanted], variance[wanted] = _of_class(table, boxes, members, wanted)
    return Completed(with_tails(table, boxes, log_us), np.sqrt(variance))


def _of_class(table: Table, boxes: Sequence[Box], members: list[int], wanted: list[int]) -> tuple[F64, F64]:
    mean, apart = problems(table, boxes, members)
    middle, middle_variance = mean.posterior([members.index(i) for i in wanted])
    half, half_variance = apart.posterior([members.index(i) for i in wanted])
    return joined(middle, half), joined(middle_variance, half_variance, minus=False)


def left_out(table: Table, members: Sequence[int], cases: Sequence[tuple[int, Mask]]) -> Iterator[tuple[F64, F64]]:
    """For each case (system by index, places of it to hide) log microseconds and deviations of the hidden places, as
    `complete` finds them without: (collective, form, ranks, size), NaN elsewhere. All systems that count are members,
    of one kind of link. One inversion for all cases; exact where noise is normal, and else up to what the hidden
    values have said about outliers.
    """
    boxes, members = [Box.of(key) for key in table.systems], list(members)
    mean, apart = problems(table, boxes, members)
    blocks = [np.asarray(mask[members].any(2), np.bool_) for _, mask in cases]
    found = zip(cases, mean.left_out(blocks), apart.left_out([block[:, :REDUCING] for block in blocks]), strict=True)
    for (system, mask), (middle, variance), (half, half_variance) in found:
        own = slice(members.index(system), members.index(system) + 1)
        seen = table.without(mask).of(np.arange(len(boxes)) == system)
        log_us = with_tails(seen, boxes[system:system + 1], joined(middle[own], half[own]))
        yield log_us[0], np.sqrt(joined(variance[own], half_variance[own], minus=False))[0]


def joined(middle: F64, half: F64, *, minus: bool = True) -> F64:
    """(system, collective, form, ranks, size) from the mean over formats and half their difference."""
    difference = np.zeros_like(middle)
    difference[:, :REDUCING] = half
    return np.stack([middle + difference, middle - difference if minus else middle + difference], 2)


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Values on a grid, NaN where absent, that are a fixed base plus a Gaussian process plus noise."""

    kernel: Kernel
    grid: Grid
    base: F64                            # (system, size)
    values: F64                          # (system, collective, ranks, size)

    def posterior(self, wanted: Sequence[int]) -> tuple[F64, F64]:
        """(expected value, variance of a measurement) of all places of some systems, by index."""
        ground = np.broadcast_to(self.base[:, None, None, :], self.grid.shape)
        known = ~np.isnan(self.values)
        rows = np.zeros(self.grid.shape, bool)
        rows[list(wanted)] = True
        seen, asked = np.flatnonzero(known), np.flatnonzero(rows)
        every, noises = covariance(self.kernel, self.grid), noise(self.kernel, self.grid).ravel()
        cross = every[np.ix_(seen, asked)]
        among = every[np.ix_(seen, seen)]
        noisy = noises[seen] / self.weights(among, noises[seen], (self.values - ground).ravel()[seen])
        among[np.diag_indices_from(among)] += noisy
        solved = np.linalg.solve(among, np.column_stack([cross, (self.values - ground).ravel()[seen]]))
        value = ground.ravel()[asked] + cross.T @ solved[:, -1]
        variance = every[asked, asked] + noises[asked] - np.einsum("ij,ij->j", cross, solved[:, :-1])
        shape = (len(wanted), *self.grid.shape[1:])
        return value.reshape(shape), np.maximum(variance, noises[asked]).reshape(shape)

    def left_out(self, blocks: Sequence[Mask]) -> list[tuple[F64, F64]]:
        """For each block of places (system, collective, ranks, size): its expected values and their variances from
        all other values, NaN where nothing was measured or outside the block. The algebra of `posterior`, for many
        blocks at once (Rasmussen, Williams, eq. 5.12, for blocks); only what counts as an outlier has seen the block.
        """
        ground = np.broadcast_to(self.base[:, None, None, :], self.grid.shape)
        known = ~np.isnan(self.values)
        seen = np.flatnonzero(known)
        place = np.full(self.values.size, -1)
        place[seen] = np.arange(len(seen))
        noises, values = noise(self.kernel, self.grid).ravel()[seen], (self.values - ground).ravel()[seen]
        among = covariance(self.kernel, self.grid)[np.ix_(seen, seen)]
        weights = self.weights(among, noises, values)
        inverse = np.linalg.inv(among + np.diag(noises / weights))
        solved = inverse @ values
        out = []
        for block in blocks:
            rows = place[np.flatnonzero(block & known)]
            hidden = np.linalg.inv(inverse[np.ix_(rows, rows)])
            value, variance = np.full(known.size, np.nan), np.full(known.size, np.nan)
            value[seen[rows]] = ground.ravel()[seen[rows]] + values[rows] - hidden @ solved[rows]
            unsure = np.diagonal(hidden) - noises[rows] / weights[rows]
            variance[seen[rows]] = np.maximum(unsure, 0) + noises[rows]
            out.append((value.reshape(known.shape), variance.reshape(known.shape)))
        return out

    def weights(self, among: F64, noises: F64, values: F64) -> F64:
        """What each value counts: 1, or less for outliers, if noise has the tails of Student's t (by expectation and
        maximisation: Lange, Little, Taylor, Robust Statistical Modeling Using the t Distribution, JASA 84(408), 1989).
        """
        freedom, weights = self.kernel.freedom, np.ones_like(values)
        for _ in range(ROUNDS if freedom is not None else 0):
            assert freedom is not None
            noisy = noises / weights
            inverse = np.linalg.inv(among + np.diag(noisy))
            left = noisy * (inverse @ values)
            unsure = noisy - noisy**2 * np.diagonal(inverse)
            weights = (freedom + 1) / (freedom + (left**2 + unsure) / noises)
        return weights


def problems(table: Table, boxes: Sequence[Box], members: list[int]) -> tuple[Problem, Problem]:
    """The two regressions of systems with one kind of link: of the mean over formats, of half their difference."""
    nvlink = boxes[members[0]].nvlink
    chosen = tuple(boxes[i] for i in members)
    every = Grid(chosen, tuple(range(len(COLLECTIVES))), table.ranks, table.sizes)
    reducing = replace(every, collectives=tuple(range(REDUCING)))
    half, int8 = (table.log_us[members, :, form] for form in range(len(FORMS)))
    middle = np.where(np.isnan(half), int8, np.where(np.isnan(int8), half, (half + int8) / 2))
    ground = base(chosen, table.sizes)
    return (Problem(NVLINK if nvlink else PCIE, every, ground, middle),
            Problem(NVLINK_FORMS if nvlink else PCIE_FORMS, reducing, np.zeros_like(ground),
                    (half - int8)[:, :REDUCING] / 2))


def with_tails(table: Table, boxes: Sequence[Box], log_us: F64) -> F64:
    """The same where, of curves whose measured end is straight already, the line on from there counts: the more, the
    less the rates of its last three steps differ."""
    x, sizes = octaves(boxes, table.sizes), np.array(table.sizes, float)
    measured, out = table.log_us, log_us.copy()
    for place in np.ndindex(*log_us.shape[:-1]):
        seen = np.flatnonzero(~np.isnan(measured[place]))
        if len(seen) < 4 or seen[-1] == len(sizes) - 1 or x[place[0], seen[-1]] < FULL_OCTAVES:
            continue
        trust, line = _line(sizes[seen[-4:]], np.exp(measured[place][seen[-4:]]), sizes[seen[-1] + 1:])
        out[place][seen[-1] + 1:] += trust * (line - out[place][seen[-1] + 1:])
    return out


def _line(sizes: F64, us: F64, beyond: F64) -> tuple[float, F64]:
    """(how far to trust it, log microseconds at sizes beyond) of the line through the last two points of
    four."""
    slopes = (us[-1] - us[:-1]) / (sizes[-1] - sizes[:-1])
    if (slopes <= 0).any():
        return 0.0, np.zeros_like(beyond)
    differ = float(np.abs(np.log(slopes / slopes[-1])).max())
    return TRUST / (1 + (differ / STEADY) ** 2), np.log(us[-1] + slopes[-1] * (beyond - sizes[-1]))
