"""Training at step level: passes, schedules, what stays exposed, FLOPs, the estimate, and the bench's rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded, shared

from sublight.errors import InputError
from sublight.models import gpt, named
from sublight.plan import Job, Training
from sublight.predict import training
from sublight.predict.machine import machine, whatif
from sublight.predict.training import SCHEDULES, StageTime, model_flops, passes, waiting
from sublight.predict.training.constants import constants, tags, years
from sublight.predict.training.kernels import filled
from sublight.predict.training.layout import stage_of
from sublight.predict.training.overlap import Group, exposed, placed
from sublight.predict.training.spent import copies, parameters_on_rank

ROOT = Path(__file__).parent.parent
LLAMA = named("meta-llama/Meta-Llama-3-8B")
DEEPSEEK = named("deepseek-ai/DeepSeek-V3")
SMALL = gpt(width=1024, depth=8, heads=16, vocabulary=51200, positions=1024)


def flops(calls: tuple[Any, ...], *kinds: str) -> int:
    return sum(call.count * n for call in calls if call.kind in kinds
               for (unit, _), n in call.op.work().flops.items() if unit == "tensor")


# ---- passes


def test_products_cost_twice_as_much_backward_and_attention_two_and_a_half_times() -> None:
    made = passes(LLAMA, Training(mbs=2), Job(4096, 8), stage=0)
    assert flops(made.backward, "gemm") == 2 * flops(made.forward, "gemm")
    assert flops(made.backward, "attention") == 2.5 * flops(made.forward, "attention")
    assert made.recomputed == ()


def test_forward_products_are_two_operations_for_each_multiplied_parameter_and_token() -> None:
    made = passes(LLAMA, Training(), Job(4096, 8), stage=0)
    assert flops(made.forward, "gemm") == 2 * 4096 * LLAMA.multiplied()


def test_every_stage_together_does_what_one_does() -> None:
    whole = flops(passes(LLAMA, Training(), Job(4096, 8), stage=0).forward, "gemm", "attention")
    parts = [passes(LLAMA, Training(pp=4, tp=2), Job(4096, 8), stage=stage).forward for stage in range(4)]
    assert 2 * sum(flops(part, "gemm", "attention") for part in parts) == whole


def test_full_recomputation_repeats_the_layers_and_selective_the_modules_that_are_named() -> None:
    made = passes(LLAMA, Training(recompute="full"), Job(4096, 8), stage=0)
    head = 2 * 4096 * LLAMA.vocabulary * LLAMA.width
    assert flops(made.recomputed, "gemm") == flops(made.forward, "gemm") - head
    some = Training(recompute="selective", extra=(("recompute_modules", "layernorm"),))
    assert {call.label for call in passes(LLAMA, some, Job(4096, 8), stage=0).recomputed} == {
        "attention.norm", "mlp.norm"}
    five = Training(recompute="full", extra=(("whole_layers", "5"),))
    counts = {call.count for call in passes(LLAMA, five, Job(4096, 8), stage=0).recomputed}
    assert counts == {5}


def test_adapters_leave_the_weights_without_gradients() -> None:
    made = passes(LLAMA, Training(extra=(("adapters", "lora"),)), Job(4096, 8), stage=0)
    assert made.weight == ()
    assert flops(made.backward, "gemm") == flops(made.forward, "gemm")


def test_context_parallel_ranks_share_queries_and_the_causal_pairs() -> None:
    alone = passes(LLAMA, Training(), Job(8192, 8), stage=0).forward
    shared_by_two = passes(LLAMA, Training(cp=2), Job(8192, 8), stage=0).forward
    assert 2 * flops(shared_by_two, "attention", "gemm") == flops(alone, "attention", "gemm")
    assert "attention.keys" in {call.label for call in shared_by_two}


def test_experts_of_a_rank_see_as_many_rows_as_it_sends() -> None:
    plan = Training(dp=64, ep=64)
    made = {call.label: call for call in passes(DEEPSEEK, plan, Job(4096, 64), stage=0).forward}
    rows = made["moe.experts.up"].op.rows    # type: ignore[attr-defined]
    assert rows == 4096 * 8
    assert made["moe.dispatch"].top_k == 8
    assert {call.kind for call in made.values()} >= {"ep", "experts", "attention", "gemm", "small"}


def test_the_last_stage_has_fewer_layers_where_further_tokens_are_predicted() -> None:
    sizes = [len(stage_of(DEEPSEEK, Training(pp=16), stage).layers(61)) for stage in range(16)]
    assert sum(sizes) == 61
    assert sizes[-1] == min(sizes) == 1
    assert [len(stage_of(LLAMA, Training(pp=4), stage).layers(32)) for stage in range(4)] == [8, 8, 8, 8]


def test_parameters_on_ranks_add_up_to_the_model() -> None:
    plan = Training(tp=2, pp=2, dp=2)
    held = [parameters_on_rank(LLAMA, plan, stage) for stage in (0, 1)]
    norms = sum(w.elements * n for w, n in LLAMA.weights() if w.shared_by == "none")
    assert 2 * sum(dense + experts for dense, experts in held) == LLAMA.parameters().total + norms


# ---- schedules


def test_a_pipeline_waits_for_the_other_stages() -> None:
    #  stage 0  f b          each of the other seven stages fills and drains once
    even = [StageTime(1.0, 2.0, 1.0)] * 8
    assert waiting("1f1b", even, 16) == 7 * 3
    assert waiting("gpipe", even, 16) == 7 * 3
    assert waiting("interleaved", even, 16, 7) == 3
    assert waiting("zero-bubble", even, 16) == 7 * (1 + 2 - 2 * 1)
    assert waiting("dualpipe", even, 16) == (8 / 2 - 1) * (3 + 2 - 3 * 1)
    assert [waiting(name, even[:1], 16) for name in SCHEDULES] == [0.0] * 5
    with pytest.raises(InputError, match="no schedule 'chimera'; known: 1f1b"):
        waiting("chimera", even, 16)


def test_the_slowest_stage_does_not_wait_for_itself() -> None:
    uneven = [StageTime(1.0, 2.0), StageTime(2.0, 4.0), StageTime(1.0, 2.0)]
    assert waiting("1f1b", uneven, 8) == 6.0


# ---- what stays exposed


def test_compute_hides_a_collective_as_long_as_itself() -> None:
    assert exposed(1.0, 5.0, 0.25) == 0.25
    assert exposed(5.0, 1.0, 0.25) == 4.25
    assert exposed(5.0, 0.0, 0.25) == 5.0


def test_groups_lie_as_their_stride_says() -> None:
    def shape(on: str, group: Group) -> tuple[int, int]:
        cluster = placed(group, machine(on).cluster)
        return cluster.nodes, cluster.gpus_per_node

    assert shape("64xH100", Group(8)) == (1, 8)
    assert shape("64xH100", Group(8, 8)) == (8, 1)
    assert shape("64xH100", Group(16, 2)) == (4, 4)
    assert shape("64xGB200", Group(64)) == (1, 64)
    assert shape("256xGB200", Group(4, 64)) == (4, 1)


def test_a_dispatcher_that_sends_once_a_domain_sends_less() -> None:
    assert copies(8, 1) == 1.0
    assert copies(1, 8) == 1.0
    assert 0.3 < copies(22, 8) < copies(8, 8) < 1.0


# ---- FLOPs


def test_model_flops_of_a_token_are_those_that_the_sources_print() -> None:
    """Tokens/s and TFLOP/s of one row tell how much a source counts: Megatron-Bridge 449 for Llama 3 70B at 8,192
    tokens and 260 for DeepSeek-V3 with MTP, Megatron-LM's example 481, llm-foundry 43.17 for MPT-7B at 2,048."""
    llama = named("meta-llama/Meta-Llama-3-70B")
    assert model_flops(llama, 8192) / 1e9 == pytest.approx(449, rel=0.002)
    assert model_flops(llama, 8192, "megatron-full") / 1e9 == pytest.approx(481, rel=0.002)
    assert model_flops(DEEPSEEK, 4096) / 1e9 == pytest.approx(260, rel=0.01)
    mpt = gpt(width=4096, depth=32, heads=32, vocabulary=50368, positions=2048, bias=False)
    assert model_flops(mpt, 2048, "palm") / 1e9 == pytest.approx(43.17, rel=0.001)
    with pytest.raises(InputError, match="no definition of model FLOPs 'hfu'; known: megatron"):
        model_flops(llama, 8192, "hfu")


def test_waves_of_tiles_leave_part_of_the_device_idle() -> None:
    from sublight.ops import Gemm

    assert filled(Gemm(8192, 8192, 8192), 132) > 0.9
    assert filled(Gemm(256, 128, 8192), 132) == pytest.approx(4 * 0.75 / 132)      # four tiles of 128 x 64


# ---- constants


def test_a_family_that_was_left_out_has_values_of_its_own() -> None:
    everything, without = constants("megatron"), constants("megatron", "DeepSeek V3")
    assert everything.values != without.values
    assert constants("megatron", "no such family").values == everything.values
    assert constants("no such framework").spread == 2 * everything.spread


def test_constants_are_narrowed_by_what_a_plan_is() -> None:
    plan = Training(version="26.06", precision="mxfp8", cuda_graphs=True, extra=(("graphs", "full"),))
    met = tags(plan, machine("8xGB200").device)
    assert {"blackwell", "mxfp8", "full-graphs", "recipe"} <= set(met)
    known = constants("megatron")
    assert known.value("sync", met) < known.value("sync", ("blackwell",))
    assert years(plan) == pytest.approx(2 / 12)


# ---- the estimate

PLANS = [
    (LLAMA, Training(dp=8), Job(8192, 64), "8xH100"),
    (LLAMA, Training(tp=2, pp=2, dp=2, vpp=2, schedule="interleaved"), Job(4096, 64), "8xB200"),
    (LLAMA, Training(dp=16, zero=3, recompute="full", framework="llm-foundry"), Job(4096, 64), "2x8xA100"),
    (DEEPSEEK, Training(tp=1, pp=8, dp=32, ep=32, precision="mxfp8", schedule="dualpipe"), Job(4096, 2048),
     "256xGB200"),
    (SMALL, Training(tp=2, dp=2, framework="megatron-deepspeed", extra=(("attention", "unfused"),)), Job(1024, 16),
     "4xA100"),
]


@pytest.mark.parametrize(("model", "plan", "job", "on"), PLANS)
def test_all_rates_twice_as_fast_halve_the_step(model: Any, plan: Training, job: Job, on: str) -> None:
    where = machine(on, "torch")
    once = training.estimate(model, plan, job, where)
    rates = ("memory", "tensor", "vector", "nvlink", "nic", "fixed")
    twice = training.estimate(model, plan, job, whatif(where, dict.fromkeys(rates, 2.0)))
    assert sum(once.shares.values()) == pytest.approx(1.0)
    assert twice.value("step time") == pytest.approx(once.value("step time") / 2)
    for rate in rates:
        faster = training.estimate(model, plan, job, whatif(where, {rate: 1.1}))
        assert faster.value("step time") <= once.value("step time") * (1 + 1e-9), rate


@pytest.mark.parametrize(("model", "plan", "job", "on"), PLANS)
def test_the_rates_of_an_estimate_are_those_of_its_step(model: Any, plan: Training, job: Job, on: str) -> None:
    made = training.estimate(model, plan, job, machine(on, "torch"))
    tokens = job.gbs * job.seq / plan.gpus / made.value("step time")
    assert made.value("tokens/s/GPU") == pytest.approx(tokens)
    assert made.value("model FLOP/s/GPU") == pytest.approx(tokens * model_flops(model, job.seq))
    assert 0 < made.value("MFU") < 0.8
    result = made.results["step time"]
    assert result.low is not None
    assert result.high is not None
    assert result.low < made.value("step time") < result.high
    assert any("definition megatron" in note for note in made.notes)


def test_more_of_a_pipeline_waits_with_fewer_micro_batches() -> None:
    where = machine("8xH100", "torch")
    few = training.estimate(LLAMA, Training(pp=8), Job(4096, 4), where).value("tokens/s/GPU")
    many = training.estimate(LLAMA, Training(pp=8), Job(4096, 64), where).value("tokens/s/GPU")
    assert few < 0.6 * many


def test_a_batch_that_replicas_do_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="gbs = 12 is not a multiple of mbs x dp = 2 x 4"):
        training.estimate(LLAMA, Training(dp=4, mbs=2), Job(4096, 12), machine("4xH100", "torch"))
    with pytest.raises(InputError, match="tp = 3 does not divide 32 query heads"):
        training.estimate(LLAMA, Training(tp=3), Job(4096, 12), machine("3xH100", "torch"))


def test_a_precision_that_the_gpu_does_not_multiply_is_refused() -> None:
    with pytest.raises(InputError, match=r"H100.* has no stated rate for fp4"):
        training.estimate(LLAMA, Training(precision="nvfp4"), Job(4096, 8), machine("1xH100", "torch"))


@pytest.mark.parametrize(("model", "plan", "job", "on"), PLANS[:2])
def test_a_typical_step_is_a_micro_batch_of_the_estimate(model: Any, plan: Training, job: Job, on: str) -> None:
    where = machine(on, "torch")
    step = training.typical_step(model, plan, job, where)
    labels = {row.label for row in step.rows}
    assert {"forward.mlp.up", "backward.mlp.up.weight_grad", "backward.mlp.norm.grad"} <= labels
    whole = training.estimate(model, plan, job, where).value("step time")
    assert step.seconds * job.gbs / (plan.mbs * plan.dp) < whole
    assert sum(step.shares.values()) == pytest.approx(1.0)


# ---- rows of measured results

COLUMNS = ["id", "source", "model", "params", "gpu", "num_gpus", "precision", "seq", "mbs", "gbs", "tp", "pp", "cp",
           "ep", "vp", "dp", "recompute", "metric", "value", "notes"]
BRIDGE = {"source": "github:NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md",
          "notes": "NeMo container 26.04; Pre-Training Performance; FSDP=0", "metric": "tokens/s/gpu"}


def row(**given: str) -> dict[str, str]:
    usual = {"gpu": "H100", "num_gpus": "64", "precision": "FP8", "seq": "8192", "mbs": "1", "gbs": "256", "tp": "4",
             "pp": "8", "cp": "1", "vp": "5", "model": "LLAMA3_70B", "value": "1600"}
    return {**dict.fromkeys(COLUMNS, ""), **usual, **BRIDGE, **given}


def test_a_row_becomes_a_plan_with_its_recipe() -> None:
    rows = loaded(ROOT / "bench" / "training_rows.py")
    made = rows.case(row())
    assert (made.plan.tp, made.plan.pp, made.plan.vpp, made.plan.dp) == (4, 8, 5, 2)
    assert made.plan.overlap_tp
    assert made.family == "Llama 3 70B"
    moe = rows.case(row(model="Qwen3_30B_a3B", gpu="GB200", num_gpus="8", precision="MXFP8", tp="1", pp="1", ep="8",
                        vp="", notes="NeMo container 26.06; Pre-Training Performance"))
    assert moe.plan.cuda_graphs
    assert moe.plan.overlap_ep
    assert dict(moe.plan.extra)["graphs"] == "full"


@pytest.mark.parametrize(("given", "reason"), [
    ({"tp": ""}, "tp is not stated"),
    ({"model": "Nemotron_3_5_Lightning"}, "no public description of the model 'Nemotron_3_5_Lightning'"),
    ({"gpu": "TPU v5p"}, "no node for the GPU 'TPU v5p'"),
    ({"num_gpus": "60"}, "does not divide 60 GPUs"),
])
def test_a_row_that_does_not_say_what_ran_is_left_out_with_the_reason(given: dict[str, str], reason: str) -> None:
    rows = loaded(ROOT / "bench" / "training_rows.py")
    with pytest.raises(InputError, match=reason):
        rows.case(row(**given))


def test_the_bench_writes_what_it_can_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "training").mkdir()
    with (tmp_path / "training" / "measured.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(row(id="a"))
        writer.writerow(row(id="b", metric="model_tflops/gpu"))
        writer.writerow(row(id="c", tp=""))
    bench = loaded(ROOT / "bench" / "training_accuracy.py")
    out = tmp_path / "out.csv"
    monkeypatch.setattr("sys.argv", ["x", "--data", str(tmp_path), "--out", str(out)])
    bench.main()
    with out.open() as written:
        found = {line["id"]: float(line["value"]) for line in csv.DictReader(written)}
    assert found.keys() == {"a", "b"}
    assert found["b"] * 1e12 / found["a"] == pytest.approx(449e9, rel=0.003)
    said = capsys.readouterr().err
    assert "2 of 3 rows predicted" in said
    assert "tp is not stated" in said


@pytest.mark.heavy
def test_measured_rows_are_met_with_their_family_left_out() -> None:
    """Median errors by source; the bars are those of docs/training-accuracy.md, a tenth of the rows of vTrain."""
    rows = loaded(ROOT / "bench" / "training_rows.py")
    bench = loaded(ROOT / "bench" / "training_accuracy.py")
    bars = {"SimuMax": 0.10, "vTrain": 0.10, "llm-foundry": 0.06, "Megatron-Bridge": 0.18}
    errors: dict[str, list[float]] = {name: [] for name in bars}
    for index, one in enumerate(rows.read(shared("training/measured.csv"))):
        name = next((name for name in bars if name in one["source"]), None)
        if name is None or one["metric"].endswith("gib") or (name == "vTrain" and index % 10):
            continue
        try:
            errors[name].append(abs(bench.predicted(one, rows.case(one)) / float(one["value"]) - 1))
        except InputError:
            continue
    for name, bar in bars.items():
        assert sorted(errors[name])[len(errors[name]) // 2] <= bar, name
