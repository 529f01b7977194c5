"""This file knows about normalisation: RMS, layer, group and batch, with a fused residual, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work

# Operations an element: RMS squares, adds and scales (Zhang, Sennrich, arXiv 1910.07467); with a mean it also adds
# and subtracts (Ba et al., arXiv 1607.06450). Backward: one product and one sum for each of the gradient's two
# moments, then a scaled difference (layer norm only the second moment less).
FORWARD = {"rms": 3, "mean": 5}
BACKWARD = {"rms": 4, "mean": 6}


@dataclass(frozen=True, slots=True)
class Normalisation(Op):
    """Scales `elements` by statistics of their group; weight and bias of `channels` each.

    With residual: adds it first, and writes the sum back in its place. Statistics are not counted.
    """

    elements: int
    channels: int
    kind: str = "rms"                    # "rms" or "mean" (layer, group and batch norm)
    form: str = "bf16"
    weight: str | None = "bf16"          # number format, None without
    bias: str | None = None
    residual: bool = False
    backward: bool = False
    to_weight: bool = True               # backward also makes the gradients of weight and bias
    out: str | None = None               # quantised, with one fp32 scale a group; None: like what goes in

    def work(self) -> Work:
        x = Operand(self.elements, self.form)
        affine = [Operand(self.channels, form) for form in (self.weight, self.bias) if form]
        if self.backward:                # reads dy, x, weight; writes dx, dweight, dbias
            weight = [Operand(self.channels, self.weight)] if self.weight else []
            each = BACKWARD[self.kind]
            return Work.of(flops=vector_flops(self.form, each * self.elements), bytes_read=nbytes([x, x, *weight]),
                           bytes_written=nbytes([x, *(affine if self.to_weight else [])]))
        each = FORWARD[self.kind] + len(affine) + self.residual
        both = [x, x] if self.residual else [x]
        scales = Operand(self.elements // self.channels if self.out and self.channels else 0, "fp32")
        written = [Operand(self.elements, self.out or self.form), scales, *both[1:]]
        return Work.of(flops=vector_flops(self.form, each * self.elements), bytes_read=nbytes([*both, *affine]),
                       bytes_written=nbytes(written))
