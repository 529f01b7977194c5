"""This file knows about the contract of an operator: what must come back, within which error, on which inputs.

A contract is kept by any kernel whose outputs lie within it on every case; who computed them, and how, it does not ask.
Tensors are torch's, on the CPU; nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sublight.ops.op import Op

Tensor: TypeAlias = Any                  # torch.Tensor
Tensors: TypeAlias = Mapping[str, Tensor]
Shape: TypeAlias = Any                   # the contract's own frozen dataclass of sizes, formats and switches


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor that is to be filled: contiguous, of these sizes and this number format ("bf16", "int32")."""

    sizes: tuple[int, ...]
    form: str


@dataclass(frozen=True, slots=True)
class Case:
    """One trial: a shape, the kind of values that its inputs have (one of the contract's `values`), and a seed."""

    shape: Shape
    values: str = "normal"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Contract:
    """What an operator must return.

    An output that has the name of an input is written in place: the kernel gets a copy of the input to write on, and
    what it leaves alone must stay as it was.
    """

    name: str                                               # "norm", also the folder's name
    title: str                                              # "RMSNorm and LayerNorm, with residual and quantisation"
    shape: type[Any]                                        # frozen dataclass; its fields are what --shape sets
    values: tuple[str, ...]                                 # kinds of inputs: "normal", "outliers", "tiny", …
    refusal: Callable[[Shape], str | None]                  # why a shape makes no sense; None: it does
    inputs: Callable[[Case], Tensors]                       # the same for the same case
    outputs: Callable[[Shape], Mapping[str, Spec]]
    reference: Callable[[Shape, Tensors], Tensors]          # float64, from the quantised inputs, exact but for float64
    bound: Callable[[Shape, Tensors, Tensors], Tensors]     # (shape, inputs, reference) -> the largest absolute error
                                                            # that an honest kernel can make, element by element
    honest: Callable[[Shape, Tensors], Tensors]             # outputs of a plain implementation in the same formats
    cases: Callable[[], tuple[Case, ...]]                   # at least 40, adversarial ones among them
    op: Callable[[Shape], Op]                               # the operator that it is, whose work sets the bound in time
    shape_of: Callable[[Op], Shape | None]                  # back: the shape of an operator; None: not this contract's
    constant: tuple[str, ...] = ()                          # inputs that stay the same from call to call (weights): a
                                                            # kernel may pack them ahead
    judged: Callable[[Shape, Tensors, Tensors], Tensors] | None = None
                                                            # (shape, inputs, outputs) -> the values to be compared with
                                                            # the reference, in float64: a quantised output times its
                                                            # scale. None: the outputs themselves
    discrete: Callable[[Shape, Tensors, Tensors], tuple[str, ...]] | None = None
                                                            # (shape, inputs, outputs) -> what is wrong with outputs
                                                            # that have no error, such as indices; they are left out
                                                            # of judged
