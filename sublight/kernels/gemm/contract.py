"""This file knows about what a matrix product must return: out[m, n] = a[m, k] · b[n, k]ᵀ, scaled.

Bound (derivation in `products`): error of n additions in fp32, min(γₙ, max(8·√n, n/4)·2⁻²⁴)·Σ|aᵢbᵢ|, for fp8 what
tensor cores drop within 128 of k, and half a unit in the last place of the output. A sum in bf16 lies far outside from
k = 32 on; so does an output that is truncated rather than rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublight.kernels.contract import Case, Contract, Spec, Tensors
from sublight.kernels.gemm.shape import Shape
from sublight.kernels.products import BLOCK, blocks, honest_product, product, product_bound, unscaled
from sublight.kernels.values import numbers, random, scales, second_operand
from sublight.ops import Gemm, Op, ScaledGemm

FORMS = ("bf16", "fp16", "fp8", "fp8_block", "int8")
OUT = ("bf16", "fp16", "fp32")
SCALED = ("fp8", "fp8_block", "int8")
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "cancellation", "largest", "not_finite", "tiny_scales",
          "zero_scales", "wide_scales")


def refusal(shape: Shape) -> str | None:
    if min(shape.m, shape.n, shape.k) < 1:
        return f"m, n and k are at least 1, not {shape.m}, {shape.n}, {shape.k}"
    if shape.form not in FORMS:
        return f"form is one of {', '.join(FORMS)}, not {shape.form!r}"
    if shape.out not in OUT:
        return f"out is one of {', '.join(OUT)}, not {shape.out!r}"
    return None


def inputs(case: Case) -> Tensors:
    s: Shape = case.shape
    rng, element = random(case), s.form.removesuffix("_block")
    made = {"a": numbers(case.values, (s.m, s.k), element, rng),
            "b": second_operand(case.values, (s.n, s.k), element, rng)}
    if s.form not in SCALED:
        return made
    a_sizes, b_sizes = {"fp8": ((), ()), "int8": ((s.m,), (s.n,)),
                        "fp8_block": ((s.m, blocks(s.k)), (blocks(s.n), blocks(s.k)))}[s.form]
    other = "normal" if case.values == "tiny_scales" else case.values  # 1e-23 · 1e-23 is no fp32 number
    return {**made, "a_scale": scales(case.values, a_sizes, rng), "b_scale": scales(other, b_sizes, rng)}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.m, shape.n), shape.out)}


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    return {"out": product(shape.form, inputs["a"], inputs["b"], inputs.get("a_scale"), inputs.get("b_scale"))}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    a, b = unscaled(shape.form, inputs["a"], inputs["b"], inputs.get("a_scale"), inputs.get("b_scale"))
    return {"out": product_bound(shape.form, a, b, exact["out"], shape.out)}


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    return {"out": honest_product(shape.form, inputs["a"], inputs["b"], inputs.get("a_scale"), inputs.get("b_scale"),
                                  shape.out)}


# (m, n, k): one row; primes; odd numbers; below, at and between multiples of 16, 64 and 128, where tails begin.
SIZES = (
    (1, 1, 1), (1, 64, 128), (1, 127, 333), (1, 257, 64), (2, 3, 5), (3, 5, 7), (4, 16, 16), (5, 17, 31), (7, 129, 63),
    (8, 128, 128), (9, 33, 127), (13, 11, 385), (16, 64, 65), (16, 128, 256), (17, 131, 1031), (31, 29, 37),
    (32, 32, 640), (33, 65, 129), (40, 41, 300), (63, 64, 127), (64, 96, 512), (65, 127, 130), (97, 8, 100),
    (128, 64, 384), (129, 130, 131), (1, 384, 1024),
)


def cases() -> tuple[Case, ...]:
    """Each format on 26 sizes, with each kind of values on two more, and with long sums; outputs in other formats."""
    own = {"fp16": "fp16"}
    ordinary = [Case(Shape(*size, form, own.get(form, "bf16")), seed=i) for form in FORMS
                for i, size in enumerate(SIZES)]
    odd = [Case(Shape(*size, form, own.get(form, "bf16")), values) for form in FORMS for values in VALUES
           if values != "normal" and values not in _pointless(form) for size in ((9, 77, 200), (1, 40, 129))]
    long = [Case(Shape(4, 31, 4099, form, out), seed=7) for form in FORMS for out in ("bf16", "fp32")]
    others = [Case(Shape(5, 131, 257, "fp8_block", "fp16")), Case(Shape(5, 300, 257, "fp8_block"), "wide_scales"),
              Case(Shape(40, 41, 300, "bf16", "fp32")), Case(Shape(40, 41, 300, "fp16", "fp32"), "tiny")]
    return tuple(ordinary + odd + long + others)


def _pointless(form: str) -> tuple[str, ...]:
    """Kinds of values that a format does not have."""
    if form not in SCALED:
        return ("largest", "tiny_scales", "zero_scales", "wide_scales")
    return ("not_finite",) if form == "int8" else ()


def op(shape: Shape) -> Op:
    if shape.form == "fp8_block":                                      # an fp32 scale for 128 x 128: a byte for 4096
        return ScaledGemm(m=shape.m, n=shape.n, k=shape.k, a="fp8", b="fp8", b_block=BLOCK * BLOCK // 4, out=shape.out)
    return Gemm(m=shape.m, n=shape.n, k=shape.k, a=shape.form, b=shape.form, out=shape.out)


def shape_of(one: Op) -> Shape | None:
    """The shape of a dense product without bias. How fp32 is multiplied says nothing of other formats."""
    if not isinstance(one, (Gemm, ScaledGemm)):
        return None
    one = replace(one, math=None) if isinstance(one, Gemm) and "fp32" not in (one.a, one.b) else one
    shape = Shape(one.m, one.n, one.k, "fp8_block" if isinstance(one, ScaledGemm) else one.a, one.out)
    return shape if refusal(shape) is None and op(shape) == one else None


CONTRACT = Contract(
    name="gemm", title="matrix product in bf16, fp16, fp8 (a scale, or one for 128 x 128) and int8", shape=Shape,
    values=VALUES, refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest,
    cases=cases, op=op, shape_of=shape_of, constant=("b",),
)
