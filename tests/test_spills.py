"""Spills are counted as ptxas counts them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cubins
import pytest

from sublight.kernels.inspect.inspected import figures
from sublight.kernels.inspect.mix import width_bits
from sublight.kernels.inspect.read import found


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_loads_and_stores_of_spills_have_the_bytes_that_ptxas_says(target: str, tmp_path: Path) -> None:
    cubins.needs_nvdisasm()
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    command = ["nvcc", "-O3", f"-arch={target}", "-DBLOCKS=16", "-Xptxas", "-v", "-cubin", "-o", "x.cubin",
               str(cubins.EXAMPLES / "tiles.cu")]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    spilled = re.search(r"for running_sums\s+\d+ bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", said)
    assert spilled, said
    unit, = found(tmp_path / "x.cubin").units
    function = next(function for function in unit.functions if function.name == "running_sums")
    moved = {name: sum((width_bits(one.opcode) or 0) // 8 for one in function.instructions if one.name == name)
             for name in ("STL", "LDL")}
    assert (moved["STL"], moved["LDL"]) == (int(spilled[1]), int(spilled[2])) != (0, 0)
    kernel = figures(unit, function)
    assert (kernel.spill_stores, kernel.spill_loads) == tuple(
        sum(one.name == name for one in function.instructions) for name in ("STL", "LDL"))
