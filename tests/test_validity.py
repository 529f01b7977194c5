"""Plans that cannot run are refused, each for its reason; plans that run are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sublight.models import Model, named, recast
from sublight.plan import Disaggregated, Job, Serving, Traffic, Training
from sublight.predict.machine import machine
from sublight.predict.validity import problems, warnings

CHAT, JOB = Traffic(4096, 1024, concurrency=64), Job(4096, 1024)
V3, LLAMA, QWEN = "deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-235B-A22B-FP8"


def found(model: str | Model, plan: Any, gpus: str, workload: Any = CHAT) -> tuple[str, ...]:
    library = plan.engine if isinstance(plan, Serving) else "torch"
    return problems(named(model) if isinstance(model, str) else model, plan, machine(gpus, library), workload)


@pytest.mark.parametrize(("model", "plan", "gpus"), [
    (V3, Serving(tp=8, ep=8), "8xH200"), (V3, Serving("sglang", tp=1, dp=8, ep=8, drafts=1), "8xB200"),
    (V3, Serving("trtllm", dp=8, ep=8), "8xB200"), (LLAMA, Serving(replicas=8), "8xH100"),
    (QWEN, Serving(tp=4, replicas=2), "8xH100"), (QWEN, Serving(tp=8), "8xA100"),
    ("openai/gpt-oss-120b", Serving(tp=2), "2xH100"),
])
def test_plans_that_people_run_have_no_problems(model: str, plan: Serving, gpus: str) -> None:
    assert found(model, plan, gpus) == ()


@pytest.mark.parametrize(("model", "plan", "gpus", "reason"), [
    (LLAMA, Serving(tp=3), "8xH100", "tp = 3 does not divide 32 query heads"),
    (V3, Serving(tp=8, ep=3), "8xH200", "ep = 3 does not divide the 8 ranks"),
    (V3, Serving(tp=16, ep=16), "8xH200", "the plan needs 16 GPUs, the cluster has 8"),
    (V3, Serving(tp=8, ep=8), "8xH100", "memory: 13.7 GiB too much for a GPU (weights 79.5"),
    ("meta-llama/Llama-3.1-70B", Serving(), "1xH100", "too much for a GPU (weights"),
    (LLAMA, Serving(ep=8, dp=8), "8xH100", "ep = 8, but meta-llama/Llama-3.1-8B has no experts"),
    (LLAMA, Serving(drafts=3), "1xH100", "has no layers that predict further tokens (MTP)"),
    (LLAMA, Serving("lmdeploy"), "1xH100", "engine 'lmdeploy' is not known; expected one of vllm, sglang, trtllm"),
    (QWEN, Serving(tp=4, dp=2, ep=4), "8xH200", "ep = 4 is neither 1 nor 8"),
    (V3, Serving("trtllm", tp=2, dp=4, ep=8), "8xH200", "on every rank (enable_attention_dp) or on none"),
    (V3, Serving("sglang", tp=8, ep=4, moe_kind="deepep-ll"), "8xH200", "ep = 4 leaves some out"),
    (QWEN, Serving("trtllm", tp=8), "8xA100", "does not multiply fp8, and trtllm has no other way"),
    ("nvidia/Qwen3-235B-A22B-NVFP4", Serving("sglang", tp=8), "8xH100", "does not multiply fp4"),
    (LLAMA, Serving(memory_fraction=1.5), "1xH100", "memory fraction 1.5"),
    (LLAMA, Serving(acceptance=2.0), "1xH100", "acceptance = 2.0"),
    (LLAMA, Serving(max_length=4096), "1xH100", "are more than the plan's longest context, 4,096"),
    (LLAMA, Serving(max_length=200_000), "1xH100", "200,000 tokens are more than the model's context, 131,072"),
])
def test_serving_plans_that_cannot_run(model: str, plan: Serving, gpus: str, reason: str) -> None:
    said = found(model, plan, gpus)
    assert any(reason in text for text in said), said


def test_a_cache_smaller_than_one_request() -> None:
    long = Traffic(100_000, 4_000, concurrency=1)
    said = found("Qwen/Qwen3-32B", Serving(), "1xH100", CHAT)
    assert said == ()
    said = found("meta-llama/Llama-3.1-70B", Serving(tp=2), "2xH100", long)
    assert len(said) == 1
    assert "one request has isl + osl = 104,000" in said[0]


def test_how_much_too_much_is_said_to_the_tenth() -> None:
    """What is missing shrinks by what the smaller share of a sharing plan frees."""
    low, high = (found(V3, Serving(tp=8, ep=8, memory_fraction=share), "8xH100")[0] for share in (0.8, 0.9))
    missing = [float(text.split()[1]) for text in (low, high)]
    assert missing[0] - missing[1] == pytest.approx(0.1 * 79.19, abs=0.1)


def test_disaggregated_roles_are_named() -> None:
    good = Serving("sglang", tp=8, ep=8)
    assert found(V3, Disaggregated(good, good), "2x8xH200") == ()
    bad = Disaggregated(good, replace(good, tp=3, ep=1, kv="fp8"))
    said = found(V3, bad, "2x8xH200")
    assert any(text.startswith("decode: tp = 3") for text in said)
    assert any("cannot be handed over" in text for text in said)
    assert any("needs 16 GPUs" in text for text in found(V3, Disaggregated(good, good), "8xH200"))


@pytest.mark.parametrize(("model", "plan", "gpus"), [
    (LLAMA, Training(tp=2, pp=2, dp=2), "8xH100"),
    (V3, Training(tp=2, pp=8, dp=16, ep=32, recompute="full"), "32x8xH100"),
    ("meta-llama/Llama-3.1-70B", Training(tp=4, pp=4, vpp=5, dp=4, schedule="interleaved"), "8x8xH100"),
])
def test_training_layouts_that_people_run(model: str, plan: Training, gpus: str) -> None:
    assert found(model, plan, gpus, JOB) == ()


@pytest.mark.parametrize(("model", "plan", "job", "reason"), [
    (LLAMA, Training(tp=2, pp=2, dp=64), JOB, "the plan needs 256 GPUs, the cluster has 64"),
    (LLAMA, Training(tp=3, dp=2), JOB, "tp = 3 does not divide 32 query heads"),
    (LLAMA, Training(ep=2, dp=8), JOB, "has no experts"),
    (V3, Training(tp=2, pp=4, dp=8, ep=64), JOB, "ep x etp = 64 x 1 does not divide the dp x cp x tp = 16 ranks"),
    ("Qwen/Qwen3-30B-A3B", Training(dp=12, ep=12), Job(4096, 24), "ep = 12 does not divide 128 experts"),
    (LLAMA, Training(dp=8, mbs=3), JOB, "gbs = 1024 is not a multiple of dp x mbs = 8 x 3"),
    (LLAMA, Training(cp=4), Job(4100, 8), "is not a multiple of 2 x cp = 8"),
    (LLAMA, Training(tp=8, cp=2), Job(4100, 8), "which share it (sequence parallelism)"),
    (LLAMA, Training(pp=16, vpp=4), JOB, "16 x 4 chunks are more than the 32 layers"),
    (LLAMA, Training(vpp=2), JOB, "interleaves stages, and there is one"),
    (LLAMA, Training(pp=4, schedule="interleaved"), JOB, "needs vpp of 2 or more"),
    (LLAMA, Training(pp=4, vpp=2), Job(4096, 6), "6 micro-batches are not a multiple of pp = 4"),
    (LLAMA, Training(pp=4, schedule="dualpipe"), Job(4096, 4), "2 x pp micro-batches at least"),
    (LLAMA, Training(schedule="hanayo"), JOB, "schedule 'hanayo' is not known"),
    (LLAMA, Training(precision="mxfp8"), JOB, "does not train in mxfp8: that needs compute capability 10.0"),
    (V3, Training(tp=8, pp=8), JOB, "stage 0: memory:"),
])
def test_training_layouts_that_cannot_run(model: str, plan: Training, job: Job, reason: str) -> None:
    said = found(model, plan, "8x8xH100", job)
    assert any(reason in text for text in said), said


def test_uneven_stages_take_a_layout() -> None:
    plan, where = Training(pp=4, vpp=3, dp=2), machine("8xH100", "torch")
    assert "32 layers are not alike on pp x vpp = 4 x 3 chunks" in warnings(named(LLAMA), plan, where, JOB)[0]
    assert warnings(named(LLAMA), replace(plan, extra=(("layout", "Et*3|…"),)), where, JOB) == ()


def test_workloads_of_the_other_kind() -> None:
    assert found(LLAMA, Serving(), "1xH100", JOB) == ("a serving plan needs traffic (isl, osl), not a training job",)
    assert found(LLAMA, Training(), "1xH100", CHAT) == ("a training plan needs a job (seq, gbs), not traffic",)


@pytest.mark.parametrize(("model", "plan", "gpus", "words"), [
    (V3, Serving(tp=16, ep=16), "2x8xH100", ["tp = 16 reaches beyond NVLink (8 GPUs)", "ep = 16 reaches beyond"]),
    (V3, Serving(tp=16, ep=16), "72xGB200", ["56 of 72 GPUs are not used"]),
    (QWEN, Serving(tp=8), "8xA100", ["weights are unpacked to 16 bits"]),
    (LLAMA, Serving(drafts=3, extra=(("speculative-config", "{}"),)), "1xH100", ["the draft model's own memory"]),
    (LLAMA, Serving(), "1xH100", []),
])
def test_what_speaks_against_a_plan(model: str, plan: Serving, gpus: str, words: list[str]) -> None:
    said = warnings(named(model), plan, machine(gpus, plan.engine), CHAT)
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))


def test_a_smaller_format_makes_it_fit() -> None:
    model = named("meta-llama/Llama-3.1-70B")
    assert "too much for a GPU (weights 131.4" in found(model, Serving(), "1xH200")[0]
    assert found(recast(model, attention="fp8", mlp="fp8"), Serving(), "1xH200") == ()
    int4 = recast(model, attention="w4a16_int4_g128", mlp="w4a16_int4_g128")
    assert found(int4, Serving(), "1xH100") == ()


def test_tensorrt_llm_refuses_prompts_above_its_budget_without_chunked_prefill() -> None:
    long = Traffic(16_384, 256, concurrency=4)
    whole = Serving("trtllm", chunked_prefill=False)
    said = found(LLAMA, whole, "1xH200", long)
    assert any("more than a step takes, 8,192" in text for text in said), said
    assert found(LLAMA, replace(whole, token_budget=16_384), "1xH200", long) == ()
    apart = Disaggregated(Serving("trtllm"), whole)
    assert not any("more than a step takes" in text for text in found(LLAMA, apart, "2xH200", long))


def test_versions_without_numbers_are_the_newest() -> None:
    for engine in ("vllm", "sglang", "trtllm"):
        assert found(LLAMA, Serving(engine, version="nightly-2026"), "1xH200") == ()
