"""This file knows about matrix products: dense, batched and grouped.

    C[batch, m, n] = A[batch, m, k] · B[batch, k, n] (+ addend)
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Gemm(Op):
    """batch products of an (m, k) and a (k, n) matrix: 2·batch·m·n·k floating-point operations.

    >>> Gemm(m=8944, n=2816, k=1024).work().flops
    {('tensor', 'bf16'): 51581550592}

    Source: BLAS GEMM counts a multiply and an add for each of m·n·k terms (Golub, Van Loan, section 1.1).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: str = "bf16"
    b: str = "bf16"
    out: str = "bf16"
    math: str | None = None              # "tf32" or "fp32" where kernels say how fp32 is multiplied
    a_elements: int | None = None        # distinct ones, where fewer than batch·m·k (shared over the batch)
    b_elements: int | None = None
    addend: Operand | None = None        # bias or C, read

    def work(self) -> Work:
        a, b = ((self.math or f) if f == "fp32" else f for f in (self.a, self.b))
        reads = [
            Operand(self.batch * self.m * self.k if self.a_elements is None else self.a_elements, self.a),
            Operand(self.batch * self.k * self.n if self.b_elements is None else self.b_elements, self.b),
        ]
        return Work.of(
            flops={matrix_unit(a, b): 2 * self.batch * self.m * self.n * self.k},
            bytes_read=nbytes(reads + ([self.addend] if self.addend else [])),
            bytes_written=Operand(self.batch * self.m * self.n, self.out).nbytes,
        )


@dataclass(frozen=True, slots=True)
class GroupedGemm(Op):
    """rows of A, each multiplied by the (k, n) matrix of its group; `groups` matrices are used: 2·rows·n·k.

    Source: as Gemm; megablocks (Gale et al., MLSys 2023) for the grouping.
    """

    rows: int
    n: int
    k: int
    groups: int                          # that have at least one row
    a: str = "bf16"
    b: str = "bf16"
    out: str = "bf16"
    b_block: int | None = None           # elements of B that share a one-byte scale (MX: 32, NVFP4: 16)

    def work(self) -> Work:
        weights = self.groups * self.k * self.n
        scales = weights // self.b_block if self.b_block else 0
        return Work.of(
            flops={matrix_unit(self.a, self.b): 2 * self.rows * self.n * self.k},
            bytes_read=nbytes([Operand(self.rows * self.k, self.a), Operand(weights, self.b),
                               Operand(scales, "uint8")]),
            bytes_written=Operand(self.rows * self.n, self.out).nbytes,
        )
