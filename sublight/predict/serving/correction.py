"""This file knows about what end-to-end measurements add: constants of an engine, fitted on runs of other models.

    TPOT = level · simulated                                     by engine and device
    TTFT = scale · level · simulated + steps · decode step + launch · calls + constant  by engine

catalog/serving/fitted.toml holds them fitted on all families, and once more without each: a prediction for a model
whose family was measured can be made from constants that have seen no model of it. They are few on purpose: learned
residuals and weights of operators made held-out families worse.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import exp
from typing import Any

LOADS = (4, 16, 64, 256)                 # users: bounds of the classes of load


@dataclass(frozen=True, slots=True)
class Correction:
    """Constants of one engine on one device under one load. ttft, tpot: quantiles of ln(measured / predicted) between
    which 80 % of runs of other families lie."""

    scale: float = 1.0
    steps: float = 0.0
    launch: float = 0.0                  # seconds for each kernel of a prompt, which graphs do not launch
    constant: float = 0.0
    level: float = 1.0
    ttft: tuple[float, float] = (-1.0, 1.0)
    tpot: tuple[float, float] = (-0.5, 0.5)
    basis: str = "judgement: no constants were fitted"

    def corrected(self, ttft: float, step: float, calls: int) -> float:
        """TTFT of a simulation whose pace has the level in it. step: seconds of a decode step; calls: kernels of a
        prompt (Pace.calls)."""
        return max(self.scale * ttft + self.steps * step + self.launch * calls + self.constant, 0.25 * ttft)


@cache
def rows() -> Mapping[str, Any]:
    """catalog/serving/fitted.toml."""
    path = resources.files("sublight.catalog").joinpath("serving/fitted.toml")
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def correction(
    engine: str, device: str, *, users: int = 32, tables: bool = True, family: str | None = None,
    protocol: str = "",
) -> Correction:
    """For an engine on a device (its key in the catalog).

    tables: operator times come from measured tables. family: constants that have seen no model of it. protocol: of the
    run, where more is known to come on top: "other", "odd" where nobody has stated it, "cold" where kernels compile
    in it.
    """
    kind = rows().get("tables" if tables else "constants", {})
    found = kind.get("without", {}).get(family) if family else None
    chosen = found or kind.get("all")
    if not chosen or engine not in chosen:
        return Correction()
    row = chosen[engine]
    spread = chosen["spread"]
    known = device in row["levels"]
    load = sum(users > bound for bound in LOADS)
    wider = 1.0 if known else spread["unknown_device"]
    tpot = spread.get(f"tpot_{protocol}", spread["tpot"])[load]
    return Correction(
        scale=row["scale"], steps=row["steps"], launch=row["launch"],
        constant=row["constant"] + row["protocols"].get(protocol, 0.0),
        level=exp(row["levels"].get(device, row["level"])), ttft=_scaled(spread["ttft"][load], wider),
        tpot=_scaled(tpot, wider),
        basis=f"{row['families']} families of models measured end to end on {engine}"
              + ("" if known else f", none of them on {device}"),
    )


def _scaled(bounds: tuple[float, float], factor: float) -> tuple[float, float]:
    return bounds[0] * factor, bounds[1] * factor
