"""This file knows about how fast this CPU can be at best, measured between the kernels' own calls.

A rate of a shared machine moves by 1.7 times within minutes (research of 2026 on a server with neighbours), so nothing
here is measured once: each round takes a sample of every rate, and a bound rests on the highest of the run.

    memory    what loads, a copy and a copy past the caches reach at the size of the working set, with the caches as
              the kernels find them (cold: from beyond the last-level cache)
    vector    fused multiply-adds of fp32, and of fp16 where the CPU has them
    tensor    the fastest way to multiply that format: fp32 after conversion, AVX-512 FP16, VNNI, AMX tiles
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sublight.device import Limits
from sublight.errors import InputError
from sublight.kernels.native import build, machine

SAMPLE_SECONDS = 0.001                   # of one rate in one round
LEAST_BYTES, MOST_BYTES = 16 << 10, 1 << 30
BEYOND_CACHE = 2                         # what evicts is so many times as large as all caches
UNKNOWN_CACHE = 64 << 20                 # where Linux does not say
NARROW = ("fp4", "fp8", "int4", "int8")  # formats that can be converted to any wider one
MEMORY = ("read", "copy", "copy past caches")


@dataclass(slots=True)
class Ceilings:
    """Samples of each rate, in bytes or operations a second, in the order in which they were taken."""

    threads: int
    cold: bool
    samples: dict[str, list[float]] = field(default_factory=dict)

    def best(self, name: str) -> float:
        return max(self.samples.get(name, ()), default=0.0)

    def spread(self, name: str) -> float:
        """How far the median lies below the best, as a share of it."""
        found = self.samples.get(name)
        return 1 - float(np.median(found)) / max(found) if found else 0.0

    @property
    def memory(self) -> float:
        return max(self.best(name) for name in MEMORY)

    def limits(self) -> Limits:
        """The same as limits of a device of one SM and 1 Hz, so that a rate per clock is a rate per second.

        No cache is taken off the bytes: the memory rate is that of the level in which the working set lies.
        """
        fma, half, eight = self.best("fma"), self.best("half"), self.best("bytes")
        bf16, int8 = self.best("tiles bf16"), self.best("tiles int8")
        tensor = {"bf16": max(fma, bf16), "fp16": max(fma, half, bf16), "tf32": fma,
                  **dict.fromkeys(NARROW, max(fma, half, eight, bf16, int8))}
        return Limits(sms=1, max_clock_hz=1.0, tensor_flops_per_clock=tensor,
                      vector_flops_per_clock={"fp32": fma, **({"fp16": half} if half else {})},
                      memory_bytes_per_second=self.memory, l2_bytes=0, link_bytes_per_second=None)

    def to_json(self) -> Mapping[str, list[float]]:
        return {name: [float(f"{rate:.4g}") for rate in rates] for name, rates in self.samples.items()}


def cache_bytes() -> int:
    """The largest cache that a core can use; 64 MiB where the system does not say."""
    return max(machine.caches().values(), default=UNKNOWN_CACHE)


def evicting_bytes() -> int:
    """The size of what is read to empty the caches."""
    return min(MOST_BYTES, BEYOND_CACHE * sum(machine.caches().values()) or 2 * UNKNOWN_CACHE)


def refusal() -> str | None:
    """Why ceilings cannot be measured here; None: they can."""
    return build.refusal()


def prober(working_set: int, *, threads: int = 1, cold: bool = False) -> tuple[Ceilings, Callable[[], None]]:
    """An empty record, and a function that adds one sample of every rate to it (some milliseconds).

    Raises InputError where there is no compiler.
    """
    library = build.library(Path(__file__).with_name("ceilings.cpp"))
    for function in ("read", "copy", "fma", "half", "bytes", "tiles"):
        getattr(library, f"sublight_{function}").restype = ctypes.c_double
    nbytes = min(MOST_BYTES, 2 * evicting_bytes()) if cold else min(max(working_set, LEAST_BYTES), MOST_BYTES)
    buffer = np.ones(nbytes + 64, dtype=np.uint8)
    start = buffer.ctypes.data + -buffer.ctypes.data % 64
    runs = {**_of_memory(library, start, nbytes, threads), **_of_arithmetic(library, threads)}
    found, counts = Ceilings(threads, cold), dict.fromkeys(runs, 1)

    def sample() -> None:
        assert buffer is not None                  # it lives as long as this function
        for name, run in runs.items():
            amount, seconds = run(counts[name])
            if not amount:
                continue
            if seconds < SAMPLE_SECONDS / 2:       # the first time: how often makes a sample
                counts[name] = int(np.ceil(counts[name] * SAMPLE_SECONDS / max(seconds, 1e-8)))
                amount, seconds = run(counts[name])
            found.samples.setdefault(name, []).append(amount / seconds)

    return found, sample


_Run = Callable[[int], tuple[float, float]]        # passes or times -> (bytes or operations, seconds)


def _of_memory(library: ctypes.CDLL, start: int, nbytes: int, threads: int) -> dict[str, _Run]:
    at, size, many = ctypes.c_void_p(start), ctypes.c_int64(nbytes), ctypes.c_int(threads)

    def read(passes: int) -> tuple[float, float]:
        step = threads * 512                       # what a thread's part is a multiple of
        return nbytes // step * step * passes, library.sublight_read(at, size, passes, many)

    def copy(past: int) -> _Run:
        def run(passes: int) -> tuple[float, float]:
            part = nbytes // 2 // threads // 64 * 64 * threads
            return 2 * part * passes, library.sublight_copy(at, size, passes, many, past)
        return run

    return dict(zip(MEMORY, (read, copy(0), copy(1)), strict=True))


def _of_arithmetic(library: ctypes.CDLL, threads: int) -> dict[str, _Run]:
    def counted(function: Callable[..., float], *more: int) -> _Run:
        def run(times: int) -> tuple[float, float]:
            operations = ctypes.c_double()
            seconds = function(ctypes.c_int64(times), ctypes.c_int(threads), *more, ctypes.byref(operations))
            return operations.value, seconds
        return run

    return {"fma": counted(library.sublight_fma), "half": counted(library.sublight_half),
            "bytes": counted(library.sublight_bytes), "tiles bf16": counted(library.sublight_tiles, 0),
            "tiles int8": counted(library.sublight_tiles, 1)}


def check_threads(threads: int) -> None:
    """Raises InputError for more threads than this process has cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 1 <= threads <= cores:
        raise InputError(f"--threads {threads}: expected 1 to {cores}, the cores that this process may use")
