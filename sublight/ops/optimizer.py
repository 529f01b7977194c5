"""This file knows about optimizer steps, fused over many tensors or not."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.op import Op, Operand, nbytes, vector_flops
from sublight.work import Work


@dataclass(frozen=True, slots=True)
class OptimizerStep(Op):
    """Updates parameters from gradients and `moments` of state (Adam 2, with amsgrad 3; SGD 0, with momentum 1;
    Adagrad 1), all read, and all but the gradients written.

    Operations: 2 for the parameter and 3 for each of the first two moments (two multiplies and an add); Adam's root,
    division and corrections come on top and are not counted. Source: Kingma, Ba, arXiv 1412.6980, algorithm 1.
    """

    parameters: int
    moments: int = 2
    form: str = "fp32"
    gradients: str = "fp32"
    state: str = "fp32"
    inferred: bool = False               # the number formats are a kernel's, not the call's

    def work(self) -> Work:
        own = Operand(self.parameters, self.form)
        state = Operand(self.parameters * self.moments, self.state)
        each = 2 + 3 * min(self.moments, 2)
        return Work.of(flops=vector_flops(self.form, each * self.parameters),
                       bytes_read=nbytes([own, Operand(self.parameters, self.gradients), state]),
                       bytes_written=nbytes([own, state]), inferred=self.inferred)
