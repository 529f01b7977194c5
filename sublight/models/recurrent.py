"""This file knows about mixers with a state of fixed size: the gated delta net, Kimi delta attention, Mamba 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sublight.models.block import Block, Labelled, Weight, all_reduce, copied, divided, gate, norm, product, rows
from sublight.models.formats import BF16, NumberFormat
from sublight.models.step import Batch, Split
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.work import BYTES

CHUNK = 64                               # tokens that kernels take at once (flash-linear-attention, delta rule)


@dataclass(frozen=True, slots=True)
class DeltaNet(Block):
    """A gated delta net, as in Qwen3-Next and Qwen3.5.

    Source: Yang et al., arXiv 2412.06464; modules as in Hugging Face transformers, models/qwen3_next and qwen3_5.
    """

    width: int
    key_heads: int
    value_heads: int
    d_k: int
    d_v: int
    kernel: int
    into: NumberFormat = BF16            # of queries, keys, values and the output gate z
    out: NumberFormat = BF16
    state_form: str = "fp32"

    def weights(self) -> Iterator[Weight]:
        keys, values = self.key_heads * self.d_k, self.value_heads * self.d_v
        yield Weight("attention", "in_proj_qkvz", self.width * 2 * (keys + values), self.into)
        yield Weight("attention", "in_proj_ba", self.width * 2 * self.value_heads)
        yield Weight("attention", "conv1d", (2 * keys + values) * self.kernel)
        yield Weight("attention", "A_log, dt_bias", 2 * self.value_heads, multiplied=False)
        yield Weight("norms", "norm", self.d_v, shared_by="none", multiplied=False)
        yield Weight("attention", "out_proj", values * self.width, self.out)

    def check(self, split: Split) -> None:
        divided("value heads", self.value_heads, split.tp)
        divided("key heads", self.key_heads, split.tp)

    def state(self, split: Split) -> int:
        channels = 2 * self.key_heads * self.d_k + self.value_heads * self.d_v
        matrices = int(self.value_heads * self.d_k * self.d_v * BYTES[self.state_form])
        return -(-(matrices + channels * (self.kernel - 1) * 2) // split.tp)

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t = rows(step)
        key_heads, heads = (divided("heads", n, split.tp) for n in (self.key_heads, self.value_heads))
        keys, values = key_heads * self.d_k, heads * self.d_v
        yield "attention.qkvz", product(t, 2 * (keys + values), self.width, self.into)
        yield "attention.gates", product(t, 2 * heads, self.width, BF16)
        for batch in step:
            yield "attention.convolution", ShortConvolution(batch.rows, batch.sequences, 2 * keys + values, self.kernel)
            yield "attention.recurrence", Recurrence(
                batch.rows, batch.sequences, heads, key_heads, self.d_k, self.d_v, gates=2 * heads,
                chunk=None if batch.decode else CHUNK, state=self.state_form)
        yield "attention.norm", norm(t, self.d_v, groups=heads)
        yield "attention.gate", gate(t * values, t * values)
        yield "attention.out", product(t, self.width, values, self.out)
        if split.tp > 1:
            yield "attention.all_reduce", all_reduce(t, self.width, split.tp)


@dataclass(frozen=True, slots=True)
class KimiDelta(Block):
    """Kimi delta attention: the delta rule with a decay for each channel of a key.

    Source: Kimi Linear, arXiv 2510.26692; modules as in Hugging Face transformers, models/kimi_linear. Kimi K3 makes
    the output gate with one full matrix.
    """

    width: int
    heads: int
    d: int
    kernel: int
    into: NumberFormat = BF16
    out: NumberFormat = BF16
    full_gate: bool = False

    def weights(self) -> Iterator[Weight]:
        all_heads = self.heads * self.d
        yield Weight("attention", "q_proj, k_proj, v_proj", 3 * self.width * all_heads, self.into)
        yield Weight("attention", "conv1d", 3 * all_heads * self.kernel)
        yield Weight("attention", "f_a_proj", self.width * self.d, shared_by="none")
        yield Weight("attention", "f_b_proj", self.d * all_heads)
        yield Weight("attention", "b_proj", self.width * self.heads)
        yield Weight("attention", "A_log, dt_bias", self.heads + all_heads, multiplied=False)
        if self.full_gate:
            yield Weight("attention", "g_proj", self.width * all_heads, self.into)
        else:
            yield Weight("attention", "g_a_proj", self.width * self.d, shared_by="none")
            yield Weight("attention", "g_b_proj", self.d * all_heads)
        yield Weight("norms", "o_norm", self.d, shared_by="none", multiplied=False)
        yield Weight("attention", "o_proj", all_heads * self.width, self.out)

    def check(self, split: Split) -> None:
        divided("heads", self.heads, split.tp)

    def state(self, split: Split) -> int:
        return -(-(4 * self.heads * self.d * self.d + 3 * self.heads * self.d * (self.kernel - 1) * 2) // split.tp)

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t, heads = rows(step), divided("heads", self.heads, split.tp)
        all_heads = heads * self.d
        yield "attention.qkv", product(t, 3 * all_heads, self.width, self.into)
        yield "attention.forget_a", product(t, self.d, self.width, BF16)
        yield "attention.forget_b", product(t, all_heads, self.d, BF16)
        yield "attention.beta", product(t, heads, self.width, BF16)
        if self.full_gate:
            yield "attention.gate_proj", product(t, all_heads, self.width, self.into)
        else:
            yield "attention.gate_a", product(t, self.d, self.width, BF16)
            yield "attention.gate_b", product(t, all_heads, self.d, BF16)
        for batch in step:
            yield "attention.convolution", ShortConvolution(batch.rows, batch.sequences, 3 * all_heads, self.kernel)
            yield "attention.recurrence", Recurrence(
                batch.rows, batch.sequences, heads, heads, self.d, self.d, gates=all_heads + heads,
                chunk=None if batch.decode else CHUNK)
        yield "attention.norm", norm(t, self.d, groups=heads)
        yield "attention.gate", gate(t * all_heads, t * all_heads)
        yield "attention.out", product(t, self.width, all_heads, self.out)
        if split.tp > 1:
            yield "attention.all_reduce", all_reduce(t, self.width, split.tp)


@dataclass(frozen=True, slots=True)
class Mamba2(Block):
    """A Mamba 2 mixer. Keys are B, queries C (shared by `groups`), values x, and the state is `state_width` deep.

    Source: Dao, Gu, arXiv 2405.21060; modules as in Hugging Face transformers, models/nemotron_h.
    """

    width: int
    heads: int
    head_width: int
    groups: int
    state_width: int
    kernel: int
    chunk: int = 128
    conv_bias: bool = True
    bias: bool = False
    into: NumberFormat = BF16
    out: NumberFormat = BF16
    state_form: str = "fp32"

    @property
    def inner(self) -> int:
        return self.heads * self.head_width

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_width

    def weights(self) -> Iterator[Weight]:
        into = self.inner + self.channels + self.heads
        yield Weight("attention", "in_proj", self.width * into, self.into)
        yield Weight("attention", "conv1d", self.channels * self.kernel)
        if self.conv_bias:
            yield Weight("attention", "conv1d.bias", self.channels, multiplied=False)
        yield Weight("attention", "A_log, D, dt_bias", 3 * self.heads, multiplied=False)
        yield Weight("norms", "norm", self.inner, multiplied=False)
        yield Weight("attention", "out_proj", self.inner * self.width, self.out)
        if self.bias:
            yield Weight("attention", "biases", into + self.width, multiplied=False)

    def check(self, split: Split) -> None:
        divided("Mamba heads", self.heads, split.tp)
        copied(self.groups, split.tp, "groups of B and C")

    def state(self, split: Split) -> int:
        matrices = int(self.inner * self.state_width * BYTES[self.state_form])
        return -(-(matrices + self.channels * (self.kernel - 1) * 2) // split.tp)

    def ops(self, step: tuple[Batch, ...], split: Split) -> Iterator[Labelled]:
        t, heads = rows(step), divided("Mamba heads", self.heads, split.tp)
        groups = copied(self.groups, split.tp, "groups of B and C")
        inner = heads * self.head_width
        channels = inner + 2 * groups * self.state_width
        yield "mamba.in", product(t, inner + channels + heads, self.width, self.into, bias=self.bias)
        for batch in step:
            yield "mamba.convolution", ShortConvolution(batch.rows, batch.sequences, channels, self.kernel)
            yield "mamba.recurrence", Recurrence(
                batch.rows, batch.sequences, heads, groups, self.state_width, self.head_width, gates=heads, delta=False,
                chunk=None if batch.decode else self.chunk, state=self.state_form)
        yield "mamba.norm", norm(t, inner)
        yield "mamba.gate", gate(t * inner, t * inner)
        yield "mamba.out", product(t, self.width, inner, self.out, bias=self.bias)
        if split.tp > 1:
            yield "mamba.all_reduce", all_reduce(t, self.width, split.tp)
