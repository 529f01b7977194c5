"""This file knows about Qwen2-MoE, Qwen3-MoE and Qwen3-VL-MoE: experts in layers that a step and a list choose."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.families.llama import sliding
from sublight.models.families.source import Source
from sublight.models.families.vision import vision
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def qwen3_moe(source: Source) -> Model:
    source.text.must("use_qk_norm", True)
    return source.model([Layer(source.grouped(i, norms="head"), feedforward(source, i)) for i in range(source.depth)],
                        aside=vision(source))


def qwen2_moe(source: Source) -> Model:
    """Biases of queries, keys and values; a shared expert behind a gate."""
    windows = sliding(source, None)
    return source.model([Layer(source.grouped(i, bias=True, out_bias=False, window=windows(i)), feedforward(source, i))
                         for i in range(source.depth)])


def feedforward(source: Source, i: int) -> Block:
    """Experts, or a dense layer where mlp_only_layers or decoder_sparse_step say so."""
    text = source.text
    text.must("hidden_act", "silu")
    only, step = text.raw("mlp_only_layers") or [], text.optional("decoder_sparse_step") or 1
    if not isinstance(only, list) or not all(isinstance(index, int) for index in only):
        raise text.wrong("mlp_only_layers", "a list of layers")
    inner = text.optional("intermediate_size")
    if i in only or (i + 1) % step:
        if inner is None:
            raise text.wrong("intermediate_size", "the width of dense layers")
        return source.dense(i, inner)
    shared = text.optional("shared_expert_intermediate_size", least=0)
    return Mixture(
        source.width, text.integer("num_experts", "num_local_experts"), text.integer("num_experts_per_tok"),
        text.integer("moe_intermediate_size"), source.experts_form(i),
        shared=source.dense(i, shared, under="mlp.shared_expert", part="shared experts", bias=False)
        if shared else None,
        shared_gate=bool(shared),
    )
