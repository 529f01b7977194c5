"""This file knows about what the processor of this machine can do, as far as our kernels for it care."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path

# What decides which code a compiler emits for -march=native, and which of our paths is taken.
WATCHED = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_fp16",
           "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


@functools.cache
def features() -> tuple[str, ...]:
    """The watched features of the first processor, sorted: ("avx2", "f16c", "fma"). Empty where Linux does not say."""
    cpuinfo = Path("/proc/cpuinfo")
    return features_of(cpuinfo.read_text("utf-8", errors="replace")) if cpuinfo.exists() else ()


def features_of(cpuinfo: str) -> tuple[str, ...]:
    """The watched features in the text of /proc/cpuinfo (x86 calls the line flags, Arm Features)."""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return tuple(sorted(set(line[1].split()) & set(WATCHED))) if line else ()


def described() -> str:
    """What a cached library depends on: "x86_64 avx2 f16c fma"."""
    return " ".join((platform.machine(), *features()))


def instructions() -> str:
    """The instruction set that our kernels use here: "AMX", "AVX-512", "AVX2" or "portable"."""
    has = set(features())
    if {"amx_tile", "amx_bf16", "avx512f"} <= has:
        return "AMX"
    if "avx512f" in has:
        return "AVX-512"
    return "AVX2" if {"avx2", "fma"} <= has else "portable"


def caches() -> dict[str, int]:
    """Bytes of the data caches that the first processor sees, by level: {"L1": 32768, "L2": 524288, "L3": …}."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (index / "type").read_text().strip() != "Instruction":
            size = re.fullmatch(r"(\d+)K", (index / "size").read_text().strip())
            if size:
                found["L" + (index / "level").read_text().strip()] = int(size[1]) * 1024
    return found
