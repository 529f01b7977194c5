"""This file knows about convolutions, as the matrix products that they are.

    y[batch, c_out, *out] = sum over (c_in / groups, *kernel) of x · w
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from sublight.ops.op import Op, Operand, matrix_unit, nbytes
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class Convolution(Op):
    """2·batch·prod(out)·c_out·(c_in / groups)·prod(kernel) operations in each of up to three directions.

    Where a kernel transforms (Winograd, FFT) it multiplies less than that: then only bytes are counted.
    Source: implicit GEMM of cuDNN (Chetlur et al., arXiv 1410.0759); Lavin, Gray, arXiv 1509.09308 for Winograd.
    """

    batch: int
    c_in: int
    c_out: int
    size: tuple[int, ...]                # of the input, without batch and channels
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    stride: tuple[int, ...] = ()         # empty: 1 everywhere
    padding: tuple[int, ...] = ()        # empty: none
    dilated: bool = False
    groups: int = 1
    form: str = "bf16"
    math: str | None = None
    bias: bool = False
    forward: bool = True                 # y from x and w
    to_input: bool = False               # dx from dy and w
    to_weight: bool = False              # dw from dy and x
    to_bias: bool = False                # db from dy
    transformed: bool = False

    def work(self) -> Work:
        x, y = (self.batch * c * prod(s) for c, s in ((self.c_in, self.size), (self.c_out, self.out)))
        w = self.c_out * (self.c_in // self.groups) * prod(self.kernel)
        touched = self.batch * self.c_in * prod(self._touched())
        once = 2 * y * (w // self.c_out)
        directions = self.forward + self.to_input + self.to_weight
        math = (self.math or "fp32") if self.form == "fp32" else self.form
        backward = self.to_input or self.to_weight or self.to_bias
        reads = [
            Operand(touched if self.forward or self.to_weight else 0, self.form),
            Operand(w if self.forward or self.to_input else 0, self.form),
            Operand(y if backward else 0, self.form),
            Operand(self.c_out if self.forward and self.bias else 0, self.form),
        ]
        writes = [
            Operand(y if self.forward else 0, self.form), Operand(x if self.to_input else 0, self.form),
            Operand(w if self.to_weight else 0, self.form), Operand(self.c_out if self.to_bias else 0, self.form),
        ]
        return Work.of(
            flops={} if self.transformed else {matrix_unit(math, math): directions * once},
            bytes_read=nbytes(reads), bytes_written=nbytes(writes),
        )

    def _touched(self) -> list[int]:
        """At least so many places of the input are read, in each dimension: strides may skip some."""
        ones, zeros = (1,) * len(self.size), (0,) * len(self.size)
        steps = zip(self.size, self.kernel, self.out, self.stride or ones, self.padding or zeros, strict=True)
        return [
            min(size, max(0, ((out - 1) * min(stride, kernel) + kernel if not self.dilated else out) - 2 * padding))
            for size, kernel, out, stride, padding in steps
        ]
