"""This file knows about chains of elementwise operators that engines run as one: the gate of a feed-forward layer, and
rotary embedding with the write to the KV cache. What passes between them is neither written nor read.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Gated(Op):
    """silu(gate)·up of rows that hold both: 2 operations an element of the result, the activation counted as one.

    Quantised: `out` is another format, with one fp32 scale a row.

    >>> Gated(rows=2, width=8).work().bytes_total, Gated(rows=2, width=8, out="fp8").work().bytes_total
    (96, 88)
    """

    rows: int
    width: int
    form: str = "bf16"
    out: str | None = None               # None: like what goes in

    def work(self) -> Work:
        both = Operand(2 * self.rows * self.width, self.form)
        result = Operand(self.rows * self.width, self.out or self.form)
        scales = Operand(self.rows if self.out else 0, "fp32")
        return Work.of(flops=vector_flops(self.form, both.elements),
                       bytes_read=both.nbytes, bytes_written=nbytes([result, scales]))


@dataclass(frozen=True, slots=True)
class RotaryWrite(Op):
    """Rotates queries and keys by their position as Rotary does, and puts keys and values into the KV cache by slot.

    Reads queries, keys, values, positions, slots and at least one row of the table; writes queries and both caches.
    """

    tokens: int
    heads: int
    kv_heads: int
    dim: int
    rotary: int                          # columns of a head that are rotated
    form: str = "bf16"
    table: str = "fp32"                  # of cosines and sines
    positions: str = "int64"             # and slots

    def work(self) -> Work:
        q = Operand(self.tokens * self.heads * self.dim, self.form)
        kv = Operand(2 * self.tokens * self.kv_heads * self.dim, self.form)
        row, places = Operand(self.rotary if self.tokens else 0, self.table), Operand(2 * self.tokens, self.positions)
        return Work.of(flops=vector_flops(self.form, 3 * self.tokens * (self.heads + self.kv_heads) * self.rotary),
                       bytes_read=nbytes([q, kv, row, places]), bytes_written=nbytes([q, kv]))
