"""Configs are untrusted: what is wrong, absurd, unknown or not supported is refused in one sentence, never guessed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sublight.errors import InputError
from sublight.models import FAMILIES, catalog, find, from_config, hub, named, ops, read
from sublight.models.config import Fields
from sublight.models.quantisation import Patterns, quantisation

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 100,
}


def model(**changes: Any) -> Any:
    return from_config({**LLAMA, **changes}, name="small")


def test_a_small_config_is_read_from_its_file_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    one, other = read(tmp_path), read(tmp_path / "config.json")
    assert one.layers == other.layers
    assert one.name == tmp_path.name
    q, k, o, mlp = 64 * 64, 64 * 32, 64 * 64, 3 * 64 * 128
    assert one.parameters().total == 3 * (q + 2 * k + o + mlp + 2 * 64) + 2 * 100 * 64 + 64


@pytest.mark.parametrize(("changes", "message"), [
    ({"architectures": ["GPTNeoXForCausalLM"]}, "architecture 'GPTNeoXForCausalLM' is not known; nearest"),
    ({"architectures": None}, "'architectures' is missing"),
    ({"architectures": "LlamaForCausalLM"}, "'architectures' is missing"),
    ({"hidden_size": None}, "'hidden_size' is missing"),
    ({"hidden_size": "4096"}, "'hidden_size' expected an integer"),
    ({"hidden_size": 10**12}, "'hidden_size' expected an integer"),
    ({"hidden_size": True}, "'hidden_size' expected an integer"),
    ({"num_hidden_layers": -1}, "'num_hidden_layers' expected an integer"),
    ({"num_hidden_layers": 10**7}, "'num_hidden_layers' expected an integer"),
    ({"num_attention_heads": 5}, "5 heads do not divide a width of 64"),
    ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu', whose work is not known"),
    ({"attention_bias": "yes"}, "'attention_bias' expected true or false"),
    ({"residual_experts": 4}, "'residual_experts' = 4 may change the work"),
    ({"torch_dtype": "float4"}, "'dtype' is 'float4'"),
    ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'quant_method' is 'bitsandbytes'"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}, "'weight_block_size' expected"),
    ({"quantization_config": [1]}, "expected an object"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*attn.*": {}}}}, "'dynamic' = "),
    ({"head_dim": 16, "attention_head_dim": 32}, "names of one thing and differ"),
    ({"partial_rotary_factor": 2}, "'partial_rotary_factor' expected a number from 0 to 1"),
    ({"is_encoder_decoder": True}, "'is_encoder_decoder' = True may change the work"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "weights of 3 bits"),
    ({"quantization_config": {"quant_algo": "W2A16"}}, "'quant_algo' is 'W2A16'"),
    ({"quantization_config": {"quant_algo": "MIXED_PRECISION"}}, "without 'quantized_layers'"),
    ({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["re:("]}}, "no regular expression"),
    ({"quantization_config": {"quant_method": "fp8", "kv_cache_quant_algo": "FP3"}}, "cached keys and values"),
])
def test_what_a_config_must_not_say_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        model(**changes)


def test_what_changes_no_work_is_read_over() -> None:
    more = model(rope_theta=1e6, bos_token_id=1, attention_dropout=0.1, tie_word_embeddings=False, unknown=None)
    assert more.layers == model().layers


def test_families_refuse_what_they_do_not_know() -> None:
    gemma = dict(catalog()["google/gemma-4-26B-A4B"])
    gemma.pop("source")
    with pytest.raises(InputError, match="hidden_size_per_layer_input"):
        from_config({**gemma, "hidden_size_per_layer_input": 256}, name="E4B")
    deepseek = {key: value for key, value in catalog()["deepseek-ai/DeepSeek-V4-Flash"].items() if key != "source"}
    with pytest.raises(InputError, match="compress_ratios"):
        from_config({**deepseek, "compress_ratios": [8] * 44}, name="V4")
    kimi = {key: value for key, value in catalog()["moonshotai/Kimi-K3"].items() if key != "source"}
    with pytest.raises(InputError, match="kda_layers"):
        from_config({**kimi, "linear_attn_config": {**kimi["linear_attn_config"], "kda_layers": [1]}}, name="K3")


@pytest.mark.parametrize(("text", "message"), [
    ("", "no JSON text"), ('{"hidden_size": 64', "no JSON text"), ("[" * 100_000, "objects in objects|no JSON text"),
    ("[]", "expected an object of keys"), ("null", "expected an object of keys"), ("\xff\xfe", "no JSON text|expected"),
    ('{"hidden_size": ' + "9" * 5000 + "}", "digits|expected"),
])
def test_a_damaged_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a config\.json"):
        read(tmp_path)
    with pytest.raises(InputError, match=r"expected a config\.json"):
        read(tmp_path / "absent.json")


def values() -> list[Any]:
    return [None, True, -1, 0, 1, 2**70, 1.5, float("inf"), float("nan"), "", "x", [], [1], ["full_attention"] * 100,
            {}, {"a": 1}, [None], "M*E-" * 10]


def mutations(row: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """A config with one or two keys replaced or removed, at the top or one level down."""
    out: dict[str, Any] = json.loads(json.dumps(row))
    for _ in range(dice.randint(1, 2)):
        target = out
        inner = [v for v in out.values() if isinstance(v, dict) and v]
        if inner and dice.random() < 0.3:
            target = dice.choice(inner)
        key = dice.choice(sorted(target))
        if dice.random() < 0.2:
            del target[key]
        else:
            target[key] = dice.choice(values())
    return out


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(catalog()))
def test_mutated_configs_are_read_or_refused_never_anything_else(name: str) -> None:
    row = {key: value for key, value in catalog()[name].items() if key != "source"}
    if "like" in row:
        return
    dice = random.Random(name)
    for _ in range(40):
        changed = mutations(row, dice)
        try:
            read_model = from_config(changed, name="mutated")
            ops(read_model, phase="decode", batch=2, context=100)
        except InputError:
            continue
        assert read_model.parameters().total > 0


def test_names_of_the_catalog_are_found_whatever_their_case_and_the_nearest_is_named() -> None:
    assert named("qwen/qwen3-8b").layers == named("Qwen/Qwen3-8B").layers
    with pytest.raises(InputError, match="nearest: deepseek-ai/DeepSeek-V3"):
        named("deepseek-ai/DeepSeekV3")


def test_every_model_of_the_catalog_has_a_source_and_a_known_architecture() -> None:
    for name, row in catalog().items():
        assert row["source"].startswith("stated: ")
        assert named(name).architecture in FAMILIES


def test_the_hub_is_asked_only_where_its_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.startswith("huggingface_hub"):
            raise ImportError(module)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="huggingface_hub is not installed"):
        hub("org/model")
    with pytest.raises(InputError, match="huggingface_hub is not installed"):
        find("org/model")
    assert find("Qwen/Qwen3-8B").name == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(("pattern", "path", "matches"), [
    ("model.layers.0.mlp", "model.layers.0.mlp.up_proj", True),
    ("model.layers.1", "model.layers.10.mlp.up_proj", False),
    ("model.layers.0*", "model.layers.0.self_attn.q_proj", True),
    ("model.layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
    ("re:.*self_attn.*", "model.layers.7.self_attn.q_proj", True),
    (r"re:.*mlp\.(gate|up|down)_proj.*", "model.layers.0.mlp.experts.3.up_proj", False),
    ("gate", "model.layers.0.block_sparse_moe.gate", True),
    ("gate", "model.layers.0.mlp.shared_expert_gate", False),
    ("lm_head", "lm_head", True),
])
def test_patterns_of_producers(pattern: str, path: str, matches: bool) -> None:
    assert Patterns.of([pattern], "here").match(path) is matches


@pytest.mark.parametrize(("config", "form", "activations"), [
    ({"quant_method": "fp8"}, "fp8", "fp8"),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", "fp8"),
    ({"quant_method": "mxfp4"}, "mxfp4", "bf16"),
    ({"quant_method": "mxfp8"}, "mxfp8", "fp8"),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "w4a16_int4_g128", "bf16"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 64}, "w4a16_int4_g64", "bf16"),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "w8a16_int8", "bf16"),
    ({"quant_algo": "NVFP4", "quant_method": "modelopt"}, "nvfp4", "fp4"),
    ({"quant_algo": "FP8", "quant_method": "modelopt"}, "fp8", "fp8"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {
        "weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8, "type": "float"},
        "targets": ["Linear"]}}}, "fp8", "fp8"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {
        "weights": {"num_bits": 4, "type": "int", "group_size": 32}, "targets": ["Linear"]}}}, "w4a16_int4_g32",
     "bf16"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {
        "weights": {"num_bits": 4, "type": "float", "group_size": 32}, "targets": ["Linear"]}}}, "mxfp4", "bf16"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {
        "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}}}, "int8",
     "int8"),
])
def test_methods_of_quantisation(config: dict[str, Any], form: str, activations: str) -> None:
    found = model(quantization_config=config)
    attention = found.layers[0].attention
    assert (attention.qkv.name, attention.qkv.activations) == (form, activations)
    assert found.head.name == "bf16"


def test_a_tower_is_named_and_left_out() -> None:
    """Mistral Small 3.1: a Mistral under text_config, a tower under vision_config."""
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    found = from_config({"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text,
                         "vision_config": {"hidden_size": 1024}}, name="small")
    assert found.layers == model().layers
    assert found.aside == (("vision tower", None),)


def test_a_sidecar_says_formats_where_the_config_does_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {
        "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.1.mlp*"]}}))
    found = read(tmp_path)
    assert [layer.mlp.up.name for layer in found.layers] == ["fp8", "bf16", "fp8"]          # type: ignore[union-attr]
    assert found.kv == "fp8"


def test_one_product_of_two_formats_is_refused() -> None:
    with pytest.raises(InputError, match="are one product, but lie in bf16, fp8"):
        model(quantization_config={"quant_method": "fp8",
                                   "modules_to_not_convert": ["model.layers.2.self_attn.k_proj"]})


def test_stored_formats_are_those_of_the_dtype() -> None:
    fields = Fields({"torch_dtype": "float16"}, "here")
    assert quantisation(fields, fields).stored.weights == "fp16"


@pytest.mark.parametrize("build", [
    lambda: from_config({"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12,
                         "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new"}, name="gpt2"),
])
def test_gpt2_has_its_124_million_parameters(build: Callable[[], Any]) -> None:
    assert build().parameters().total == 124_439_808             # transformers: sum of its parameters


def test_a_shared_expert_of_qwen2_moe_stands_behind_a_gate() -> None:
    """Qwen1.5-MoE-A2.7B: 14.3 B in total, 2.7 B activated (its card)."""
    found = from_config({
        "architectures": ["Qwen2MoeForCausalLM"], "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1, "vocab_size": 151936}, name="Qwen1.5-MoE-A2.7B")
    assert found.parameters().total == 14_315_784_192            # transformers 5.24.0
    assert found.parameters().active_with_embedding / 1e9 == pytest.approx(2.7, rel=0.02)


def test_mpt_has_the_parameters_of_its_name() -> None:
    found = from_config({
        "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432,
        "no_bias": True, "expansion_ratio": 4, "max_seq_len": 2048, "attn_config": {"alibi": True}}, name="mpt-7b")
    assert found.parameters().total == 6_649_286_656             # transformers 5.24.0
