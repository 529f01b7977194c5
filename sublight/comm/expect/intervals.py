"""This file knows about how wide an interval must be: from how far off other systems were in the same situation.

    situation    gap      sizes on both sides were measured          measured places count as such too
                 beyond   the curve ends before
                 ranks    no curve with these ranks

The width at a place is the deviation that the regression states there, times a factor: what 80 % of the errors of the
other systems with the same kind of link were below, in units of their own deviations, when as much was hidden of them.
The system itself is left out of that, so its own measurements have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sublight.comm.expect.fit import joined, problems, with_tails
from sublight.comm.expect.measured import F64, REDUCING, Box, Mask, Table
from sublight.errors import InputError

COVERED = 0.8
SITUATIONS = ("gap", "beyond", "ranks")
BEYOND_BYTES = 16 * 2**20      # sizes above are hidden to learn "beyond"

Factors = Mapping[str, float]


def factors(table: Table, system: int) -> Factors:
    """By situation, for a system by index, from the other systems with its kind of link. Raises InputError if there is
    none."""
    boxes = [Box.of(key) for key in table.systems]
    others = [i for i, box in enumerate(boxes) if box.nvlink == boxes[system].nvlink and i != system]
    if not others:
        raise InputError(f"intervals of {table.systems[system]}: expected another system with its kind of link to "
                         "learn from, got none")
    cases = [(situation, mask) for situation in SITUATIONS for i in others for mask in hiding(table, i, situation)]
    ratios: dict[str, list[F64]] = {situation: [] for situation in SITUATIONS}
    for (situation, _), ratio in zip(cases, _ratios(table, boxes, others, [mask for _, mask in cases]), strict=True):
        ratios[situation].append(ratio)
    return {situation: float(np.quantile(np.concatenate(found), COVERED)) for situation, found in ratios.items()}


def _ratios(table: Table, boxes: Sequence[Box], members: list[int], hidden: Sequence[Mask]) -> Iterator[F64]:
    """|error| over stated deviation of the measured places of each mask, when they are hidden."""
    mean, apart = problems(table, boxes, members)
    blocks = [mask[members].any(2) for mask in hidden]
    middles, halves = mean.left_out(blocks), apart.left_out([block[:, :REDUCING] for block in blocks])
    for mask, (middle, variance), (half, half_variance) in zip(hidden, middles, halves, strict=True):
        one = mask.any((1, 2, 3, 4))
        own = table.without(mask).of(one)
        at = one[members]
        log_us = with_tails(own, [boxes[int(np.flatnonzero(one)[0])]], joined(middle, half)[at])
        deviation = np.sqrt(joined(variance, half_variance, minus=False)[at])
        yield (np.abs(log_us - table.log_us[one]) / deviation)[mask[one]]


def hiding(table: Table, system: int, situation: str) -> list[Mask]:
    """What to hide of a system, both formats together: each size, all above 16 MiB, or each number of ranks."""
    known = ~np.isnan(table.log_us)
    known[[i for i in range(len(table.systems)) if i != system]] = False
    if situation == "beyond":
        parts = [np.array(table.sizes) > BEYOND_BYTES]
    elif situation == "gap":
        parts = list(np.eye(len(table.sizes), dtype=bool))
    else:
        parts = [rank[:, None] for rank in np.eye(len(table.ranks), dtype=bool)]
    return [mask for mask in (known & part for part in parts) if mask.any()]


def widths(table: Table, system: int, deviation: F64, by_situation: Factors) -> F64:
    """Half the width of the 80 % interval, in log time, of each place of one system: (collective, form, ranks, size)."""
    known = ~np.isnan(table.log_us[system])
    size = np.arange(len(table.sizes))
    factor = np.full(known.shape, by_situation["ranks"])
    for place in np.ndindex(*known.shape[:-1]):
        seen = np.flatnonzero(known[place])
        if len(seen):
            inside = (size >= seen[0]) & (size <= seen[-1])
            factor[place] = np.where(inside, by_situation["gap"], by_situation["beyond"])
    return deviation * factor
