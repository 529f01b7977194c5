"""This file knows about the fitted constants of collectives inside one domain: curves of time over size, by system."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

# One curve: collective, number format ("half" or "int8"), ranks.
Curve = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class System:
    """What was fitted to one measured system. log_us and width have one value for each knot: the natural logarithm of
    the expected microseconds, and half the width of its 80 % interval in the same unit."""

    key: str                                     # of catalog/devices.toml
    version: str                                 # of NCCL
    source: str
    log_us: Mapping[Curve, F64]
    width: Mapping[Curve, F64]
    measured: frozenset[int]                     # ranks that were measured; the other curves are completed


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that was fitted: sizes of the knots in bytes, ascending, and the systems by key."""

    knots: tuple[int, ...]
    systems: Mapping[str, System]


@cache
def shipped() -> Surface:
    """The constants of catalog/comm/nccl-node.toml."""
    text = resources.files("sublight.catalog").joinpath("comm/nccl-node.toml").read_text("utf-8")
    return parsed(tomllib.loads(text))


def parsed(table: Mapping[str, Any]) -> Surface:
    """The constants of a TOML document in the form that `written` gives."""
    systems = {key: _system(key, row) for key, row in table["systems"].items()}
    return Surface(tuple(table["knots"]), systems)


def _system(key: str, row: Mapping[str, Any]) -> System:
    return System(key, row["nccl"], row["source"], _curves(row["us"], log=True), _curves(row["width"], log=False),
                  frozenset(row["measured"]))


def _curves(rows: Mapping[str, list[float]], *, log: bool) -> dict[Curve, F64]:
    curves: dict[Curve, F64] = {}
    for name, values in rows.items():
        collective, form, ranks = name.split()
        curves[collective, form, int(ranks)] = np.log(values) if log else np.asarray(values, float)
    return curves


def at(surface: Surface, system: System, curve: Curve, nbytes: float) -> tuple[float, float]:
    """(log microseconds, half width of the 80 % interval in the same unit) of a size inside the knots: straight lines
    between the knots, over the logarithm of the size."""
    x, knots = math.log2(nbytes), np.log2(surface.knots)
    return float(np.interp(x, knots, system.log_us[curve])), float(np.interp(x, knots, system.width[curve]))
