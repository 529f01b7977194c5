"""This file knows about the constants of training steps: one set for each framework, and which of them a plan meets.

catalog/training/constants.toml has, for a framework, a table of values and beside it one for each model family that was
left out of its fit (for tests on that family). A name may be narrowed: "gemm:hopper" multiplies "gemm" on that
generation of GPUs, "quantised:mxfp8" in that precision.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from sublight.device import Device
from sublight.plan import Training

GENERATIONS = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
# Where a framework has none: seconds and shares. All others are factors: 1. What stays exposed of an exchange that runs
# beside compute is judgement there.
ABSENT = {"launch": 0.0, "grouped": 0.0, "sync": 0.0, "drift": 0.0, "p2p": 1.0, "gradients": 0.0, "parameters": 0.0,
          "fixed": 0.0, "sharp": 4.0, "tp exposed": 0.25, "ep exposed": 0.5}


@dataclass(frozen=True)
class Constants:
    """Of one framework. spread: of ln(measured / predicted) over runs whose family was left out, as a standard
    deviation: what 80 % of them lie within, over 1.28. spread_experts: of models with experts."""

    values: Mapping[str, float]
    spread: float
    spread_experts: float
    basis: str

    def value(self, name: str, tags: tuple[str, ...]) -> float:
        """The value of a name on a plan whose tags these are."""
        found = self._known.get((name, tags))
        if found is None:
            found = self.values.get(name, ABSENT.get(name, 1.0))
            for tag in tags:
                found *= self.values.get(f"{name}:{tag}", 1.0)
            self._known[name, tags] = found
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, tuple[str, ...]], float]:
        return {}


@cache
def _rows() -> dict[str, Any]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("training/constants.toml").read_text("utf-8"))


@cache
def constants(framework: str, without: str | None = None) -> Constants:
    """The constants of a framework; of an unknown one those of "megatron", with twice the spread.

    without: the model family that must not have been in the fit. A family that was not in it needs no set of its own.
    """
    rows = _rows()
    row = rows.get(framework, rows["megatron"])
    values = row.get("without", {}).get(without, row["values"])
    wider = 1.0 if framework in rows else 2.0
    spread = float(row["spread"])
    of_experts = float(row.get("spread_experts", 1.5 * spread))          # where none was measured: judgement
    return Constants(dict(values), spread * wider, of_experts * wider, str(row["basis"]))


def years(plan: Training) -> float:
    """From NeMo container 26.04 to the plan's version, "25.11" or "26.04.01"; 0 where none is named.

    >>> years(Training(version="26.04.01")), years(Training(version="25.10"))
    (0.0, -0.5)
    """
    found = re.match(r"(\d\d)\.(\d\d)", plan.version or "")
    return (int(found[1]) - 26) + (int(found[2]) - 4) / 12 if found else 0.0


def tags(plan: Training, device: Device) -> tuple[str, ...]:
    """What narrows a plan's constants: generation and key of its GPU, precision, CUDA graphs ("partial-graphs", or
    "full-graphs" of whole iterations), the dispatcher of tokens to experts, attention in eight bits, a router that
    drops tokens beyond an expert's capacity ("drop": shapes are known beforehand), a published recipe (a version is
    named)."""
    generation = GENERATIONS.get(device.capability[0], "ampere") if device.capability else "ampere"
    extra = dict(plan.extra)
    out = [generation, device.key, plan.precision]
    if plan.cuda_graphs:
        out.append("full-graphs" if "full" in extra.get("graphs", "") else "partial-graphs")
    if "dispatcher" in extra:
        out.append(extra["dispatcher"])
    if extra.get("attention") == "fp8":
        out.append("fp8-attention")
    if extra.get("router") == "drop":
        out.append("drop")
    if plan.version:
        out.append("recipe")
    return tuple(out)
