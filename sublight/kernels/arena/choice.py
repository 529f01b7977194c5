"""This file knows about choice tables: for each shape the kernel that was fastest, how sure that is, what another costs.

    >>> table = ChoiceTable("norm", {}, (Choice({"rows": 16, "width": 4096}, "ours", True, (), 1e-5, 0.5, {"torch": (3.0, 2.9, 3.1)}),))
    >>> found = table.nearest({"rows": 24, "width": 4096})
    >>> found.choice.kernel, round(found.distance, 2), found.field
    ('ours', 0.58, 'rows')

The distance of two shapes is the largest of |log2(a / b)| over their sizes: 1 is a factor of two in one of them. Formats
and switches must be the same: a kernel says nothing about another. An eps may be any.
"""  # noqa: E501

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.kernels.arena.compare import CONFIDENCE, finite
from sublight.kernels.arena.session import Run

FARTHEST = 1.0                           # a factor of two in one size: beyond, a neighbour tells too little
VERSION = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for one shape. regret: what each other one that passed costs, as times of the best's time, with its
    interval (infinite ends are None)."""

    shape: Mapping[str, Any]
    kernel: str
    sure: bool                           # no other one is tied with it, at CONFIDENCE
    tied: tuple[str, ...]                # those that no difference from it can be told of
    seconds: float
    share_of_bound: float | None
    regret: Mapping[str, tuple[float, float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Nearest:
    """A choice that was found for a shape; the distance is 0 where that very shape was measured."""

    choice: Choice
    distance: float
    field: str | None                    # the size that differs most


@dataclass(frozen=True, slots=True)
class ChoiceTable:
    """Choices of one operator on one machine."""

    op: str
    environment: Mapping[str, str]
    choices: tuple[Choice, ...]

    def nearest(self, shape: Mapping[str, Any], *, farthest: float = FARTHEST) -> Nearest:
        """The choice of the nearest shape. Raises InputError where none is near enough, and says how far the nearest
        one is."""
        found = [Nearest(choice, *distance) for choice in self.choices if (distance := _distance(choice.shape, shape))]
        if not found:
            raise InputError(f"the choice table of {self.op} has no shape with the formats and switches of "
                             f"{_words(shape)}; measure it: sublight kernel choose {self.op} --shape …")
        best = min(found, key=lambda near: near.distance)
        if best.distance > farthest:
            raise InputError(f"the nearest shape that was measured of {self.op}, {_words(best.choice.shape)}, is "
                             f"{2 ** best.distance:.3g} times off in {best.field}; at most {2**farthest:.3g} times is "
                             "taken. Measure it: sublight kernel choose …")
        return best


def _distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, str | None] | None:
    """How far two shapes are from each other, and in which field; None: not comparable."""
    if one.keys() != other.keys():
        return None
    far, field = 0.0, None
    for name, value in one.items():
        wanted = other[name]
        if isinstance(value, float) and isinstance(wanted, float):
            continue                                   # an eps takes no time
        sizes = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in (value, wanted))
        if not sizes and value != wanted:
            return None
        if sizes and abs(math.log2(value / wanted)) > far:
            far, field = abs(math.log2(value / wanted)), name
    return far, field


def _words(shape: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in shape.items())


def chosen(run: Run) -> Choice | None:
    """What a run says is best; None where no kernel passed."""
    standing = run.standings()
    if not standing:
        return None
    best, others = standing[0], standing[1:]
    tied = tuple(other.name for other in others if other.tied)
    share = run.bound_seconds / best.seconds if run.bound_seconds else None
    regret = {other.name: (other.times_best, finite(other.times_low), finite(other.times_high)) for other in others}
    return Choice(run.shape, best.name, not tied, tied, best.seconds, share, regret)


def table(op: str, runs: Iterable[Run]) -> ChoiceTable:
    """The table of runs, which must be of one environment. Raises InputError where they are not, or where none has a
    kernel that passed."""
    made = [(run.environment, choice) for run in runs if (choice := chosen(run))]
    if not made:
        raise InputError(f"no kernel of {op} passed on any shape: there is nothing to choose from")
    about = made[0][0]
    if any(other != about for other, _ in made):
        raise InputError("runs of different machines or versions make no table")
    return ChoiceTable(op, about, tuple(choice for _, choice in made))


def document(made: ChoiceTable) -> dict[str, Any]:
    """The table as JSON."""
    return {"sublight_choice_table": VERSION, "op": made.op, "confidence": CONFIDENCE,
            "environment": dict(made.environment),
            "choices": [{"shape": dict(c.shape), "kernel": c.kernel, "sure": c.sure, "tied": list(c.tied),
                         "seconds": c.seconds, "share_of_bound": c.share_of_bound,
                         "regret": {name: list(times) for name, times in c.regret.items()}} for c in made.choices]}


def load(path: Path) -> ChoiceTable:
    """A table from its file. Raises InputError if it is not one."""
    try:
        row = json.loads(path.read_text("utf-8"))
        if row["sublight_choice_table"] != VERSION:
            raise InputError(f"{path.name} is a choice table of version {row['sublight_choice_table']}, expected "
                             f"{VERSION}; make it anew: sublight kernel choose")
        choices = tuple(Choice(c["shape"], c["kernel"], c["sure"], tuple(c["tied"]), c["seconds"], c["share_of_bound"],
                               {name: (t[0], t[1], t[2]) for name, t in c["regret"].items()}) for c in row["choices"])
        return ChoiceTable(row["op"], row["environment"], choices)
    except OSError as error:
        raise InputError(f"cannot read the choice table {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise InputError(f"{path.name} is no choice table; sublight kernel choose OP -o FILE writes one") from None
