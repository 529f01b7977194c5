"""This file knows about DeepSeek-V4: compressed attention, hyper-connections, and experts in four bits."""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.compressed import CompressedAttention
from sublight.models.families.source import Source
from sublight.models.feedforward import Dense, Mixture
from sublight.models.formats import BF16, MXFP4_FP8
from sublight.models.model import HyperConnections, Layer, Model

RATIOS = {0: None, 4: 4, 128: 128}


def deepseek_v4(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "silu")
    drafts = text.count("num_nextn_predict_layers")
    ratios = text.listed("compress_ratios", source.depth, int)
    if ratios is None or not set(ratios) <= RATIOS.keys():
        raise text.wrong("compress_ratios", "0, 4 or 128 for each layer")
    text.must("num_key_value_heads", 1)
    text.raw("hc_sinkhorn_iters")
    streams = HyperConnections(text.integer("hc_mult", most=64))
    ratios = ratios + [0] * drafts
    built = [Layer(attention(source, i, RATIOS[ratios[i]]), mixture(source, i), streams=streams)
             for i in range(source.depth + drafts)]
    return source.model(built[:source.depth], drafts=built[source.depth:], head="head")


def attention(source: Source, i: int, ratio: int | None) -> Block:
    text = source.text
    return CompressedAttention(
        source.width, source.heads, text.integer("head_dim"), text.integer("q_lora_rank"), text.integer("o_groups"),
        text.integer("o_lora_rank"), text.integer("qk_rope_head_dim"), text.integer("sliding_window"), ratio,
        text.integer("index_n_heads"), text.integer("index_head_dim"), text.integer("index_topk"),
        source.form(i, "attn.wq_a", "attn.wq_b", "attn.wkv", "attn.wo_a", "attn.wo_b"), source.quantised.kv,
    )


def mixture(source: Source, i: int) -> Block:
    """The first layers look their experts up by token id (num_hash_layers)."""
    text = source.text
    inner, shared = text.integer("moe_intermediate_size"), text.count("n_shared_experts")
    form = source.form(i, "ffn.experts.0.w1", "ffn.experts.0.w2", "ffn.experts.0.w3")
    text.must("expert_dtype", "fp4", "fp8")
    if text.raw("expert_dtype") == "fp4" and form.weights != "fp4":
        form = MXFP4_FP8                 # fp4 with one e8m0 scale for 32, activations of fp8 (DeepSeek-V4 model card)
    beside = source.form(i, *(f"ffn.shared_experts.{name}" for name in ("w1", "w2", "w3"))) if shared else BF16
    return Mixture(
        source.width, text.integer("n_routed_experts"), text.integer("num_experts_per_tok"), inner, form,
        correction=i >= text.count("num_hash_layers"), hashed=i < text.count("num_hash_layers"),
        shared=Dense(source.width, inner * shared, beside, beside, part="shared experts") if shared else None,
    )
