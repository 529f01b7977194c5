"""This file knows about matrix products of quantised weights: B carries scales that are read with it."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class ScaledGemm(Op):
    """An (m, k) and a (k, n) matrix: 2·m·n·k operations, B with one byte of scales for every `b_block` elements.

        NVFP4 16, MXFP4 and MXFP8 32, int4 in groups of g with fp16 scales g/2, fp8 in 128x128 blocks with fp32
        scales 4096, fp8 with one scale a tensor: a Gemm.

    >>> ScaledGemm(m=1, n=1024, k=1024, a="fp4", b="fp4", b_block=16).work().bytes_read
    590336

    Scales of A are as many as its own block says, and small beside B's where m is small: not counted.
    Source: OCP Microscaling Formats 1.0, table 1; NVIDIA, NVFP4 (16 elements, one e4m3 scale).
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    b_block: int
    out: str = "bf16"
    addend: Operand | None = None        # bias, read

    def work(self) -> Work:
        weights = self.k * self.n
        reads = [Operand(self.m * self.k, self.a), Operand(weights, self.b), Operand(weights // self.b_block, "uint8")]
        return Work.of(
            flops={matrix_unit(self.a, self.b): 2 * self.m * self.n * self.k},
            bytes_read=nbytes(reads + ([self.addend] if self.addend else [])),
            bytes_written=Operand(self.m * self.n, self.out).nbytes,
        )
