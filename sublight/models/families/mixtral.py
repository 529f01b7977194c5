"""This file knows about Mixtral: eight experts in every layer, two for a token."""

from __future__ import annotations

from sublight.models.families.source import Source
from sublight.models.feedforward import Mixture
from sublight.models.model import Layer, Model


def mixtral(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "silu")
    experts, top_k = text.integer("num_local_experts"), text.integer("num_experts_per_tok")
    inner, window = text.integer("intermediate_size"), text.optional("sliding_window")
    return source.model([
        Layer(source.grouped(i, window=window), Mixture(
            source.width, experts, top_k, inner, source.experts_form(i, "block_sparse_moe", ("w1", "w2", "w3"))))
        for i in range(source.depth)])
