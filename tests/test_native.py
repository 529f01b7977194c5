"""Building our C++ kernels: the cache and its key, polite refusals; vectors of every width; AMX tiles, emulated."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublight.errors import InputError
from sublight.kernels.native import build, machine
from sublight.kernels.native.build import Target

ROOM = Path(build.__file__).parent.parent
SOURCES = sorted(ROOM.glob("*/*.cpp"))
needs_compiler = pytest.mark.skipif(build.refusal() is not None, reason=str(build.refusal()))
NATIVE = build.NATIVE.flags
TARGETS = (build.NATIVE, Target("wide", (*NATIVE, "-DSUBLIGHT_LANES=16")), Target("plain", ("-O1",)))

ADD = '#include "vectors.hpp"\nSUBLIGHT_EXPORT int add(int a, int b) { return a + b; }\n'

VECTORS = """
#include "activation.hpp"
using namespace sublight;
SUBLIGHT_EXPORT void round_all(const float *x, bf16 *to, int64_t n) {
    for (int64_t i = 0; i + pair <= n; i += pair) store_pair(to + i, {load_pair(x + i).first, load_pair(x + i).second});
}
SUBLIGHT_EXPORT void exp_all(const float *x, float *to, float *silus, int64_t n) {
    for (int64_t i = 0; i + lanes <= n; i += lanes) {
        store(to + i, exp_below_zero(load(x + i)));
        store(silus + i, silu(load(x + i)));
    }
}
SUBLIGHT_EXPORT void sums(const float *x, float *to) {
    Floats rows[8];
    for (int i = 0; i < 8; i++) rows[i] = load(x + i * lanes);
    const Eight found = sums_of_eight(rows);
    std::memcpy(to, &found, sizeof found);
}
SUBLIGHT_EXPORT int width() { return lanes; }
"""

TILES = """
#include "amx.hpp"
using namespace sublight;
SUBLIGHT_EXPORT void multiply(const void *a, const void *b, void *c) {
    TileUse use;
    TILE_LOAD(0, c, 64);
    TILE_LOAD(1, a, 64);
    TILE_LOAD(2, b, 64);
    TILE_MULTIPLY(0, 1, 2);
    TILE_STORE(0, c, 64);
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def written(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "source.cpp").write_text(text)
    return folder / "source.cpp"


def at(array: Any) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)


def test_features_of_a_processor_are_read_from_its_flags() -> None:
    text = "processor : 0\nflags\t\t: fpu avx2 fma amx_tile amx_bf16 avx512f nonsense\nprocessor : 1\n"
    assert machine.features_of(text) == ("amx_bf16", "amx_tile", "avx2", "avx512f", "fma")
    assert machine.features_of("Features : fp asimd bf16\n") == ("asimd", "bf16")
    assert machine.features_of("") == ()


@pytest.mark.parametrize(("has", "named"), [
    ((), "portable"), (("avx2",), "portable"), (("avx2", "fma"), "AVX2"), (("avx2", "fma", "avx512f"), "AVX-512"),
    (("avx512f", "amx_tile", "amx_bf16"), "AMX")])
def test_instructions_that_our_kernels_use(monkeypatch: pytest.MonkeyPatch, has: tuple[str, ...], named: str) -> None:
    monkeypatch.setattr(machine, "features", lambda: has)
    assert machine.instructions() == named


def test_the_key_holds_source_compiler_flags_and_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "one", ADD)
    keys = [dict(build.key(source))]
    keys.append(dict(build.key(written(tmp_path / "one", ADD + "\n"))))
    keys.append(dict(build.key(source, Target(flags=("-O1",)))))
    monkeypatch.setattr(build, "compiler", lambda: build.Compiler("g++", "g++ 99"))
    keys.append(dict(build.key(source)))
    monkeypatch.setattr(machine, "features", lambda: ("avx9",))
    keys.append(dict(build.key(source)))
    assert len({tuple(sorted(key.items())) for key in keys}) == 5


def test_the_key_holds_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "one", ADD)
    before = build.key(source)["source"]
    (tmp_path / "vectors.hpp").write_text("// another")
    monkeypatch.setattr(build, "HERE", tmp_path)
    assert build.key(source)["source"] != before


@needs_compiler
def test_a_library_is_compiled_once_and_nothing_else_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    source = written(tmp_path / "one", ADD)
    assert build.library(source).add(2, 3) == 5
    (made,) = (tmp_path / "home/sublight/native").iterdir()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.built(source, build.NATIVE) == made
    with pytest.raises(pytest.fail.Exception):
        build.built(written(tmp_path / "one", ADD + "\n"), build.NATIVE)


def test_without_a_compiler_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match="compiled at first use, and there is no C"):
        build.library(written(tmp_path / "one", ADD))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX=no-such-compiler is no compiler" in str(build.refusal())


@needs_compiler
def test_what_a_compiler_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"refused refused/source\.cpp: .*error") as caught:
        build.library(written(tmp_path / "refused", "int add( {"))
    assert "\n" not in str(caught.value)


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        build.library(written(tmp_path / "one", ADD))


@needs_compiler
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_vectors_round_and_sum_and_exponentiate(tmp_path: Path, target: Target) -> None:
    library = build.library(written(tmp_path / f"vectors-{target.name}", VECTORS), target)
    random = np.random.default_rng(0)
    bits = np.concatenate([random.integers(0, 2**32, 1 << 16), np.arange(1 << 16) << 15,            # ties
                           [0x7f800000, 0xff800000, 0x7f7fffff, 0x7f7f8000, 1, 0x80000001, 0x7fffffff, 0xffffffff] * 4])
    x = bits.astype(np.uint32).view(np.float32)
    rounded = np.empty(x.size, np.uint16)
    library.round_all(at(x), at(rounded), ctypes.c_int64(x.size))
    order = np.arange(x.size).reshape(-1, 2, library.width()).swapaxes(1, 2).ravel()                # even, odd
    exact = nearest_bf16(x)[order]
    assert np.array_equal(rounded[~np.isnan(x[order])], exact[~np.isnan(x[order])])
    back = (rounded.astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(back[np.isnan(x[order])]).all()

    rows = random.standard_normal((8, library.width())).astype(np.float32)
    sums = np.empty(8, np.float32)
    library.sums(at(rows), at(sums))
    assert np.allclose(sums, rows.astype(float).sum(1), rtol=0, atol=1e-5)

    x = np.concatenate([-np.logspace(-9, 2.2, 4096), [0.0, -0.0, -np.inf, np.nan] * 8]).astype(np.float32)
    found, silus = np.empty_like(x), np.empty_like(x)
    library.exp_all(at(x), at(found), at(silus), ctypes.c_int64(x.size))
    exact = np.exp(x.astype(float))
    normal = x >= -87.3
    assert np.max(np.abs(found[normal] / exact[normal] - 1)) < 3e-7
    assert np.max(found[x < -87.3]) < 1.3e-38
    assert np.isnan(found[np.isnan(x)]).all()
    assert np.isnan(silus[np.isnan(x) | np.isinf(x)]).all()       # torch's silu(-inf) is NaN too
    finite = np.isfinite(x)
    assert np.max(np.abs(silus[finite] - x[finite] * exact[finite] / (1 + exact[finite]))) < 3e-7


def nearest_bf16(x: Any) -> Any:
    """Bits of the nearest bf16, found by comparing both neighbours in fp64."""
    low = (x.view(np.uint32) >> 16).astype(np.uint16)
    high = (low + np.uint16(1)).astype(np.uint16)
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = ((each.astype(np.uint32) << 16).view(np.float32).astype(float) for each in (low, high))
        b = np.where(np.isinf(b), np.copysign(2.0**128, b), b)                                      # beyond the largest
        far_a, far_b = np.abs(x.astype(float) - a), np.abs(b - x.astype(float))
    return np.where(np.isinf(x) | (far_a < far_b) | ((far_a == far_b) & (low % 2 == 0)), low, high)


def tile(**words: int) -> Any:
    """16 rows of 32 bf16 bits, zero but for some: tile(r0c3=0x3f80)."""
    made = np.zeros((16, 32), np.uint16)
    for place, bits in words.items():
        row, column = place[1:].split("c")
        made[int(row), int(column)] = bits
    return made


@needs_compiler
def test_emulated_tiles_add_as_the_instruction_does(tmp_path: Path) -> None:
    """TDPBF16PS: even and odd elements apart, one rounding a multiply-add, subnormal numbers are zero in and out."""
    library = build.library(written(tmp_path / "tiles", TILES), Target("tiles", (*NATIVE, "-DSUBLIGHT_AMX_EMULATED")))
    one, big, tiny, small = 0x3f80, 0x4b80, 0x0040, 0x1f80        # 1, 2²⁴, 2⁻¹²⁷, 2⁻⁶⁴

    def product(a: Any, b: Any, start: float = 0.0) -> float:
        c = np.zeros((16, 16), np.float32)
        c[0, 0] = start
        library.multiply(at(a), at(b), at(c))
        return float(c[0, 0])

    ones = tile(r0c0=one, r0c1=one, r1c0=one, r1c1=one, r2c0=one, r2c1=one)
    # Evens 2²⁴ + 1 + 1 lose both ones; odds make 3; 2²⁴ + 3 is a tie that goes to 2²⁴ + 4.
    assert product(tile(r0c0=big, r0c1=one, r0c2=one, r0c3=one, r0c4=one, r0c5=one), ones) == 2.0**24 + 4
    assert product(tile(r0c0=one), tile(r0c0=one), start=2.0**24) == 2.0**24
    assert product(tile(r0c0=tiny), tile(r0c0=big)) == 0.0        # 2⁻¹⁰³, were the input not taken for zero
    assert product(tile(r0c0=small), tile(r0c0=small)) == 0.0     # 2⁻¹²⁸
    assert product(tile(), tile(), start=2.0**-127) == 0.0
    assert np.isnan(product(tile(r0c0=0x7fc0), tile(r0c0=one)))

    random = np.random.default_rng(1)
    a, b = (nearest_bf16(random.standard_normal((16, 32)).astype(np.float32)) for _ in range(2))
    c = np.zeros((16, 16), np.float32)
    library.multiply(at(a), at(b), at(c))
    left, right = ((each.astype(np.uint32) << 16).view(np.float32).astype(float) for each in (a, b))
    pairs = right.reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)      # rows of k, columns of n
    assert np.allclose(c, left @ pairs, rtol=0, atol=1e-5)


@needs_compiler
def test_a_tile_without_a_configuration_is_caught(tmp_path: Path) -> None:
    """On hardware it is SIGILL; emulated it is a trap, so a missing TileUse cannot pass here."""
    text = TILES.replace("    TileUse use;\n", "") + "int main() { char x[1024] = {}; multiply(x, x, x); }\n"
    program = tmp_path / "program"
    found = build.compiler()
    assert found is not None
    subprocess.run([found.path, "-DSUBLIGHT_AMX_EMULATED", "-std=c++17", "-Wno-psabi", f"-I{build.HERE}",
                    str(written(tmp_path / "bare", text)), "-o", str(program)], check=True, capture_output=True)
    assert subprocess.run([program], check=False, capture_output=True).returncode < 0


@needs_compiler
@pytest.mark.heavy
@pytest.mark.parametrize("arch", ["sapphirerapids", "skylake-avx512", "x86-64"])
@pytest.mark.parametrize("source", [s for s in SOURCES if s.parent.name != "arena"], ids=lambda s: s.stem)
def test_every_kernel_compiles_without_a_warning(source: Path, arch: str, tmp_path: Path) -> None:
    found = build.compiler()
    assert found is not None
    command = [found.path, f"-march={arch}", *build.COMMON, "-Werror", "-fopenmp", f"-I{build.HERE}", str(source), "-o",
               str(tmp_path / "made.so")]
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    if "bad value" in said.stderr:
        pytest.skip(f"{found.version} does not know {arch}")
    assert said.returncode == 0, said.stderr
