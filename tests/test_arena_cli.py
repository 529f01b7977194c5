"""sublight kernel check, bench and choose: what they are asked, what they answer, and with which exit code."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from sublight.cli.kernel import bench, check, choose
from sublight.cli.kernel.shapes import asked, of_calls
from sublight.errors import InputError
from sublight.kernels.arena.choice import Choice, ChoiceTable
from sublight.kernels.arena.sizes import parsed, shown
from sublight.kernels.decode.shape import Shape as Decode
from sublight.kernels.listed import contract
from sublight.ops.op import Op
from sublight.show.arena import choice_text

DEMO = Path(__file__).parent.parent / "sublight" / "demo" / "cpu_lm_rank0.json.gz"
SWIGLU = """
import torch
from torch.nn.functional import silu

def right(inputs, outputs):
    gate, up = inputs["gate_up"].float().chunk(2, dim=-1)
    outputs["out"].copy_(silu(gate) * up)

def wrong(inputs, outputs):
    gate, up = inputs["gate_up"].float().chunk(2, dim=-1)
    outputs["out"].copy_(silu(up) * gate)

def twice(inputs, outputs):
    for _ in range(4):
        right(inputs, outputs)
"""


def options(*words: str) -> argparse.Namespace:
    top = argparse.ArgumentParser()
    below = top.add_subparsers(required=True)
    for command in (check, bench, choose):
        command.add(below)
    return top.parse_args(words)


def run(*words: str) -> int:
    given = options(*words)
    code: int = given.run(given)
    return code


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SWIGLU)
    return str(path)


@pytest.mark.parametrize(("text", "shape"), [
    ("rows=4,width=64", "rows=4,width=64"), ("width=1k, rows=2,quant=none", "rows=2,width=1024"),
    ("rows=4,width=64,quant=fp8,form=fp16", "rows=4,width=64,form=fp16,quant=fp8"),
])
def test_shapes_are_read_and_shown(text: str, shape: str) -> None:
    assert shown(parsed(contract("swiglu"), text)) == shape


@pytest.mark.parametrize(("text", "why"), [
    ("rows=4", "lacks width"), ("rows=4,widht=64", "did you mean width"), ("rows=x,width=64", "rows=x: expected int"),
    ("rows=4,width=64,zzz=1", "has no 'zzz'. It has: rows"),
    ("rows", "expected name=value"), ("rows=4,width=64,form=fp13", "has no shape"),
])
def test_what_is_no_shape_says_why(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parsed(contract("swiglu"), text)


@pytest.mark.parametrize(("words", "why"), [
    (["bench", "swiglu"], "expected one of --shape"),
    (["bench", "swiglo", "--shape", "rows=1,width=1"], "did you mean swiglu"),
    (["bench", "swiglu", "--shape", "rows=1,width=1", "--kernel", "nobody"], "no kernel 'nobody' for swiglu"),
    (["bench", "swiglu", "--shape", "rows=1,width=1", "--kernel", "no.py:f"], "no such file"),
    (["bench", "swiglu", "--shape", "rows=1,width=1", "--threads", "9999"], "the cores that this process may use"),
    (["bench", "swiglu", "--from-model", "llama", "--shape", "rows=1,width=1"], "got --shape and --from-model"),
    (["choose", "swiglu", "--look-up", "no.json", "--shape", "rows=1,width=1"], "cannot read the choice table no.json"),
])
def test_a_wrong_question_is_one_clear_error(words: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        run(*words)


def test_shapes_of_a_model_are_weighed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--from-model", "meta-llama/Llama-3.1-8B", "--batch", "4", "--context", "99")
    found = asked(options("bench", "norm", *words), contract("norm"))
    assert {(weighed.shape.rows, weighed.shape.width) for weighed in found} == {(4, 4096)}
    assert sum(weighed.share or 0 for weighed in found) < 0.5
    assert "no contract for" in capsys.readouterr().err


def test_shapes_of_a_trace_are_weighed_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(options("bench", "cross_entropy", "--from-trace", str(DEMO), "--top", "2"), contract("cross_entropy"))
    assert found
    assert [weighed.share for weighed in found] == sorted((w.share for w in found), key=lambda s: -(s or 0))
    assert "of the time: " in capsys.readouterr().err


def test_a_cache_that_grows_by_a_token_a_step_is_one_shape() -> None:
    one = Decode(batch=2, kv_length=1000, heads=8, kv_heads=2, dim=64)
    calls: list[tuple[str, Op | None, float]] = [
        ("sdpa", contract("decode").op(replace(one, kv_length=length)), 1e6 * ms)
        for length, ms in ((1000, 5.0), (1001, 3.0), (1002, 4.0), (500, 2.0))]
    found = of_calls(calls, contract("decode"), 8, "time")
    assert [(w.shape.kv_length, w.share, w.calls) for w in found] == [(1002, 12 / 14, 3), (500, 2 / 14, 1)]
    assert [w.call_seconds for w in found] == pytest.approx([4e-3, 2e-3])


def test_what_a_choice_would_gain_of_a_trace() -> None:
    made = ChoiceTable("norm", {}, (Choice({"rows": 4}, "ours", True, (), 1e-3, None, {}),))
    text = choice_text(made, "table", [0.5], [(10, 2e-3)])          # half of 40 ms, in half the time: 40 / 30
    assert "these calls take 20 ms, 50.0% of the time" in text
    assert "would take 10 ms" in " ".join(text.split())
    assert "1.33 times as fast" in text
    assert "times as fast" not in choice_text(made, "table", [0.5])


@pytest.mark.heavy
def test_choose_says_what_it_leaves_out(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [word for name in ("right", "wrong") for word in ("--kernel", f"{file}:{name}")]
    for _ in range(4):                                   # beside other tests even a right one may be rejected
        try:
            assert run("choose", "swiglu", *kernels, "--shape", "rows=64,width=2048", "--seconds", "0.2") == 0
            break
        except InputError:
            capsys.readouterr()
    said = capsys.readouterr()
    assert "wrong is left out, rows=64,width=2048" in said.err
    assert "right" in said.out


@pytest.mark.heavy
def test_check_tells_right_from_wrong(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "rows=3,width=40"]
    assert run("check", "swiglu", "--kernel", f"{file}:right", *shape) == 0
    assert "right" in capsys.readouterr().out
    assert run("check", "swiglu", "--kernel", f"{file}:right", "--kernel", f"{file}:wrong", *shape) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "beyond their bound" in out


@pytest.mark.heavy
def test_bench_and_choose(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, table = tmp_path / "r.jsonl", tmp_path / "choice.json"
    words = ["swiglu", "--kernel", f"{file}:right", "--kernel", f"{file}:twice", "--shape", "rows=64,width=512",
             "--seconds", "0.2", "--results", str(results)]
    assert run("bench", *words, "--format", "json", "--traces", str(tmp_path / "set")) == 0
    first: dict[str, Any] = json.loads(capsys.readouterr().out)["runs"][0]
    assert [one["kernel"] for one in first["standings"]] == ["right", "twice"]
    assert first["standings"][1]["times_best"] > 1.5
    assert first["bound_seconds"] is None or first["bound_seconds"] < first["standings"][0]["seconds"]
    assert len(results.read_text().splitlines()) == 1
    assert len(list((tmp_path / "set").rglob("*.json*"))) == 5
    assert run("choose", *words, "--table", str(table)) == 0
    assert "right" in capsys.readouterr().out
    assert len(results.read_text().splitlines()) == 1, "nothing was measured again"
    assert run("choose", "swiglu", "--look-up", str(table), "--shape", "rows=100,width=512", "--format", "json") == 0
    near = json.loads(capsys.readouterr().out)["found"][0]
    assert (near["kernel"], near["field"], round(near["times_off"], 2)) == ("right", "rows", 1.56)
    Path(file).write_text(SWIGLU + "\n# changed\n")
    assert run("bench", *words) == 0
    assert len(results.read_text().splitlines()) == 2, "a changed source is another key"


def test_what_the_page_says_a_kernel_is_given_is_what_it_is_given() -> None:
    page = (Path(__file__).parent.parent / "docs" / "kernel-check.md").read_text("utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `") and "[" in line and "--" not in line]
    rows = [line.split(" | ") for line in lines]
    assert len(rows) == 13
    for first, *given in rows:
        made = contract(first.strip("| `"))
        cases = {tuple(sorted((k, v) for k, v in asdict(case.shape).items() if isinstance(v, str | bool))): case
                 for case in made.cases()}.values()
        for text, found in zip(given, ({name for case in cases for name in made.inputs(case)},
                                       {name for case in cases for name in made.outputs(case.shape)}), strict=True):
            named = re.findall(r"`(\w+)`", re.sub(r" as `\w+`", "", text))
            assert set(named) == found, made.name


def test_what_is_said_of_many_cases_is_said_once() -> None:
    from sublight.kernels.arena.outcome import Outcome
    from sublight.kernels.arena.session import Trial
    from sublight.show.arena import check_text

    case = {"shape": {"rows": 1}, "values": "normal", "seed": 0}
    same = [Trial("mine", {**case, "seed": seed}, Outcome("raised", ("KeyError: 'gate'",)), ()) for seed in range(9)]
    other = [Trial("mine", {**case, "seed": seed}, Outcome("wrong", (f"{seed} times",)), ()) for seed in range(9)]
    said = check_text("swiglu", [*same, *other], "table")
    assert said.count("KeyError") == 1
    assert "seed 0 and 8 more: raised" in said
    assert "4 more cases failed" in said


def test_what_is_not_finite_is_no_small_error() -> None:
    from sublight.kernels.arena.outcome import Outcome
    from sublight.kernels.arena.session import Trial
    from sublight.show.arena import check_text

    errors = {"output": "out", "rel_l2": 0.0, "share_of_bound": 0.0, "share_of_honest": 0.0, "non_finite": 3}
    case = {"shape": {"rows": 1}, "values": "normal", "seed": 0}
    assert check_text("swiglu", [Trial("mine", case, Outcome("wrong", ("…",)), (errors,))], "table").count("∞") == 3


def test_a_function_that_returns_its_result_is_told_to_fill_the_outputs(tmp_path: Path,
                                                                        capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def mine(inputs, outputs):\n    return inputs['gate_up'].sigmoid()\n")
    assert run("check", "swiglu", "--kernel", f"{path}:mine", "--shape", "rows=2,width=8") == 1
    assert "all of out is not finite" in capsys.readouterr().out
