"""This file knows about measuring the machine that it runs on: memory rate and matrix rate of its CPU, in seconds.

What is measured is what a bound needs: the highest rate that was seen, with how far the typical sample lies below it.
Memory rates count the bytes that the program asks for, one read and one write of a copy, as STREAM does (McCalpin,
1995); a cache that first reads the line that it is to write moves half as much again.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sublight.errors import InputError

SECONDS = 1.0                 # for each rate, at most
LEAST_SAMPLES = 5
STABLE = 0.05                 # spread at which sampling ends early
NOISY = 0.30                  # spread above which nothing is written
BEYOND_CACHE = 4              # arrays are so many times as large as all caches together
LEAST_BYTES, MOST_SHARE = 64 << 20, 8      # of an array; of the memory, at most one part in so many for one array
MATRIX = 2048
SMALL_MATRIX = 128            # where the sizes of a slow format begin
CPU_DIR = Path("/sys/devices/system/cpu")
Ints: TypeAlias = npt.NDArray[np.int64]
NAME = re.compile(r"[^A-Za-z0-9 ()@.+_-]+")


@dataclass(frozen=True, slots=True)
class Rate:
    """One rate, sampled several times. Samples in units a second, in the order in which they were taken."""

    name: str                          # "memory, copy, all cores"
    unit: str                          # "B/s" or "FLOP/s"
    samples: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.samples)

    @property
    def spread(self) -> float:
        """How far the median lies below the best, as a share of the best."""
        return 1 - statistics.median(self.samples) / self.best


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the operating system says of the CPU. None: it does not."""

    title: str
    cores: int                         # that this process may use
    cache_bytes: int | None            # all caches from the second level up, together
    memory_bytes: int
    clock_mhz: float | None            # the highest that it can be set to; else the one that it reports


@dataclass(frozen=True, slots=True)
class Calibration:
    """A CPU and its rates."""

    cpu: Cpu
    array_bytes: int
    memory: tuple[Rate, ...]           # one core and all cores, copy and read
    matrix: dict[str, Rate]            # all cores, by number format


def sampled(
    name: str, unit: str, amount: float, run: Callable[[], object], *, seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """Run until the rate is stable or the seconds are over, at least LEAST_SAMPLES times; a first run warms up."""
    run()
    end = clock() + seconds
    samples: list[float] = []
    while len(samples) < LEAST_SAMPLES or (clock() < end and Rate(name, unit, tuple(samples)).spread > STABLE):
        start = clock()
        run()
        samples.append(amount / max(clock() - start, 1e-9))
    return Rate(name, unit, tuple(samples))


def calibrate(
    *, seconds: float = SECONDS, array_bytes: int | None = None, matrix: int = MATRIX,
    progress: Callable[[Rate], None] | None = None,
) -> Calibration:
    """Measure this machine. array_bytes: of each array that is copied (None: well beyond the caches); matrix: rows and
    columns of the matrices that are multiplied."""
    cpu = this_cpu()
    nbytes = array_bytes or fitting_array(cpu)

    def told(rates: Iterator[tuple[str, Rate]]) -> Iterator[tuple[str, Rate]]:
        for key, rate in rates:
            if progress is not None:
                progress(rate)
            yield key, rate

    memory = tuple(rate for _, rate in told(_memory_rates(nbytes, cpu.cores, seconds)))
    return Calibration(cpu, nbytes, memory, dict(told(_matrix_rates(matrix, seconds))))


def _memory_rates(nbytes: int, cores: int, seconds: float) -> Iterator[tuple[str, Rate]]:
    source = np.ones(max(cores, nbytes // 8), np.int64)
    target = np.zeros_like(source)
    with ThreadPoolExecutor(cores) as pool:
        for where, count in {"one core": 1, "all cores": cores}.items():
            parts = list(zip(np.array_split(source, count), np.array_split(target, count), strict=True))

            copy = partial(_over, pool, parts, lambda source, target: np.copyto(target, source))
            read = partial(_over, pool, parts, lambda source, _: np.bitwise_or.reduce(source))
            for kind, amount, run in (("copy", 2 * source.nbytes, copy), ("read", source.nbytes, read)):
                yield kind, sampled(f"memory, {kind}, {where}", "B/s", amount, run, seconds=seconds)


def _over(pool: ThreadPoolExecutor, parts: list[tuple[Ints, Ints]], run: Callable[[Ints, Ints], object]) -> None:
    """Run on each part, each on a thread of its own: numpy lets go of the interpreter meanwhile."""
    list(pool.map(lambda part: run(*part), parts))


def _matrix_rates(n: int, seconds: float) -> Iterator[tuple[str, Rate]]:
    flops = 2 * n**3
    kinds: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp64": np.float64}
    for form, kind in kinds.items():
        a, out = np.ones((n, n), kind), np.empty((n, n), kind)
        product = partial(np.matmul, a, a, out=out)
        yield form, sampled(f"matrix, {form}, all cores", "FLOP/s", flops, product, seconds=seconds)
    bf16 = _bf16_product(n, seconds)         # numpy has no bf16
    if bf16 is not None:
        size, slow = bf16
        yield "bf16", sampled("matrix, bf16, all cores", "FLOP/s", 2 * size**3, slow, seconds=seconds)


def _bf16_product(n: int, seconds: float) -> tuple[int, Callable[[], object]] | None:
    """(size, product of bf16 matrices with PyTorch); None where it is not installed.

    A CPU without such products takes a hundred times as long: the size is doubled from SMALL_MATRIX while a product
    takes less than `seconds`.
    """
    try:
        import torch
    except ImportError:
        return None
    size = SMALL_MATRIX
    while True:
        a = torch.ones((size, size), dtype=torch.bfloat16)
        product = partial(torch.mm, a, a, out=torch.empty_like(a))
        start = time.perf_counter()
        product()
        if size >= n or 8 * (time.perf_counter() - start) > seconds:
            return size, product
        size = min(2 * size, n)


# ---- what the operating system says


def this_cpu() -> Cpu:
    """The CPU that this process runs on."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    info = _text(Path("/proc/cpuinfo"))
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    model = NAME.sub("", found[1]).strip()[:60] if found else ""
    count = len(cores)
    return Cpu(f"{model or 'CPU'}, {count} core{'s' if count > 1 else ''}", count, _cache_bytes(cores),
               _memory_bytes(), _clock_mhz(info))


def fitting_array(cpu: Cpu) -> int:
    """Bytes of an array well beyond the caches, or as much as the memory allows."""
    wanted = max(LEAST_BYTES, BEYOND_CACHE * (cpu.cache_bytes or 0))
    return min(wanted, cpu.memory_bytes // MOST_SHARE)


def _cache_bytes(cores: list[int]) -> int | None:
    """All caches from the second level up, each counted once however many cores share it."""
    sizes: dict[tuple[str, str], int] = {}
    for core in cores:
        for index in (CPU_DIR / f"cpu{core}/cache").glob("index*"):
            level, size = _text(index / "level").strip(), re.match(r"(\d+)K", _text(index / "size"))
            if level not in ("", "1") and size:
                sizes[level, _text(index / "shared_cpu_list")] = int(size[1]) << 10
    return sum(sizes.values()) or None


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _clock_mhz(info: str) -> float | None:
    highest = _text(CPU_DIR / "cpu0/cpufreq/cpuinfo_max_freq").strip()
    if highest.isdigit():
        return int(highest) / 1e3
    now = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", info, re.M)]
    return max(now, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


# ---- as a device file


def check_noise(measured: Calibration, most: float = NOISY) -> None:
    """Raises InputError if a rate of all cores is too unsteady to be a limit."""
    rates = [*measured.memory, *measured.matrix.values()]
    worst = max(rates, key=lambda rate: rate.spread)
    if worst.spread > most:
        raise InputError(
            f"{worst.name}: the median of {len(worst.samples)} samples is {worst.spread:.0%} below the best, more than "
            f"{most:.0%}: other load on this machine? Nothing was written. Try again when it is idle, measure longer "
            "(--seconds), or take it as it is (--max-spread 100)"
        )


def toml(measured: Calibration) -> str:
    """The entry of a device file. The rates a clock are rates a second divided by cores and clock, so that their
    product is what was measured, whatever the clock really was."""
    cpu, memory = measured.cpu, max(measured.memory, key=lambda rate: rate.best)
    clock = cpu.clock_mhz or 1000.0
    matrix = {form: rate.best / (cpu.cores * clock * 1e6) for form, rate in measured.matrix.items()}
    rates = "{ " + ", ".join(f"{form} = {rate:.6g}" for form, rate in matrix.items()) + " }"
    how = "; ".join(f"{form} {_how(rate)}" for form, rate in measured.matrix.items())
    clock_from = "the operating system" if cpu.clock_mhz else "nobody: 1000 MHz was put in to divide by"
    cache_from = "the operating system, second level and up, together" if cpu.cache_bytes else \
        "unknown: as large as the arrays that were copied"
    return f"""# Written by sublight calibrate: what this machine was seen to do, not what it could do at most.

[cpu]
title = "{cpu.title}"
sms = {cpu.cores}
memory_gib = {cpu.memory_bytes / 2**30:.3f}
max_clock_mhz = {clock:.3f}
tensor = {rates}
vector = {rates}
memory_gb_per_second = {memory.best / 1e9:.6g}
l2_mib = {(cpu.cache_bytes or measured.array_bytes) / 2**20:.3f}
[cpu.sources]
sms = "stated: cores that the process may use"
clock = "stated: {clock_from}"
tensor = "measured: numpy, or PyTorch for bf16; {how}"
vector = "measured: as tensor; the same units"
memory = "measured: {memory.name}, arrays of {measured.array_bytes >> 20} MiB; {_how(memory)}"
l2 = "stated: {cache_from}"
"""


def _how(rate: Rate) -> str:
    return f"best of {len(rate.samples)}, the median {rate.spread:.1%} below"
