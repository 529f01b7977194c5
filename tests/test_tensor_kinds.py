"""Every kind of tensor-core instruction, compiled: a kernel's name says what its instruction must be read as."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sublight.errors import InputError
from sublight.kernels.inspect import tools
from sublight.kernels.inspect.code import Function
from sublight.kernels.inspect.sass import disassembled
from sublight.kernels.inspect.tensor import TensorKind, tensor_kinds

pytestmark = pytest.mark.heavy

CUDA = Path(__file__).parent / "tensor_kinds.cu"
# mma.sync of kinds that an architecture has no instruction for becomes another one: not asked there.
KINDS = {"sm_80": {"HMMA", "IMMA", "DMMA"}, "sm_90a": {"HMMA", "IMMA", "DMMA", "HGMMA", "QGMMA", "IGMMA"},
         "sm_100a": {"HMMA", "IMMA", "DMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"},
         "sm_120a": {"HMMA", "IMMA", "DMMA", "QMMA", "OMMA"}}


def kernels(arch: str) -> dict[str, set[TensorKind]]:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    done = subprocess.run([nvcc, f"-arch={arch}", "-O3", "-cubin", "-o", "/dev/stdout", str(CUDA)], capture_output=True)
    if done.returncode and "Unsupported gpu architecture" in done.stderr.decode():
        pytest.skip(f"this nvcc knows no {arch}")
    assert done.returncode == 0, done.stderr.decode()
    try:
        text = tools.disassembly(done.stdout)
    except (InputError, tools.UnreadableError) as error:
        pytest.skip(str(error))
    return {name: set(tensor_kinds(Function(name, arch, None, code, labels)).values())
            for name, (code, labels) in disassembled(text).items()}


@pytest.mark.parametrize("arch", KINDS)
def test_a_kernel_is_read_as_its_name_says(arch: str) -> None:
    found = kernels(arch)
    assert {name.split("_")[0] for name in found} >= KINDS[arch]
    for name, kinds in found.items():
        assert len(kinds) == 1, name
        (kind,) = kinds
        if name.endswith("_unknown"):
            assert kind.flops is None
            assert "computed at run time" in str(kind.unknown)
        else:
            opcode, shape, form = re.fullmatch(r"([A-Z]+)_(\w+?x\w+?x\d+)_(\w+)", name).groups()     # type: ignore[union-attr]
            assert kind.title == f"{opcode} {shape} {form.replace('_x_', ' x ')}", name
            assert kind.unknown is None
    if arch == "sm_100a":
        assert {kind.blocks for kind in found["UTCHMMA_256x64x16_fp16"]} == {2}
