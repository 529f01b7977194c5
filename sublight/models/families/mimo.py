"""This file knows about MiMo-V2-Flash: windows with sinks, heads of 192 and 128, experts in all but the first layer."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.families.source import Source
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def mimo_v2_flash(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "silu")
    pattern, sparse = (text.listed(key, source.depth, int) for key in ("hybrid_layer_pattern", "moe_layer_freq"))
    if pattern is None or sparse is None:
        raise text.wrong("hybrid_layer_pattern", "0 or 1 for each layer, and so 'moe_layer_freq'")
    text.must("sliding_window_size", text.integer("sliding_window"))
    text.must("attention_chunk_size", text.integer("sliding_window"))
    text.raw("first_k_dense_replace"), text.raw("num_nextn_predict_layers")
    return source.model([Layer(attention(source, i, bool(pattern[i])), feedforward(source, i, bool(sparse[i])))
                         for i in range(source.depth)])


def attention(source: Source, i: int, window: bool) -> Block:
    """pattern 1: a window, with heads of its own."""
    text = source.text
    own = "swa_" if window else ""
    d = text.integer(f"{own}head_dim")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"):
        text.raw(key), text.raw(f"swa_{key}")
    sinks = text.flag("add_swa_attention_sink_bias") if window else text.flag("add_full_attention_sink_bias")
    text.raw("add_swa_attention_sink_bias"), text.raw("add_full_attention_sink_bias")
    return source.grouped(
        i, heads=text.integer(f"{own}num_attention_heads"), kv_heads=text.integer(f"{own}num_key_value_heads"), d=d,
        d_v=text.integer(f"{own}v_head_dim"), window=text.integer("sliding_window") if window else None, sinks=sinks,
        out_bias=False)


def feedforward(source: Source, i: int, sparse: bool) -> Block:
    text = source.text
    inner = text.integer("intermediate_size")
    text.must("n_shared_experts")
    if not sparse:
        return source.dense(i, inner)
    return Mixture(source.width, text.integer("n_routed_experts"), text.integer("num_experts_per_tok"),
                   text.integer("moe_intermediate_size"), source.experts_form(i), correction=True)
