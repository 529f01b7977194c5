"""This file knows about devices: what a file says of one, and which entry of the catalog that is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from sublight.errors import InputError

MEMORY_TOLERANCE = 0.12       # drivers and ECC keep part of the memory that the name promises
SLICE = re.compile(r"\bMIG\b")  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb": a part of a device
TITLE = re.compile(r"[A-Za-z0-9 ()@.,+_-]{1,80}")    # a file's title is printed


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as a trace describes it. None: the file does not say."""

    name: str | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do at most. Rates are dense, at the maximum clock that the part can be set to. None, or a
    number format that is not in a table: the catalog has no source for it."""

    sms: int
    max_clock_hz: float | None
    tensor_flops_per_clock: Mapping[str, float]   # per SM, by number format of the inputs
    vector_flops_per_clock: Mapping[str, float]   # per SM
    memory_bytes_per_second: float | None
    l2_bytes: int
    link_bytes_per_second: float | None           # to other devices, one direction, all links together

    def flops_per_second(self, unit: str, form: str) -> float | None:
        """Dense peak of a unit ("tensor" or "vector") in a number format; None where the catalog has none."""
        table = self.tensor_flops_per_clock if unit == "tensor" else self.vector_flops_per_clock
        per_clock = table.get(form)
        return None if per_clock is None or self.max_clock_hz is None else per_clock * self.sms * self.max_clock_hz


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the catalog, or one that `sublight calibrate` measured."""

    key: str                             # "h100-sxm"
    title: str                           # "NVIDIA H100 SXM5 80 GB"
    sms: int                             # cores, of a CPU
    memory_bytes: int                    # as the driver reports it, rounded
    capability: tuple[int, int] | None   # None: not a CUDA device
    limits: Limits
    sources: Mapping[str, str]           # by group of numbers (SOURCES): "stated: …", "measured: …", "upper limit: …"

    def stated_flops_per_second(self, unit: str, form: str) -> float | None:
        """The dense peak that the data sheet states, at the clock that it is stated at: below the bound's, which is at
        the maximum clock. Where the catalog has no sheet's figure, the bound's."""
        sheets = _rows().get(self.key, {}).get("sheet", [])
        found = [sheet[unit][form] for sheet in sheets if form in sheet.get(unit, {})]
        return found[0] * 1e12 if found else self.limits.flops_per_second(unit, form)


# Groups of numbers, each with its source.
SOURCES = ("sms", "clock", "tensor", "vector", "memory", "l2", "link")
REQUIRED = {"title", "sms", "memory_gib", "l2_mib", "sources"}
OPTIONAL = {"match", "capability", "max_clock_mhz", "tensor", "vector", "memory_gb_per_second", "link_gb_per_second",
            "sheet"}


@cache
def _rows() -> dict[str, Any]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("devices.toml").read_text("utf-8"))


@cache
def catalog() -> tuple[Device, ...]:
    """Every device that we know, from catalog/devices.toml."""
    return tuple(_device(key, row) for key, row in _rows().items())


def _device(key: str, row: Mapping[str, Any]) -> Device:
    capability, clock_mhz = row.get("capability"), row.get("max_clock_mhz")
    memory_gb, link_gb = row.get("memory_gb_per_second"), row.get("link_gb_per_second")
    limits = Limits(
        sms=row["sms"], max_clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        tensor_flops_per_clock=dict(row.get("tensor", {})), vector_flops_per_clock=dict(row.get("vector", {})),
        memory_bytes_per_second=None if memory_gb is None else memory_gb * 1e9, l2_bytes=int(row["l2_mib"] * 2**20),
        link_bytes_per_second=None if link_gb is None else link_gb * 1e9,
    )
    return Device(
        key=key, title=row["title"], sms=row["sms"], memory_bytes=int(row["memory_gib"] * 2**30),
        capability=None if capability is None else (capability[0], capability[1]), limits=limits,
        sources=dict(row["sources"]),
    )


@cache
def _patterns() -> tuple[tuple[Device, re.Pattern[str]], ...]:
    return tuple((device, re.compile(_rows()[device.key]["match"], re.IGNORECASE)) for device in catalog())


def find(info: DeviceInfo) -> Device | None:
    """The catalog's entry for a device of a trace: the name must match, and memory and SM count must agree where the
    file says them, so that an H100 PCIe (114 SMs) is not taken for an SXM (132), nor a MIG slice for the whole. None
    where no entry agrees, or several do."""
    if not info.name or SLICE.search(info.name):
        return None
    fitting = [
        device for device, pattern in _patterns()
        if pattern.search(info.name)
        and (info.sms is None or info.sms == device.sms)
        and (info.memory_bytes is None
             or abs(info.memory_bytes / device.memory_bytes - 1) <= MEMORY_TOLERANCE)
    ]
    return fitting[0] if len(fitting) == 1 else None


def by_key(key: str) -> Device:
    """The catalog's entry with that key. Raises InputError naming the nearest ones."""
    import difflib

    keys = [device.key for device in catalog()]
    wanted = key.lower()
    for device in catalog():
        if device.key == wanted:
            return device
    near = [k for k in keys if k.startswith(wanted)] or difflib.get_close_matches(wanted, keys, 3, 0.4) or keys
    raise InputError(f"no device '{key}' in the catalog; nearest: {', '.join(near)}")


def named(text: str) -> Device:
    """What --device means: an entry of the catalog by its key, or a TOML file that `sublight calibrate` wrote."""
    return load(Path(text)) if text.lower().endswith(".toml") else by_key(text)


def load(path: Path) -> Device:
    """The device of a TOML file in the form of catalog/devices.toml. Raises InputError if it is not one."""
    try:
        rows = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the device file {path.name}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} is not TOML ({error}); "
                         "sublight calibrate -o FILE writes a device file") from None
    if len(rows) != 1 or not isinstance(row := next(iter(rows.values())), dict):
        raise InputError(f"{path.name}: expected one table [name], got {len(rows)} entries; "
                         "sublight calibrate -o FILE writes a device file")
    if REQUIRED - row.keys() or row.keys() - REQUIRED - OPTIONAL:
        wrong = sorted(REQUIRED - row.keys()) or sorted(row.keys() - REQUIRED - OPTIONAL)
        what = "lacks" if REQUIRED - row.keys() else "has unknown"
        raise InputError(f"{path.name} {what} {', '.join(wrong)}; a device file has {', '.join(sorted(REQUIRED))} "
                         f"and may have {', '.join(sorted(OPTIONAL))}")
    bad = [name for name, value in row.items() if not _well_formed(name, value)]
    if not TITLE.fullmatch(next(iter(rows))):
        bad.append("the name of the table")
    if bad:
        raise InputError(f"{path.name}: {bad[0]} is not of the form that catalog/devices.toml has; "
                         "rates and sizes are numbers above 0, a title has letters, digits and ()@.,+_- only")
    return _device(next(iter(rows)), row)


def _well_formed(name: str, value: Any) -> bool:
    def positive(number: Any) -> bool:
        return isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < float("inf")

    if name == "title":
        return isinstance(value, str) and TITLE.fullmatch(value) is not None
    if name == "match":
        return isinstance(value, str)
    if name == "sms":
        return positive(value) and isinstance(value, int)
    if name == "capability":
        return isinstance(value, list) and len(value) == 2 and all(isinstance(part, int) for part in value)
    if name in ("tensor", "vector"):
        return isinstance(value, dict) and all(map(positive, value.values()))
    if name == "sources":
        return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
    return name == "sheet" or positive(value)
