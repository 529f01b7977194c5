"""This file knows about what a result was measured on: device, driver, threads, versions of what took part.

Nothing here names the machine, its user or a path.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from sublight import __version__
from sublight.kernels.native import machine

ARENA = "1"                              # raised when what is measured, or how, changes
LIBRARIES = ("torch", "triton")          # besides what kernels say that they come from


def environment(*, device: str | None, threads: int, cache: str | None, providers: Iterable[str] = (),
                ) -> dict[str, str]:
    """What must be the same for two results to be comparable, by name."""
    names = sorted({*LIBRARIES, *(name for name in providers if name and name != "sublight")})
    return {"arena": ARENA, "sublight": __version__, "python": platform.python_version(),
            **{name: _version(name) for name in names}, "device": device_name(device), "driver": driver(device),
            "threads": str(threads), "cache": cache or "as it is",
            "system": f"{platform.system()} {platform.release()}"}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def device_name(device: str | None) -> str:
    """The GPU as its driver names it, or the CPU with the features that its kernels use."""
    if device and device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    info = Path("/proc/cpuinfo")
    text = info.read_text("utf-8", "replace") if info.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{model[1].strip() if model else platform.machine()} ({machine.described()})"


def driver(device: str | None) -> str:
    if not device or not device.startswith("cuda"):
        return "none"
    text = Path("/proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text.read_text()) if text.exists() else None
    return found[1] if found else "unknown"


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Which names differ, sorted."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
