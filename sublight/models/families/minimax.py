"""This file knows about MiniMax M2 and M3: grouped queries, experts, in M3 blocks of keys that an indexer chooses."""

from __future__ import annotations

from dataclasses import replace

from sublight.models.block import Block
from sublight.models.families.source import Source
from sublight.models.families.vision import towers
from sublight.models.feedforward import Mixture
from sublight.models.grouped import BlockIndexer
from sublight.models.model import Layer, Model

UNDER, NAMES = "block_sparse_moe", ("w1", "w2", "w3")


def minimax_m2(source: Source) -> Model:
    """All attention is dense: attn_type_list is 1 throughout. Norms span all heads (qk_norm_type per_layer).

    num_mtp_modules are named by the config and not in the published checkpoint; they are left out.
    """
    text = source.text
    text.must("hidden_act", "silu")
    kinds = text.listed("attn_type_list", source.depth, int)
    if kinds is not None and set(kinds) != {1}:
        raise text.wrong("attn_type_list", "1 (dense attention) for each layer")
    text.must("shared_intermediate_size", 0)
    _drafts_left_out(source)
    norms = _norms(source, "per_layer")

    def layer(i: int) -> Layer:
        return Layer(source.grouped(i, norms=norms, rotated=text.optional("rotary_dim")), Mixture(
            source.width, text.integer("num_local_experts"), text.integer("num_experts_per_tok"),
            text.integer("intermediate_size"), source.experts_form(i, UNDER, NAMES), correction=True))

    return source.model([layer(i) for i in range(source.depth)])


def minimax_m3(source: Source) -> Model:
    text = source.text
    text.must("hidden_act", "swigluoai", "silu")
    text.must("attention_output_gate", False)
    text.raw("use_gemma_norm")
    _drafts_left_out(source)
    sparse = [0] * source.depth
    if text.has("sparse_attention_config"):
        sparse = text.part("sparse_attention_config").listed("sparse_attention_freq", source.depth, int) or sparse
    norms = _norms(source, "per_head")
    layers = [Layer(attention(source, i, norms, bool(sparse[i])), feedforward(source, i)) for i in range(source.depth)]
    return source.model(layers, aside=towers(source.config))


def attention(source: Source, i: int, norms: str, sparse: bool) -> Block:
    dense = source.grouped(i, norms=norms, rotated=source.text.optional("rotary_dim"))
    if not sparse:
        return dense
    index = source.text.part("sparse_attention_config")
    off = index.listed("sparse_disable_index_value", source.depth, int)
    if off is None or not off[i]:
        raise index.wrong("sparse_disable_index_value", f"1 for layer {i}: an indexer with its own values is not known")
    return replace(dense, indexer=BlockIndexer(
        index.integer("sparse_num_index_heads"), index.integer("sparse_index_dim"), index.integer("sparse_block_size"),
        index.integer("sparse_topk_blocks"), source.form(i, "self_attn.index_q_proj", "self_attn.index_k_proj")))


def feedforward(source: Source, i: int) -> Block:
    text = source.text
    sparse = text.listed("moe_layer_freq", source.depth, int)
    dense_first, inner = text.count("first_k_dense_replace"), text.integer("dense_intermediate_size")
    shared, own = text.optional("shared_intermediate_size", least=0), text.integer("intermediate_size")
    text.must("moe_intermediate_size", own)
    text.must("n_shared_experts", 0, 1)
    if not (sparse[i] if sparse is not None else i >= dense_first):
        return source.dense(i, inner)
    return Mixture(
        source.width, text.integer("num_local_experts"), text.integer("num_experts_per_tok"), own,
        source.experts_form(i, UNDER, NAMES), correction=text.flag("use_routing_bias"),
        shared=source.dense(i, shared, under=f"{UNDER}.shared_experts", part="shared experts") if shared else None)


def _norms(source: Source, usual: str) -> str:
    if not source.text.flag("use_qk_norm"):
        return "none"
    return {"per_layer": "all", "per_head": "head"}[_kind(source, usual)]


def _kind(source: Source, usual: str) -> str:
    source.text.must("qk_norm_type", "per_layer", "per_head")
    return source.text.text("qk_norm_type", usual)


def _drafts_left_out(source: Source) -> None:
    for key in ("num_mtp_modules", "mtp_transformer_layers", "use_mtp", "num_nextn_predict_layers"):
        source.text.raw(key)
