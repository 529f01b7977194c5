"""A real run, killed at random: its processes end with it, and a restart makes only what is missing."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.heavy
HERE = Path(__file__).parent
KILLS, SHAPES = 2, 8
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from arena_tiny import CONTRACT, Shape
from sublight.kernels.arena.bench import Pace
from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.process import arena
from sublight.kernels.arena.results import Results
from sublight.kernels.arena.session import runs
results = Results(Path(sys.argv[1]))
entries = [Entry("tiny", name, path={str(HERE / "arena_kernels.py")!r}) for name in ("honest", "RETURNS")]
with arena() as ring:
    print("started", ring._server.pid, len(results), flush=True)
    for run in runs(ring, CONTRACT, [Shape(8, 16 + n) for n in range({SHAPES})], entries, cache="hot",
                    pace=Pace(0.1), results=results):
        print(run.known, flush=True)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_run_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    draw, path, had = random.Random(2), tmp_path / "r.jsonl", 0
    for kill in [True] * KILLS + [False]:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        _, server, known = process.stdout.readline().split()
        assert int(known) == had
        if kill:
            process.stdout.readline()                        # at least one
            time.sleep(draw.uniform(0, 1.0))
            process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        until = time.monotonic() + 20
        while alive(int(server)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive(int(server)), "the server, and so all kernels' processes, end with the run"
        lines = path.read_bytes()
        whole = lines[: lines.rfind(b"\n") + 1].splitlines()
        assert len(whole) >= had
        had = len(whole)
        assert all(json.loads(line)["result"]["kernels"] for line in whole)
        if not kill:
            assert len(said) == SHAPES
            assert had == SHAPES
