"""This file knows about how wide an interval must be: from how far off other systems were in the same situation.

    situation    gap      sizes on both sides were measured          measured places count as such too
                 beyond   the curve ends before
                 ranks    no curve with these ranks

    width        factor x typical error ^ 0.7, the typical error by a regression of log |error| on what is known of a
                 place without measuring it: the deviation that the fit states there, whether these are the most
                 ranks (of a full box), kind of link

Both are learned from the other systems only, with as much hidden of each: a system's own measurements have no part in
its widths. The power lies between a constant width (0) and one in proportion (1): with few systems to learn from, what
is said of single places is only partly to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sublight.comm.expect.fit import left_out
from sublight.comm.expect.measured import F64, Box, Mask, Table
from sublight.errors import InputError

COVERED = 0.8
SITUATIONS = ("gap", "beyond", "ranks")
BEYOND_BYTES = 16 * 2**20      # sizes above are hidden to learn "beyond"
POWER = 0.7                    # of the typical error
RIDGE = 0.15                   # of the regression, a place: a coefficient has to be worth it
LEAST = 1e-3                   # errors below count as this


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Coefficients of log typical error, and the factor that makes 80 % fit."""

    coefficients: F64
    factor: float

    def width(self, known: F64) -> F64:
        return np.asarray(self.factor * np.exp(POWER * (known @ self.coefficients)))


Scales = Mapping[str, Scale]             # by situation


def scales(table: Table, system: int) -> Scales:
    """What the other systems say of the widths of one, by index. Raises InputError if there is none with its kind of
    link."""
    boxes = [Box.of(key) for key in table.systems]
    classes = [tuple(i for i, box in enumerate(boxes) if box.nvlink == nvlink and i != system)
               for nvlink in (True, False)]
    if not classes[0 if boxes[system].nvlink else 1]:
        raise InputError(f"intervals of {table.systems[system]}: expected another system with its kind of link to "
                         "learn from, got none")
    learned = {}
    for place, situation in enumerate(SITUATIONS):
        parts = [_errors(table, members)[place] for members in classes if members]
        learned[situation] = _learned(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return learned


def _learned(known: F64, error: F64) -> Scale:
    penalty = RIDGE * len(error) * np.eye(known.shape[1])
    penalty[0, 0] = 0.0
    target = known.T @ np.log(np.maximum(error, LEAST))
    coefficients: F64 = np.asarray(np.linalg.solve(known.T @ known + penalty, target), np.float64)
    ratio = error / np.exp(POWER * (known @ coefficients))
    return Scale(coefficients, float(np.quantile(ratio, COVERED)))


@lru_cache(maxsize=16)
def _errors(table: Table, members: tuple[int, ...]) -> tuple[tuple[F64, F64], ...]:
    """For each situation (what is known, |error|) of the measured places of some systems with one kind of link, each
    hidden in its turn and predicted from the rest."""
    cases = [(situation, i, mask) for situation in SITUATIONS for i in members for mask in hiding(table, i, situation)]
    found: dict[str, list[tuple[F64, F64]]] = {situation: [] for situation in SITUATIONS}
    answers = left_out(table, members, [(i, mask) for _, i, mask in cases])
    for (situation, i, mask), (log_us, deviation) in zip(cases, answers, strict=True):
        hidden = mask[i]
        found[situation].append((known_of(table, i, deviation)[hidden], np.abs(log_us - table.log_us[i])[hidden]))
    return tuple((np.concatenate([known for known, _ in rows]), np.concatenate([error for _, error in rows]))
                 for rows in found.values())


def known_of(table: Table, system: int, deviation: F64) -> F64:
    """What the regression may look at: (collective, form, ranks, size, feature)."""
    pcie = not Box.of(table.systems[system]).nvlink
    full = (np.arange(len(table.ranks)) == len(table.ranks) - 1)[:, None]
    with np.errstate(invalid="ignore"):
        features = [1.0, np.log(deviation), full, float(pcie)]
    return np.stack([np.broadcast_to(np.asarray(feature, float), deviation.shape) for feature in features], -1)


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


def widths(table: Table, system: int, deviation: F64, by_situation: Scales) -> F64:
    """Half the width of the 80 % interval, in log time, of each place of one system: (collective, form, ranks,
    size)."""
    known, measured = known_of(table, system, deviation), ~np.isnan(table.log_us[system])
    of = {situation: scale.width(known) for situation, scale in by_situation.items()}
    size, out = np.arange(len(table.sizes)), of["ranks"].copy()
    for place in np.ndindex(*measured.shape[:-1]):
        seen = np.flatnonzero(measured[place])
        if len(seen):
            inside = (size >= seen[0]) & (size <= seen[-1])
            out[place] = np.where(inside, of["gap"][place], of["beyond"][place])
    return out
