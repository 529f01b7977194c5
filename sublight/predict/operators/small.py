"""This file knows about the time of kernels that only move data: normalisation, activations, rotary, cache writes, …

    seconds = floors · fixed + ((bytes / (share · memory rate))² + (operations / (share · vector rate))²)^½

fixed and the memory share are those of one kernel that was measured on each device; how other kinds differ from it is
judged. Small tensors lie in the L2, since the kernel before has just written them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from sublight.bound import bound
from sublight.device import Limits, by_key
from sublight.errors import InputError
from sublight.ops.op import Op
from sublight.predict.machine import Machine
from sublight.predict.operators.constants import distance
from sublight.predict.optime import OpTime, combined

LIBRARIES = ("vllm", "trtllm", "sglang")
SPREAD_OWN, SPREAD_CARRIED = 0.35, 0.45  # judgement: kinds differ more than devices do


@dataclass(frozen=True, slots=True)
class Moving:
    """Of one kernel: seconds behind another, share of the memory's rate, share of the time that a warm L2 saves."""

    fixed: float
    memory: float
    warm: float


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind differs from the measured kernel."""

    floors: float
    memory: float
    vector: float
    fused: tuple[str, ...]


def moving_seconds(moving: Moving, nbytes: Any, limits: Limits) -> Any:
    """Of a kernel that moves so many bytes; numbers or arrays."""
    return moving.fixed + _moved(moving, nbytes, limits)


def _moved(moving: Moving, nbytes: Any, limits: Limits) -> Any:
    warm = moving.warm / (1 + (nbytes / limits.l2_bytes) ** 2)
    return nbytes / ((limits.memory_bytes_per_second or 1e12) * moving.memory) * (1 - warm)


def _catalog(name: str) -> Any:
    return tomllib.loads(resources.files("sublight.catalog").joinpath(f"operators/{name}").read_text("utf-8"))


@cache
def kinds() -> Mapping[str, Kind]:
    """By the name of the operator's class."""
    return {name: Kind(row["floors"], row["memory"], row["vector"], tuple(row["fused"]))
            for name, row in _catalog("small.toml")["kinds"].items()}


@cache
def measured() -> Mapping[str, Mapping[str, Moving]]:
    """Device -> library -> constants."""
    return {device: {library: Moving(row["fixed_us"] * 1e-6, row["memory"], row["warm"])
                     for library, row in libraries.items()}
            for device, libraries in _catalog("small-devices.toml").items()}


def moving(where: Machine) -> tuple[Moving, bool]:
    """The constants to use, and whether they are of this device and library."""
    known = measured()
    key = min(known, key=lambda other: distance(where.device, by_key(other)))
    mine = known[key]
    library = next(name for name in (where.library, *LIBRARIES) if name in mine)
    return mine[library], key == where.device.key and library == where.library


def time(op: Op, where: Machine) -> OpTime:
    """Of a kind in catalog/operators/small.toml. Raises InputError for a device without a memory rate."""
    if "moving" not in where.memo:
        where.memo["moving"] = moving(where)
    constants, own = where.memo["moving"]
    work, limits, kind = op.work(), where.device.limits, kinds()[type(op).__name__]
    least = bound(work, limits)
    if least is None or limits.memory_bytes_per_second is None:
        raise InputError(f"the catalog has no memory rate, or no vector rate, for {where.device.key}; name another "
                         "device, or give a device file with it")
    vector = sum(seconds for name, seconds in least.terms.items() if name != "memory")
    floors = 0.0 if where.library in kind.fused else kind.floors
    return combined(
        {"memory": _moved(constants, work.bytes_total, limits) / kind.memory, "vector": vector / kind.vector}, where,
        fixed=floors * constants.fixed, spread=SPREAD_OWN if own else SPREAD_CARRIED, basis="judgement",
        least=least.seconds)
