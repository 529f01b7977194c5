"""This file knows about Kimi Linear and Kimi K3: delta attention, with latent attention in every fourth layer."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.families.deepseek import latent
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model
from sublight.models.recurrent import KimiDelta


def kimi_linear(source: Source) -> Model:
    """Layers are counted from 1 in linear_attn_config. K3 also chooses the input of each block from the outputs of
    blocks of layers (attention residuals, attn_res_block_size)."""
    text = source.text
    text.must("hidden_act", "silu", "situ")
    linear = text.part("linear_attn_config")
    full, delta = ({int(i) for i in linear.listed(key, 0, int) or ()} for key in ("full_attn_layers", "kda_layers"))
    if full | delta != set(range(1, source.depth + 1)) or full & delta:
        raise linear.wrong("kda_layers", "together with 'full_attn_layers' every layer from 1 on, once")
    text.must("mla_use_nope", True, False)
    text.must("num_nextn_predict_layers", 0)
    size = text.optional("attn_res_block_size")

    def layer(i: int) -> Layer:
        attention: Block = kda(source, i) if i + 1 in delta else mla(source, i)
        return Layer(attention, feedforward(source, i), residual_sources=i // size + 2 if size else 0)

    return source.model([layer(i) for i in range(source.depth)], aside=towers(source.config))


def mla(source: Source, i: int) -> Block:
    gated = source.text.flag("mla_use_output_gate")
    return latent(source, i, gate=source.form(i, "self_attn.g_proj") if gated else None)


def kda(source: Source, i: int) -> Block:
    linear = source.text.part("linear_attn_config")
    full_gate = linear.flag("use_full_rank_gate")
    names = ("q_proj", "k_proj", "v_proj", "g_proj") if full_gate else ("q_proj", "k_proj", "v_proj")
    return KimiDelta(
        source.width, linear.integer("num_heads"), linear.integer("head_dim"), linear.integer("short_conv_kernel_size"),
        source.form(i, *(f"self_attn.{name}" for name in names)), source.form(i, "self_attn.o_proj"), full_gate)


def feedforward(source: Source, i: int) -> Block:
    text, under = source.text, "block_sparse_moe"
    inner, dense_first = text.integer("intermediate_size"), text.count("first_k_dense_replace")
    text.must("moe_layer_freq", 1)
    if i < dense_first:
        return source.dense(i, inner)
    own, shared = text.integer("moe_intermediate_size"), text.count("num_shared_experts")
    return Mixture(
        source.width, text.integer("num_experts"), text.integer("num_experts_per_token", "num_experts_per_tok"), own,
        source.experts_form(i, under, ("w1", "w2", "w3")), correction=True,
        latent=text.optional("routed_expert_hidden_size"), latent_norm=text.flag("latent_moe_use_norm"),
        shared=source.dense(i, own * shared, under=f"{under}.shared_experts", part="shared experts", bias=False)
        if shared else None,
    )
