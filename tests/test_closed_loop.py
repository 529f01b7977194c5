"""The closed loop of docs/closed-loop.md: record, explain, choose, apply, record, diff; its own commands, run here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from sublight.kernels.native import build

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "closed-loop.md"
TRIES = 6              # beside other tests the arena rejects a kernel now and then: its clock cannot be believed
pytestmark = [pytest.mark.heavy,
              pytest.mark.skipif(build.refusal() is not None, reason="our CPU kernels need a C++ compiler")]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each command of the page prints."""
    folder = tmp_path_factory.mktemp("loop")
    block = re.search(r"<!-- tested -->\n```sh\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert block is not None
    (folder / "decode_lm.py").write_bytes((ROOT / "docs/examples/decode_lm.py").read_bytes())
    out = []
    for line in block[1].splitlines():
        words = [sys.executable if word == "python" else word for word in line.split()]
        command = [sys.executable, "-m", *words] if words[0] == "sublight" else words
        for _ in range(TRIES):
            ran = subprocess.run(command, capture_output=True, text=True, cwd=folder,
                                 env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"})
            if "nothing to choose from" not in ran.stderr and "is left out" not in ran.stderr:
                break
        assert ran.returncode == 0, ran.stderr
        out.append(ran.stdout)
    return out


def test_the_loop_closes(said: list[str]) -> None:
    record, choose, _, _, again, diff, compare = said
    assert re.search(r"Compute takes .*\(attention ", record), "attention is what the step spends most of its time in"
    predicted = re.search(r"all of it be done ([\d.]+) times as fast", " ".join(choose.split()))
    assert predicted is not None
    assert float(predicted[1]) > 1
    assert "swapped 17 modules" in again
    assert "unclassified 0 %" in again
    assert "sublight::decode" in diff
    gain = re.search(r"95 % interval ([\d.]+) to ([\d.]+)", compare)
    assert gain is not None
    assert float(gain[1]) > 1, "faster, beyond what chance does"
    plain, swapped = map(float, re.findall(r"([\d.]+) (?:as PyTorch runs it|swapped)", compare))
    assert swapped <= 1.5 * plain, "as right as before"
