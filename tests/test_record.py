"""Recording: commands that know nothing of it, steps marked by hand, several ranks, what goes wrong; and a small
language model with faults planted in it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import minutes_more
from kineto import Kineto

from sublight.errors import InputError
from sublight.guard.runs import differing, words
from sublight.guard.typical import Typical, typical
from sublight.observe.read import read, read_all
from sublight.observe.record_command import record_command
from sublight.observe.recording import record

ROOT = Path(__file__).parent.parent
LM = ROOT / "docs/examples/small_lm.py"
HAS_TORCH = importlib.util.find_spec("torch") is not None


def needs_torch(test: Callable[..., None]) -> Callable[..., None]:
    """Importing torch takes seconds in each process."""
    marked: Callable[..., None] = pytest.mark.heavy(pytest.mark.skipif(not HAS_TORCH, reason="needs torch")(test))
    return marked


def script(folder: Path, text: str) -> list[str]:
    path = folder / "run.py"
    path.write_text(text)
    return [sys.executable, str(path)]


TRAINS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
"""
ANSWERS = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))
with torch.no_grad():
    for i in range({steps}):
        model(torch.randn(4, 32))
"""


# ---- what needs no torch


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(InputError, match="new or empty folder"):
        record_command([sys.executable, "-c", ""], tmp_path, steps=4, warm_up=3)
    assert (tmp_path / "old").read_text() == "old"


def test_a_command_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no command 'no-such-program'"):
        record_command(["no-such-program"], tmp_path / "out", steps=4, warm_up=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("", 0),
                                                ("import os; os.kill(os.getpid(), 9)", 137)])
def test_exit_codes_are_passed_on_and_nothing_is_left(tmp_path: Path, code: str, expected: int) -> None:
    done = record_command([sys.executable, "-c", code], tmp_path / "out", steps=4, warm_up=3)
    assert (done.exit_code, done.files) == (expected, ())
    assert "no process that imports torch" in done.notes[0]
    assert not (tmp_path / "out").exists()


def test_another_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['SEEN_OTHER'] = 'yes'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = record_command([sys.executable, "-c", "import os; raise SystemExit(os.environ['SEEN_OTHER'] == 'yes')"],
                          tmp_path / "out", steps=4, warm_up=3)
    assert done.exit_code == 1


def test_the_hook_goes_when_the_command_ends(tmp_path: Path) -> None:
    out = tmp_path / "path"
    code = f"import os; open({str(out)!r}, 'w').write(os.environ['PYTHONPATH'].split(os.pathsep)[0])"
    record_command([sys.executable, "-c", code], tmp_path / "out", steps=4, warm_up=3)
    assert out.read_text()
    assert not Path(out.read_text()).exists()


def test_the_command_line_says_what_is_missing(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "sublight", "record"], capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, "no command given" in ran.stderr) == (2, True)
    ran = subprocess.run([sys.executable, "-m", "sublight", "record", "-o", str(tmp_path / "x"), "--", sys.executable,
                          "-c", "raise SystemExit(5)"], capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, "nothing was recorded" in ran.stderr) == (5, True)


def test_steps_cannot_be_fewer_than_none() -> None:
    with pytest.raises(ValueError, match="expected 0 steps or more"):
        record("x", steps=-1)


# ---- with torch


@needs_torch
@pytest.mark.parametrize(("text", "kind"), [(TRAINS, "training"), (ANSWERS, "inference")])
def test_steps_are_found_in_a_command_that_knows_nothing(tmp_path: Path, text: str, kind: str) -> None:
    done = record_command(script(tmp_path, text.format(steps=10)), tmp_path / "out", steps=3, warm_up=2)
    assert (done.exit_code, done.notes, done.said) == (0, (), "3 steps")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank0.json.gz"]
    trace = read(tmp_path / "out" / "rank0.json.gz")
    assert [trace.names[i] for i in trace.annotations.name.tolist() if "ProfilerStep" in trace.names[i]] == [
        "ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert trace.recording.shapes
    counts = [trace.names[i] for i in trace.ops.name.tolist()].count("aten::addmm")
    assert counts == 2 * 3
    assert ("AddmmBackward0" in trace.names) == (kind == "training")


@minutes_more
@needs_torch
def test_a_run_that_is_too_short_says_so(tmp_path: Path) -> None:
    done = record_command(script(tmp_path, TRAINS.format(steps=3)), tmp_path / "out", steps=4, warm_up=3)
    assert done.files == ()
    assert "3 optimizer steps" in done.notes[0]
    short = record_command(script(tmp_path, TRAINS.format(steps=6)), tmp_path / "short", steps=4, warm_up=3)
    assert (short.said, short.notes) == ("2 steps", ("the run ended after 2 of 4 steps",))


@minutes_more
@needs_torch
def test_a_run_that_fails_keeps_what_was_recorded(tmp_path: Path) -> None:
    text = TRAINS.format(steps=7) + "\nraise ValueError('the run\\'s own')"
    done = record_command(script(tmp_path, text), tmp_path / "out", steps=9, warm_up=3)
    assert (done.exit_code, len(done.files)) == (1, 1)
    assert len(read(done.files[0]).ops.name) > 0


@minutes_more
@needs_torch
def test_everything_is_recorded_where_no_steps_are_asked_for(tmp_path: Path) -> None:
    done = record_command(script(tmp_path, "import torch\ntorch.ones(3).sum()"), tmp_path / "out", steps=0, warm_up=3)
    assert done.said == "the whole run"
    trace = read(done.files[0])
    assert "aten::sum" in trace.names


@minutes_more
@needs_torch
def test_an_evaluation_between_training_steps_is_no_step(tmp_path: Path) -> None:
    text = TRAINS.format(steps=8) + "    with torch.no_grad():\n        model(torch.randn(4, 32))\n"
    done = record_command(script(tmp_path, text), tmp_path / "out", steps=2, warm_up=2)
    trace = read(done.files[0])
    assert [trace.names[i] for i in trace.ops.name.tolist()].count("aten::addmm") == 2 * 4
    first = ANSWERS.format(steps=2) + TRAINS.format(steps=6)
    done = record_command(script(tmp_path, first), tmp_path / "first", steps=2, warm_up=2)
    assert "AddmmBackward0" in read(done.files[0]).names


@needs_torch
def test_a_compiled_program_is_compiled_as_without(tmp_path: Path) -> None:
    """torch.compile traces hooks of modules: they may neither break its graph nor make it compile again."""
    text = TRAINS.format(steps=12).replace("optimizer =", "model = torch.compile(model, backend='eager', "
                                           "fullgraph=True)\noptimizer =")
    text += """
from torch._dynamo.utils import counters
raise SystemExit(counters["stats"]["unique_graphs"])
"""
    command = [sys.executable, "-W", "error", *script(tmp_path, text)[1:]]
    done = record_command(command, tmp_path / "out", steps=3, warm_up=2)
    assert (done.exit_code, done.said, done.notes) == (1, "3 steps", ())


@needs_torch
def test_each_rank_gets_a_file(tmp_path: Path) -> None:
    worker = script(tmp_path, TRAINS.format(steps=8))
    start = "import os, subprocess, sys\n" + "\n".join(
        f"assert subprocess.call({worker!r}, env=dict(os.environ, RANK='{r}')) == 0" for r in (0, 1))
    launcher = tmp_path / "launch.py"
    launcher.write_text(start)
    done = record_command([sys.executable, str(launcher)], tmp_path / "out", steps=2, warm_up=2)
    assert [path.name for path in done.files] == ["rank0.json.gz", "rank1.json.gz"]
    assert done.said == "2 steps of 2 ranks"
    assert [trace.rank for trace in read_all([tmp_path / "out"])] == [0, 1]


@minutes_more
@needs_torch
def test_forked_processes_are_recorded(tmp_path: Path) -> None:
    body = TRAINS.format(steps=6).replace("import torch", "").replace("\n", "\n    ")
    text = f"""
import os, torch, multiprocessing
def train(rank):
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    {body}
context = multiprocessing.get_context("fork")
children = [context.Process(target=train, args=(rank,)) for rank in (0, 1)]
for child in children: child.start()
for child in children: child.join()
"""
    done = record_command(script(tmp_path, text), tmp_path / "out", steps=9, warm_up=2)
    assert [path.name for path in done.files] == ["rank0.json.gz", "rank1.json.gz"], done.notes
    assert done.notes == ("the run ended after 3 of 9 steps",)


@needs_torch
def test_steps_marked_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import torch, sublight.observe.recording as r
with r.record({str(tmp_path / "hand")!r}, steps=2, warm_up=1) as run:
    for i in range(5):
        torch.ones(8).sum()
        run.step()
with r.record({str(tmp_path / "short")!r}) as run:
    run.step()
try:
    with r.record({str(tmp_path / "fails")!r}, steps=0) as run:
        raise KeyError("own")
except KeyError:
    pass
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "recorded 2 of 2 steps in" in ran.stderr
    assert "nothing was recorded: 1 calls of step(), the first 3 are warm-up" in ran.stderr
    trace = read(tmp_path / "hand" / "rank0.json.gz")
    assert [trace.names[i] for i in trace.ops.name.tolist()].count("aten::ones") == 2
    assert not (tmp_path / "short").exists()
    assert (tmp_path / "fails" / "rank0.json.gz").exists()      # what led to the error is what one wants to see


# ---- operators that one side alone runs


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The commands of the page have run in this folder, and printed this."""
    if not HAS_TORCH:
        pytest.skip("needs torch")
    folder = tmp_path_factory.mktemp("page")
    block = re.search(r"<!-- tested -->\n```sh\n(.*?)```", (ROOT / "docs/record.md").read_text("utf-8"), re.S)
    assert block is not None
    (folder / "small_lm.py").write_bytes(LM.read_bytes())
    printed = ""
    for line in block[1].splitlines():
        command = line.replace("sublight", f"{sys.executable} -m sublight", 1).replace(
            "-- python", f"-- {sys.executable}").split()
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder,
                             env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"})
        assert ran.returncode == 0, ran.stderr
        printed += ran.stdout
    return folder, printed


@needs_torch
def test_the_commands_of_the_page_name_the_planted_operators(page: tuple[Path, str]) -> None:
    _, printed = page
    assert re.search(r"aten::item\s+\(float32\)", printed)
    assert "B alone runs in float64" in printed
    assert re.findall(r"Step time: (\w+)", printed) == ["cannot", "cannot"]


@needs_torch
def test_the_planted_operators_are_named_and_nothing_else_is(page: tuple[Path, str], tmp_path: Path) -> None:
    from sublight.guard.results import steps

    done = record_command([sys.executable, str(LM)], tmp_path / "again", steps=4, warm_up=3)
    again = typical([read(done.files[0])])
    normal, item, double = (typical(read_all([page[0] / name])) for name in ("normal", "item", "float64"))
    assert words(normal, again) == ()
    assert steps(normal, again).state in ("same", "cannot tell")
    [said] = words(normal, item)
    assert re.fullmatch(r"runs a step: aten::item \(float32\) \d+ → \d+, aten::_local_scalar_dense .*", said)
    assert {row.b.runs - row.a.runs for row in differing(normal, item)} == {1.0}
    lines = words(normal, double)
    assert any(line.startswith("B alone runs in float64, a step: ") and "aten::addmm ×4" in line for line in lines)


def cpu_trace(path: Path, items: int, kind: str = "float") -> Typical:
    k = Kineto(device_name=None, record_shapes=True)
    types: dict[str, Any] = {"Input type": [kind, kind]}
    one: dict[str, Any] = {"Input type": ["float"]}
    for step in range(3):
        at = step * 10_000
        k.step(step, at, at + 9_000)
        k.op("aten::mm", at + 10, at + 3_000, dims=[[4, 4], [4, 4]], **types)
        for i in range(items):
            k.op("aten::item", at + 4_000 + 20 * i, at + 4_010 + 20 * i, dims=[[]], **one)
    return typical([read(k.write(path / f"{items}{kind}.json"))])


def test_one_more_item_a_step_is_named(tmp_path: Path) -> None:
    a, b = (cpu_trace(tmp_path, n) for n in (50, 51))
    assert words(a, b) == ("runs a step: aten::item (float32) 50 → 51",)
    assert words(cpu_trace(tmp_path, 0), a) == ("B alone runs, a step: aten::item ×50",)
    assert words(a, cpu_trace(tmp_path, 50, "double")) == (
        "B alone runs in float64, a step: aten::mm ×1", "A alone runs in float32, a step: aten::mm ×1")
