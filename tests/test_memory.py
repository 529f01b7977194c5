"""Ledgers of memory: serving against lines of start-up logs, training against measured peaks and Korthikanti et al."""

from __future__ import annotations

import csv
import doctest
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import shared

from sublight.errors import InputError
from sublight.models import Model, Split, gpt, named
from sublight.plan import Job, Serving, Training
from sublight.predict.machine import machine
from sublight.predict.memory import GIB, kv_tokens, numbers, sequence_bytes, serving_memory, sglang_fraction, usable
from sublight.predict.training import recipes
from sublight.predict.training.memory import allocated, in_flight, peak, training_memory

PRINTED = tomllib.loads((Path(__file__).parent / "data/memory/capacities.toml").read_text("utf-8"))["capacity"]
LLAMA, V3 = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"


# ---- serving


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row['engine']}: {row['name']}")
def test_an_engine_printed_this_capacity(row: dict[str, Any]) -> None:
    plan = Serving(row["engine"], version=row.get("version"), **row["plan"])
    model, where = named(row["model"]), machine(row["gpus"], row["engine"])
    if "tokens" in row:
        assert abs(kv_tokens(model, plan, where) / row["tokens"] - 1) <= row["within"]
        return
    ledger = serving_memory(model, plan, where)
    left = (ledger.parts["KV cache"] + ledger.capacity - ledger.used) / GIB
    assert abs(left - row["cache_gib"]) <= row["within"]
    assert ledger.fits == (row["cache_gib"] > 0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_parts_fill_the_gpu(engine: str) -> None:
    where = machine("8xH200", engine)
    ledger = serving_memory(named(V3), Serving(engine, tp=8, ep=8), where)
    assert ledger.used == ledger.capacity == usable(where)
    assert min(ledger.parts.values()) >= 0
    assert ledger.fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_larger_share_holds_more_tokens(engine: str) -> None:
    model, where = named(LLAMA), machine("1xH100", engine)
    less, more = (kv_tokens(model, Serving(engine, memory_fraction=f), where) for f in (0.7, 0.9))
    assert 0 < less < more


def test_what_does_not_fit_is_more_than_the_gpu() -> None:
    ledger = serving_memory(named(V3), Serving(tp=8, ep=8), machine("8xH100"))
    assert not ledger.fits
    assert ledger.parts["KV cache"] == 0
    assert ledger.used > ledger.capacity


def test_latent_caches_do_not_shrink_with_tp() -> None:
    model = named(V3)
    assert sequence_bytes(model, Split(tp=8), 4096) == sequence_bytes(model, Split(), 4096) == 4096 * 61 * 576 * 2


def test_replicated_attention_holds_its_own_tokens() -> None:
    """With dp each replica's GPU keeps its own; with tp every GPU keeps the same ones."""
    model, where = named(V3), machine("8xH200")
    together = kv_tokens(model, Serving(tp=8, ep=8), where)
    apart = kv_tokens(model, Serving(tp=1, dp=8, ep=8), where)
    assert 0.5 * together < apart < together        # attention's weights are held eight times


def test_windows_and_states_hold_more_long_sequences_than_tokens_say() -> None:
    model, where = named("openai/gpt-oss-20b"), machine("1xH100")
    assert kv_tokens(model, Serving(), where, length=65536) > 1.5 * kv_tokens(model, Serving(), where, length=128)
    hybrid, two = named("Qwen/Qwen3-Next-80B-A3B-Instruct"), machine("4xH100")
    short, long = (kv_tokens(hybrid, Serving(tp=4), two, length=length) for length in (512, 65536))
    assert short < 0.3 * long


def test_drafts_take_weights_and_cache() -> None:
    model, where = named(V3), machine("8xH200")
    plain, drafted = (Serving(tp=8, ep=8, drafts=drafts) for drafts in (0, 1))
    assert serving_memory(model, drafted, where).parts["draft weights"] > GIB
    assert kv_tokens(model, drafted, where) < kv_tokens(model, plain, where)


def test_a_stage_of_a_pipeline_holds_its_layers_only() -> None:
    model, where = named("meta-llama/Llama-3.1-70B"), machine("8xH100")
    first, last = (serving_memory(model, Serving(tp=4, pp=2), where, stage=stage) for stage in (0, 1))
    assert abs(first.parts["weights"] - last.parts["weights"]) < 0.02 * first.parts["weights"]
    assert last.parts["activations"] > first.parts["activations"]        # it samples


@pytest.mark.parametrize(("version", "share"), [("0.4.6", 0.88), ("0.5.6", 0.836)])
def test_sglang_s_share_by_version(version: str, share: float) -> None:
    assert sglang_fraction(Serving("sglang", version=version), machine("1xH100", "sglang")) == share


def test_versions_are_compared_by_number() -> None:
    assert numbers("v0.10.2rc1") == (0, 10, 2)
    assert numbers("0.9.2") < numbers("0.10") < numbers(None)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(InputError, match="no memory of engine 'lmdeploy' is known"):
        kv_tokens(named(LLAMA), Serving("lmdeploy"), machine("1xH100"))


# ---- training


def rows(metric: str) -> list[dict[str, str]]:
    with shared("training/measured.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["metric"] == metric]


def number(text: str) -> int:
    return int(float(text)) if text else 1


def cut(name: str) -> Model:
    """SimuMax's models with fewer layers; its DeepSeek ones have one dense layer."""
    if name.startswith("llama3_70b"):
        model = named("meta-llama/Meta-Llama-3-70B")
        return replace(model, layers=model.layers[:12])
    if name.startswith("deepseekv2"):
        model = named("deepseek-ai/DeepSeek-V2")
        return replace(model, layers=model.layers[:4], drafts=())
    model = named(V3)
    return replace(model, layers=model.layers[2:6], drafts=())


def test_measured_peaks_of_allocated_memory() -> None:
    where, errors = machine("8xB200", "torch"), []
    for row in rows("peak_alloc_gib"):
        tp, pp, cp, ep, dp = (number(row[key]) for key in ("tp", "pp", "cp", "ep", "dp"))
        plan = Training(tp=tp, pp=pp, cp=cp, ep=ep, dp=dp)
        ledger = peak(cut(row["model"]), plan, Job(number(row["seq"]), number(row["gbs"])), where)
        errors.append(abs(allocated(ledger) / GIB / float(row["value"]) - 1))
    assert len(errors) >= 28
    assert statistics.median(errors) < 0.01
    assert max(errors) < 0.015


# Korthikanti et al., arXiv 2205.05198, table 3: width, layers, heads
PAPER = {"megatron-22B": (6144, 48, 64), "gpt3-175B": (12288, 96, 96), "turing-530B": (20480, 105, 128),
         "megatron-1T": (25600, 128, 160)}


def paper() -> Iterator[tuple[dict[str, str], Any]]:
    """Rows of figure 1 with their ledger: where there is one, of a stage without the embedding, which it leaves out."""
    where = machine("8xA100", "torch")
    for row in rows("activation_mem_gib") + rows("param+optimizer_mem_gib"):
        width, depth, heads = PAPER[row["model"]]
        model = gpt(width=width, depth=depth, heads=heads, vocabulary=51200, positions=2048)
        less = row["recompute"] == "selective+SP"
        plan = Training(tp=8, pp=number(row["pp"]), vpp=number(row["vp"]), mbs=number(row["mbs"]), zero=0,
                        sequence_parallel=less, recompute="selective" if less else "none",
                        extra=(("attention", "unfused"), ("dropout", "yes")))
        stage = 0 if row["metric"].startswith("activation") else min(1, plan.pp - 1)
        yield row, training_memory(model, plan, Job(2048, number(row["gbs"])), where, stage=stage)


def test_figure_1_of_korthikanti() -> None:
    for row, ledger in paper():
        activations = row["metric"] == "activation_mem_gib"
        parts = ("activations",) if activations else ("parameters", "gradients", "optimizer")
        got = sum(ledger.parts[part] for part in parts) / GIB
        assert got == pytest.approx(float(row["value"]), rel=0.001 if activations else 0.025), row["id"]


def test_equations_of_korthikanti() -> None:
    """t·h·(34 + 5·a·s/h) a layer, over tp with sequence parallelism; 10 of 34 are not shared without."""
    width, heads, seq = 4096, 32, 2048
    model = gpt(width=width, depth=1, heads=heads, vocabulary=1024)
    old = (("attention", "unfused"), ("dropout", "yes"))

    def saved(**changes: Any) -> float:
        plan = Training(mbs=1, zero=0, extra=old, **changes)
        ledger = training_memory(model, plan, Job(seq, 8), machine("8xA100", "torch"))
        return ledger.parts["activations"] / (seq * width)

    scores = 5 * heads * seq / width
    assert saved() == pytest.approx(34 + scores)
    assert saved(tp=8) == pytest.approx((34 + scores) / 8)
    assert saved(tp=8, sequence_parallel=False) == pytest.approx(10 + (24 + scores) / 8)
    assert saved(tp=8, recompute="selective") == pytest.approx(34 / 8)
    assert saved(tp=8, recompute="full") == pytest.approx(2 / 8)


@pytest.mark.parametrize(("plan", "stage", "expected"), [
    (Training(pp=4), 0, 4), (Training(pp=4), 3, 1), (Training(pp=4, schedule="gpipe"), 3, 16),
    (Training(pp=8, vpp=3, schedule="interleaved"), 0, 8 * (1 + 7 / 24)),
    (Training(pp=8, vpp=3, schedule="interleaved"), 7, (2 * 8 + 1) / 3),
    (Training(pp=4, schedule="zero-bubble"), 0, 4), (Training(pp=4, schedule="dualpipe"), 2, 2.5),
    (Training(pp=4, mbs=8), 0, 2),       # no more than there are
])
def test_micro_batches_in_flight(plan: Training, stage: int, expected: float) -> None:
    assert in_flight(plan, Job(4096, 16), stage) == pytest.approx(expected)


def states(plan: Training, model: Model | None = None) -> float:
    """Bytes of states a parameter."""
    made = model or named(LLAMA)
    ledger = training_memory(made, plan, Job(4096, 64), machine("8xH100", "torch"))
    return sum(ledger.parts[part] for part in ("parameters", "gradients", "optimizer")) / made.parameters().total


@pytest.mark.parametrize(("plan", "expected"), [
    (Training(zero=0), 18), (Training(dp=8), 6 + 12 / 8), (Training(dp=8, zero=2), 2 + 16 / 8),
    (Training(dp=8, zero=3), 18 / 8), (Training("torchtitan", dp=8, zero=3), 16 / 8),
    (Training(dp=4, cp=2), 6 + 12 / 8),
    (Training(dp=8, extra=(("gradients", "bf16"), ("moments", "bf16"))), 4 + 8 / 8),
    (Training(tp=8), 18 / 8),
])
def test_bytes_of_states_a_parameter(plan: Training, expected: float) -> None:
    assert states(plan) == pytest.approx(expected, rel=0.002)


def test_experts_optimizer_is_shared_by_those_that_hold_the_same() -> None:
    model, where, job = named("Qwen/Qwen3-30B-A3B"), machine("8xH100", "torch"), Job(4096, 64)
    spread, copied = (training_memory(model, Training(dp=8, ep=ep), job, where) for ep in (8, 1))
    assert spread.parts["optimizer"] == pytest.approx(copied.parts["optimizer"], rel=0.01)
    assert spread.parts["parameters"] < 0.25 * copied.parts["parameters"]


def test_recomputation_saves_and_fp8_keeps_less() -> None:
    model, where, job = named(V3), machine("32x8xH100", "torch"), Job(4096, 2048)
    base = Training(tp=2, pp=16, dp=8, ep=16)
    kept = [training_memory(model, plan, job, where).parts["activations"] for plan in (
        base, replace(base, recompute="selective", extra=(("recompute_modules", "mla_up_proj"),)),
        replace(base, recompute="full"))]
    assert kept[0] > kept[1] > 5 * kept[2]
    eight = training_memory(model, replace(base, precision="fp8"), job, where).parts["activations"]
    assert eight < kept[0]


def test_the_last_stage_has_the_loss() -> None:
    model, where, job = named(LLAMA), machine("8xH100", "torch"), Job(8192, 64)
    first, last = (training_memory(model, Training(pp=8), job, where, stage=stage) for stage in (0, 7))
    assert first.parts["loss"] == 0
    assert last.parts["loss"] > 8192 * model.vocabulary * 2


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(InputError, match="stage 2 of 2"):
        training_memory(named(LLAMA), Training(pp=2), Job(4096, 8), machine("2xH100", "torch"), stage=2)


# ---- recipes


def test_examples_of_recipes() -> None:
    assert doctest.testmod(recipes).failed == 0


def test_every_row_of_megatron_bridge_has_a_recipe() -> None:
    tables = [row for row in rows("tokens/s/gpu") if "Megatron-Bridge" in row["source"]]
    missing = [row["id"] for row in tables
               if recipes.recipe(row["model"], row["gpu"], row["precision"], row["notes"].split(";")[0]) is None]
    assert tables
    assert not missing


def test_a_recipe_changes_a_plan() -> None:
    found = recipes.recipe("DeepSeekV3", "H100", "FP8", "26.02.01")
    assert found is not None
    assert found.container == "26.02"
    assert found.layout == "Et|(tt|)*30mL"
    plan = recipes.applied(Training(tp=2, pp=8, dp=64, ep=64, precision="fp8"), found)
    assert plan.recompute == "selective"
    assert dict(plan.extra)["recompute_modules"] == "mla_up_proj,mlp"
    assert dict(plan.extra)["moments"] == "bf16"
    assert not plan.cuda_graphs
    assert plan.zero == 1


def test_a_container_without_recipes_says_whose_it_took() -> None:
    found = recipes.recipe("LLAMA3_70B", "GB200", "FP8 (first value of the cell)", "NeMo container 25.09")
    assert found is not None
    assert found.container == "25.11"
    assert found.fsdp
    assert found.offloaded_layers == 40
