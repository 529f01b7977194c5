"""This file knows about Gemma 3 and 4: windows in most layers, four norms a layer, and in Gemma 4 wide global heads."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.config import kinds
from sublight.models.families.source import Aside, Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model

KINDS = {"sliding_attention": "sliding", "full_attention": "full"}
ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


def gemma3(source: Source) -> Model:
    """Every sixth layer sees everything (sliding_window_pattern), the others a window. The head is the embedding."""
    text = source.text
    text.must("hidden_activation", *ACTIVATIONS)
    window, pattern = text.integer("sliding_window"), text.optional("sliding_window_pattern") or 6
    named = kinds(text, "layer_types", KINDS, source.depth)
    text.raw("_sliding_window_pattern")

    def layer(i: int) -> Layer:
        full = named[i] == "full" if named else (i + 1) % pattern == 0
        return Layer(source.grouped(i, norms="head", window=None if full else window),
                     source.dense(i, text.integer("intermediate_size")), norms=4)

    return source.model([layer(i) for i in range(source.depth)], tied=True, aside=towers(source.config))


def gemma4(source: Source) -> Model:
    text = source.text
    text.must("hidden_activation", *ACTIVATIONS)
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        text.must(key, 0)                # embeddings for each layer, and layers without keys of their own (E2B, E4B)
    text.must("use_double_wide_mlp", False)
    text.must("use_bidirectional_attention", "vision", False)        # among tokens of a picture; text stays causal
    text.raw("vocab_size_per_layer_input")
    named = kinds(text, "layer_types", KINDS, source.depth)
    if named is None:
        raise text.wrong("layer_types", "which layers have a window")
    experts = text.flag("enable_moe_block")

    def layer(i: int) -> Layer:
        return Layer(attention(source, i, named[i] == "full"), feedforward(source, i, experts),
                     norms=7 if experts else 4)

    return source.model([layer(i) for i in range(source.depth)], tied=True, aside=_aside(source))


def attention(source: Source, i: int, full: bool) -> Block:
    """Global layers have heads of their own number and width, and keys that are values too (attention_k_eq_v)."""
    text = source.text
    window, same = text.integer("sliding_window"), text.flag("attention_k_eq_v")
    d, heads = text.optional("global_head_dim"), text.optional("num_global_key_value_heads")
    if not full:
        return source.grouped(i, norms="head", window=window)
    return source.grouped(i, norms="head", d=d, kv_heads=heads, values=not same)


def feedforward(source: Source, i: int, experts: bool) -> Block:
    text = source.text
    dense = source.dense(i, text.integer("intermediate_size"), bias=False)
    inner = text.optional("moe_intermediate_size", "expert_intermediate_size")
    count, top_k = text.optional("num_experts"), text.optional("top_k_experts")
    if not experts:
        return dense
    if inner is None or count is None or top_k is None:
        raise text.wrong("enable_moe_block", "'num_experts', 'top_k_experts' and 'moe_intermediate_size' beside it")
    form = source.form(i, "experts.0.gate_proj", "experts.0.up_proj", "experts.0.down_proj")
    return Mixture(source.width, count, top_k, inner, form, beside=dense, scales=source.width + count)


def _aside(source: Source) -> Aside:
    audio: Aside = (("audio tower", None),) if source.config.has("audio_config") else ()
    return towers(source.config) + audio
