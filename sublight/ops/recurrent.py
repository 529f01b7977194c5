"""This file knows about layers whose memory is a state of fixed size: gated delta nets, Kimi delta attention, Mamba 2.

    state   one (d_k, d_v) matrix for each head and sequence
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Recurrence(Op):
    """Each token decays the state of each head, writes to it (with `delta`: after reading what the key holds), reads.

    A product of state and token is 2·d_k·d_v operations: write and read are two, the delta rule's own read a third.
    With a chunk (prefill), tokens of a chunk also meet in products of their own, (chunk + 1)/2 pairs a token: Q·Kᵀ
    times values (2·d_k + 2·d_v), and for the delta rule K·Kᵀ and the triangular solve applied to keys and values
    (4·d_k + 2·d_v). Without a chunk (decode) all of it is vector arithmetic, and the decay one product an element.
    Q·Kᵀ and K·Kᵀ are made once for each group of heads that share keys.

    Sources: Yang et al., Gated Delta Networks, arXiv 2412.06464, section 3.3; Dao, Gu, Mamba 2, arXiv 2405.21060,
    section 6; Kimi Linear, arXiv 2510.26692, section 3.
    """

    tokens: int
    sequences: int
    heads: int                           # that hold a state (value heads)
    key_heads: int                       # of queries and keys, shared by groups of heads
    d_k: int                             # state width of Mamba 2
    d_v: int
    gates: int                           # elements of decay and write strength of one token, all heads
    delta: bool = True
    chunk: int | None = None
    form: str = "bf16"
    state: str = "fp32"

    def work(self) -> Work:
        products = (3 if self.delta else 2) * 2 * self.heads * self.d_k * self.d_v
        moved = Operand(self.sequences * self.heads * self.d_k * self.d_v, self.state)
        keys = self.tokens * self.key_heads * self.d_k
        values = Operand(self.tokens * self.heads * self.d_v, self.form)
        reads = [Operand(2 * keys, self.form), values, Operand(self.tokens * self.gates, self.form), moved]
        if self.chunk is None:
            flops = {("vector", "fp32"): self.tokens * (products + self.heads * self.d_k * self.d_v)}
        else:
            flops = {matrix_unit(self.form, self.form): self.tokens * products + self._within_chunks(self.chunk)}
        return Work.of(flops=flops, bytes_read=nbytes(reads), bytes_written=values.nbytes + moved.nbytes)

    def _within_chunks(self, chunk: int) -> int:
        shared = (4 if self.delta else 2) * self.key_heads * self.d_k
        own = self.heads * ((2 * self.d_k + 4 * self.d_v) if self.delta else 2 * self.d_v)
        length = min(chunk, max(1, self.tokens // max(1, self.sequences)))
        return self.tokens * (length + 1) * (shared + own) // 2


@dataclass(frozen=True, slots=True)
class ShortConvolution(Op):
    """A causal convolution along each channel by itself, over `kernel` tokens: 2·kernel operations an element.

    Reads and writes the last kernel - 1 tokens of each sequence, which are its state.
    """

    tokens: int
    sequences: int
    channels: int
    kernel: int
    form: str = "bf16"

    def work(self) -> Work:
        x = Operand(self.tokens * self.channels, self.form)
        past = Operand(self.sequences * self.channels * (self.kernel - 1), self.form)
        return Work.of(flops={("vector", "fp32"): 2 * self.kernel * x.elements},
                       bytes_read=nbytes([x, past, Operand(self.channels * self.kernel, self.form)]),
                       bytes_written=nbytes([x, past]))
