"""This file knows about Qwen3-Next and Qwen3.5: gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.config import kinds
from sublight.models.families.qwen_moe import feedforward
from sublight.models.families.source import Source
from sublight.models.families.vision import vision
from sublight.models.model import Layer, Model
from sublight.models.recurrent import DeltaNet

KINDS = {"linear_attention": "linear", "full_attention": "full"}


def qwen_next(source: Source) -> Model:
    text = source.text
    every = text.optional("full_attention_interval") or 4
    named = kinds(text, "layer_types", KINDS, source.depth)
    drafts = text.count("mtp_num_hidden_layers", "num_nextn_predict_layers")
    if drafts:
        text.must("mtp_use_dedicated_embeddings", False)
    text.must("hidden_act", "silu")
    text.must("attn_output_gate", True)
    text.must("output_gate_type", "swish")
    text.raw("mtp_use_dedicated_embeddings")

    def layer(i: int) -> Layer:
        full = i >= source.depth or (named[i] == "full" if named else (i + 1) % every == 0)
        return Layer(gated(source, i) if full else delta(source, i), mlp(source, i))

    built = [layer(i) for i in range(source.depth + drafts)]
    return source.model(built[:source.depth], drafts=built[source.depth:], aside=vision(source))


def mlp(source: Source, i: int) -> Block:
    """Experts where there are any, else dense."""
    text = source.text
    block = feedforward(source, i) if text.has("num_experts") else \
        source.dense(i, text.integer("intermediate_size"))
    for key in ("mlp_only_layers", "num_experts", "intermediate_size", "decoder_sparse_step"):
        text.raw(key)
    return block


def gated(source: Source, i: int) -> Block:
    return source.grouped(i, norms="head", gate="element")


def delta(source: Source, i: int) -> Block:
    text, under = source.text, "linear_attn"
    fused = not source.architecture.startswith("Qwen3_5")
    into = ("in_proj_qkvz",) if fused else ("in_proj_qkv", "in_proj_z")
    state = text.text("mamba_ssm_dtype", "float32")
    return DeltaNet(
        source.width, text.integer("linear_num_key_heads"), text.integer("linear_num_value_heads"),
        text.integer("linear_key_head_dim"), text.integer("linear_value_head_dim"),
        text.integer("linear_conv_kernel_dim"),
        source.form(i, *(f"{under}.{name}" for name in into)), source.form(i, f"{under}.out_proj"),
        {"float32": "fp32", "bfloat16": "bf16"}.get(state, "fp32"),
    )
