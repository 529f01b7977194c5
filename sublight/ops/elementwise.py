"""This file knows about operators that treat each element by itself: arithmetic, activations, copies, casts, fills,
concatenation, table lookups, rotary embedding, writes to the KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Elementwise(Op):
    """Reads operands, writes results: `operations` floating-point ones for each element of the first result.

    Zero operations make it a copy, a cast, a fill or a concatenation. What a mathematical function costs is counted
    as one operation: hardware evaluates exponentials at a fraction of the rate of additions, so this is a lower bound.
    """

    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    operations: int = 0
    inferred: bool = False               # the number format is a kernel's, not the call's

    def work(self) -> Work:
        result = self.writes[0] if self.writes else Operand(0, "uint8")
        floating = [o.form for o in (*self.reads, result) if o.elements and vector_flops(o.form, 1)]
        form = max(floating, key=lambda f: f == "fp64", default="uint8")
        return Work.of(
            flops=vector_flops(form, self.operations * result.elements),
            bytes_read=nbytes(self.reads), bytes_written=nbytes(self.writes), inferred=self.inferred,
        )


@dataclass(frozen=True, slots=True)
class Gather(Op):
    """Looks up `picked` elements of a table (embedding, index_select, gather), or adds to it (scatter: `adds`).

    Which elements are picked twice is not recorded; at least `least_read` different ones are.
    """

    picked: int
    form: str
    indices: Operand
    least_read: int

    def work(self) -> Work:
        return Work.of(bytes_read=nbytes([Operand(min(self.least_read, self.picked), self.form), self.indices]),
                       bytes_written=Operand(self.picked, self.form).nbytes)


@dataclass(frozen=True, slots=True)
class Rotary(Op):
    """Rotates pairs of elements of queries and keys in place by their position: 2 multiplies and an add an element.

    Source: Su et al., arXiv 2104.09864, equation 34. Of the table of cosines and sines at least one row is read.
    """

    tokens: int
    heads: int                           # of queries and keys together
    d_rotated: int
    form: str = "bf16"
    positions: str = "int64"

    def work(self) -> Work:
        rotated = Operand(self.tokens * self.heads * self.d_rotated, self.form)
        row = Operand(self.d_rotated if self.tokens else 0, self.form)
        return Work.of(
            flops=vector_flops(self.form, 3 * rotated.elements),
            bytes_read=nbytes([rotated, row, Operand(self.tokens, self.positions)]), bytes_written=rotated.nbytes,
        )


@dataclass(frozen=True, slots=True)
class CacheWrite(Op):
    """Puts the keys and values of new tokens into the KV cache, by slot."""

    tokens: int
    width: int                           # elements of key and value of one token
    form: str = "bf16"
    cache: str = "bf16"
    slots: str = "int64"

    def work(self) -> Work:
        return Work.of(bytes_read=nbytes([Operand(self.tokens * self.width, self.form),
                                          Operand(self.tokens, self.slots)]),
                       bytes_written=Operand(self.tokens * self.width, self.cache).nbytes)
