"""This file knows about occupancy: how many blocks an SM holds at once, what limits them, and what would change that.

The limits are in catalog/kernels/occupancy.toml. The calculation is that of NVIDIA's cuda_occupancy.h with the largest
share of the SM's memory as shared memory; a test holds the two equal on thousands of kernels."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources as files

from sublight.errors import InputError
from sublight.kernels.inspect.code import Launch, Resources

LIMITERS = ("warps", "blocks", "registers", "shared memory", "barriers")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an SM of a compute capability holds. Bytes for shared memory."""

    capability: str
    warps: int
    blocks: int
    registers: int
    shared: int
    shared_block: int
    reserved: int
    shared_unit: int
    barriers: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Cliff:
    """The smallest change of a resource that changes the number of blocks. by: registers a thread, or bytes a block."""

    resource: str                # "registers" or "shared memory"
    by: int                      # negative: less of it
    blocks: int                  # an SM holds then


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that an SM holds at once. share: of the warps that it could hold."""

    blocks: int
    warps: int
    share: float
    limiters: tuple[str, ...]    # of LIMITERS: each that by itself allows no more
    by: tuple[tuple[str, int], ...]      # blocks that each limiter allows, where the kernel uses it
    cliffs: tuple[Cliff, ...]


@cache
def _rows() -> dict[str, dict[str, object]]:
    path = files.files("sublight.catalog").joinpath("kernels/occupancy.toml")
    return tomllib.loads(path.read_text("utf-8"))


@cache
def limits_of(arch: str) -> Limits:
    """Of "sm_90a" or "9.0". Raises InputError for an architecture that is not in the catalog."""
    found = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})\.?(\d)[af]?", arch)
    key = f"{found[1]}.{found[2]}" if found else arch
    row = _rows().get(key)
    if row is None:
        known = ", ".join(name for name in _rows() if name != "all")
        raise InputError(f"no limits of compute capability {key} ({arch}); expected one of {known}")
    return Limits(key, **{"barriers": None, **row})  # type: ignore[arg-type]


def common(name: str) -> int:
    """A limit that all architectures share: threads_per_warp, threads_per_block, registers_per_thread …"""
    value = _rows()["all"][name]
    assert isinstance(value, int)
    return value


def warps_of(resources: Resources | None, launch: Launch) -> int | None:
    """Warps of a block: as the kernel requires, or as launched; None where neither says."""
    if resources is not None and resources.required_threads:
        return math.ceil(resources.required_threads / common("threads_per_warp"))
    return launch.warps


def occupancy(arch: str, resources: Resources, *, warps: int, dynamic_shared: int = 0) -> Occupancy:
    """Of a kernel with blocks of `warps` warps and `dynamic_shared` bytes beyond the static ones.

    Zero blocks: it cannot be launched; `limiters` say by what. Raises InputError for an unknown architecture, and for
    blocks that no architecture has."""
    limits = limits_of(arch)
    most = common("threads_per_block") // common("threads_per_warp")
    if not 1 <= warps <= most:
        raise InputError(f"a block of {warps} warps; expected 1 to {most}")
    if dynamic_shared < 0:
        raise InputError(f"{dynamic_shared} bytes of dynamic shared memory; expected 0 or more")
    by = _each(limits, resources, warps, dynamic_shared)
    blocks = min(count for _, count in by)
    cliffs = tuple(cliff for cliff in (*_fewer(limits, resources, warps, dynamic_shared, blocks),
                                       *_more(limits, resources, warps, dynamic_shared, blocks)))
    return Occupancy(blocks, blocks * warps, blocks * warps / limits.warps,
                     tuple(name for name, count in by if count == blocks), by, cliffs)


def _each(limits: Limits, resources: Resources, warps: int, dynamic: int) -> tuple[tuple[str, int], ...]:
    """How many blocks each resource allows."""
    rows = [("warps", limits.warps // warps), ("blocks", limits.blocks)]
    if resources.registers:
        rows.append(("registers", _by_registers(limits, resources.registers, warps)))
    shared = shared_of(limits, resources, dynamic)
    if shared:
        fits = shared <= limits.shared_block + limits.reserved
        rows.append(("shared memory", limits.shared // shared if fits else 0))
    if limits.barriers is not None and resources.barriers:
        rows.append(("barriers", limits.barriers // resources.barriers))
    return tuple(rows)


def shared_of(limits: Limits, resources: Resources, dynamic: int) -> int:
    """Bytes of shared memory that a block takes: static, dynamic and the system's, as they are given out."""
    bare = resources.shared - resources.reserved + dynamic + limits.reserved
    return -(-bare // limits.shared_unit) * limits.shared_unit


def _by_registers(limits: Limits, registers: int, warps: int) -> int:
    unit, quarters = common("register_unit"), common("quarters")
    if registers > common("registers_per_thread"):
        return 0
    per_warp = -(-registers * common("threads_per_warp") // unit) * unit
    return limits.registers // quarters // per_warp * quarters // warps


def _fewer(limits: Limits, resources: Resources, warps: int, dynamic: int, blocks: int) -> list[Cliff]:
    """The fewest registers, and the least shared memory, to give up for one more block."""
    def with_registers(count: int) -> int:
        return _blocks(limits, replace(resources, registers=count), warps, dynamic)

    def with_shared(size: int) -> int:
        return _blocks(limits, resources, warps, size)

    out = []
    registers = _first(lambda less: with_registers(resources.registers - less) > blocks, resources.registers - 1)
    if registers:
        out.append(Cliff("registers", -registers, with_registers(resources.registers - registers)))
    shared = _first(lambda less: with_shared(dynamic - less) > blocks, resources.shared - resources.reserved + dynamic)
    if shared:
        out.append(Cliff("shared memory", -shared, with_shared(dynamic - shared)))
    return out


def _more(limits: Limits, resources: Resources, warps: int, dynamic: int, blocks: int) -> list[Cliff]:
    """How many more registers, or bytes, cost a block."""
    def with_registers(count: int) -> int:
        return _blocks(limits, replace(resources, registers=count), warps, dynamic)

    def with_shared(size: int) -> int:
        return _blocks(limits, resources, warps, size)

    if not blocks:
        return []
    out = []
    spare = common("registers_per_thread") - resources.registers
    registers = _first(lambda more: with_registers(resources.registers + more) < blocks, spare)
    if registers:
        out.append(Cliff("registers", registers, with_registers(resources.registers + registers)))
    shared = _first(lambda more: with_shared(dynamic + more) < blocks, limits.shared)
    if shared:
        out.append(Cliff("shared memory", shared, with_shared(dynamic + shared)))
    return out


def _blocks(limits: Limits, resources: Resources, warps: int, dynamic: int) -> int:
    return min(count for _, count in _each(limits, resources, warps, dynamic))


def _first(true_from: Callable[[int], bool], last: int) -> int:
    """The least of 1 … last for which it is true, and from there on stays true; 0 where it never is."""
    if last < 1 or not true_from(last):
        return 0
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if true_from(middle) else (middle, high)
    return high
