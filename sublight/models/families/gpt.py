"""This file knows about GPT-2 and MPT, and about a GPT that sizes alone describe (Megatron's, of papers)."""

from __future__ import annotations

from sublight.errors import InputError
from sublight.models.families.source import Source
from sublight.models.feedforward import Dense
from sublight.models.grouped import GroupedAttention
from sublight.models.model import Layer, Model


def gpt(
    *, width: int, depth: int, heads: int, vocabulary: int, inner: int | None = None, positions: int = 0,
    kv_heads: int | None = None, bias: bool = True, tied: bool = True, name: str = "GPT",
) -> Model:
    """A GPT: layer norms, multi-head attention without rotation, a feed-forward layer without a gate, 4 widths wide.

    Source of the sizes that papers give: Narayanan et al., arXiv 2104.04473, table 1 and equation 2.

    >>> round(gpt(width=12288, depth=96, heads=96, vocabulary=51200, positions=2048).parameters().total / 1e9, 1)
    174.6
    """
    if min(width, depth, heads, vocabulary) < 1 or width % heads:
        raise InputError(f"a GPT of width {width}, {depth} layers, {heads} heads: expected sizes of 1 or more, and "
                         "heads that divide the width")
    d = width // heads
    layer = Layer(
        GroupedAttention(width, heads, kv_heads or heads, d, d, rotated=0, qkv_bias=bias, out_bias=bias),
        Dense(width, inner or 4 * width, is_gated=False, bias=bias), norm="mean" if bias else "mean without bias")
    return Model(name, "GPT", (layer,) * depth, vocabulary, width, tied, positions=positions)


def gpt2(source: Source) -> Model:
    text = source.text
    text.must("activation_function", "gelu_new", "gelu")
    for key in ("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "n_ctx",
                "summary_first_dropout", "scale_attn_weights", "reorder_and_upcast_attn", "gradient_checkpointing"):
        text.raw(key)
    text.must("add_cross_attention", False)
    width, positions = text.integer("n_embd"), text.integer("n_positions")
    model = gpt(width=width, depth=text.layers("n_layer"), heads=text.integer("n_head"), positions=positions,
                vocabulary=text.integer("vocab_size"), inner=text.optional("n_inner"), name=source.name,
                tied=text.flag("tie_word_embeddings", True))
    text.nothing_left()
    return model


def mpt(source: Source) -> Model:
    """No biases, no positions (ALiBi), the head is the embedding (llm-foundry, models/mpt)."""
    text = source.text
    text.must("no_bias", True)
    text.must("expansion_ratio", 4)
    attention = text.raw("attn_config") or {}
    if not isinstance(attention, dict) or attention.get("attn_type", "multihead_attention") != "multihead_attention":
        raise text.wrong("attn_config", "multihead_attention")
    if not attention.get("alibi", False) or attention.get("rope", False) or attention.get("qk_ln", False):
        raise text.wrong("attn_config", "alibi, without rope and qk_ln")
    for key in ("init_config", "embedding_fraction", "init_device", "learned_pos_emb", "logit_scale", "norm_type",
                "resid_pdrop", "emb_pdrop", "verbose", "use_pad_tok_in_ffn", "ffn_config", "fc_type", "max_seq_len"):
        text.raw(key)
    model = gpt(width=text.integer("d_model"), depth=text.layers("n_layers"), heads=text.integer("n_heads"),
                vocabulary=text.integer("vocab_size"), bias=False, name=source.name)
    text.nothing_left()
    return model
