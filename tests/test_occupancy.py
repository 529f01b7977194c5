"""Occupancy: as NVIDIA's cuda_occupancy.h computes it, with what limits it and what would change it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from sublight.errors import InputError
from sublight.kernels.inspect.code import Launch, Resources
from sublight.kernels.inspect.occupancy import Cliff, limits_of, occupancy, warps_of

CAPABILITIES = ("7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")


def kernel(registers: int = 32, shared: int = 0, barriers: int | None = None, reserved: int = 0) -> Resources:
    return Resources(registers, 0, shared, 0, barriers, reserved=reserved)


# ---- by hand, from the tables of the CUDA Programming Guide


def test_one_hundred_and_sixty_eight_registers_on_hopper() -> None:
    # a warp takes 168 x 32 = 5376 registers, 21 x 256; a quarter of the SM has 16384: 3 warps, so 12 on the SM
    fit = occupancy("sm_90a", kernel(168), warps=4)
    assert (fit.blocks, fit.warps, fit.share, fit.limiters) == (3, 12, 12 / 64, ("registers",))
    # one block more needs 4 warps a quarter: 4096 registers each, 128 a thread
    assert fit.cliffs[0] == Cliff("registers", -40, 4)
    assert Cliff("registers", 1, 2) in fit.cliffs


def test_a_warp_has_its_registers_in_one_quarter_of_the_sm() -> None:
    # 192 x 32 = 6144 registers a warp: ten would fit 65536, but only two fit a quarter of 16384: 8 warps, 4 blocks of 2
    assert occupancy("sm_90", kernel(192), warps=2).blocks == 4


def test_shared_memory_and_the_systems_kilobyte() -> None:
    # 227 KiB and the system's 1 KiB fill an SM of sm_90; a byte more cannot be launched
    assert occupancy("sm_90", kernel(), warps=4, dynamic_shared=227 * 1024).blocks == 1
    none = occupancy("sm_90", kernel(), warps=4, dynamic_shared=227 * 1024 + 1)
    assert (none.blocks, none.limiters) == (0, ("shared memory",))
    assert occupancy("sm_90", kernel(), warps=4, dynamic_shared=113 * 1024).blocks == 2
    assert occupancy("sm_90", kernel(), warps=4, dynamic_shared=113 * 1024 + 1).blocks == 1


def test_the_systems_kilobyte_is_counted_once() -> None:
    # since sm_90 the compiler's static size has it already
    counted = occupancy("sm_90", kernel(shared=1024 + 113 * 1024, reserved=1024), warps=4)
    assert counted == occupancy("sm_90", kernel(shared=113 * 1024), warps=4)


@pytest.mark.parametrize(("arch", "warps", "blocks", "share", "limiters"), [
    ("sm_90", 1, 32, 0.5, ("blocks",)),
    ("sm_86", 32, 1, 32 / 48, ("warps",)),
    ("sm_75", 4, 8, 1.0, ("warps",)),
    ("sm_120", 8, 6, 1.0, ("warps",)),
])
def test_limits_of_warps_and_blocks(
    arch: str, warps: int, blocks: int, share: float, limiters: tuple[str, ...],
) -> None:
    fit = occupancy(arch, kernel(24), warps=warps)
    assert (fit.blocks, fit.share, fit.limiters) == (blocks, share, limiters)


def test_barriers_limit_since_hopper() -> None:
    assert occupancy("sm_90", kernel(barriers=16), warps=1).blocks == 4
    assert occupancy("sm_80", kernel(barriers=16), warps=1).blocks == 32


def test_a_cliff_is_one() -> None:
    for cliff in occupancy("sm_100", kernel(97, shared=20_000), warps=6, dynamic_shared=9000).cliffs:
        def blocks(by: int, resource: str = cliff.resource) -> int:
            registers, shared = (by, 0) if resource == "registers" else (0, by)
            need = kernel(97 + registers, shared=20_000)
            return occupancy("sm_100", need, warps=6, dynamic_shared=9000 + shared).blocks

        step = 1 if cliff.by > 0 else -1
        assert blocks(cliff.by) == cliff.blocks != blocks(0) == blocks(cliff.by - step)


def test_warps_of_a_block() -> None:
    assert warps_of(Resources(1, 0, 0, 0, required_threads=100), Launch()) == 4
    assert warps_of(Resources(1, 0, 0, 0, required_threads=256), Launch(warps=4)) == 8, "others cannot be launched"
    assert warps_of(Resources(1, 0, 0, 0), Launch(warps=4)) == 4
    assert warps_of(Resources(1, 0, 0, 0, max_threads=512), Launch()) is None, "at most is not exactly"


@pytest.mark.parametrize(("arch", "warps", "says"), [
    ("sm_61", 4, "6.1"), ("sm_90", 33, "33 warps"), ("sm_90", 0, "0 warps")])
def test_what_is_not_known_is_refused(arch: str, warps: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        occupancy(arch, kernel(), warps=warps)


def test_every_capability_has_a_source() -> None:
    assert all("CUDA C++ Programming Guide" in limits_of(each).source for each in CAPABILITIES)
    assert limits_of("sm_103a").capability == "10.3"


# ---- against NVIDIA's own header

DRIVER = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
    cudaOccDeviceProp d; cudaOccFuncAttributes f; cudaOccDeviceState s; cudaOccResult r; int threads, warps, dynamic;
    d.maxThreadsPerBlock = 1024; d.warpSize = 32; d.numSms = 1; d.sharedMemPerBlock = 49152;
    f.maxThreadsPerBlock = 1024; f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    while (scanf("%d %d %d %d %d %zu %zu %zu %d %zu %d %d", &d.computeMajor, &d.computeMinor, &threads, &warps,
                 &d.regsPerMultiprocessor, &d.sharedMemPerMultiprocessor, &d.sharedMemPerBlockOptin,
                 &d.reservedSharedMemPerBlock, &f.numRegs, &f.sharedSizeBytes, &dynamic, &f.numBlockBarriers) == 12) {
        d.regsPerBlock = d.regsPerMultiprocessor; d.maxThreadsPerMultiprocessor = 32 * warps;
        f.maxDynamicSharedSizeBytes = dynamic;
        int error = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &d, &f, &s, threads, dynamic);
        printf("%d %d %u %d\n", error, r.activeBlocksPerMultiprocessor, r.limitingFactors, r.blockLimitBlocks);
    }
}
"""
BITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8, "barriers": 16}


@pytest.mark.heavy
def test_ten_thousand_kernels_have_the_occupancy_of_nvidias_header(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if not compiler:
        pytest.skip("needs CUDA's cuda_occupancy.h, which comes with nvcc")
    (tmp_path / "driver.cpp").write_text(DRIVER)
    subprocess.run([compiler, "-o", "driver", "driver.cpp"], cwd=tmp_path, check=True, capture_output=True)
    draw = random.Random(7)
    cases = [(limits_of(draw.choice(CAPABILITIES)), draw.randint(1, 255), draw.choice([0, draw.randint(0, 60_000)]),
              draw.choice([0, draw.randint(0, 240_000)]), draw.randint(0, 16), draw.randint(1, 32))
             for _ in range(10_000)]
    asked = "\n".join(
        f"{limits.capability.replace('.', ' ')} {32 * warps} {limits.warps} {limits.registers} {limits.shared} "
        f"{limits.shared_block} {limits.reserved} {registers} {shared} {dynamic} {barriers}"
        for limits, registers, shared, dynamic, barriers, warps in cases)
    ran = subprocess.run([tmp_path / "driver"], input=asked, text=True, capture_output=True, check=True)
    told = ran.stdout.splitlines()
    assert len(told) == len(cases)
    for (limits, registers, shared, dynamic, barriers, warps), line in zip(cases, told, strict=True):
        error, blocks, factors, most = map(int, line.split())
        fit = occupancy(limits.capability, kernel(registers, shared, barriers), warps=warps, dynamic_shared=dynamic)
        case = f"{limits.capability}, {registers} registers, {shared}+{dynamic} bytes, {barriers} barriers, {warps}"
        assert (error, limits.blocks, fit.blocks) == (0, most, blocks), case
        if "barriers" not in fit.limiters:           # the header leaves the others' bits set when barriers allow fewer
            assert sum(BITS[name] for name in fit.limiters) == factors, case
