"""A window against the model that it runs: the figures of the public H800 trace, what is inferred and marked, what is
refused, and that the model's operators are those that another trace recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, shared
from kineto import Kineto
from test_schema import checker

from sublight.errors import InputError
from sublight.explain import Asked, Explanation, explain
from sublight.explain.model_match import match
from sublight.explain.model_ops import items
from sublight.explain.model_setting import ASSUMED, GIVEN, INFERRED, setting
from sublight.explain.model_terms import AgainstModel
from sublight.models import Batch, Split, layer_ops, named
from sublight.models.backward import backward_ops, training_ops
from sublight.observe.read import read_all
from sublight.ops import Attention, Communication, Experts, Gemm, GroupedGemm, Recurrence, ScaledGemm
from sublight.show.html import html
from sublight.show.json import document
from sublight.show.markdown import markdown

DEEPSEEK, LLAMA, OSS = "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-8B", "openai/gpt-oss-120b"
SHEET = {"fp8": 1979e12, "bf16": 989.5e12}           # H800's dense peaks


@cache
def real(name: str) -> Any:
    return tuple(read_all([str(shared(KINETO[name]))]))


@cache
def held_of(trace: str, model: str, **said: Any) -> Explanation:
    return explain(real(trace), what_ifs=[], model=Asked(named(model), **said))


def against(trace: str, model: str, **said: Any) -> AgainstModel:
    (one,) = held_of(trace, model, **said).devices
    assert one.view.model is not None
    return one.view.model


# ---- the H800 trace -----------------------------------------------------------------------------------------------


def counted_by_hand() -> tuple[float, float]:
    """Seconds of matrix products and of causal attention for 4 layers of experts, forward and backward, on 4,096
    tokens, from sizes in DeepSeek-V3's config: hidden 7168, 128 heads of 128 + 64 and 128, ranks 1536 and 512, experts
    of 2048, 8 of 256 and one shared."""
    h, heads, t = 7168, 128, 4096
    attention = h * 1536 + 1536 * heads * 192 + h * 576 + 512 * heads * 256 + heads * 128 * h
    experts = 9 * 3 * h * 2048
    linear = 2 * t * (attention + experts) * 3 * 4 / SHEET["fp8"] + 2 * t * h * 256 * 3 * 4 / SHEET["bf16"]
    pairs = t * (t + 1) // 2
    scores = 2 * heads * pairs * (192 + 128) * 3.5 * 4 / SHEET["bf16"]
    return linear, scores


def test_products_and_attention_of_the_h800_trace() -> None:
    found = against("h800", DEEPSEEK, tokens=4096, layers=4)
    linear, scores = counted_by_hand()

    assert found.products_ns == pytest.approx(38.8e6, rel=0.05)
    assert found.products_ns == pytest.approx((linear + scores) * 1e9, rel=1e-6)
    assert found.families[0].compute_ns == pytest.approx(linear * 1e9, rel=1e-6)
    assert found.families[1].compute_ns == pytest.approx(scores * 1e9, rel=1e-6)
    assert found.products_least_ns == pytest.approx(found.products_ns * 1830 / 1980, rel=1e-3)    # the maximum clock
    assert found.formats == ("bf16, fp8", "bf16")
    assert found.peaks == ("bf16 990 TFLOP/s", "fp8 1,979 TFLOP/s")


def test_memory_and_network_stand_beside_it_and_the_verdict_is_the_largest() -> None:
    found = against("h800", DEEPSEEK, tokens=4096, layers=4)
    terms, families = found.terms_ns, {f.name: f for f in found.families}
    view = held_of("h800", DEEPSEEK, tokens=4096, layers=4).devices[0].view
    assert view.fabric is not None

    assert terms["network"] == view.fabric.total_ns()[2]           # as many exchanges as the trace has
    assert found.limiter == max(terms, key=lambda name: terms[name]) == "network"
    assert found.verdict.startswith(f"Against {DEEPSEEK}: network 50.7")
    assert 0 < families["memory-bound work"].memory_ns < terms["memory"] < terms["compute"] < terms["network"]
    assert families["memory-bound work"].measured_ns + families["matrix products"].measured_ns + families[
        "attention"].measured_ns == view.budget.group_ns("compute")
    assert terms["compute"] == sum(f.compute_ns for f in found.families)
    kinds = {row.category for row in found.rows}
    assert {"normalisation", "activation", "routing", "position", "communication"} <= kinds
    (low, high) = found.network_interval_ns
    assert low < terms["network"] < high


def test_attention_of_overlapped_passes_is_told_apart_by_direction() -> None:
    """Four forward kernels, and four each of preparation, backward, and what converts its result."""
    found = against("h800", DEEPSEEK, tokens=4096, layers=4)
    part = next(p for p in found.parts if p.name == "attention")
    rows = {row.label: row for row in found.rows if row.category == "attention"}
    assert (part.matched, part.kernels, part.operators) == (True, 16, 8)
    assert {label: row.measured_ns for label, row in rows.items()} == {
        "attention.prefill": 4_948_000, "attention.prefill.grad": 15_115_000 + 1_025_000 + 877_000}
    assert part.above_ns == part.measured_ns - (part.least_ns or 0) > 0


def test_what_the_h800_trace_tells_may_be_left_out() -> None:
    said, told = against("h800", DEEPSEEK, tokens=4096, layers=4), against("h800", DEEPSEEK)
    assert told.terms_ns == said.terms_ns
    assert told.products_ns == said.products_ns
    how = {fact.name: (fact.value, fact.how) for fact in told.facts}
    assert how["tokens"] == ("4,096", INFERRED)
    assert how["layers"] == ("4 of 61", INFERRED)
    assert how["phase"] == ("train", INFERRED)
    assert how["tp"] == ("1", INFERRED)
    assert how["ep"] == ("64", INFERRED)
    assert how["sequences"] == ("1", INFERRED)
    assert {fact.how for fact in said.facts if fact.name in ("tokens", "layers")} == {GIVEN}
    assert all(fact.why for fact in told.facts if fact.how != GIVEN)


def test_every_view_shows_the_three_terms_and_what_they_rest_on() -> None:
    made = held_of("h800", DEEPSEEK, tokens=4096, layers=4)
    found = against("h800", DEEPSEEK, tokens=4096, layers=4)
    data = json.loads(json.dumps(document(made), allow_nan=False))
    checker().validate(data)
    model = data["devices"][0]["model"]
    assert model["terms_ns"] == dict(found.terms_ns)
    assert model["products_and_attention_ns"] == found.products_ns
    assert {fact["how"] for fact in model["facts"]} == {GIVEN, INFERRED}
    for text in (markdown(made), html(made)):
        for words in ("38.890 ms", "50.713 ms", "19.905 ms", "Given", "Inferred", "network", "memory-bound work"):
            assert words in text


def test_the_command_line() -> None:
    path = str(shared(KINETO["h800"]))
    run = subprocess.run([sys.executable, "-m", "sublight", "explain", path, "--model", DEEPSEEK, "--tokens", "4096",
                          "--layers", "4"], capture_output=True, text=True, check=True)
    assert "38.890 ms at the sheet's dense peaks" in " ".join(run.stdout.split())
    assert "is the largest term" in " ".join(run.stdout.split())


def test_without_a_model_nothing_is_held_against_one() -> None:
    (one,) = explain(real("h800"), what_ifs=[]).devices
    assert one.view.model is None
    assert "Against" not in markdown(explain(real("h800"), what_ifs=[]))


# ---- a trace that recorded its operators --------------------------------------------------------------------------


def test_the_models_operators_are_those_that_a_trace_recorded() -> None:
    """gpt-oss-120b on 8 ranks, a prefill of 888 tokens in vLLM: each kernel that was matched by category and order
    belongs to a recorded call with the same number of operations."""
    asked = Asked(named(OSS))
    view = explain(real("b200"), what_ifs=[], model=asked).devices[0].view
    assert view.bounds is not None
    joined, compared = view.bounds.joined, dict[str, int]()
    for found in match(view, items(setting(asked, view)), {}):
        if found.category in ("gemm", "communication", "position", "kv cache"):
            assert found.matched
            for item, (row,) in zip(found.items, found.of_item, strict=True):
                work = joined.calls[int(joined.of_activity[row])].work
                assert work is not None
                assert item.op.work().flops_total == work.flops_total
                compared[found.category] = compared.get(found.category, 0) + 1
    assert compared == {"gemm": 109, "communication": 74, "position": 36, "kv cache": 36}


def test_marks_of_an_engines_steps_tell_phase_and_tokens() -> None:
    found = against("b200", OSS)
    how = {fact.name: (fact.value, fact.how) for fact in found.facts}
    assert how["phase"] == ("prefill", INFERRED)
    assert how["tokens"] == ("888 in 1 request", INFERRED)
    assert how["layers"] == ("all 36", INFERRED)
    assert how["tp"] == ("8", ASSUMED)
    assert {p.name for p in found.parts if p.matched} >= {"gemm", "grouped gemm", "attention", "communication"}


# ---- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "said", "words"), [
    (LLAMA, {}, "32"),                                           # heads, or rows: another model
    (OSS, {}, "another model"),
    (DEEPSEEK, {"tp": 2}, "so tp 1"),
    (DEEPSEEK, {"ep": 32}, "64 ranks"),
    (DEEPSEEK, {"phase": "decode", "tokens": 4}, "--context"),
    (DEEPSEEK, {"phase": "decode"}, "--tokens"),
    (DEEPSEEK, {"tokens": 4096, "sequences": 3}, "does not divide"),
])
def test_what_the_trace_contradicts_is_refused(model: str, said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        explain(real("h800"), what_ifs=[], model=Asked(named(model), **said))


@pytest.mark.parametrize(("said", "words"), [
    ({"layers": 62}, "61"), ({"layers": 0}, "1 or more"), ({"tokens": -1}, "--tokens"), ({"phase": "both"}, "--phase"),
])
def test_what_cannot_be_is_refused_at_once(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Asked(named(DEEPSEEK), **said)


def small(*, device: str | None = "NVIDIA H100 80GB HBM3") -> Kineto:
    #  stream 7    ├ gemm ┤
    k = Kineto(device_name=device)
    if device:
        k.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", 1_000, 51_000, launch=(0, 100))
    k.op("aten::mm", 0, 500)
    return k


@pytest.mark.parametrize(("device", "said", "words"), [
    (None, {"tokens": 8, "phase": "prefill"}, "CPU-only"),
    ("a device", {"tokens": 8, "phase": "prefill"}, "not in the catalog"),
    ("NVIDIA H100 80GB HBM3", {"tokens": 8}, "--phase"),
    ("NVIDIA H100 80GB HBM3", {"phase": "prefill"}, "--tokens"),
    ("NVIDIA H100 80GB HBM3", {"phase": "prefill", "tokens": 8, "tp": 7}, "tp 7"),
])
def test_what_nothing_tells_is_refused_by_name(
    tmp_path: Any, device: str | None, said: dict[str, Any], words: str,
) -> None:
    traces = read_all([str(small(device=device).write(tmp_path / "small.json"))])
    with pytest.raises(InputError, match=words):
        explain(traces, what_ifs=[], model=Asked(named(LLAMA), **said))


def test_a_format_that_the_device_lacks_is_said(tmp_path: Any) -> None:
    traces = read_all([str(small(device="NVIDIA H100 80GB HBM3").write(tmp_path / "small.json"))])
    fp4 = next(name for name in ("nvidia/Qwen3-235B-A22B-NVFP4",))
    (one,) = explain(traces, what_ifs=[], model=Asked(named(fp4), phase="prefill", tokens=128)).devices
    assert one.view.model is not None
    assert any("fp4" in why for why in one.view.model.refused)


def test_a_run_that_would_be_faster_than_light_has_no_verdict(tmp_path: Any) -> None:
    traces = read_all([str(small().write(tmp_path / "small.json"))])       # 50 µs of products
    (one,) = explain(traces, what_ifs=[], model=Asked(named(LLAMA), phase="prefill", tokens=4096)).devices
    assert one.view.model is not None
    assert one.view.model.contradiction is not None
    assert one.view.model.verdict.startswith(f"No verdict against {LLAMA}: its matrix products")
    (one,) = explain(traces, what_ifs=[], model=Asked(named(LLAMA), phase="prefill", tokens=1, layers=1)).devices
    assert one.view.model is not None
    assert one.view.model.contradiction is None


def test_an_option_of_a_run_needs_a_model() -> None:
    run = subprocess.run([sys.executable, "-m", "sublight", "explain", "x.json", "--tokens", "8"], capture_output=True,
                         text=True, check=False)
    assert run.returncode == 2
    assert "--model" in run.stderr


# ---- the backward pass --------------------------------------------------------------------------------------------


def flops(labelled: Any, kinds: tuple[type, ...]) -> int:
    chosen: list[Any] = [op for _, op in labelled if isinstance(op, kinds)]
    return sum(n for op in chosen for (unit, _), n in op.work().flops.items()
               if unit == "tensor")


@pytest.mark.parametrize("name", [DEEPSEEK, LLAMA, OSS, "mistralai/Mixtral-8x7B-v0.1"])
def test_a_backward_pass_is_twice_the_products_and_two_and_a_half_times_attention(name: str) -> None:
    model = named(name)
    forward = list(layer_ops(model.layers[-1], model.width, (Batch(2, 4096),), Split()))
    backward = list(backward_ops(forward))
    products = (Gemm, ScaledGemm, GroupedGemm, Experts)
    assert flops(backward, products) == 2 * flops(forward, products) > 0
    assert flops(backward, (Attention,)) == pytest.approx(2.5 * flops(forward, (Attention,)), rel=1e-9)


def test_what_is_sent_forward_comes_back() -> None:
    model = named(DEEPSEEK)
    ranks = Split(dp=8, ep=8)
    forward = list(layer_ops(model.layers[-1], model.width, (Batch(1, 512),), ranks))
    sent = [(label, op) for label, op in forward if isinstance(op, Communication)]
    back = [(label, op) for label, op in backward_ops(forward) if isinstance(op, Communication)]
    assert [label for label, _ in back] == [f"{label}.grad" for label, _ in reversed(sent)]
    assert [op.elements for _, op in back] == [op.elements for _, op in reversed(sent)]


def test_a_training_pass_ends_in_the_gradient_of_the_embedding() -> None:
    model, ranks = named(LLAMA), Split(tp=2)
    labels = [label for label, _ in training_ops(model, (Batch(1, 256),), ranks)]
    assert labels[0] == "embedding"
    assert labels[-1] == "embedding.grad"
    assert "loss" in labels
    assert not any("cache" in label for label in labels)
    head = next(op for label, op in training_ops(model, (Batch(1, 256),), ranks) if label == "head")
    assert isinstance(head, Gemm)
    assert head.m == 256                                          # every token has a logit


def test_what_has_no_backward_rule_is_named() -> None:
    op = Recurrence(8, 1, 2, 2, 16, 16, 4)
    with pytest.raises(InputError, match=r"Recurrence \(a\.scan\)"):
        list(backward_ops([("a.scan", op)]))


# ---- the page -----------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_command_prints() -> None:
    page = (Path(__file__).parent.parent / "docs/explain-model.md").read_text("utf-8")
    shown = page.split("<!-- h800 -->", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    run = subprocess.run([sys.executable, "-m", "sublight", "explain", str(shared(KINETO["h800"])), "--model", DEEPSEEK,
                          "--tokens", "4096", "--layers", "4"], capture_output=True, text=True, check=True)
    printed = {line.rstrip() for line in run.stdout.splitlines()}
    assert [line for line in shown.splitlines() if line.rstrip() not in printed] == []
