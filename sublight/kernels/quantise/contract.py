"""This file knows about what a quantisation must return: q and scale with q·scale ≈ x, scale = max|x| / the largest q.

The largest q is 448 in fp8 (e4m3) and 127 in int8. Where x is all zero, q is zero and scale any positive number.

Bound, with u = 2⁻²⁴ and s the exact scale:

    scale       γ₃·s: the maximum is exact, then a division, or a product with a rounded reciprocal
    q·scale     x is divided by a scale that is off by γ₃ (or multiplied by its rounded reciprocal), rounded to nearest,
                and multiplied by the same scale: s·r(|x|/s·(1 + 8u))·(1 + 8u) + 8u·|x|, r half a unit in the last place
                of fp8 (0.5 in int8). At the end of the range x/s may be 448·(1 + 8u): 448 is then right.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.products import BLOCK, blocks
from sublight.kernels.quantise.shape import Shape
from sublight.kernels.rounding import DTYPES, half_ulp, sum_error, unit_roundoff
from sublight.kernels.values import converted, numbers, random
from sublight.ops import Elementwise, Op, Operand

FORMS = ("bf16", "fp16", "fp32")
LARGEST = {"fp8": 448.0, "int8": 127.0}
BLOCKS = ("tensor", "row", "128")
# smallest: 1e-30; huge: 1e30; one_hot: one number of each row is not zero; uneven: rows from 2^-12 to 2^8
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "smallest", "huge", "one_hot", "uneven", "all_zero")
TIMES = {"smallest": 1e-30, "huge": 1e30, "all_zero": 0.0}
NEAR = 8 * unit_roundoff("fp32")


def refusal(shape: Shape) -> str | None:
    if min(shape.rows, shape.width) < 1:
        return f"rows and width are at least 1, not {shape.rows}, {shape.width}"
    for name, value, known in (("to", shape.to, tuple(LARGEST)), ("block", shape.block, BLOCKS),
                               ("form", shape.form, FORMS)):
        if value not in known:
            return f"{name} is one of {', '.join(known)}, not {value!r}"
    return None


def inputs(case: Case) -> Tensors:
    s: Shape = case.shape
    rng = random(case)
    if case.values in TIMES:
        return {"x": converted(numbers("normal", (s.rows, s.width), "fp32", rng) * TIMES[case.values], s.form)}
    x = numbers(case.values, (s.rows, s.width), s.form, rng)
    if case.values == "one_hot":
        place = torch.randint(s.width, (s.rows, 1), generator=rng)
        return {"x": torch.where(torch.arange(s.width) == place, x, torch.zeros_like(x))}
    if case.values == "uneven":
        return {"x": x * torch.exp2(torch.randint(-12, 9, (s.rows, 1), generator=rng).float()).to(x.dtype)}
    return {"x": x}


def scale_sizes(rows: int, width: int, block: str) -> tuple[int, ...]:
    return {"tensor": (), "row": (rows,), "128": (rows, blocks(width))}[block]


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"q": Spec((shape.rows, shape.width), shape.to),
            "scale": Spec(scale_sizes(shape.rows, shape.width, shape.block), "fp32")}


def most(x: Tensor, block: str) -> Tensor:
    """The largest size of the elements that share a scale."""
    if block == "tensor":
        return x.abs().amax()
    if block == "row":
        return x.abs().amax(-1)
    padded = torch.nn.functional.pad(x.abs(), (0, -x.shape[-1] % BLOCK))
    return padded.unflatten(-1, (-1, BLOCK)).amax(-1)


def widened(scale: Tensor, width: int, block: str) -> Tensor:
    """Scales in a shape that multiplies [rows, width]."""
    if block == "tensor":
        return scale
    return scale[:, None] if block == "row" else scale.repeat_interleave(BLOCK, -1)[:, :width]


def judged(shape: Shape, inputs: Tensors, outputs: Tensors) -> Tensors:
    scale = outputs["scale"].double()
    return {"q": outputs["q"].double() * widened(scale, shape.width, shape.block), "scale": scale}


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    x = inputs["x"].double()
    return {"q": x, "scale": most(x, shape.block) / LARGEST[shape.to]}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    x, scale = exact["q"].abs(), exact["scale"]
    wide = widened(scale, shape.width, shape.block).expand_as(x)
    near = torch.where(wide > 0, x / wide * (1 + NEAR), torch.zeros_like(x))
    values = wide * half_ulp(near, shape.to) * (1 + NEAR) + NEAR * x
    return {"q": values, "scale": torch.where(scale > 0, sum_error(3, scale), torch.inf)}


def discrete(shape: Shape, inputs: Tensors, outputs: Tensors) -> tuple[str, ...]:
    """Scales of zeros have no error; they must be numbers that can be divided by."""
    bad = ~(outputs["scale"].isfinite() & (outputs["scale"] > 0))
    return (f"scale: {int(bad.sum())} are not positive and finite",) if bool(bad.any()) else ()


def quantised(x: Tensor, to: str, block: str) -> tuple[Tensor, Tensor]:
    """q and scale, in plain torch: a division in fp32, rounded to nearest, clipped."""
    wide, largest = x.float(), LARGEST[to]
    scale = most(wide, block) / largest
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    q = (wide / widened(scale, x.shape[-1], block)).clamp(-largest, largest)
    return (q.round() if to == "int8" else q).to(DTYPES[to]), scale


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    q, scale = quantised(inputs["x"], shape.to, shape.block)
    return {"q": q, "scale": scale}


SIZES = ((1, 1), (1, 128), (3, 7), (5, 130), (16, 64), (17, 1031), (33, 257), (64, 512), (129, 127), (2, 4099))


def cases() -> tuple[Case, ...]:
    """Both formats with each kind of block on 10 sizes, in turn from each format; each kind of values."""
    kinds = [(to, block) for to in LARGEST for block in BLOCKS]
    ordinary = [Case(Shape(*size, to, block, FORMS[(i + j) % 3]), seed=i) for j, (to, block) in enumerate(kinds)
                for i, size in enumerate(SIZES)]
    odd = [Case(Shape(9, 300, to, block, "fp16" if values == "tiny" and block == "row" else "bf16"), values)
           for to, block in kinds for values in VALUES if values != "normal"]
    return tuple(ordinary + odd)


def op(shape: Shape) -> Op:
    """One division an element; searching for the largest counts nothing."""
    elements, sizes = shape.rows * shape.width, scale_sizes(shape.rows, shape.width, shape.block)
    return Elementwise(reads=(Operand(elements, shape.form),), operations=1,
                       writes=(Operand(elements, shape.to), Operand(torch.Size(sizes).numel(), "fp32")))


def shape_of(one: Op) -> Shape | None:
    """A shape with the same work: an Elementwise tells how many elements share a scale, not how they lie."""
    if not isinstance(one, Elementwise) or len(one.reads) != 1 or len(one.writes) != 2:
        return None
    (x,), (q, scale) = one.reads, one.writes
    if not scale.elements or x.elements % scale.elements:
        return None
    shape = Shape(scale.elements, x.elements // scale.elements, q.form, "row", x.form)
    return shape if refusal(shape) is None and op(shape) == one else None


CONTRACT = Contract(
    name="quantise", title="quantisation to fp8 or int8 with dynamic scales", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of, judged=judged, discrete=discrete,
)
