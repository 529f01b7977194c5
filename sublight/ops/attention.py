"""This file knows about attention: softmax(Q·Kᵀ)·V, dense, flash, paged or latent, forward and backward.

    pairs   how many (query, key) pairs of one head are not masked, summed over sequences
    Σq Σk   query and key tokens, summed over sequences
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


def unmasked_pairs(q: int, k: int, *, causal: str | None) -> int:
    """(query, key) pairs of one sequence. causal: None, "start" (query i sees keys 0..i, PyTorch) or "end" (the last
    query sees all keys, FlashAttention 2.1 and later).

    >>> unmasked_pairs(559, 559, causal="start"), unmasked_pairs(1, 1024, causal="end")
    (156520, 1024)
    """
    if causal is None:
        return q * k
    if causal == "start":
        return q * (q + 1) // 2 if q <= k else k * (k + 1) // 2 + (q - k) * k
    return q * k - q * (q - 1) // 2 if q <= k else k * (k + 1) // 2


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """heads · pairs · (2·d_qk + 2·d_v) operations forward, and two and a half times that backward.

    Grouped queries: kv_heads < heads. Latent attention (MLA, absorbed): kv_heads = 1, d_qk = rank + rope, d_v = rank,
    kv_width = d_qk, since values are a part of the keys. The softmax itself and its statistics are not counted.
    Backward recomputes Q·Kᵀ and makes dV, dP, dQ and dK: five products against two (Dao, arXiv 2307.08691, 4.1:
    the factor 2.5).
    """

    pairs: int
    q_tokens: int                        # Σq
    kv_tokens: int                       # Σk
    heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    q: str = "bf16"
    kv: str = "bf16"
    out: str = "bf16"
    math: str | None = None              # of fp32
    kv_width: int | None = None          # elements of a cached token, where not kv_heads·(d_qk + d_v)
    backward: bool = False
    mask: Operand | None = None          # an explicit mask or bias, read
    inferred: bool = False               # that no window narrows it is not recorded
    sequences: int | None = None         # equally long ones; None: it is not said how the tokens fall to sequences
    window: int | None = None            # keys that a mask leaves a query at most
    chosen: int | None = None            # keys of its own choice that each query reads at most (sparse attention)

    @classmethod
    def dense(
        cls, *, batch: int, q_length: int, kv_length: int, heads: int, kv_heads: int, d_qk: int, d_v: int,
        causal: str | None = None, form: str = "bf16", math: str | None = None, backward: bool = False,
        mask: Operand | None = None,
    ) -> Attention:
        """Of batch sequences that are equally long."""
        return cls(
            pairs=batch * unmasked_pairs(q_length, kv_length, causal=causal), q_tokens=batch * q_length,
            kv_tokens=batch * kv_length, heads=heads, kv_heads=kv_heads, d_qk=d_qk, d_v=d_v, q=form, kv=form, out=form,
            math=math, backward=backward, mask=mask, sequences=batch,
        )

    def work(self) -> Work:
        unit = matrix_unit(self._math(self.q), self._math(self.q))
        forward = self.heads * self.pairs * (2 * self.d_qk + 2 * self.d_v)
        q = Operand(self.q_tokens * self.heads * self.d_qk, self.q)
        o = Operand(self.q_tokens * self.heads * self.d_v, self.out)
        width = self.kv_heads * (self.d_qk + self.d_v) if self.kv_width is None else self.kv_width
        kv = Operand(self.kv_tokens * width, self.kv)
        masks = [self.mask] if self.mask else []
        if self.backward:                # reads q, k, v, out and its gradient; writes dq, dk, dv
            return Work.of(flops={unit: forward * 5 // 2}, bytes_read=nbytes([q, kv, o, o, *masks]),
                           bytes_written=nbytes([q, kv]), inferred=self.inferred)
        return Work.of(flops={unit: forward}, bytes_read=nbytes([q, kv, *masks]), bytes_written=o.nbytes,
                       inferred=self.inferred)

    def _math(self, form: str) -> str:
        return (self.math or "fp32") if form == "fp32" else form
