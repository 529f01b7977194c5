"""This file knows about what a dequantisation must return: x = q·scale.

Bound: the product is rounded to fp32, u·|x|, then to the output's format, half a unit in its last place (`rounding`).
A scale of zero gives zero; a NaN of fp8 stays one, in its place alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.dequantise.shape import Shape
from sublight.kernels.quantise.contract import refusal as refusal_of_quantise
from sublight.kernels.quantise.contract import scale_sizes, widened
from sublight.kernels.quantise.shape import Shape as Quantised
from sublight.kernels.rounding import DTYPES, rounded, sum_error
from sublight.kernels.values import numbers, random, scales
from sublight.ops import Elementwise, Op, Operand

VALUES = ("normal", "outliers", "zeros", "constant", "largest", "not_finite", "tiny_scales", "zero_scales",
          "wide_scales")


def refusal(shape: Shape) -> str | None:
    said = refusal_of_quantise(Quantised(shape.rows, shape.width, shape.by, shape.block, shape.form))
    return said.replace("to is one of", "by is one of") if said else None


def inputs(case: Case) -> Tensors:
    s: Shape = case.shape
    rng = random(case)
    return {"q": numbers(case.values, (s.rows, s.width), s.by, rng),
            "scale": scales(case.values, scale_sizes(s.rows, s.width, s.block), rng)}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"x": Spec((shape.rows, shape.width), shape.form)}


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    return {"x": inputs["q"].double() * widened(inputs["scale"].double(), shape.width, shape.block)}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    return {"x": rounded(exact["x"], sum_error(1, exact["x"].abs()), shape.form)}


def dequantised(q: Tensor, scale: Tensor, block: str, form: str) -> Tensor:
    """In plain torch: a product in fp32, rounded once more."""
    return (q.float() * widened(scale, q.shape[-1], block)).to(DTYPES[form])


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    return {"x": dequantised(inputs["q"], inputs["scale"], shape.block, shape.form)}


SIZES = ((1, 1), (1, 128), (3, 7), (5, 130), (16, 64), (17, 1031), (33, 257), (64, 512), (129, 127), (2, 4099))


def cases() -> tuple[Case, ...]:
    """Both formats with each kind of block on 10 sizes, in turn to each format; each kind of values."""
    kinds = [(by, block) for by in ("fp8", "int8") for block in ("tensor", "row", "128")]
    ordinary = [Case(Shape(*size, by, block, ("bf16", "fp16", "fp32")[(i + j) % 3]), seed=i)
                for j, (by, block) in enumerate(kinds) for i, size in enumerate(SIZES)]
    odd = [Case(Shape(9, 300, by, block, "fp32" if values == "tiny_scales" and block == "row" else "bf16"), values)
           for by, block in kinds for values in VALUES
           if values != "normal" and not (values == "not_finite" and by == "int8")]
    return tuple(ordinary + odd)


def op(shape: Shape) -> Op:
    elements, sizes = shape.rows * shape.width, scale_sizes(shape.rows, shape.width, shape.block)
    return Elementwise(reads=(Operand(elements, shape.by), Operand(torch.Size(sizes).numel(), "fp32")),
                       writes=(Operand(elements, shape.form),), operations=1)


def shape_of(one: Op) -> Shape | None:
    """A shape with the same work: an Elementwise tells how many elements share a scale, not how they lie."""
    if not isinstance(one, Elementwise) or len(one.reads) != 2 or len(one.writes) != 1:
        return None
    (q, scale), (x,) = one.reads, one.writes
    if not scale.elements or q.elements % scale.elements:
        return None
    shape = Shape(scale.elements, q.elements // scale.elements, q.form, "row", x.form)
    return shape if refusal(shape) is None and op(shape) == one else None


CONTRACT = Contract(
    name="dequantise", title="numbers of fp8 or int8 with scales, back in 16 or 32 bits", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of,
)
