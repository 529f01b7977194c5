"""This file knows about measured points of operator tables: which versions hold them, and ratios to the model there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import Any, TypeVar

from sublight.predict.operators import silicon
from sublight.predict.operators.surface import Surface, groups

# Measured on H200 and B200 tables (bench/fit_attention.py, fit_experts.py --near): ln spread of a time between measured
# points of its own geometry, what each unit of distance to another geometry adds, and how much of its ln ratio holds.
EXACT, APART, HOLDS = 0.05, 0.15, 0.9
ABSENT: Mapping[str, Any] = {"window_size": 0, "attn_dtype": "bfloat16", "distribution": "uniform"}
KIND = TypeVar("KIND")


@dataclass(frozen=True, slots=True)
class Near:
    """Ratios of the nearest geometry that was measured."""

    surface: Surface
    spread: float

    def at(self, b: float, x: float) -> float:
        """The ratio at ln b, ln x."""
        return exp(self.surface.at(b, x))


@dataclass(frozen=True, eq=False)
class Table:
    columns: Mapping[str, Any]
    groups: Mapping[tuple[Any, ...], Any]                # values of the key columns -> indices of rows
    version: str = ""                                    # of the library

    def points(self, rows: Any, b: str, x: str) -> dict[tuple[float, float], float]:
        """(b, x) -> seconds. Where several kernels were measured, the fastest: engines choose."""
        out: dict[tuple[float, float], float] = {}
        for one, other, value in zip(self.columns[b][rows].tolist(), self.columns[x][rows].tolist(),
                                     self.columns["latency"][rows].tolist(), strict=True):
            if value > 0:
                seconds = value * silicon.MILLISECOND
                out[one, other] = min(out.get((one, other), seconds), seconds)
        return out


def tables(
    device: str, family: str, library: str, name: str, version: str | None, keys: tuple[str, ...],
    only: tuple[tuple[str, object], ...] = (),
) -> Iterator[Table]:
    """Of all versions that have the table: the one asked for or the next newer ones first, then older ones; the newest
    first where none is asked for. only: as silicon.table has it."""
    folder = silicon.system(device)
    if folder is None:
        return
    found = silicon.versions(folder, family, library, name)
    if version is not None:
        newer = [one for one in reversed(found) if silicon.age(one) >= silicon.age(version)]
        found = (*newer, *(one for one in found if one not in newer))
    for one in found:
        table = _table(device, family, library, name, one, keys, only)
        if table is not None:
            yield table


@lru_cache(maxsize=64)
def _table(
    device: str, family: str, library: str, name: str, version: str, keys: tuple[str, ...],
    only: tuple[tuple[str, object], ...],
) -> Table | None:
    import numpy as np

    columns = silicon.table(device, family, library, name, version, only)
    if columns is None or not len(columns["latency"]):
        return None
    rows = len(columns["latency"])
    columns = {**{key: np.full(rows, value) for key, value in ABSENT.items() if key in keys}, **columns}
    return Table(columns, dict(groups(columns, keys)), version)


def near(
    device: str, library: str, apart: float, points: Mapping[tuple[float, float], tuple[float, KIND]],
    model: Callable[[KIND, str, str], float],
) -> Near:
    """points: (b, x) -> (measured seconds, its operator)."""
    ratios = {at: value / model(op, device, library) for at, (value, op) in points.items()}
    holds = 1.0 if apart == 0 else HOLDS
    return Near(Surface.of({at: ratio ** holds for at, ratio in ratios.items()}), EXACT + APART * apart)
