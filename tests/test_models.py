"""Configs become models with the parameters that names and cards state, in the formats that checkpoints hold."""

from __future__ import annotations

import doctest
import fnmatch
import importlib
import os
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sublight.models import FAMILIES, Model, Split, catalog, gpt, named, read, recast

STATED = tomllib.loads((Path(__file__).parent / "data/models/stated.toml").read_text("utf-8"))["stated"]
EXACT = tomllib.loads((Path(__file__).parent / "data/models/exact.toml").read_text("utf-8"))
NAMES = sorted(catalog())


@cache
def config_files() -> dict[str, Path]:
    """The configs of aiconfigurator-core, by model: in the folder MODEL_CONFIGS, or where the package is installed."""
    folder = os.environ.get("MODEL_CONFIGS")
    if folder is None:
        found = importlib.util.find_spec("aiconfigurator_core")
        folder = str(Path(found.origin).parent / "model_configs") if found and found.origin else ""
    paths = sorted(Path(folder).glob("*_config.json")) if folder else []
    return {p.name.removesuffix("_config.json").replace("--", "/"): p for p in paths
            if not p.name.endswith("hf_quant_config.json")}


def configs() -> dict[str, Path]:
    if not config_files():
        pytest.skip("no configs: set MODEL_CONFIGS to the folder model_configs of aiconfigurator-core, or install it")
    return config_files()


def statements(name: str) -> list[dict[str, Any]]:
    return [row for row in STATED if any(fnmatch.fnmatchcase(name, pattern) for pattern in row["models"])]


def stated(model: Model, row: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """What a card states, and what we count for it."""
    p, taken = model.parameters(), row.get("with", ())
    total = p.total + (p.drafts if "drafts" in taken else 0)
    total += sum(size or 0 for _, size in model.aside) if "towers" in taken else 0
    out = {"total": (row["total"], total)}
    if "active" in row:
        active = {"layers": p.active_without_head, "head": p.active, "all": p.active_with_embedding}
        out["active"] = (row["active"], active[row["counts"]])
    return out


def agrees(text: str, count: int, *, down: bool = False) -> bool:
    """Within 2 %, or what rounding to the stated digits gives: "10" is stated for 9.5 to 10.5."""
    value, digits = float(text), len(text.partition(".")[2])
    step = 100.0 if digits == 0 and text.endswith("00") else 10.0 ** -digits
    off = count / 1e9 - value
    return abs(off) <= 0.02 * value or (0 <= off < step if down else abs(off) <= step / 2)


@pytest.mark.parametrize(("text", "billions", "expected"), [
    ("37", 37.7, True), ("37", 38.0, False), ("10", 9.6, True), ("10", 9.4, False), ("30.5", 31.2, False),
    ("1600", 1556, True), ("1600", 1549, False),
])
def test_agreement_is_two_per_cent_or_rounding(text: str, billions: float, expected: bool) -> None:
    assert agrees(text, int(billions * 1e9)) is expected


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_the_catalog_has_the_size_that_its_card_states(name: str) -> None:
    rows = statements(name)
    assert rows, f"{name} has no statement in stated.toml"
    for row in rows:
        for what, (text, count) in stated(named(name), row).items():
            assert agrees(text, count, down=row.get("rounded") == "down"), \
                f"{what}: {row['source']}: {text}B, counted {count / 1e9:.3f}B"


@pytest.mark.parametrize("name", sorted(EXACT))
def test_parameters_are_those_that_transformers_builds_to_the_last_one(name: str) -> None:
    parameters, corrections = EXACT[name]
    assert named(name).parameters().total == parameters + corrections


def test_nine_of_ten_statements_are_met_within_two_per_cent_without_rounding() -> None:
    """Measured: 204 of 216; the others are stated to one or two digits."""
    off = [count / 1e9 / float(text) - 1 for name in NAMES for row in statements(name)
           for text, count in stated(named(name), row).values()]
    assert sum(abs(o) <= 0.02 for o in off) >= 0.93 * len(off)


def test_every_config_parses_and_has_the_size_that_its_card_states() -> None:
    """All 89 of aiconfigurator-core 0.12.0."""
    parsed = {name: read(path) for name, path in configs().items()}
    assert len(parsed) >= 80
    for name, model in parsed.items():
        assert statements(name), name
        for row in statements(name):
            for what, (text, count) in stated(model, row).items():
                assert agrees(text, count, down=row.get("rounded") == "down"), \
                    f"{name} {what}: {text}B stated, counted {count / 1e9:.3f}B"


def test_the_catalog_says_what_the_configs_say() -> None:
    for name, path in configs().items():
        if name in catalog():
            ours, theirs = named(name), read(path)
            assert (ours.layers, ours.drafts, ours.tied, ours.kv, ours.head) == \
                (theirs.layers, theirs.drafts, theirs.tied, theirs.kv, theirs.head), name


def test_every_family_has_a_model_in_the_catalog_or_is_tried_here() -> None:
    tried = {"GPT2LMHeadModel", "MPTForCausalLM", "Qwen2MoeForCausalLM", "Llama4ForCausalLM", "Gemma4ForCausalLM",
             "Gemma3ForConditionalGeneration", "Step3p5ForCausalLM", "Mistral3ForConditionalGeneration"}
    used = {named(name).architecture for name in NAMES}
    assert set(FAMILIES) - used <= tried


@pytest.mark.parametrize(("name", "gib", "source"), [
    # checkpoints, in GiB: gpt-oss model card, arXiv 2508.10925, table 1
    ("openai/gpt-oss-120b", 60.8, "arXiv 2508.10925"), ("openai/gpt-oss-20b", 12.8, "arXiv 2508.10925"),
])
def test_bytes_of_weights_are_those_of_the_checkpoint(name: str, gib: float, source: str) -> None:
    assert named(name).weight_bytes / 2**30 == pytest.approx(gib, rel=0.01), source


def test_each_module_lies_in_its_own_format() -> None:
    """Experts of gpt-oss in MXFP4; NVFP4 checkpoints of DeepSeek keep attention, of Qwen3 only the router."""
    oss = named("openai/gpt-oss-120b")
    assert {w.form.name for w, _ in oss.weights() if w.part == "experts" and w.multiplied} == {"mxfp4"}
    assert {w.form.name for w, _ in oss.weights() if w.name == "q_proj"} == {"bf16"}
    deepseek = named("nvidia/DeepSeek-V3.1-NVFP4")
    forms = {weight.name: weight.form.name for weight, _ in deepseek.weights()}
    assert (forms["experts"], forms["q_b_proj"], forms["o_proj"], forms["router"]) == ("nvfp4", "bf16", "nvfp4", "bf16")
    assert deepseek.kv == "fp8"
    qwen = {weight.name: weight.form.name for weight, _ in named("nvidia/Qwen3-235B-A22B-NVFP4").weights()}
    assert (qwen["q_proj"], qwen["experts"], qwen["lm_head"]) == ("nvfp4", "nvfp4", "bf16")
    kimi = {weight.name: weight.form.name for weight, _ in named("moonshotai/Kimi-K2.5").weights()}
    assert (kimi["experts"], kimi["q_b_proj"]) == ("w4a16_int4_g32", "bf16")


@pytest.mark.parametrize(("name", "kv_bytes"), [
    ("meta-llama/Llama-3.1-8B", 32 * 2 * 8 * 128 * 2),           # layers, key and value, heads, width, bf16
    ("meta-llama/Llama-3.1-70B", 80 * 2 * 8 * 128 * 2),
    ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2),                   # 70,272: arXiv 2405.04434, (d_c + d_r) · l
    ("deepseek-ai/DeepSeek-V3.2", 61 * (576 * 2 + 132)),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", 80 * 2 * 8 * 128),
    ("openai/gpt-oss-120b", 18 * 2 * 8 * 64 * 2),                # full layers; windows hold 128 tokens
])
def test_bytes_of_a_cached_token(name: str, kv_bytes: int) -> None:
    assert named(name).kv_bytes_per_token() == kv_bytes


def test_a_window_is_cached_once() -> None:
    """gpt-oss-120b at 8,192 tokens: 18 layers of all tokens, 18 of 128."""
    token = 2 * 8 * 64 * 2
    assert named("openai/gpt-oss-120b").kv_bytes_per_token(length=8192) == 18 * token + 18 * token * 128 / 8192


def test_ranks_share_the_cache_by_heads_and_copy_what_they_cannot_share() -> None:
    llama, deepseek = named("meta-llama/Llama-3.1-8B"), named("deepseek-ai/DeepSeek-V3")
    assert [llama.kv_bytes_per_token(Split(tp=tp)) * tp for tp in (1, 8, 16)] == [131072, 131072, 262144]
    assert deepseek.kv_bytes_per_token(Split(tp=8)) == deepseek.kv_bytes_per_token()
    assert sum(llama.kv_bytes_per_token(Split(pp=3, stage=s)) for s in range(3)) == llama.kv_bytes_per_token()


def test_recurrent_layers_have_a_state_and_no_growing_cache() -> None:
    """Qwen3-Next: 12 of 48 layers cache; 36 hold 32 matrices of 128 x 128 in fp32, 3 tokens of 8,192 channels."""
    model = named("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert model.kv_bytes_per_token() == 12 * 2 * 2 * 256 * 2
    assert model.state_bytes() == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)


@pytest.mark.parametrize("name", ["deepseek-ai/DeepSeek-V3", "meta-llama/Llama-3.1-70B", "openai/gpt-oss-120b",
                                  "zai-org/GLM-5.2", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"])
@pytest.mark.parametrize("split", [Split(tp=8), Split(tp=8, ep=8), Split(tp=2, dp=4, ep=8)], ids=str)
def test_ranks_together_hold_every_weight_at_least_once(name: str, split: Split) -> None:
    model = named(name)
    held = sum(model.bytes_on_rank(replace(split, pp=4, stage=stage)) for stage in range(4)) * 8
    assert held >= model.weight_bytes
    assert model.bytes_on_rank(Split()) == pytest.approx(model.weight_bytes, rel=1e-6)


def test_stages_hold_every_layer_once_and_the_last_one_none_of_the_rest() -> None:
    sizes = [len(Split(pp=4, stage=stage).layers(61)) for stage in range(4)]
    assert sizes == [15, 15, 16, 15]
    assert [len(Split(pp=2, stage=s, stages=(40, 21)).layers(61)) for s in range(2)] == [40, 21]


def test_a_model_in_other_formats() -> None:
    model = named("meta-llama/Llama-3.1-8B")
    quantised = recast(model, attention="nvfp4", mlp="nvfp4", kv="fp8")
    linear = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert model.weight_bytes - quantised.weight_bytes == linear * 2 - linear // 2 - linear // 16
    assert quantised.kv_bytes_per_token() == model.kv_bytes_per_token() / 2
    assert recast(quantised, attention="bf16", mlp="bf16", kv="bf16").layers == model.layers
    experts = recast(named("Qwen/Qwen3-30B-A3B"), experts="mxfp4")
    assert {w.form.name for w, _ in experts.weights() if w.part == "experts"} == {"mxfp4"}


def test_a_gpt_of_sizes_has_the_parameters_of_its_paper() -> None:
    """Narayanan et al., arXiv 2104.04473, table 1: 145.6 B, 529.6 B and 1008.0 B."""
    sizes = [(12288, 80, 96, 145.6), (20480, 105, 128, 529.6), (25600, 128, 160, 1008.0)]
    for width, depth, heads, billions in sizes:
        model = gpt(width=width, depth=depth, heads=heads, vocabulary=51200, positions=2048)
        assert model.parameters().total / 1e9 == pytest.approx(billions, rel=0.001)


def test_modules_print_what_their_examples_show() -> None:
    for module in ("recast", "rank", "step", "formats", "families.gpt"):
        failed, tried = doctest.testmod(importlib.import_module(f"sublight.models.{module}"))
        assert (failed, tried > 0) == (0, True), module
