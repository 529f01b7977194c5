"""A storm of damaged cubins, fatbins and PTX through the whole reader: kernels, or one clear error."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import cubins
import pytest
from test_ptx import TEXT

from sublight.errors import InputError
from sublight.kernels.inspect.inspected import figures
from sublight.kernels.inspect.read import found

KEPT = {"x.cubin": cubins.BEFORE.read_bytes(), "x.fatbin": cubins.FATBIN.read_bytes(), "x.ptx": TEXT.encode()}


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(KEPT))
def test_a_storm_of_damage(name: str, tmp_path: Path) -> None:
    draw = random.Random(name)
    path, readable = tmp_path / name, 0
    for _ in range(1500):
        damaged = bytearray(KEPT[name])
        for _ in range(draw.choice((1, 1, 2, 8, 40))):
            damaged[draw.randrange(min(len(damaged), draw.choice((64, 400, 1 << 20))))] = draw.randrange(256)
        path.write_bytes(damaged[:draw.choice((len(damaged), draw.randrange(len(damaged))))])
        with contextlib.suppress(InputError):
            for unit in found(path, instructions=False).units:
                for function in unit.functions:
                    figures(unit, function)
                    readable += 1
    assert readable, "nothing could be read: the storm tested one refusal"
