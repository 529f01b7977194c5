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

from sublight.comm.expect.measured import COLLECTIVES, F64, FORMS, REDUCING, Table

# One curve: collective, number format ("half" or "int8"; "half" where the format cannot matter), ranks.
Curve = tuple[str, str, int]

OCTAVES_BEYOND = 7                       # above the largest knot; farther is refused


@dataclass(frozen=True, slots=True)
class System:
    """What was fitted to one measured system. log_us has a value for each knot: the natural logarithm of the expected
    microseconds; width half the 80 % interval in the same unit, for all collectives."""

    key: str                                     # of catalog/devices.toml
    version: str                                 # of NCCL
    log_us: Mapping[Curve, F64]
    width: Mapping[int, F64]                     # by ranks
    measured: tuple[int, ...]                    # ranks that were measured; the others are completed

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.width))


@dataclass(frozen=True, slots=True)
class Surface:
    """Everything that was fitted. knots: sizes in bytes, ascending. between, kin, stranger: half widths of 80 %
    intervals in log time, by kind of link ("NVLink", "PCIe"), for ranks between those of the curves, for devices
    without data that have a measured one of their generation, and for those that have none."""

    source: str
    knots: tuple[int, ...]
    systems: Mapping[str, System]
    between: Mapping[str, float]
    kin: Mapping[str, float]
    stranger: Mapping[str, float]


@cache
def shipped() -> Surface:
    """The constants of catalog/comm/nccl-node.toml."""
    text = resources.files("sublight.catalog").joinpath("comm/nccl-node.toml").read_text("utf-8")
    return parsed(tomllib.loads(text))


def curve_of(collective: str, form: str, ranks: int) -> Curve:
    return collective, form if COLLECTIVES.index(collective) < REDUCING else FORMS[0], ranks


def at(surface: Surface, system: System, curve: Curve, nbytes: float) -> tuple[float, float]:
    """(log microseconds, half width of the 80 % interval in the same unit) of a size: straight between the knots over
    its logarithm, level below the first, and above the last at the rate of the last step, the interval wider by a
    quarter each octave."""
    log_us, width, knots = system.log_us[curve], system.width[curve[2]], surface.knots
    octaves = math.log2(nbytes / knots[-1])
    if octaves <= 0:
        x = np.log2(knots)
        return tuple(float(np.interp(math.log2(nbytes), x, of)) for of in (log_us, width))  # type: ignore[return-value]
    last, before = math.exp(log_us[-1]), math.exp(log_us[-2])
    slope = (last - before) / (knots[-1] - knots[-2])
    return math.log(last + slope * (nbytes - knots[-1])), float(width[-1]) * (1 + octaves / 4)


# ---- as TOML


def system_of(table: Table, index: int, log_us: F64, width: F64) -> System:
    """One system's constants from what was completed for it: (collective, form, ranks, size) each."""
    curves = {curve_of(name, form, n): log_us[c, f, r]
              for c, name in enumerate(COLLECTIVES) for f, form in enumerate(FORMS) for r, n in enumerate(table.ranks)
              if f == 0 or c < REDUCING}
    measured = tuple(n for r, n in enumerate(table.ranks) if not np.isnan(table.log_us[index, :, :, r]).all())
    key = table.systems[index]
    return System(key, table.versions[key], curves, {n: width[:, :, r].mean((0, 1)) for r, n in enumerate(table.ranks)},
                  measured)


def written(surface: Surface) -> str:
    """A TOML document that `parsed` reads back, to 4 digits."""
    lines = ["# Collectives inside one domain: expected microseconds at each size (knots, bytes) by collective, number",
             "# format and ranks, as fitted; width: half an 80 % interval, in natural logarithms, by ranks.",
             "# Written by bench/fit_collectives.py --write; method and accuracy: docs/comm-accuracy.md.",
             f'source = "{surface.source}"', f"knots = {list(surface.knots)}"]
    for name in ("between", "kin", "stranger"):
        of = ", ".join(f"{link} = {value:.3g}" for link, value in getattr(surface, name).items())
        lines.append(f"{name} = {{ {of} }}")
    for key, system in surface.systems.items():
        lines += ["", f'[systems."{key}"]', f'nccl = "{system.version}"', f"measured = {list(system.measured)}"]
        lines += [f'width.{n} = {_numbers(width, 3)}' for n, width in system.width.items()]
        lines += [f'us.{collective}.{form}.{n} = {_numbers(np.exp(curve), 4)}'
                  for (collective, form, n), curve in system.log_us.items()]
    return "\n".join(lines) + "\n"


def _numbers(values: F64, digits: int) -> str:
    return "[" + ", ".join(f"{value:.{digits}g}" if value < 10**digits else f"{value:.0f}" for value in values) + "]"


def parsed(table: Mapping[str, Any]) -> Surface:
    """The constants of a TOML document in the form that `written` gives."""
    systems = {key: _system(key, row) for key, row in table["systems"].items()}
    return Surface(table["source"], tuple(table["knots"]), systems, table["between"], table["kin"], table["stranger"])


def _system(key: str, row: Mapping[str, Any]) -> System:
    curves = {(collective, form, int(n)): np.log(values) for collective, forms in row["us"].items()
              for form, ranks in forms.items() for n, values in ranks.items()}
    return System(key, row["nccl"], curves, {int(n): np.asarray(w, float) for n, w in row["width"].items()},
                  tuple(row["measured"]))
