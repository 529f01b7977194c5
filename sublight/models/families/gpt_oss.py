"""This file knows about gpt-oss: windows in every other layer, sinks, biases everywhere, experts in MXFP4."""

from __future__ import annotations

from sublight.models.families.llama import sliding
from sublight.models.families.source import Source
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def gpt_oss(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "silu")
    experts, top_k = text.integer("num_local_experts"), text.integer("num_experts_per_tok", "experts_per_token")
    text.must("experts_per_token", top_k)
    inner, windows = text.integer("intermediate_size"), sliding(source, None)
    if not text.has("layer_types"):
        raise text.wrong("layer_types", "which layers have a window")

    def layer(i: int) -> Layer:
        return Layer(source.grouped(i, window=windows(i), sinks=True, bias=True, out_bias=True), Mixture(
            source.width, experts, top_k, inner, source.form(i, "mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
            bias=True))

    return source.model([layer(i) for i in range(source.depth)])
