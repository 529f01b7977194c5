"""This file knows about what SwiGLU must return: y = gate·σ(gate)·up, quantised or not. u = 2⁻²⁴.

Derivation. σ(g) = 1/(1 + e^-g). The exponential has a relative error of (4 + 3·|g|)·u (2 units in the last place and
one more for each unit of the argument: CUDA C++ Programming Guide, __expf), of which σ takes the share 1 − σ; a sum, a
division and two products follow. Where e^-g leaves fp32 (g < -88) σ may be flushed to zero: 2⁻¹²⁶ at most.

    E = |y|·((1 − σ)·(4 + 3·|g|) + 8)·u + |g·up|·2⁻¹²⁶
        + |up|·ulp(silu), which may be rounded before the product (`intermediates`)

Then y is rounded to its format, or quantised (`row_scales`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sublight.kernels import row_scales
from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.intermediates import cast, moved
from sublight.kernels.rounding import DTYPES, half_ulp, rounded, unit_roundoff
from sublight.kernels.swiglu.shape import Shape
from sublight.kernels.values import converted, numbers, random
from sublight.ops.fused import Gated
from sublight.ops.op import Op

FORMS, QUANTS = ("bf16", "fp16", "fp32"), (None, "fp8", "int8")
U = unit_roundoff("fp32")

# Besides those of `values`: steep, gates from -120 to 120, whose exponentials overflow fp32; massive, a column of 1e4;
# not_a_number, a NaN as a gate and one as its product, which must reach their elements and no others.
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "steep", "massive", "not_a_number")


def refusal(shape: Shape) -> str | None:
    if min(shape.rows, shape.width) < 1:
        return "rows and width must be at least 1"
    if shape.form not in FORMS:
        return f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"
    return None if shape.quant in QUANTS else f"quant is {shape.quant!r}; expected fp8, int8 or none"


def inputs(case: Case) -> Tensors:
    shape, rng, sizes = case.shape, random(case), (case.shape.rows, 2 * case.shape.width)
    if case.values in ("steep", "massive", "not_a_number"):
        x = torch.randn(sizes, generator=rng)
        if case.values == "steep":
            x[:, :shape.width] = torch.rand(shape.rows, shape.width, generator=rng) * 240 - 120
        if case.values == "massive":
            x[:, shape.width // 3] = 1e4
        if case.values == "not_a_number":
            x[0, shape.width // 2] = torch.nan
            x[-1, -1] = torch.nan
        return {"gate_up": converted(x, shape.form)}
    return {"gate_up": numbers(case.values, sizes, shape.form, rng)}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    made = {"out": Spec((shape.rows, shape.width), shape.quant or shape.form)}
    return {**made, "scale": Spec((shape.rows,), "fp32")} if shape.quant else made


def _product(shape: Shape, given: Tensors, *, rounded_silu: bool = False) -> dict[str, Tensor]:
    gate, up = given["gate_up"].double().split(shape.width, 1)
    activated = gate * gate.sigmoid()
    y = (cast(activated, shape.form) if rounded_silu else activated) * up
    return {"out": y, "scale": row_scales.exact_scales(y, shape.quant)} if shape.quant else {"out": y}


def reference(shape: Shape, given: Tensors) -> Tensors:
    """Quantised: out is y itself, what q·scale should be."""
    return _product(shape, given)


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    gate, up = given["gate_up"].double().split(shape.width, 1)
    y, share = exact["out"], gate.neg().sigmoid()
    error = y.abs() * (share * (4 + 3 * gate.abs()) + 8) * U + (gate * up).abs() * 2.0**-126
    error = (error + 2 * up.abs() * half_ulp(gate * gate.sigmoid(), shape.form)).nan_to_num(0.0)
    error = rounded(y.nan_to_num(0.0), error, shape.form)
    return row_scales.bounds(y, error, shape.quant) if shape.quant else {"out": error}


def honest(shape: Shape, given: Tensors) -> Tensors:
    """One rounding at the end."""
    gate, up = given["gate_up"].float().split(shape.width, 1)
    y = gate * gate.sigmoid() * up
    if not shape.quant:
        return {"out": y.to(DTYPES[shape.form])}
    q, scale = row_scales.quantised(y, shape.quant)
    return {"out": q, "scale": scale}


def judged(shape: Shape, given: Tensors, outputs: Tensors) -> Tensors:
    """Compared with the nearer product: of the activation as it is, or rounded."""
    made = row_scales.judged(outputs) if shape.quant else {"out": outputs["out"].double()}
    return moved(made, _product(shape, given), [_product(shape, given, rounded_silu=True)],
                 form=None if shape.quant else shape.form)


def discrete(shape: Shape, given: Tensors, outputs: Tensors) -> tuple[str, ...]:
    return row_scales.faults(outputs) if shape.quant else ()


def op(shape: Shape) -> Op:
    return Gated(shape.rows, shape.width, shape.form, shape.quant)


def shape_of(op: Op) -> Shape | None:
    if not isinstance(op, Gated):
        return None
    shape = Shape(op.rows, op.width, op.form, op.out)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    sizes = ((1, 1), (1, 64), (7, 128), (3, 1), (64, 333), (5, 4096), (31, 1009), (2, 14336), (129, 256), (17, 80))
    ordinary = [Case(Shape(rows, width), seed=i) for i, (rows, width) in enumerate(sizes)]
    forms = [Case(Shape(13, 515, form), seed=20 + i) for form in FORMS[1:] for i in range(2)]
    hard = [Case(Shape(11, 770, form), values, 40) for values in VALUES[1:] for form in FORMS]
    quants = [Case(Shape(19, 1030, form, quant), values, 60) for quant in QUANTS[1:] for form in FORMS
              for values in ("normal", "zeros", "outliers", "steep")]
    return (*ordinary, *forms, *hard, *quants)


CONTRACT = Contract(
    name="swiglu", title="SwiGLU: silu(gate)·up, with a quantised output", shape=Shape, values=VALUES, refusal=refusal,
    inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases, op=op,
    shape_of=shape_of, judged=judged, discrete=discrete,
)
