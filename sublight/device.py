"""This file knows about devices: what a file says of one, and which entry of the catalog that is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sublight.errors import InputError

MEMORY_TOLERANCE = 0.12       # drivers and ECC keep part of the memory that the name promises


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as a trace describes it. None: the file does not say."""

    name: str | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do at most. Rates are dense, at the maximum clock that the part can be set to."""

    sms: int
    max_clock_hz: float
    tensor_flops_per_clock: Mapping[str, int]     # per SM, by number format of the inputs
    vector_flops_per_clock: Mapping[str, int]     # per SM
    memory_bytes_per_second: float
    l2_bytes: int
    link_bytes_per_second: float | None           # to other devices, one direction, all links together

    def flops_per_second(self, unit: str, form: str) -> float | None:
        """Dense peak of a unit ("tensor" or "vector") in a number format; None where the catalog has none."""
        table = self.tensor_flops_per_clock if unit == "tensor" else self.vector_flops_per_clock
        per_clock = table.get(form)
        return None if per_clock is None else per_clock * self.sms * self.max_clock_hz


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the catalog."""

    key: str                  # "h100-sxm"
    title: str                # "NVIDIA H100 SXM5 80 GB"
    sms: int
    memory_bytes: int         # as sold: 80 GB is 80 GiB on NVIDIA's sheets
    capability: tuple[int, int]
    source: str


@cache
def catalog() -> tuple[Device, ...]:
    """Every device that we know, from catalog/devices.toml."""
    text = resources.files("sublight.catalog").joinpath("devices.toml").read_text("utf-8")
    return tuple(
        Device(key=key, title=row["title"], sms=row["sms"], memory_bytes=row["memory_gib"] << 30,
               capability=(row["capability"][0], row["capability"][1]), source=row["source"])
        for key, row in tomllib.loads(text).items()
    )


@cache
def _patterns() -> tuple[tuple[Device, re.Pattern[str]], ...]:
    text = resources.files("sublight.catalog").joinpath("devices.toml").read_text("utf-8")
    rows = tomllib.loads(text)
    return tuple((device, re.compile(rows[device.key]["match"], re.IGNORECASE)) for device in catalog())


def find(info: DeviceInfo) -> Device | None:
    """The catalog's entry for a device of a trace: name, memory and SM count must all agree, so that an H100 PCIe
    (114 SMs) is not taken for an SXM (132). None where no entry agrees or the file says too little."""
    if not info.name:
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
