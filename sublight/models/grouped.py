"""This file knows about attention with grouped queries: dense, in a window or a chunk, gated, with sinks, or over
blocks that an indexer chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sublight.models.block import Block, Labelled, Weight, all_reduce, copied, divided, gate, norm, product, rows
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops import Attention, CacheWrite, Rotary
from sublight.ops.index import IndexScores


@dataclass(frozen=True, slots=True)
class BlockIndexer:
    """Scores blocks of keys with small heads and keeps the best: MiniMax sparse attention."""

    heads: int
    width: int
    block: int                           # keys
    chosen: int                          # blocks a query
    form: NumberFormat = BF16


@dataclass(frozen=True, slots=True)
class GroupedAttention(Block):
    """softmax(Q·Kᵀ)·V where groups of query heads share keys and values.

    Source: Ainslie et al., arXiv 2305.13245; sizes of the modules as in Hugging Face transformers, models/llama,
    qwen3, gemma4, gpt_oss, llama4, minimax_m3_vl, step3p7, qwen3_next.
    """

    width: int
    heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    qkv: NumberFormat = BF16
    out: NumberFormat = BF16
    kv: str = "bf16"                     # of the cache
    window: int | None = None
    chunk: int | None = None
    rotated: int | None = None           # elements of a head; None: all of them
    qkv_bias: bool = False
    out_bias: bool = False
    norms: str = "none"                  # of queries and keys: "none", "head" (shared by heads), "all", "plain"
    gate: str = "none"                   # of the output: "none", "element", "head"
    sinks: bool = False                  # one more logit a head
    values: bool = True                  # False: values are the keys
    indexer: BlockIndexer | None = None

    def weights(self) -> Iterator[Weight]:
        width, kv = self.width, self.kv_heads
        yield Weight("attention", "q_proj", width * self.heads * self.d_qk, self.qkv)
        yield Weight("attention", "k_proj", width * kv * self.d_qk, self.qkv, limit=kv)
        if self.values:
            yield Weight("attention", "v_proj", width * kv * self.d_v, self.qkv, limit=kv)
        yield Weight("attention", "o_proj", self.heads * self.d_v * width, self.out)
        if self.gate != "none":
            yield Weight("attention", "gate", width * self._gates(self.heads), self.qkv)
        if self.qkv_bias:
            yield Weight("attention", "biases", self.heads * self.d_qk + kv * (self.d_qk + self.d_v), multiplied=False)
        if self.out_bias:
            yield Weight("attention", "biases", width, shared_by="none", multiplied=False)
        if self.norms in ("head", "all"):
            each = 2 * self.d_qk if self.norms == "head" else (self.heads + kv) * self.d_qk
            yield Weight("norms", "q_norm, k_norm", each, shared_by="none", multiplied=False)
        if self.sinks:
            yield Weight("attention", "sinks", self.heads, multiplied=False)
        if self.indexer:
            index = self.indexer
            yield Weight("attention", "index_q_proj", width * index.heads * index.width, index.form, limit=index.heads)
            yield Weight("attention", "index_k_proj", width * index.width, index.form, shared_by="none")
            yield Weight("norms", "index norms", 2 * index.width, shared_by="none", multiplied=False)

    def _gates(self, heads: int) -> int:
        return {"none": 0, "element": heads * self.d_v, "head": heads}[self.gate]

    def check(self, split: Split) -> None:
        divided("query heads", self.heads, split.tp)
        copied(self.kv_heads, split.tp, "key and value heads")

    def cached(self, split: Split) -> tuple[float, float]:
        heads = copied(self.kv_heads, split.tp, "key and value heads")
        return heads * (self.d_qk + self.d_v), 2.0 * self.indexer.width if self.indexer else 0.0

    def cached_tokens(self) -> int | None:
        return self.window or self.chunk

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t, heads = rows(step), divided("query heads", self.heads, split.tp)
        kv = copied(self.kv_heads, split.tp, "key and value heads")
        into = heads * self.d_qk + kv * (self.d_qk + (self.d_v if self.values else 0)) + self._gates(heads)
        yield "attention.qkv", product(t, into, self.width, self.qkv, bias=self.qkv_bias)
        if self.norms != "none":
            yield "attention.qk_norm", norm(t, self.d_qk, groups=heads + kv, weighted=self.norms != "plain")
        if self.rotated != 0:
            yield "attention.rotary", Rotary(t, heads + kv, self.rotated or self.d_qk)
        yield "attention.cache", CacheWrite(t, kv * (self.d_qk + self.d_v), cache=self.kv)
        for batch in step:
            if self.indexer:
                yield from self._index(batch, self.indexer, split)
            yield f"attention.{'decode' if batch.decode else 'prefill'}", self._attend(batch, heads, kv)
        if self.gate != "none":
            yield "attention.gate", gate(t * heads * self.d_v, t * self._gates(heads))
        yield "attention.out", product(t, self.width, heads * self.d_v, self.out, bias=self.out_bias)
        if split.tp > 1:
            yield "attention.all_reduce", all_reduce(t, self.width, split.tp)

    def _attend(self, batch: Batch, heads: int, kv: int) -> Attention:
        most = None
        if self.indexer:
            most = self.indexer.block * self.indexer.chosen
            pairs, keys = batch.pairs(window=most), batch.chosen(most)
        else:
            pairs = batch.pairs(window=self.window, chunk=self.chunk)
            keys = batch.keys(window=self.window, chunk=self.chunk)
        return Attention(pairs, batch.rows, keys, heads, kv, self.d_qk, self.d_v, kv=self.kv,
                         sequences=batch.sequences, window=self.window or self.chunk, chosen=most)

    def _index(self, batch: Batch, index: BlockIndexer, split: Split) -> Iterator[Labelled]:
        heads = copied(index.heads, split.tp, "heads of the indexer")
        yield "attention.index_qk", product(batch.rows, (heads + 1) * index.width, self.width, index.form)
        yield "attention.index_norm", norm(batch.rows, index.width, groups=heads + 1)
        yield "attention.index", IndexScores(batch.rows, batch.seen, batch.pairs(), heads, index.width, index.chosen,
                                             form="bf16")
