"""This file knows about fitted constants of operator families: those of a device and a library, else the nearest ones.

    catalog/operators/<family>.toml      [<device>.<library>."<kind>"], written by bench/fit_<family>.py
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import hypot, log
from typing import Any

from sublight.device import Device, by_key
from sublight.predict.machine import Machine

LIBRARIES = ("vllm", "sglang", "trtllm")             # a library without constants of its own takes them in this order
GRAPHICS = ((7, 5), (8, 6), (8, 9), (12, 0))         # capabilities of chips with GDDR; the others have HBM
OTHER_MEMORY, OTHER_GENERATION, OTHER_DEVICE, OTHER_LIBRARY, OTHER_KIND = 20.0, 4.0, 1.0, 1.5, 0.5
# ln spread that a transfer adds, measured with each device left out in turn (bench/fit_attention.py, fit_experts.py):
# within a generation (H100 to H200, B200 to B300), to another with the same kind of memory (H100 to A100, RTX PRO 6000
# to L40S), to the other kind; to another library or number format: judgement.
SAME_GENERATION, SAME_MEMORY, ELSEWHERE, ANOTHER = 0.12, 0.28, 0.55, 0.2


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants by name, how far times lie from what they give (standard deviation of the log), and whose they are."""

    values: Mapping[str, float]
    spread: float
    basis: str                           # "constants", or "transfer": of another device, library or format
    device: str
    library: str
    kind: str


def fitted(family: str, kinds: tuple[str, ...], where: Machine) -> Fitted | None:
    """The constants that hold for a machine, kinds in the order of preference. None where no kind was ever fitted."""
    key = ("fitted", family, kinds)
    if key not in where.memo:
        where.memo[key] = nearest(family, kinds, where.device, where.library)
    found: Fitted | None = where.memo[key]
    return found


def nearest(
    family: str, kinds: tuple[str, ...], device: Device, library: str, *, without: frozenset[str] = frozenset(),
) -> Fitted | None:
    """The least distant constants. without: devices whose own are left out, for measuring what a transfer costs."""
    best, least = None, float("inf")
    for key, row in _rows(family):
        if key[2] in kinds and key[0] not in without:
            distance = _distance(key, kinds, device, library)
            if distance < least:
                best, least = (key, row), distance
    if best is None:
        return None
    (there, whose, kind), row = best
    own = least == 0.0
    values = {name: value for name, value in row.items() if isinstance(value, float)}
    another = 0.0 if (whose, kind) == (library, kinds[0]) else ANOTHER
    spread = hypot(row["spread"], *_added(by_key(there), device), another)
    return Fitted(values, spread, "constants" if own else "transfer", there, whose, kind)


def shipped(family: str, device: str, library: str, kind: str) -> bool:
    """Are there constants of exactly this table?"""
    return any(key == (device, library, kind) for key, _ in _rows(family))


def _added(there: Device, device: Device) -> tuple[float, ...]:
    if there.key == device.key:
        return ()
    if _graphics(there) != _graphics(device):
        return (ELSEWHERE,)
    return (SAME_GENERATION if _major(there) == _major(device) else SAME_MEMORY,)


def _graphics(device: Device) -> bool:
    return device.capability in GRAPHICS


def _major(device: Device) -> int:
    return (device.capability or (0, 0))[0]


def _distance(key: tuple[str, str, str], kinds: tuple[str, ...], device: Device, library: str) -> float:
    there, whose, kind = key
    apart = OTHER_KIND * kinds.index(kind)
    if there != device.key:
        other = by_key(there)
        apart += OTHER_DEVICE + abs(log((other.limits.memory_bytes_per_second or 1.0)
                                        / (device.limits.memory_bytes_per_second or 1.0)))
        apart += OTHER_GENERATION * abs(_major(other) - _major(device))
        apart += OTHER_MEMORY * (_graphics(other) != _graphics(device))
    if whose != library:
        apart += OTHER_LIBRARY + 0.01 * LIBRARIES.index(whose)
    return apart


@cache
def _rows(family: str) -> tuple[tuple[tuple[str, str, str], Mapping[str, Any]], ...]:
    text = resources.files("sublight.catalog").joinpath(f"operators/{family}.toml")
    return tuple(_flat(tomllib.loads(text.read_text("utf-8")))) if text.is_file() else ()


def _flat(rows: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any]]]:
    for device, libraries in rows.items():
        if isinstance(libraries, dict):
            for library, kinds in libraries.items():
                for kind, row in kinds.items():
                    yield (device, library, kind), row
