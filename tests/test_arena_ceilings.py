"""Ceilings: what the machine gives at best, that no honest loop beats it, and that its source compiles for others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from sublight.kernels.arena import ceilings
from sublight.kernels.arena.clock import wall
from sublight.kernels.arena.honesty import faster_than_light, least
from sublight.kernels.native import build
from sublight.work import Work

if refused := ceilings.refusal():
    pytest.skip(refused, allow_module_level=True)

SIZES = (64 << 10, 4 << 20)


@pytest.fixture(scope="module")
def measured() -> dict[int, ceilings.Ceilings]:
    out = {}
    for size in SIZES:
        out[size], sample = ceilings.prober(size)
        for _ in range(8):
            sample()
    return out


def test_every_rate_has_a_sample_a_round(measured: dict[int, ceilings.Ceilings]) -> None:
    for found in measured.values():
        assert {"read", "copy", "copy past caches", "fma"} <= found.samples.keys()
        assert {len(rates) for rates in found.samples.values()} == {8}
        assert all(rate > 0 for rates in found.samples.values() for rate in rates)


def test_near_caches_are_faster_than_far_ones(measured: dict[int, ceilings.Ceilings]) -> None:
    assert measured[SIZES[0]].memory > 1.2 * measured[SIZES[1]].memory


def test_narrow_formats_may_use_any_unit(measured: dict[int, ceilings.Ceilings]) -> None:
    limits = measured[SIZES[0]].limits()
    rates = limits.tensor_flops_per_clock
    assert rates["int8"] == rates["fp8"] >= rates["bf16"] >= limits.vector_flops_per_clock["fp32"]


@pytest.mark.parametrize("size", SIZES)
def test_no_honest_loop_is_faster_than_light(measured: dict[int, ceilings.Ceilings], size: int) -> None:
    now, a, b = wall(), np.ones(size // 2, np.uint8), np.zeros(size // 2, np.uint8)
    times = []
    for _ in range(50):
        since = now()
        np.copyto(b, a)
        times.append(now() - since)
    lowest = least(Work.of(bytes_read=len(a), bytes_written=len(b)), measured[size].limits(), cold=False, cache_bytes=0)
    assert faster_than_light(min(times) / 1e9, lowest) is None
    assert faster_than_light(min(times) / 1e9 / 1000, lowest) is not None


def test_cold_results_may_stay_in_the_cache() -> None:
    found, sample = ceilings.prober(1 << 20)
    sample()
    work = Work.of(bytes_read=1000, bytes_written=3000)
    cold = least(work, found.limits(), cold=True, cache_bytes=2500)
    assert cold is not None
    assert cold.seconds == pytest.approx((1000 + 500) / found.memory)


@pytest.mark.heavy
@pytest.mark.parametrize(("target", "instructions"), [
    ("x86-64", ("mulps",)), ("haswell", ("vfmadd", "vpmaddubsw")), ("skylake-avx512", ("zmm",)),
    ("sapphirerapids", ("tdpbf16ps", "tdpbssd", "vpdpbusd", "vfmadd132ph")),
])
def test_its_source_compiles_for_other_processors(target: str, instructions: tuple[str, ...], tmp_path: Path) -> None:
    compiler = build.compiler()
    assert compiler is not None
    source = Path(ceilings.__file__).with_name("ceilings.cpp")
    command = [compiler.path, f"-march={target}", *build.COMMON, "-fopenmp", f"-I{build.HERE}", "-S", str(source), "-o",
               str(tmp_path / "out.s")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if "bad value" in made.stderr or "unsupported argument" in made.stderr:
        pytest.skip(f"{compiler.version} does not know {target}")
    assert made.returncode == 0, made.stderr
    text = (tmp_path / "out.s").read_text()
    assert [word for word in instructions if word not in text] == []
