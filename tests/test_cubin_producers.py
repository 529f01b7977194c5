"""Cubins of several compilers: each lays them out its own way, and all are read alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cubins
import pytest
from test_cubin import same_as_cuobjdump

from sublight.kernels.inspect.cubin import read_cubin

KEPT = Path(__file__).parent / "data/cubins"


@pytest.mark.parametrize(("name", "arch", "producer", "resources", "threads"), [
    # registers, stack, shared and constant bank 0, as cuobjdump -res-usage prints them
    ("triton371_matmul_sm80", "sm_80", None, (80, 0, 0, 400), 128),
    ("triton390_matmul_sm80", "sm_80", None, (96, 0, 0, 400), 128),
    ("triton371_matmul_sm90", "sm_90a", None, (59, 0, 1024, 576), 128),                      # ABI version 7
    ("triton390_matmul_sm90", "sm_90a", "ptxas-blackwell 13.4.59", (59, 0, 1024, 576), 128),       # ABI version 8
    ("cute481_square_sm100", "sm_100a", "ptxas 12.9.83", (10, 0, 0, 912), 128),       # the letter in the flags
])
def test_kept_cubins(name: str, arch: str, producer: str | None, resources: tuple[int, ...], threads: int) -> None:
    unit = read_cubin((KEPT / f"{name}.cubin").read_bytes(), name)
    need = unit.functions[0].resources
    assert need is not None
    assert (unit.arch, unit.producer, need.required_threads) == (arch, producer, threads)
    assert (need.registers, need.stack, need.shared, need.constant) == resources


CUTE = """
import cutlass, cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor

@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor):
    thread, block, size = cute.arch.thread_idx()[0], cute.arch.block_idx()[0], cute.arch.block_dim()[0]
    at = block * size + thread
    b[at] = a[at] * a[at] + a[at]

@cute.jit
def square(a: cute.Tensor, b: cute.Tensor):
    kernel(a, b).launch(grid=(8, 1, 1), block=(128, 1, 1))

a, b = (make_fake_compact_tensor(cutlass.Float32, (1024,)) for _ in range(2))
open("x.cubin", "wb").write(cute.compile(square, a, b).__cubin__)
"""

TILE = """
import sys
import cuda.tile as ct
from cuda.tile import compilation as c

@ct.kernel
def matmul(a, b, out, m: ct.Constant[int], n: ct.Constant[int], k: ct.Constant[int]):
    row, column = ct.bid(0), ct.bid(1)
    sums = ct.full((m, n), 0, dtype=ct.float32)
    for at in range(ct.num_tiles(a, axis=1, shape=(m, k))):
        left, right = ct.load(a, index=(row, at), shape=(m, k)), ct.load(b, index=(at, column), shape=(k, n))
        sums = ct.mma(left, right, sums)
    ct.store(out, index=(row, column), tile=ct.astype(sums, ct.bfloat16))

array = c.ArrayConstraint(ct.bfloat16, 2, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
                          may_alias_internally=False, stride_constant=(None, 1), base_addr_divisible_by=16,
                          stride_divisible_by=(8, 1), shape_divisible_by=(8, 8))
signature = c.KernelSignature([array, array, array, 64, 64, 32], c.CallingConvention.cutile_python_v1())
c.export_kernel(matmul, [signature], "x.cubin", gpu_code=sys.argv[1], output_format="cubin")
"""


def made_by(script: str, folder: Path, *words: str, **environment: str) -> Path:
    (folder / "make.py").write_text(script)
    subprocess.run([sys.executable, "make.py", *words], cwd=folder, env=os.environ | environment, check=True)
    return folder / "x.cubin"


@pytest.mark.heavy
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_cute_where_it_is_installed(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("cutlass", reason="needs nvidia-cutlass-dsl")
    path = made_by(CUTE, tmp_path, CUTE_DSL_ARCH=arch, CUTE_DSL_KEEP_CUBIN="1", CUTE_DSL_DUMP_DIR=str(tmp_path))
    assert same_as_cuobjdump(path) == 1
    assert read_cubin(path.read_bytes(), "x").arch == arch == cubins.arch(path)


@pytest.mark.heavy
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_cutile_where_it_is_installed(arch: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.tile", reason="needs cuda-tile and nvidia-cuda-tileiras")
    folders = [str(path) for path in Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin")]
    path = made_by(TILE, tmp_path, arch, PATH=os.pathsep.join([*folders, os.environ["PATH"]]))
    assert same_as_cuobjdump(path) == 1
