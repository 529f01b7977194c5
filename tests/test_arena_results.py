"""Files of results, resumed after any end; keys that never meet another's entry; choice tables and nearest shapes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublight.errors import InputError
from sublight.kernels.arena.bench import HOT
from sublight.kernels.arena.choice import Choice, ChoiceTable, chosen, document, load, table
from sublight.kernels.arena.compare import of_median, standings
from sublight.kernels.arena.environment import differing, environment
from sublight.kernels.arena.outcome import CHEATED, Outcome
from sublight.kernels.arena.results import Results
from sublight.kernels.arena.session import Run, Timed, run_json, run_of

KEY = {"kind": "bench", "op": "tiny", "shape": {"rows": 4, "width": 64, "form": "bf16"},
       "kernels": [{"name": "ours", "file": "ab12", "source": "cd34", "compiler": "g++ 12.2.0", "flags": "-O3",
                    "layout": "packed 16"}],
       "environment": environment(device=None, threads=1, cache=HOT)}


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every leaf of a key lies."""
    if isinstance(value, dict):
        return [path for name, part in value.items() for path in paths(part, (*at, name))]
    if isinstance(value, list):
        return [path for number, part in enumerate(value) for path in paths(part, (*at, number))]
    return [at]


@pytest.mark.parametrize("path", paths(KEY), ids=lambda path: ".".join(map(str, path)))
def test_a_change_of_any_field_never_hits_an_old_entry(path: tuple[Any, ...], tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl")
    results.add(KEY, {"ns": 1})
    other = json.loads(json.dumps(KEY))
    inside = other
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = "another" if isinstance(inside[path[-1]], str) else inside[path[-1]] + 1
    assert results.get(other) is None
    assert results.get(KEY) == {"ns": 1}
    results.close()


def test_what_a_result_depends_on_is_in_its_environment() -> None:
    here = environment(device=None, threads=1, cache=HOT, providers=["numpy", "sublight", ""])
    assert {"torch", "triton", "numpy", "device", "driver", "threads", "cache", "python", "system"} <= here.keys()
    assert differing(here, environment(device=None, threads=2, cache="cold", providers=["numpy"])) == [
        "cache", "threads"]


@given(cut=st.integers(1, 400))
def test_a_line_without_an_end_is_dropped_and_said(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cut") / "r.jsonl"
    results = Results(path)
    for number in range(3):
        results.add({**KEY, "number": number}, {"ns": number})
    results.close()
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[:-min(cut, last - 1)])
    results = Results(path)
    assert len(results) == 2
    assert "not written whole" in results.note
    results.add({**KEY, "number": 2}, {"ns": 2})
    results.close()
    assert path.read_bytes() == whole


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\nnothing\nhalf a li")
    with pytest.raises(InputError, match=r"notes\.txt, line 1: expected a result of the arena"):
        Results(path)
    assert path.read_text() == "dear diary\nnothing\nhalf a li"


WRITER = """
import os, sys, time
from pathlib import Path
from sublight.kernels.arena.results import Results
started = os.open(sys.argv[1] + ".started", os.O_WRONLY | os.O_CREAT)
results = Results(Path(sys.argv[1]))
print(len(results), flush=True)
for number in range(10_000):
    key = {"kind": "bench", "number": number}
    if results.get(key) is None:
        os.pwrite(started, b"%06d" % number, 0)
        time.sleep(0.002)
        results.add(key, {"ns": [number] * 500})
"""


def test_killed_at_random_it_loses_at_most_the_running_measurement(tmp_path: Path) -> None:
    path, had = tmp_path / "r.jsonl", 0
    draw = random.Random(7)
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        found = int(process.stdout.readline())
        assert found == had, "a measurement that was written is there"
        time.sleep(draw.uniform(0.0, 0.08))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        started = Path(f"{path}.started")
        last = int(started.read_text() or 0)
        results = Results(path)
        had = len(results)
        results.close()
        assert had in (last, last + 1), "all but the one that was running"
    assert had > 20


# ---- what a run says ----------------------------------------------------------------------------------------------


def timed(name: str, ns: tuple[int, ...], outcome: Outcome | None = None) -> Timed:
    return Timed(name, {"name": name}, outcome or Outcome(), ns, tuple(n + 10 for n in ns), 5.0, ())


def run(*kernels: Timed, rows: int = 16) -> Run:
    return Run("tiny", {"rows": rows, "width": 64, "form": "bf16"}, HOT, 1, kernels, 1000, 50e-9, "memory",
               {"read": (1e10, 0.1)}, None, {"device": "here"})


SLOW, FAST = tuple(range(200, 230)), tuple(range(100, 130))


def test_the_fastest_is_chosen_and_the_regret_of_others_told() -> None:
    choice = chosen(run(timed("slow", SLOW), timed("fast", FAST), timed("wrong", (1,) * 30, Outcome(CHEATED, ("…",)))))
    assert choice is not None
    assert (choice.kernel, choice.sure, choice.tied) == ("fast", True, ())
    assert choice.share_of_bound == pytest.approx(50 / 114.5)
    (times, low, high) = choice.regret["slow"]
    assert low is not None
    assert high is not None
    assert 1.7 < low <= times <= high < 2.1


def test_noise_is_an_honest_tie() -> None:
    draw = random.Random(3)
    a, b = (tuple(int(1000 * draw.lognormvariate(0, 0.2)) for _ in range(40)) for _ in range(2))
    choice = chosen(run(timed("a", a), timed("b", b)))
    assert choice is not None
    assert not choice.sure
    assert len(choice.tied) == 1


def test_of_equal_kernels_one_is_called_faster_as_seldom_as_was_promised() -> None:
    draw, wrong = random.Random(11), 0
    for _ in range(200):
        both = {name: tuple(int(1e6 * draw.lognormvariate(0, 0.1)) for _ in range(20)) for name in "abcd"}
        wrong += any(not standing.tied for standing in standings(both))
    assert wrong / 200 < 0.05 + 0.03, "5 % are promised; 3 % is two deviations of 200 tries"


def test_two_rounds_tell_nothing() -> None:
    found = standings({"a": (100, 100), "b": (900, 900)})
    assert found[1].tied


def test_a_run_survives_its_file() -> None:
    one = run(timed("slow", SLOW), timed("fast", FAST))
    assert run_of(json.loads(json.dumps(run_json(one)))) == one


def test_a_choice_table_survives_its_file(tmp_path: Path) -> None:
    made = table("tiny", [run(timed("slow", SLOW), timed("fast", FAST)), run(timed("fast", FAST), rows=64)])
    path = tmp_path / "choice.json"
    path.write_text(json.dumps(document(made)))
    assert load(path) == made
    path.write_text("{}")
    with pytest.raises(InputError, match="no choice table"):
        load(path)


def choice(**shape: Any) -> Choice:
    return Choice({"rows": 16, "width": 4096, "form": "bf16", "bias": False, **shape}, "ours", True, (), 1e-5, 0.5, {})


TABLE = ChoiceTable("tiny", {}, (choice(rows=16), choice(rows=256), choice(rows=256, width=64)))


@pytest.mark.parametrize(("wanted", "rows", "distance", "field"), [
    ({"rows": 16}, 16, 0.0, None), ({"rows": 32}, 16, 1.0, "rows"), ({"rows": 200, "width": 5000}, 256, 0.356, "rows"),
])
def test_the_nearest_shape_and_how_far_it_is(wanted: dict[str, Any], rows: int, distance: float,
                                             field: str | None) -> None:
    found = TABLE.nearest({**choice().shape, **wanted})
    assert (found.choice.shape["rows"], found.field) == (rows, field)
    assert found.distance == pytest.approx(distance, abs=1e-3)


@pytest.mark.parametrize(("wanted", "why"), [
    ({"rows": 64}, "is 4 times off in rows; at most 2 times is taken"),
    ({"form": "fp16"}, "no shape with the formats and switches"),
    ({"bias": True}, "no shape with the formats and switches"),
])
def test_what_is_too_far_is_refused(wanted: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        TABLE.nearest({**choice().shape, **wanted})


def test_runs_of_two_machines_make_no_table() -> None:
    here = run(timed("fast", FAST))
    with pytest.raises(InputError, match="different machines"):
        table("tiny", [here, replace(here, environment={"device": "there"})])


def test_a_median_lies_in_its_interval_however_skewed_the_times() -> None:
    skewed = tuple([100] * 9 + [101] * 2 + [10_000 * n for n in range(1, 9)])     # the mean of pairs lies far above
    one = standings({"skewed": skewed})[0]
    assert one.low <= one.seconds <= one.high < 1e-3
    draws = np.random.default_rng(0)
    held = [low <= np.log(2) <= high for _ in range(400)
            for low, high in [of_median(tuple(draws.exponential(size=21)), 0.95)]]
    assert 0.94 < np.mean(held) < 1


def test_an_eps_takes_no_time() -> None:
    table = ChoiceTable("norm", {}, (Choice({"rows": 4, "eps": 1e-5}, "ours", True, (), 1e-5, None, {}),))
    assert table.nearest({"rows": 4, "eps": 1e-6}).distance == 0
