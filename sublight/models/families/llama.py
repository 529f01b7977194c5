"""This file knows about Llama 2 and 3, Mistral, Qwen 2, 2.5 and 3 and MiMo 7B: dense layers with grouped queries."""

from __future__ import annotations

from collections.abc import Callable

from sublight.models.families.source import Source
from sublight.models.families.vision import towers, vision
from sublight.models.model import Layer, Model


def llama(source: Source) -> Model:
    """Llama and Mistral. A window, where one is given, holds for every layer (Mistral 7B v0.1)."""
    return source.model(layers(source, window=source.text.optional("sliding_window")), aside=towers(source.config))


def qwen2(source: Source) -> Model:
    """Qwen 2 and 2.5: biases of queries, keys and values whatever the config says (transformers, models/qwen2)."""
    return source.model(layers(source, bias=True, out_bias=False))


def qwen3(source: Source) -> Model:
    return source.model(layers(source, norms="head"), aside=vision(source))


def mimo_7b(source: Source) -> Model:
    """MiMo 7B: Qwen 2 with layers that predict further tokens."""
    more = source.text.count("num_nextn_predict_layers")
    built = layers(source, bias=True, out_bias=False, more=more)
    return source.model(built[:source.depth], drafts=built[source.depth:])


def layers(source: Source, *, norms: str = "none", bias: bool | None = None, out_bias: bool | None = None,
           window: int | None = None, more: int = 0) -> list[Layer]:
    inner = source.text.integer("intermediate_size")
    source.text.must("hidden_act", "silu")
    windows = sliding(source, window)
    return [Layer(source.grouped(i, norms=norms, bias=bias, out_bias=out_bias, window=windows(i)),
                  source.dense(i, inner)) for i in range(source.depth + more)]


def sliding(source: Source, everywhere: int | None) -> Callable[[int], int | None]:
    """The window of a layer. Qwen uses it in layers from max_window_layers on, where use_sliding_window says so."""
    text = source.text
    window, used = text.optional("sliding_window", most=1 << 40), text.flag("use_sliding_window")
    kinds = text.listed("layer_types", source.depth, str)
    if kinds is not None:
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise text.wrong("layer_types", "full_attention or sliding_attention for each layer")
        return lambda i: window if i < len(kinds) and kinds[i] == "sliding_attention" else None
    start = text.optional("max_window_layers", least=0) or 0
    if used:
        return lambda i: window if i >= start else None
    return lambda i: everywhere
