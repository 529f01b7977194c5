"""This file knows about compressed attention (DeepSeek-V4): a window of single tokens, and entries that stand for many.

    ratio   tokens that an entry stands for: none (the window alone), 4 (an indexer chooses entries), 128 (all entries)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sublight.models.block import Block, Labelled, Weight, all_reduce, divided, norm, product, rows
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops import Attention, CacheWrite, Elementwise, Gemm, Rotary
from sublight.ops.index import IndexScores
from sublight.ops.op import Operand


@dataclass(frozen=True, slots=True)
class CompressedAttention(Block):
    """Queries of low rank against one shared key, which is the value too, and an output projection in groups.

    Source: modules as in Hugging Face transformers, models/deepseek_v4; ratios: compress_ratios of the config. Entries
    of ratio 4 overlap, so their compressor is twice as wide; they alone have an indexer.
    """

    width: int
    heads: int
    d: int
    q_rank: int
    o_groups: int
    o_rank: int
    rope: int
    window: int
    ratio: int | None
    index_heads: int
    index_width: int
    chosen: int
    form: NumberFormat = BF16
    kv: str = "bf16"

    @property
    def overlap(self) -> int:
        return 2 if self.ratio == 4 else 1

    @property
    def indexed(self) -> bool:
        return self.ratio == 4

    def weights(self) -> Iterator[Weight]:
        all_heads = self.heads * self.d
        yield Weight("attention", "wq_a", self.width * self.q_rank, self.form, shared_by="none")
        yield Weight("attention", "wq_b", self.q_rank * all_heads, self.form)
        yield Weight("attention", "wkv", self.width * self.d, self.form, shared_by="none")
        yield Weight("attention", "wo_a", all_heads * self.o_rank, self.form)
        yield Weight("attention", "wo_b", self.o_groups * self.o_rank * self.width, self.form)
        yield Weight("norms", "q_norm, kv_norm", self.q_rank + self.d, shared_by="none", multiplied=False)
        yield Weight("attention", "attn_sink", self.heads, multiplied=False)
        if self.ratio:
            yield from self._compressor_weights("compressor", self.d)
        if self.indexed:
            yield from self._compressor_weights("indexer.compressor", self.index_width)
            yield Weight("attention", "indexer.wq_b", self.q_rank * self.index_heads * self.index_width, self.form,
                         shared_by="none")
            yield Weight("attention", "indexer.weights_proj", self.width * self.index_heads, shared_by="none")

    def _compressor_weights(self, name: str, d: int) -> Iterator[Weight]:
        assert self.ratio is not None
        yield Weight("attention", f"{name}.wkv, wgate", 2 * self.width * self.overlap * d, shared_by="none")
        yield Weight("attention", f"{name}.ape", self.ratio * self.overlap * d, shared_by="none", multiplied=False)
        yield Weight("norms", f"{name}.norm", d, shared_by="none", multiplied=False)

    def check(self, split: Split) -> None:
        divided("heads", self.heads, split.tp)
        divided("groups of the output projection", self.o_groups, split.tp)

    def cached(self, split: Split) -> tuple[float, float]:
        """Entries of this layer and keys of its indexer (fp8 with an fp32 scale), shared out over the tokens of one."""
        del split
        if not self.ratio:
            return self.d, 0.0
        return self.d / self.ratio, (self.index_width + 4) / self.ratio if self.indexed else 0.0

    def cached_tokens(self) -> int | None:
        return None if self.ratio else self.window

    def state(self, split: Split) -> int:
        """The window of single tokens beside compressed entries."""
        del split
        return 2 * self.d * self.window if self.ratio else 0

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t, heads = rows(step), divided("heads", self.heads, split.tp)
        groups = divided("groups of the output projection", self.o_groups, split.tp)
        yield "attention.qkv_a", product(t, self.q_rank + self.d, self.width, self.form)
        yield "attention.q_norm", norm(t, self.q_rank)
        yield "attention.kv_norm", norm(t, self.d)
        yield "attention.q_b", product(t, heads * self.d, self.q_rank, self.form)
        yield "attention.qk_norm", norm(t, self.d, groups=heads, weighted=False)
        yield "attention.rotary", Rotary(t, heads + 1, self.rope)
        yield "attention.cache", CacheWrite(t, self.d, cache=self.kv)
        if self.ratio:
            yield from self._compress("attention.compress", t, self.d)
        if self.indexed:
            yield from self._compress("attention.index_compress", t, self.index_width)
            yield "attention.index_q", product(t, self.index_heads * self.index_width, self.q_rank, self.form)
            yield "attention.index_weights", product(t, self.index_heads, self.width, BF16, out="fp32")
        for batch in step:
            yield from self._attend(batch, heads)
        yield "attention.out_a", Gemm(t, self.o_rank, heads * self.d // groups, batch=groups, a=self.form.activations,
                                      b=self.form.weights)
        yield "attention.out_b", product(t, self.width, groups * self.o_rank, self.form)
        if split.tp > 1:
            yield "attention.all_reduce", all_reduce(t, self.width, split.tp)

    def _compress(self, label: str, t: int, d: int) -> Iterator[Labelled]:
        """Keys and gates of each token, then a softmax over the tokens of an entry: exponential, sum, product, sum."""
        assert self.ratio is not None
        wide = self.overlap * d
        yield f"{label}_kv", product(t, 2 * wide, self.width, BF16)
        entries = max(1, t // self.ratio) * d
        each = 4 * self.ratio * self.overlap
        yield label, Elementwise((Operand(2 * t * wide, "bf16"),), (Operand(entries, "bf16"),), each)

    def _attend(self, batch: Batch, heads: int) -> Iterator[Labelled]:
        pairs, keys = batch.pairs(window=self.window), batch.keys(window=self.window)
        reads = None                     # keys of its own choice, where it chooses
        if self.ratio:
            most = self.chosen if self.indexed else None
            reads = most and self.window + most
            entries = batch.sequences * ((batch.context + batch.tokens) // self.ratio)
            pairs += batch.compressed_pairs(self.ratio, most)
            keys += entries if most is None else min(entries, batch.rows * most)
            if self.indexed:
                yield "attention.index", IndexScores(
                    batch.rows, entries, batch.compressed_pairs(self.ratio), self.index_heads, self.index_width,
                    self.chosen)
        yield f"attention.{'decode' if batch.decode else 'prefill'}", Attention(
            pairs, batch.rows, keys, heads, 1, self.d, self.d, kv=self.kv, kv_width=self.d, sequences=batch.sequences,
            chosen=reads)
