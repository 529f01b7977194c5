"""This file knows about GLM-4.5 and 4.6: grouped queries with a partly rotated head, experts as DeepSeek has them."""

from __future__ import annotations

from sublight.models.families.deepseek import feedforward
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.model import Layer, Model


def glm4_moe(source: Source) -> Model:
    """Biases of queries, keys and values only (transformers, models/glm4_moe)."""
    text = source.text
    text.must("hidden_act", "silu")
    drafts = text.count("num_nextn_predict_layers")
    bias, norms = text.flag("attention_bias"), "head" if text.flag("use_qk_norm") else "none"
    rotated = source.rotated(source.head_width, otherwise=0.5)
    built = [Layer(source.grouped(i, bias=bias, out_bias=False, norms=norms, rotated=rotated),
                   feedforward(source, i)) for i in range(source.depth + drafts)]
    return source.model(built[:source.depth], drafts=built[source.depth:], aside=towers(source.config))
