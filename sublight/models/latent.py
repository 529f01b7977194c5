"""This file knows about latent attention (MLA): queries and cached keys and values of low rank, and its indexer (DSA).

    prefill   keys and values of all seen tokens are unfolded: heads of nope + rope and v
    decode    the unfolding is absorbed into queries and outputs: one shared key of rank + rope
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sublight.models.block import Block, Labelled, Weight, all_reduce, divided, gate, norm, product, rows
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops import Attention, CacheWrite, Gemm, Normalisation, Rotary
from sublight.ops.index import IndexScores


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores every cached key with small heads and keeps the best. Each rank runs all of it."""

    heads: int
    width: int
    chosen: int
    shared: bool = False                 # takes the choice of an earlier layer: no weights, no work
    form: NumberFormat = BF16            # of wq_b and wk; the projection of the heads' weights is not quantised


@dataclass(frozen=True, slots=True)
class LatentAttention(Block):
    """Multi-head latent attention.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C; the indexer: DeepSeek-V3.2-Exp report, section 2;
    absorbed form: FlashMLA, vLLM v1/attention/backends/mla. With an indexer prefill is absorbed too, since each query
    reads keys of its own.
    """

    width: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    d_v: int
    q_a: NumberFormat = BF16
    q_b: NumberFormat = BF16
    kv_a: NumberFormat = BF16
    kv_b: NumberFormat = BF16
    out: NumberFormat = BF16
    kv: str = "bf16"
    bias: bool = False                   # of q_a and kv_a
    gate: NumberFormat | None = None     # of an output gate, one element each
    indexer: Indexer | None = None

    def weights(self) -> Iterator[Weight]:
        into, heads = self.nope + self.rope, self.heads
        if self.q_rank is None:
            yield Weight("attention", "q_proj", self.width * heads * into, self.q_b)
        else:
            yield Weight("attention", "q_a_proj", self.width * self.q_rank, self.q_a, shared_by="none")
            yield Weight("norms", "q_a_norm", self.q_rank, shared_by="none", multiplied=False)
            yield Weight("attention", "q_b_proj", self.q_rank * heads * into, self.q_b)
        yield Weight("attention", "kv_a_proj", self.width * (self.kv_rank + self.rope), self.kv_a, shared_by="none")
        yield Weight("norms", "kv_a_norm", self.kv_rank, shared_by="none", multiplied=False)
        yield Weight("attention", "kv_b_proj", self.kv_rank * heads * (self.nope + self.d_v), self.kv_b)
        yield Weight("attention", "o_proj", heads * self.d_v * self.width, self.out)
        if self.bias:
            yield Weight("attention", "biases", (self.q_rank or 0) + self.kv_rank + self.rope, shared_by="none",
                         multiplied=False)
        if self.gate:
            yield Weight("attention", "gate", self.width * heads * self.d_v, self.gate)
        if self.indexer and not self.indexer.shared:
            yield from self._index_weights(self.indexer)

    def _index_weights(self, index: Indexer) -> Iterator[Weight]:
        queries = (self.q_rank or self.width) * index.heads * index.width
        yield Weight("attention", "indexer.wq_b", queries, index.form, shared_by="none")
        yield Weight("attention", "indexer.wk", self.width * index.width, index.form, shared_by="none")
        yield Weight("attention", "indexer.weights_proj", self.width * index.heads, shared_by="none")
        yield Weight("norms", "indexer.k_norm", 2 * index.width, shared_by="none", multiplied=False)

    def check(self, split: Split) -> None:
        divided("heads", self.heads, split.tp)

    def cached(self, split: Split) -> tuple[float, float]:
        """Every rank holds all of it: one key for all heads. Keys of an indexer: fp8, each with an fp32 scale."""
        del split
        return self.kv_rank + self.rope, self.indexer.width + 4.0 if self.indexer and not self.indexer.shared else 0.0

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t, heads = rows(step), divided("heads", self.heads, split.tp)
        yield from self._queries(t, heads)
        yield "attention.rotary", Rotary(t, heads + 1, self.rope)
        yield "attention.cache", CacheWrite(t, self.kv_rank + self.rope, cache=self.kv)
        for batch in step:
            if self.indexer and not self.indexer.shared:
                yield from self._index(batch, self.indexer)
            yield from self._absorbed(batch, heads) if batch.decode or self.indexer else self._unfolded(batch, heads)
        if self.gate:
            yield "attention.gate_proj", product(t, heads * self.d_v, self.width, self.gate)
            yield "attention.gate", gate(t * heads * self.d_v, t * heads * self.d_v)
        yield "attention.out", product(t, self.width, heads * self.d_v, self.out)
        if split.tp > 1:
            yield "attention.all_reduce", all_reduce(t, self.width, split.tp)

    def _queries(self, t: int, heads: int) -> Iterator[Labelled]:
        into, compressed = heads * (self.nope + self.rope), self.kv_rank + self.rope
        if self.q_rank is None:
            yield "attention.q", product(t, into, self.width, self.q_b)
            yield "attention.kv_a", product(t, compressed, self.width, self.kv_a, bias=self.bias)
        elif self.q_a == self.kv_a:      # engines multiply both at once
            yield "attention.qkv_a", product(t, self.q_rank + compressed, self.width, self.q_a, bias=self.bias)
        else:
            yield "attention.q_a", product(t, self.q_rank, self.width, self.q_a, bias=self.bias)
            yield "attention.kv_a", product(t, compressed, self.width, self.kv_a, bias=self.bias)
        if self.q_rank is not None:
            yield "attention.q_norm", norm(t, self.q_rank)
            yield "attention.q_b", product(t, into, self.q_rank, self.q_b)
        yield "attention.kv_norm", norm(t, self.kv_rank)

    def _unfolded(self, batch: Batch, heads: int) -> Iterator[Labelled]:
        yield "attention.kv_b", product(batch.seen, heads * (self.nope + self.d_v), self.kv_rank, self.kv_b)
        yield "attention.prefill", Attention(batch.pairs(), batch.rows, batch.keys(), heads, heads,
                                             self.nope + self.rope, self.d_v, sequences=batch.sequences)

    def _absorbed(self, batch: Batch, heads: int) -> Iterator[Labelled]:
        """The unfolding matrices are multiplied in 16 bits, head by head."""
        most = self.indexer.chosen if self.indexer else None
        keys = batch.keys() if most is None else batch.chosen(most)
        phase = "decode" if batch.decode else "prefill"
        yield "attention.absorb_q", Gemm(batch.rows, self.kv_rank, self.nope, batch=heads)
        yield f"attention.{phase}", Attention(
            batch.pairs(window=most), batch.rows, keys, heads, 1, self.kv_rank + self.rope, self.kv_rank, kv=self.kv,
            kv_width=self.kv_rank + self.rope, sequences=batch.sequences, chosen=most)
        yield "attention.absorb_v", Gemm(batch.rows, self.d_v, self.kv_rank, batch=heads)

    def _index(self, batch: Batch, index: Indexer) -> Iterator[Labelled]:
        t = batch.rows
        yield "attention.index_q", product(t, index.heads * index.width, self.q_rank or self.width, index.form)
        yield "attention.index_k", product(t, index.width, self.width, index.form)
        yield "attention.index_weights", product(t, index.heads, self.width, BF16, out="fp32")
        yield "attention.index_norm", Normalisation(t * index.width, index.width, "mean", bias="bf16")
        yield "attention.index_rotary", Rotary(t, index.heads + 1, self.rope)
        yield "attention.index_cache", CacheWrite(t, index.width, cache="fp8")
        yield "attention.index", IndexScores(t, batch.seen, batch.pairs(), index.heads, index.width, index.chosen)
