"""This file knows about Step 3.5 and 3.7 Flash: windows in three of four layers, gated heads, experts from layer 3."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.families.llama import sliding
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def step3p7(source: Source) -> Model:
    """A gate for each head of every layer (transformers, models/step3p7: gating). Drafts are dense layers."""
    text = source.text
    text.must("hidden_act", "silu", "swigluoai")
    windows = sliding(source, None)
    text.raw("num_nextn_predict_layers")
    heads = source.heads
    if text.has("attention_other_setting"):
        heads = text.part("attention_other_setting").integer("num_attention_heads")
    heads = text.optional("num_sliding_attention_heads") or heads

    def layer(i: int) -> Layer:
        window = windows(i)
        own = heads if window else source.heads
        return Layer(source.grouped(i, heads=own, window=window, norms="head", gate="head"), feedforward(source, i))

    return source.model([layer(i) for i in range(source.depth)], aside=towers(source.config))


def feedforward(source: Source, i: int) -> Block:
    text = source.text
    inner, shared = text.integer("intermediate_size"), text.optional("share_expert_dim", "share_expert_dims")
    text.must("n_shared_experts", 1)
    text.must("use_moe", True)
    first, chosen = text.optional("first_k_dense_replace", least=0), text.raw("moe_layers_enum")
    if isinstance(chosen, str):
        chosen = [int(part) for part in chosen.split(",") if part.strip().isdigit()]
    sparse = i in chosen if isinstance(chosen, list) else i >= (3 if first is None else first)
    if not sparse:
        return source.dense(i, inner)
    return Mixture(
        source.width, text.integer("num_experts", "n_routed_experts", "moe_num_experts"),
        text.integer("num_experts_per_tok", "moe_top_k"), text.integer("moe_intermediate_size"),
        source.form(i, "moe.gate_proj", "moe.up_proj", "moe.down_proj"), correction=text.flag("use_moe_router_bias"),
        shared=source.dense(i, shared, under="share_expert", part="shared experts") if shared else None)
