"""Predictions: what-ifs and elasticities have the right sign and sum, outputs agree, wrong questions are refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sublight.cli import main
from sublight.errors import InputError
from sublight.models import Batch, Split, named, recast
from sublight.plan import Job, Serving, Traffic, Training
from sublight.predict.answer import answer
from sublight.predict.layout import usual
from sublight.predict.machine import RATES, Machine, faster, machine, whatif
from sublight.predict.step import step_time

QWEN = recast(named("Qwen/Qwen3-32B"), attention="fp8_block", mlp="fp8_block")


def without_tables(gpus: str, engine: str = "vllm") -> Machine:
    return replace(machine(gpus, engine), tables=False)


@pytest.mark.parametrize("tables", [False, True])
def test_twice_the_memory_rate_takes_a_quarter_to_a_third_of_a_decode_step(tables: bool) -> None:
    """Qwen3-32B-FP8, tensor parallel 2, batch 64, H200, 1,024 in and out: the peers move by 1.3 %. Between H100 and
    H200, which differ in the memory rate alone, its operators were measured to move by less than their bounds do
    (bench/whatif_pairs.py)."""
    where = replace(machine("2xH200", "vllm"), tables=tables)
    step = (Batch(64, 1, 1024 + 512, decode=True),)
    seconds = [step_time(QWEN, step, Split(tp=2), w).seconds for w in (where, whatif(where, {"memory": 2.0}))]
    assert -0.45 <= seconds[1] / seconds[0] - 1 <= -0.25


MODELS = ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b", "Qwen/Qwen3-235B-A22B")
GPUS = ("8xA100", "8xH100", "8xH200", "8xB200", "8xH800", "2x8xH100", "8xL40S")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS), st.sampled_from(GPUS), st.sampled_from(("vllm", "sglang", "trtllm")),
       st.sampled_from((1, 2, 4, 8)), st.integers(1, 512), st.integers(1, 8192), st.booleans())
def test_no_elasticity_has_the_wrong_sign_and_they_sum_to_minus_one(
    name: str, gpus: str, engine: str, tp: int, batch: int, context: int, prefill: bool,
) -> None:
    model, where = named(name), without_tables(gpus, engine)
    step = (Batch(1, context) if prefill else Batch(batch, 1, context, decode=True),)
    shares = step_time(model, step, Split(tp=tp), where).shares
    assert set(shares) <= set(RATES)
    assert all(share >= 0 for share in shares.values())
    assert math.isclose(sum(shares.values()), 1, abs_tol=1e-6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS[:3]), st.sampled_from(GPUS), st.sampled_from(RATES), st.integers(1, 256))
def test_an_elasticity_is_what_a_small_change_of_the_rate_does(name: str, gpus: str, rate: str, batch: int) -> None:
    model, where = named(name), without_tables(gpus)
    step = (Batch(batch, 1, 2048, decode=True),)
    before = step_time(model, step, Split(tp=4), where)
    after = step_time(model, step, Split(tp=4), whatif(where, {rate: 1.001}))
    measured = (after.seconds / before.seconds - 1) / 0.001
    assert measured == pytest.approx(-before.shares.get(rate, 0.0), abs=2e-3)


@pytest.mark.parametrize(("name", "plan"), [
    ("meta-llama/Llama-3.1-8B", Training(tp=2, dp=4)),
    ("mistralai/Mixtral-8x7B-v0.1", Training(tp=2, dp=4, ep=4, recompute="full")),
])
def test_elasticities_of_training_are_slopes(name: str, plan: Training) -> None:
    model, job, where = named(name), Job(4096, 32), without_tables("8xH100", "torch")
    found = answer(model, plan, job, where)
    shares = found.elasticity("training")
    assert sum(shares.values()) == pytest.approx(-1, abs=0.01)
    for rate, shown in (("tensor", "tensor rate"), ("nvlink", "NVLink"), ("memory", "HBM")):
        other = answer(model, plan, job, where, faster={rate: 1.01}).whatif
        assert other is not None
        change = (other.value("step time") / found.estimate.value("step time") - 1) / 0.01
        assert change == pytest.approx(shares[shown], abs=0.02)


def test_the_usual_layout_is_the_smallest_that_holds_the_model() -> None:
    assert usual(named("meta-llama/Llama-3.1-8B"), machine("8xH100"), Serving()).tp == 1
    assert usual(named("meta-llama/Llama-3.1-70B"), machine("8xH100"), Serving()).tp == 4
    assert usual(named("deepseek-ai/DeepSeek-V3"), machine("8xH200"), Serving()).tp == 8
    with pytest.raises(InputError, match="does not fit"):
        usual(named("deepseek-ai/DeepSeek-V3"), machine("8xA100"), Serving())


def test_the_usual_layout_keeps_the_expert_groups_that_were_named() -> None:
    found = usual(named("mistralai/Mixtral-8x7B-v0.1"), machine("8xH100"), Serving(ep=8))
    assert (found.tp, found.ep, found.replicas) == (8, 8, 1)


def test_a_tight_layout_is_taken_where_none_leaves_a_quarter() -> None:
    found = usual(named("meta-llama/Llama-3.1-405B"), machine("8xH200"), Serving())
    assert found.tp == 8


def test_a_whatif_stands_beside_the_estimate_and_moves_it() -> None:
    found = answer(QWEN, Serving(tp=2), Traffic(1024, 256, concurrency=32), without_tables("2xH200"),
                   faster={"memory": 2.0})
    assert found.whatif is not None
    assert found.whatif.value("TPOT") < 0.9 * found.estimate.value("TPOT")


@pytest.mark.parametrize("text", ["hbm", "hbm=0x", "hbm=-2", "rocket=2x", "hbm=nanx"])
def test_whatifs_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected RATE=FACTORx"):
        faster(text)


# ---- the command

PLAN = ["plan", "meta-llama/Llama-3.1-8B", "--gpus", "1xH100", "--isl", "1024", "--osl", "128"]
SWEEP = ["sweep", "--models", "a", "--gpus", "8xH100", "--traffic", "10/10", "-o", "x.csv"]
SERVE = ["predict", "meta-llama/Llama-3.1-8B", "--gpus", "1xH100", "--isl", "1024", "--osl", "128", "--concurrency",
         "16", "--no-tables"]
TRAIN = ["predict", "meta-llama/Llama-3.1-8B", "--train", "--gpus", "8xH100", "--seq", "4096", "--gbs", "64", "--tp",
         "2"]


def document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_format_shows_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(SERVE, capsys)
    ttft = found["estimate"]["results"]["TTFT"]
    assert ttft["low"] < ttft["value"] < ttft["high"]
    shown = f"{ttft['value'] * 1e3:.3g} ms"
    for form in ("table", "md", "html"):
        capsys.readouterr()
        assert main([*SERVE, "--format", form]) == 0 if form != "html" else True
        assert form == "html" or shown in capsys.readouterr().out


def test_the_page_has_every_table_and_runs_nothing(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main([*SERVE, "--format", "html", "-o", str(out)]) == 0
    page = out.read_text()
    assert "<script" not in page
    for caption in ("Predicted", "One prefill step", "One decode step", "Memory of one GPU", "Change of a step"):
        assert caption in page
    assert page.count("<svg") >= 2


def test_steps_of_a_document_sum(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, steps in ((SERVE, {"prefill", "decode"}), (TRAIN, {"training"})):
        found = document(arguments, capsys)
        assert set(found["steps"]) == steps
        for step in found["steps"].values():
            total = sum(row["seconds"] for row in step["operators"]) + step["host"]
            assert total == pytest.approx(step["seconds"], rel=1e-9)
            assert sum(step["elasticities"].values()) == pytest.approx(-1, abs=0.01)
        for ledger in found["memory"].values():
            assert ledger["fits"] == (sum(ledger["parts"].values()) <= ledger["capacity"])


def test_all_bytes_of_a_decode_step_are_the_weights_at_least() -> None:
    """70B in bf16 on 8 H100: 141 GB / 8 at 3.35 TB/s are 5.2 ms, of which the bounds of single operators leave out an
    L2 each."""
    model, where = named("meta-llama/Llama-3.1-70B"), without_tables("8xH100")
    found = answer(model, Serving(tp=8), Traffic(1024, 1024, concurrency=1), where)
    streamed = found.streamed("decode")
    assert streamed is not None
    assert 5.1e-3 < streamed < 5.6e-3
    assert sum(row.count * row.time.least for row in found.steps["decode"].rows) < streamed
    assert streamed < found.steps["decode"].seconds


def test_a_training_step_names_its_peak(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(TRAIN, capsys)
    results = found["estimate"]["results"]
    assert 0.1 < results["MFU"]["value"] < 0.9
    assert any("dense bf16" in note for note in found["estimate"]["notes"])
    tokens = 64 * 4096 / results["step time"]["value"] / 8
    assert results["tokens/s/GPU"]["value"] == pytest.approx(tokens)


def test_changes_of_a_training_step_have_its_exchanges_between_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    """They are no part of the micro-batch whose operators are shown."""
    found = document(["predict", "mistralai/Mixtral-8x7B-v0.1", "--train", "--gpus", "8x8xH100", "--tp", "2", "--ep",
                      "8", "--gbs", "256", "--seq", "4096", "--no-tables"], capsys)
    changes = found["steps"]["training"]["elasticities"]
    assert changes["NIC"] < -0.01
    assert sum(changes.values()) == pytest.approx(-1, abs=2e-3)


def test_a_launch_command_is_an_input(capsys: pytest.CaptureFixture[str]) -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2 --max-model-len 8192 --some-new-flag 3"
    found = document(["predict", command, "--gpus", "8xH100", "--isl", "1024", "--osl", "128", "--concurrency", "8",
                      "--no-tables"], capsys)
    assert found["plan"]["tp"] == 2
    assert found["plan"]["max_length"] == 8192
    notes = " ".join(found["notes"])
    assert "some-new-flag" in notes
    assert "6 of 8 GPUs are not used" in notes


def test_a_command_that_multiplies_in_fp8_holds_half_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    def weights(flags: str) -> int:
        found = document(["predict", f"vllm serve meta-llama/Llama-3.1-8B {flags}", *SERVE[2:]], capsys)
        assert not any("not understood" in note for note in found["notes"])
        size: int = found["memory"]["GPU"]["parts"]["weights"]
        return size

    assert 0.5 < weights("--quantization fp8") / weights("") < 0.6          # the embedding and the head stay


def test_another_format_is_that_of_the_experts_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Nearly all weights of such a model are theirs: 671 billion in 4.5 bits on 8 GPUs, and some in 16."""
    found = document(["predict", "deepseek-ai/DeepSeek-R1", "--weights", "nvfp4", "--gpus", "8xB200", "--tp", "8",
                      *SERVE[4:]], capsys)
    assert 42 < found["memory"]["GPU"]["parts"]["weights"] / 2**30 < 50


def test_drafts_hold_as_often_as_was_published_unless_one_says(capsys: pytest.CaptureFixture[str]) -> None:
    serve = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config '{\"method\":\"deepseek_mtp\"," \
            "\"num_speculative_tokens\":1}'"
    found = document(["predict", serve, "--gpus", "8xH200", *SERVE[4:]], capsys)
    assert found["plan"]["acceptance"] == 0.85
    notes = " ".join(found["notes"])
    assert "acceptance 0.85 of 1 drafts taken" in notes
    assert "the number of drafts is counted" in notes
    found = document(["predict", serve, "--gpus", "8xH200", *SERVE[4:], "--acceptance", "0.5"], capsys)
    assert found["plan"]["acceptance"] == 0.5


def test_a_command_and_the_same_options_are_one_question(capsys: pytest.CaptureFixture[str]) -> None:
    by_command = document(["predict", "vllm serve meta-llama/Llama-3.1-8B -tp 1", *SERVE[2:]], capsys)
    by_options = document([*SERVE, "--tp", "1"], capsys)
    assert by_command["estimate"] == by_options["estimate"]
    assert by_command["memory"] == by_options["memory"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["predict", "meta-llama/Llama-3.1-8B", "--gpus", "1xH100"], "predict needs --isl, --osl"),
    (["predict", "meta-llama/Llama-3.1-8B", "--isl", "1", "--osl", "1"], "predict needs --gpus"),
    ([*SERVE[:-3], "--no-tables"], "needs --concurrency"),
    ([*SERVE, "--gbs", "3"], "--gbs does not belong to serving"),
    ([*TRAIN, "--isl", "3"], "--isl does not belong to --train"),
    ([*SERVE, "--tp", "3"], "3"),
    ([*SERVE, "--tp", "8"], "GPUs"),
    ([*TRAIN, "--pp", "3"], "does not divide 8 GPUs"),
    ([*SERVE, "--tp", "0"], "--tp expected 1 or more, got 0"),
    ([*SERVE, "--replicas", "0"], "--replicas expected 1 or more"),
    ([*SERVE, "--token-budget", "-1"], "--token-budget expected 1 or more"),     # it ran for ever
    ([*SERVE, "--requests", "4"], "less than one for each"),
    ([*SERVE, "--engine-version", "latest"], "--engine-version expected a number"),
    ([*SERVE[:-3], "--rate", "0", "--no-tables"], "rate expected"),
    (["predict", "vllm serve meta-llama/Llama-3.1-8B", *SERVE[2:], "--train"], "which serves"),
    (["predict", "vllm serve meta-llama/Llama-3.1-8B", *SERVE[2:], "--engine", "sglang"], "with a command of vllm"),
    (["predict", "vllm serve meta-llama/Llama-3.1-8B", *SERVE[2:], "--gbs", "3"], "--gbs does not belong"),
    (["predict", "no/such-model-at-all", *SERVE[2:]], "no/such-model-at-all"),
    (["predict", "vllm serve meta-llama/Llama-3.1-8B"], "does not say which GPUs"),
    (["plan", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100"], "plan needs --isl and --osl"),
    (["plan", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100", "--isl", "9", "--osl", "9", "--engines", "x"],
     "--engines"),
    (["sweep", "--models", "a", "--gpus", "8xH100", "--traffic", "10", "-o", "x.csv"], "expected ISL/OSL"),
    ([*SWEEP, "--engines", "x"], "--engines expected"),
    ([*SWEEP, "--jobs", "0"], "--jobs expected 1 or more"),
    ([*SWEEP, "--models", ","], "one model"),
    ([*PLAN, "--users", "0"], "--users expected 1 or more"),
    ([*PLAN, "--top", "-1"], "--top expected 1 or more"),
    ([*PLAN, "--gbs", "8"], "--gbs does not belong to serving"),
    ([*PLAN, "--slo", "tpot=1e999s"], "expected ttft=2s or tpot=30ms"),
    ([*PLAN, "--train"], "--isl does not belong to --train"),
])
def test_wrong_questions_get_one_line_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_plan_is_ranked_with_commands_that_parse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from sublight.engines import parse

    arguments = ["plan", "meta-llama/Llama-3.1-8B", "--gpus", "4xH100", "--isl", "1024", "--osl", "128", "--engines",
                 "vllm,sglang", "--users", "1000"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    commands = re.findall(r"^launch: (.+)$", out, re.MULTILINE)
    assert [parse(command).engine for command in sorted(commands)] == ["sglang", "vllm"]
    assert "1,000 requests at once need" in out
    page = tmp_path / "plan.html"
    assert main([*arguments, "--format", "html", "-o", str(page)]) == 0
    assert "polyline" in page.read_text()


def test_a_command_asks_for_the_format_that_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it the engine would serve the 16-bit checkpoint, at half the speed that was planned."""
    assert main([*PLAN, "--weights", "fp8", "--engines", "vllm,trtllm"]) == 0
    out = capsys.readouterr().out
    assert "--quantization fp8" in next(line for line in out.splitlines() if "vllm serve" in line)
    assert "the figures are for products in fp8" in out


def test_tensorrt_llm_gets_a_step_that_holds_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--isl", "12000", "--engines", "trtllm"]) == 0
    command = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("launch:"))
    assert "--max_num_tokens 12000" in command
    assert "chunked" not in command


def test_no_table_stands_where_no_load_keeps_the_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--slo", "tpot=1us"]) == 0
    out = capsys.readouterr().out
    assert "no layout keeps the limits" in out
    assert "Pareto" not in out


def test_training_plans_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "meta-llama/Llama-3.1-8B", "--train", "--gpus", "8xH100", "--seq", "4096", "--gbs", "64"]) == 0
    out = capsys.readouterr().out
    assert "Layouts by the time of a step" in out
    assert re.search("torchrun.* --seq-length 4096.* --global-batch-size 64|"
                     "torchrun.* --global-batch-size 64.* --seq-length 4096", out)


def test_training_needs_a_job_that_fills_its_replicas() -> None:
    with pytest.raises(InputError, match="gbs"):
        answer(named("meta-llama/Llama-3.1-8B"), Training(dp=8), Job(4096, 3), without_tables("8xH100", "torch"))
