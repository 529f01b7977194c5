"""Cubins: architecture, kernels and resources, as cuobjdump tells them; damage is one clear error."""

from __future__ import annotations

import contextlib
import shutil
import struct
import tracemalloc
from pathlib import Path

import cubins
import pytest
from conftest import loaded
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.errors import InputError
from sublight.kernels.inspect.cubin import (
    BARRIERS,
    CLUSTER,
    FRAME_SIZE,
    LEAST_STACK,
    MAX_THREADS,
    REGISTERS,
    REQUIRED_THREADS,
    read_cubin,
)

SIXTY_FOUR = cubins.attribute(REGISTERS, 1, 64)


@pytest.mark.parametrize("name", sorted(cubins.RESOURCES))
def test_resources_of_the_kept_cubins_are_those_of_cuobjdump(name: str) -> None:
    unit = read_cubin((cubins.EXAMPLES / name).read_bytes(), name)
    assert (unit.arch, unit.kind, unit.producer) == ("sm_90a", "cubin", "ptxas 13.0.88")
    got = {}
    for function in unit.functions:
        need = function.resources
        assert need is not None
        got[function.name] = (need.registers, need.stack, need.shared, need.constant)
    assert got == cubins.RESOURCES[name]


def test_what_a_kernel_says_of_itself() -> None:
    own = (cubins.attribute(MAX_THREADS, 512, 1, 1) + cubins.attribute(REQUIRED_THREADS, 128, 2, 1)
           + cubins.attribute(CLUSTER, 4, 2, 1) + struct.pack("<BBBB", 2, BARRIERS, 6, 0))
    info = SIXTY_FOUR + cubins.attribute(FRAME_SIZE, 1, 272)
    need = read_cubin(cubins.cubin(info=info, own=own, shared=1424), "x").functions[0].resources
    assert need is not None
    assert (need.registers, need.stack, need.shared, need.reserved, need.constant) == (64, 272, 1424, 1024, 544)
    assert (need.max_threads, need.required_threads, need.cluster, need.barriers) == (512, 256, 8, 6)


def test_the_stack_is_what_a_kernel_needs_with_all_that_it_calls() -> None:
    frame, whole = cubins.attribute(FRAME_SIZE, 1, 64), cubins.attribute(LEAST_STACK, 1, 248)
    for info, stack in ((frame + whole, 248), (frame, 64), (b"", 0)):       # the second: of code that is not linked
        need = read_cubin(cubins.cubin(info=info), "x").functions[0].resources
        assert need is not None
        assert need.stack == stack


def test_before_sm_90_the_system_takes_none_of_the_static_shared_memory() -> None:
    need = read_cubin(cubins.cubin(flags=0x6005004, shared=1424), "x").functions[0].resources
    assert need is not None
    assert (need.shared, need.reserved) == (1424, 0)


def test_old_cubins_say_registers_and_barriers_in_the_header_of_their_code() -> None:
    data = cubins.cubin(abi=7, flags=0x500550, code_info=80 << 24 | 9, code_flags=3 << 20 | 6)
    need = read_cubin(data, "x").functions[0].resources
    assert need is not None
    assert (need.registers, need.barriers) == (80, 3)


@pytest.mark.parametrize(("abi", "flags", "compat", "arch"), [
    (7, 0x500550, b"", "sm_80"),              # CUDA 12, ptxas 12.9 of Triton 3.7.1
    (7, 0x5A0D5A, b"", "sm_90a"),
    (7, 0x5A055A, b"", "sm_90"),
    (8, 0x600640A, b"", "sm_100a"),           # CUDA 12.9 for sm_100a, of CuTe DSL 4.8.1
    (8, 0x6005A04, b"\x02\x09\x01\x00", "sm_90a"),        # CUDA 13: the letter stands in .nv.compat
    (8, 0x6005A04, b"\x02\x09\x00\x00", "sm_90"),
    (8, 0x6007902, b"\x02\x02\x01\x00\x02\x09\x01\x00", "sm_121a"),
])
def test_architectures_in_each_layout_of_the_flags(abi: int, flags: int, compat: bytes, arch: str) -> None:
    assert read_cubin(cubins.cubin(abi=abi, flags=flags, compat=compat), "x").arch == arch


def test_device_functions_are_no_kernels() -> None:
    assert read_cubin(cubins.cubin(other=0), "x").functions == ()


# ---- what cannot be read


@pytest.mark.parametrize(("data", "says"), [
    (b"", "no ELF file"),
    (b"\x7fELF", "fewer than a header"),
    (cubins.cubin(machine=62), "machine 62"),
    (cubins.cubin(machine=224), "AMD"),
    (cubins.cubin(abi=5), "ABI version 5"),
    (cubins.cubin(flags=0xFF00), "architecture number 255"),
    (cubins.cubin()[:-1], "section headers"),
    (cubins.cubin(info=b"\x04\x2f\xff\xff"), "at the end of section"),
    (cubins.cubin(info=b"\x09\x2f\x00\x00"), "format 9"),
])
def test_what_is_wrong_is_said_in_one_error(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_cubin(data, "x.cubin")


def test_every_truncation_is_one_error() -> None:
    whole = cubins.BEFORE.read_bytes()
    for length in (*range(0, 1200, 7), *range(1200, len(whole), 601)):
        with pytest.raises(InputError):
            read_cubin(whole[:length], "x")


@pytest.mark.parametrize(("offset", "form", "value"), [
    (40, "<Q", 1 << 60),                      # where section headers begin
    (40, "<Q", (1 << 64) - 64),
    (60, "<H", 0xFFFF),                       # how many
    (60, "<H", 0),
    (62, "<H", 0xFFFF),                       # which holds their names
    (58, "<H", 0),                            # how long one is
])
def test_a_header_that_points_nowhere_is_one_error(offset: int, form: str, value: int) -> None:
    data = bytearray(cubins.cubin(info=SIXTY_FOUR))
    struct.pack_into(form, data, offset, value)
    with pytest.raises(InputError):
        read_cubin(bytes(data), "x")


def test_a_small_file_that_names_one_long_string_many_times_takes_no_memory() -> None:
    name = b"\0" + b"n" * 60_000 + b"\0"
    symbols = b"\0" * 24 + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 5, 0, 16) * 2_000
    headers, body = b"", b""
    for kind, content in ((3, name), (2, symbols)):           # names in section 0, for sections and symbols alike
        headers += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, 64 + len(body), len(content), 0, 0, 1, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01\x41\x08" + b"\0" * 7
    rest = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0x6005A04, 64, 56, 0, 64, 2, 0)
    data = head + rest + body + headers
    tracemalloc.start()
    with pytest.raises(InputError, match="more names than it has room for"):
        read_cubin(data, "x")
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


@pytest.mark.parametrize("kept", [cubins.BEFORE.read_bytes(), cubins.cubin(info=SIXTY_FOUR, abi=7, flags=0x500550)],
                         ids=["compiled", "built"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_changed_bytes_give_a_unit_or_one_error(kept: bytes, data: st.DataObject) -> None:
    damaged = bytearray(kept)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for each in (bytes(damaged), bytes(damaged[:cut])):
        with contextlib.suppress(InputError):
            read_cubin(each, "x")


# ---- compiled here

KERNELS = """
__device__ __noinline__ float deep(float* p, int n) {
    float b[40]; for (int i = 0; i < 40; i++) b[i] = p[i] * n; return b[n & 31] + b[(n * 7) & 31]; }
__device__ __noinline__ float again(float* p, int n) { return n <= 0 ? p[0] : deep(p, n) + again(p, n - 1); }
extern "C" __global__ void calls(float* y, int n) {
    float b[16]; for (int i = 0; i < 16; i++) b[i] = y[i + n]; y[n] = deep(y, n) + b[n & 15]; }
extern "C" __global__ void recursive(float* y, int n) { y[n] = again(y, n); }
__shared__ int common[100];
extern "C" __global__ void __launch_bounds__(512, 2) bounded(int* y) {
    common[threadIdx.x] = y[threadIdx.x]; asm volatile("bar.sync 5, 64;"); __syncthreads();
    y[threadIdx.x] = common[99 - threadIdx.x]; }
template <int N> __global__ void __launch_bounds__(128, 8) spilled(float* y, const float* x, int n) {
    float s[N]; for (int k = 0; k < N; k++) s[k] = x[k * 128 + threadIdx.x];
    for (int j = 0; j < n; j++) for (int k = 0; k < N; k++) s[k] = s[k] * s[(k + 7) % N] + x[j];
    for (int k = 0; k < N; k++) y[k * 128 + threadIdx.x] = s[k]; }
template __global__ void spilled<96>(float*, const float*, int);
extern "C" __global__ void dynamic(float* y, int n) {
    extern __shared__ float s[]; s[threadIdx.x] = y[n]; __syncthreads(); y[n] = s[n]; }
"""


def same_as_cuobjdump(path: Path) -> int:
    """How many kernels; each must have the resources, and the file the architecture, that cuobjdump tells."""
    unit = read_cubin(path.read_bytes(), path.name)
    told = cubins.usage(path)
    for function in unit.functions:
        need = function.resources
        assert need is not None
        got = (need.registers, need.stack, need.shared, need.constant)
        assert got == told[function.name], f"{path.name}, {function.name}"
    assert unit.arch == cubins.arch(path)
    return len(unit.functions)


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121"])
def test_what_nvcc_compiles_has_the_resources_that_cuobjdump_tells(target: str, tmp_path: Path) -> None:
    cubins.nvcc(KERNELS, tmp_path, f"-arch={target}", "-cubin", "-o", "kernels.cubin")
    assert same_as_cuobjdump(tmp_path / "kernels.cubin") == 5


@pytest.mark.heavy
def test_the_kept_cubins_are_what_their_script_makes(tmp_path: Path) -> None:
    cubins.needs_nvdisasm()
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    loaded(cubins.EXAMPLES / "make_cubins.py").main(tmp_path)
    for kept in (cubins.BEFORE, cubins.AFTER):
        was, now = (read_cubin(path.read_bytes(), "x") for path in (kept, tmp_path / kept.name))
        if was.producer != now.producer:
            pytest.skip(f"kept with {was.producer}, compiled here with {now.producer}")
        assert now == was
        assert code_of(tmp_path / kept.name) == code_of(kept)


def code_of(cubin: Path) -> list[str]:
    """Instructions of its listing; another nvdisasm may set labels otherwise."""
    return [line for line in cubin.with_suffix(".sass").read_text().splitlines() if line.startswith("/*")]


@pytest.mark.heavy
def test_of_unlinked_code_the_frame_is_told_where_cuobjdump_tells_no_stack(tmp_path: Path) -> None:
    path = tmp_path / "unlinked.cubin"
    cubins.nvcc(KERNELS, tmp_path, "-arch=sm_80", "-rdc=true", "-cubin", "-o", path.name)
    need = {function.name: function.resources for function in read_cubin(path.read_bytes(), "x").functions}
    for name, told in cubins.usage(path).items():
        if got := need.get(name):
            assert (got.registers, got.shared, got.constant) == (told[0], told[2], told[3])
            assert got.stack == (272 if "spilled" in name else got.stack) >= told[1] == 0


@pytest.mark.heavy
def test_what_triton_compiles_has_the_resources_that_cuobjdump_tells(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    from inspect_kernels import compiled  # Triton wants its kernels in a file

    for arch in (80, 90, 100, 120):
        for name, kernel in compiled(arch).items():
            path = tmp_path / f"{name}_{arch}.cubin"
            path.write_bytes(kernel.asm["cubin"])
            assert same_as_cuobjdump(path) == 1, f"triton {triton.__version__}"
            need = read_cubin(path.read_bytes(), "x").functions[0].resources
            assert need is not None
            assert need.required_threads == 32 * kernel.metadata.num_warps
