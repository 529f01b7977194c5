"""This file knows about the shipped constants of dense operators, and whose to take where a device has none of its own.

catalog/operators/dense*.toml holds them by device, library and number format, with their source and the error that they
had on shapes they were not fitted on. What is missing is transferred, in this order: the same device's other libraries;
the nearest device, where nearness is that of generation, then of rates; a number format that is computed alike.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import log
from typing import Any

from sublight.device import Device, by_key
from sublight.predict.operators.tiles import Tiled

LIBRARIES = ("vllm", "sglang", "trtllm")
SMALL = 128                              # rows, up to which a product counts as small
# Number formats whose constants stand for those of another.
ALIKE: Mapping[str, tuple[str, ...]] = {
    "bf16": (), "fp8": ("fp8_block",), "fp8_block": ("fp8",), "nvfp4": ("fp8_block",), "int8": ("fp8", "bf16"),
    "int4_weights": ("bf16",), "int8_weights": ("int4_weights", "bf16"),
}
# Spread of ln(measured / predicted) where constants are carried over, beside their own. sibling: a device of the same
# generation. Of siblings and strangers: bench/fit_operators.py, devices held out; of libraries and formats: judgement.
SPREAD = {"library": 0.20, "sibling": 0.10, "stranger": 0.40, "format": 0.45}
GENERATION = {7: 0.0, 8: 1.0, 9: 2.0, 10: 3.0, 12: 3.2}      # by the major number of the compute capability


@dataclass(frozen=True, slots=True)
class Dense:
    """Constants of matrix products, and how far off they are. spread_small: for at most SMALL rows."""

    tiled: Tiled
    spread_small: float
    spread_large: float
    basis: str                           # "constants" or "transfer"
    source: str
    device: str                          # whose they are
    library: str
    form: str


@cache
def _files() -> dict[str, Any]:
    """Device -> library -> form -> constants, of all files."""
    out: dict[str, Any] = {}
    for path in sorted(resources.files("sublight.catalog").joinpath("operators").iterdir(), key=lambda p: p.name):
        if path.name.startswith("dense") and path.name.endswith(".toml"):
            for device, libraries in tomllib.loads(path.read_text("utf-8")).items():
                out.setdefault(device, {}).update(libraries)
    return out


@cache
def _own(device: str, library: str, form: str) -> Dense | None:
    row = _files().get(device, {}).get(library, {}).get(form)
    if row is None or "rejected" in row:
        return None
    tiled = Tiled(
        fixed=row["fixed_us"] * 1e-6, wave=row["wave_us"] * 1e-6, split=row["split_us"] * 1e-6, tensor=row["tensor"],
        shrink=row["shrink"], slowing=row["slowing"], on_chip=row["on_chip"], memory=row["memory"], p=row["p"],
        warm_bytes=row["warm_mb"] * 1e6, warm_saved=row["warm_saved"],
        written_saved=row["written_saved"],
        quantise_fixed=row.get("quantise_us", 0.0) * 1e-6, quantise=row.get("quantise", 0.0),
        quantise_row=row.get("quantise_row_bytes", 0.0),
    )
    source = _files()[device][library]["source"]
    return Dense(tiled, row["spread_small"], row["spread_large"], "constants", source, device, library, form)


@dataclass(frozen=True, slots=True)
class Batched:
    """Batched products: seconds more, and how many times those of one product of the same tiles."""

    fixed: float
    slower: float


@cache
def _batched() -> Mapping[str, Mapping[str, Batched]]:
    text = resources.files("sublight.catalog").joinpath("operators/batched.toml").read_text("utf-8")
    return {device: {library: Batched(row["fixed_us"] * 1e-6, row["slower"]) for library, row in libraries.items()}
            for device, libraries in tomllib.loads(text).items()}


def batched(device: Device, library: str) -> Batched:
    """Of the nearest device that was measured."""
    known = _batched()
    mine = known[min(known, key=lambda key: distance(device, by_key(key)))]
    return mine[next(name for name in (library, *LIBRARIES) if name in mine)]


def rejected(device: str, library: str, form: str) -> str | None:
    """Why the measured table is not used, or None."""
    reason: str | None = _files().get(device, {}).get(library, {}).get(form, {}).get("rejected")
    return reason


def dense(device: Device, library: str, form: str, *, without: str | None = None) -> Dense:
    """The constants to use. without: a device whose own constants are left out, to measure how well transfer does."""
    for own_form in (form, *ALIKE[form]):
        for key in _nearest(device, without):
            for name in (library, *LIBRARIES):
                found = _own(key, name, own_form)
                if found is not None:
                    return _carried(found, device, library, form)
    raise AssertionError(f"no constants for {form}")


def _carried(found: Dense, device: Device, library: str, form: str) -> Dense:
    """With a wider spread where they are another's."""
    apart = abs(_generation(device) - _generation(by_key(found.device)))
    extra = max(SPREAD["format"] if found.form != form else 0.0,
                SPREAD["sibling" if apart < 0.1 else "stranger"] if found.device != device.key else 0.0,
                SPREAD["library"] if found.library != library and library in LIBRARIES else 0.0)
    if not extra:
        return found
    small, large = ((spread**2 + extra**2) ** 0.5 for spread in (found.spread_small, found.spread_large))
    return Dense(found.tiled, small, large, "transfer", f"{found.source}; carried over from {found.device}",
                 found.device, found.library, found.form)


def _nearest(device: Device, without: str | None) -> Iterator[str]:
    """Devices that have constants, nearest first."""
    known = [key for key in _files() if key != without]
    yield from sorted(known, key=lambda key: distance(device, by_key(key)))


def _generation(device: Device) -> float:
    """Of the compute capability; Ada and the smaller Amperes (8.6, 8.9) stand apart from A100 (8.0)."""
    major, minor = device.capability or (9, 0)
    return GENERATION.get(major, 3.0) + (0.5 if major == 8 and minor else 0.0)


def _traits(device: Device) -> tuple[float, float, float]:
    limits = device.limits
    flops = limits.flops_per_second("tensor", "bf16") or limits.flops_per_second("tensor", "fp16") or 1e14
    return _generation(device), log(limits.memory_bytes_per_second or 1e12), log(flops)


def distance(one: Device, other: Device) -> float:
    """How unlike two devices are: a generation counts as a factor of e^2 in a rate."""
    mine, theirs = _traits(one), _traits(other)
    return 0.0 if one.key == other.key else 1e-3 + 2 * abs(mine[0] - theirs[0]) + sum(
        abs(a - b) for a, b in zip(mine[1:], theirs[1:], strict=True))
