"""This file knows about Nemotron: H and 3 (Mamba 2, attention and feed-forward layers in a pattern), and the Llama
whose layers were searched (nemotron-nas).
"""

from __future__ import annotations

from collections.abc import Callable

from sublight.errors import InputError
from sublight.models.block import Block
from sublight.models.config import Fields
from sublight.models.families.source import Source
from sublight.models.feedforward import Dense, Mixture
from sublight.models.formats import NumberFormat
from sublight.models.grouped import GroupedAttention
from sublight.models.model import Layer, Model
from sublight.models.recurrent import Mamba2

Form = Callable[..., NumberFormat]        # of modules of the layer in question

PATTERN = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}


def nemotron_h(source: Source) -> Model:
    """Each layer is one block and its norm. Attention has no positions (transformers, models/nemotron_h)."""
    text = source.text
    text.must("mlp_hidden_act", "relu2")
    text.must("residual_in_fp32", False)
    kinds = blocks(text, "hybrid_override_pattern", "layers_block_type")
    given = text.optional("num_hidden_layers")
    if not kinds or given not in (None, len(kinds)):
        raise InputError(f"{text.where}: 'num_hidden_layers' is {given}, but the pattern has {len(kinds)} layers")
    text.raw("expand"), text.raw("num_hidden_layers")
    drafts = blocks(text, "mtp_hybrid_override_pattern", "mtp_layers_block_type") if \
        text.count("num_nextn_predict_layers") else []
    for key in ("mtp_hybrid_override_pattern", "mtp_layers_block_type"):
        text.raw(key)
    everything = kinds + drafts
    layers = [layer(source, i, kind, len(kinds)) for i, kind in enumerate(everything)]
    one = [joined(layers[len(kinds):])] if drafts else []
    return source.model(layers[:len(kinds)], drafts=one)


def joined(parts: list[Layer]) -> Layer:
    """A draft's attention and its experts as the one layer that a draft is."""
    if len(parts) != 2 or parts[0].attention is None or parts[1].mlp is None:
        raise InputError("a draft of Nemotron: expected an attention layer and a feed-forward layer")
    return Layer(parts[0].attention, parts[1].mlp, norms=2)


def blocks(text: Fields, pattern: str, names: str) -> list[str]:
    """Kinds of layers, from a text of letters or a list of names."""
    letters, listed = text.text(pattern, ""), text.listed(names, 0, str)
    kinds = [PATTERN.get(letter, letter) for letter in letters] if letters else list(listed or ())
    unknown = sorted(set(kinds) - set(PATTERN.values()))
    if unknown or len(kinds) > 4096:
        raise text.wrong(pattern if letters else names, f"up to 4096 layers of {', '.join(PATTERN.values())}")
    return kinds


def layer(source: Source, i: int, kind: str, depth: int) -> Layer:
    draft = i - depth if i >= depth else None

    def form(*modules: str) -> NumberFormat:
        return source.quantised.form(i, *(f"mixer.{module}" for module in modules), draft=draft)

    if kind == "mamba":
        return Layer(mamba(source.text, source.width, form), None, norms=1)
    if kind == "attention":
        return Layer(attention(source, form), None, norms=1)
    mlp = dense(source, source.text.integer("intermediate_size"), form("up_proj"), form("down_proj"), "mlp") \
        if kind == "mlp" else moe(source, form)
    return Layer(None, mlp, norms=1)


def attention(source: Source, form: Form) -> Block:
    d, bias = source.head_width, source.text.flag("attention_bias")
    return GroupedAttention(source.width, source.heads, source.kv_heads, d, d, form("q_proj", "k_proj", "v_proj"),
                            form("o_proj"), source.quantised.kv, rotated=0, qkv_bias=bias, out_bias=bias)


def mamba(text: Fields, width: int, form: Form) -> Block:
    state = text.text("mamba_ssm_cache_dtype", "bfloat16")
    return Mamba2(
        width, text.integer("mamba_num_heads"), text.integer("mamba_head_dim"), text.integer("n_groups"),
        text.integer("ssm_state_size"), text.integer("conv_kernel"), text.optional("chunk_size") or 128,
        text.flag("use_conv_bias", True), text.flag("use_bias") or text.flag("mamba_proj_bias"), form("in_proj"),
        form("out_proj"), {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(state, "fp32"))


def dense(source: Source, inner: int, up: NumberFormat, down: NumberFormat, part: str) -> Dense:
    """Squared ReLU: no gate."""
    return Dense(source.width, inner, up, down, False, source.text.flag("mlp_bias"), part)


def moe(source: Source, form: Form) -> Block:
    text = source.text
    shared = text.optional("moe_shared_expert_intermediate_size", least=0) or 0
    count = text.count("n_shared_experts")
    beside = dense(source, shared, form("shared_experts.up_proj"), form("shared_experts.down_proj"), "shared experts") \
        if shared and count else None
    text.raw("moe_latent_size"), text.raw("intermediate_size")
    return Mixture(
        source.width, text.integer("n_routed_experts"), text.integer("num_experts_per_tok"),
        text.integer("moe_intermediate_size"), form("experts.0.up_proj", "experts.0.down_proj"), is_gated=False,
        correction=True, latent=text.optional("moe_latent_size"), shared=beside)


def nemotron_nas(source: Source) -> Model:
    """A Llama whose layers may lack attention or have a narrower feed-forward layer (block_configs)."""
    text = source.text
    text.must("hidden_act", "silu")
    listed = text.listed("block_configs", source.depth, dict)
    if listed is None:
        raise text.wrong("block_configs", "an object for each layer")
    text.raw("num_key_value_heads"), text.raw("intermediate_size")
    return source.model([searched(source, i, Fields(block, f"{text.where}: block {i}"))
                         for i, block in enumerate(listed[:source.depth])])


def searched(source: Source, i: int, block: Fields) -> Layer:
    mixer, ffn = block.part("attention"), block.part("ffn")
    for part in (mixer, ffn):
        for key in ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "unshifted_sink",
                    "use_prefill_window_in_sink_attention"):
            part.must(key, False)
    attention = None if mixer.flag("no_op") else \
        source.grouped(i, kv_heads=source.heads // mixer.integer("n_heads_in_group"))
    mixer.raw("n_heads_in_group")
    mlp = None if ffn.flag("no_op") else source.dense(i, searched_width(ffn, source.width))
    for part in (mixer, ffn):
        part.nothing_left()
    return Layer(attention, mlp, norms=len([b for b in (attention, mlp) if b]))


def searched_width(ffn: Fields, width: int) -> int:
    """Two thirds of ffn_mult widths, rounded up to 256 (configuration_decilm.py, as Llama 1 rounds)."""
    mult = ffn.raw("ffn_mult")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult <= 64:
        raise ffn.wrong("ffn_mult", "a number from 0 to 64")
    return -(-int(2 * mult * width / 3) // 256) * 256
