"""This file knows about DeepSeek V2, V3, R1 and V3.2, Kimi K2 and K2.5, and GLM-5: latent attention and mixtures of
experts, with sparse attention where there is an indexer.
"""

from __future__ import annotations

from sublight.models.block import Block
from sublight.models.config import kinds
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.formats import NumberFormat
from sublight.models.latent import Indexer, LatentAttention
from sublight.models.model import Layer, Model


def deepseek(source: Source) -> Model:
    """The decoder and its drafts, which are layers behind the last (model.layers.61 of DeepSeek-V3)."""
    text = source.text
    text.must("hidden_act", "silu")
    drafts = text.count("num_nextn_predict_layers")
    built = [Layer(latent(source, i), feedforward(source, i)) for i in range(source.depth + drafts)]
    return source.model(built[:source.depth], drafts=built[source.depth:], aside=towers(source.config))


def latent(source: Source, i: int, *, gate: NumberFormat | None = None) -> LatentAttention:
    text, under = source.text, "self_attn"
    q_rank = text.optional("q_lora_rank")
    names = ("q_a_proj", "q_b_proj") if q_rank else ("q_proj", "q_proj")
    q_a, q_b = (source.form(i, f"{under}.{name}") for name in names)
    text.raw("qk_head_dim"), text.raw("head_dim"), text.raw("num_key_value_heads")
    return LatentAttention(
        source.width, source.heads, q_rank, text.integer("kv_lora_rank"), text.integer("qk_nope_head_dim"),
        text.integer("qk_rope_head_dim"), text.integer("v_head_dim"), q_a, q_b,
        source.form(i, f"{under}.kv_a_proj_with_mqa"), source.form(i, f"{under}.kv_b_proj"),
        source.form(i, f"{under}.o_proj"), source.quantised.kv, bias=text.flag("attention_bias"), gate=gate,
        indexer=indexer(source, i),
    )


def indexer(source: Source, i: int) -> Indexer | None:
    """Of DeepSeek sparse attention. In GLM-5.2 groups of layers share the choice of their first; a draft has its own
    (index_share_for_mtp_iteration: further passes of the same draft share it)."""
    text = source.text
    heads = text.optional("index_n_heads")
    named = kinds(text, "indexer_types", {"full": "full", "shared": "shared"}, source.depth)
    kinds(text, "layer_types", {"deepseek_sparse_attention": "sparse"}, source.depth)
    for key in ("index_skip_topk_offset", "index_topk_freq"):          # what indexer_types was made from
        text.raw(key)
    if named is None and (text.optional("index_topk_freq") or 1) != 1:
        raise text.wrong("indexer_types", "which layers share an indexer's choice, since 'index_topk_freq' is not 1")
    text.must("index_topk_pattern")
    if heads is None:
        return None
    shared = named is not None and i < source.depth and named[i] == "shared"
    return Indexer(heads, text.integer("index_head_dim"), text.integer("index_topk"), shared,
                   source.form(i, "self_attn.indexer.wq_b", "self_attn.indexer.wk"))


def feedforward(source: Source, i: int) -> Block:
    text = source.text
    dense_first, every = text.count("first_k_dense_replace"), text.optional("moe_layer_freq") or 1
    named = kinds(text, "mlp_layer_types", {"dense": "dense", "sparse": "sparse"}, source.depth)
    experts = text.optional("n_routed_experts", "num_experts", "num_local_experts")
    inner = text.integer("intermediate_size")
    for key in ("num_experts", "num_local_experts"):
        text.raw(key)
    sparse = i >= dense_first and i % every == 0
    if named is not None and i < source.depth:
        sparse = named[i] == "sparse"
    if experts is None or not sparse:
        return source.dense(i, inner, bias=False)
    own = text.integer("moe_intermediate_size")
    shared = text.count("n_shared_experts", "num_shared_experts")
    return Mixture(
        source.width, experts, text.integer("num_experts_per_tok", "num_experts_per_token"), own,
        source.experts_form(i),
        correction=text.raw("topk_method") == "noaux_tc",
        shared=source.dense(i, own * shared, under="mlp.shared_experts", part="shared experts", bias=False)
        if shared else None,
    )
