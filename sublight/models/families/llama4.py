"""This file knows about Llama 4: attention in chunks but for every fourth layer, one expert and a shared one."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.config import kinds
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def llama4(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "silu")
    every, chunk = text.optional("interleave_moe_layer_step") or 1, text.integer("attention_chunk_size")
    rotates = text.listed("no_rope_layers", source.depth, int)
    interval = text.optional("no_rope_layer_interval") or 4      # transformers, models/llama4: the default
    named = kinds(text, "layer_types", {"chunked_attention": "chunked", "full_attention": "full"}, source.depth)
    chosen = text.listed("moe_layers", 0, int)

    def layer(i: int) -> Layer:
        rotated = bool(rotates[i]) if rotates else (i + 1) % interval != 0
        chunked = named[i] == "chunked" if named else rotated
        sparse = i in chosen if chosen is not None else (i + 1) % every == 0
        norms = "plain" if text.flag("use_qk_norm") and rotated else "none"
        return Layer(source.grouped(i, under="self_attn", chunk=chunk if chunked else None, norms=norms,
                                    rotated=None if rotated else 0), feedforward(source, i, sparse))

    return source.model([layer(i) for i in range(source.depth)], aside=towers(source.config))


def feedforward(source: Source, i: int, sparse: bool) -> Block:
    """Dense layers have a width of their own; the shared expert is as wide as the others."""
    text = source.text
    inner, dense = text.integer("intermediate_size"), text.integer("intermediate_size_mlp")
    if not sparse:
        return source.dense(i, dense, under="feed_forward", bias=False)
    return Mixture(
        source.width, text.integer("num_local_experts"), text.integer("num_experts_per_tok"), inner,
        source.experts_form(i, "feed_forward"),
        shared=source.dense(i, inner, under="feed_forward.shared_expert", part="shared experts", bias=False))
