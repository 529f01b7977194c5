"""This file knows about what RMSNorm and LayerNorm must return, with a residual and quantised.

    rms     z/√(mean z² + eps)·weight              layer   (z − mean z)/√(var z + eps)·weight + bias
    z = x + residual, or x; n = width; u = 2⁻²⁴; everything between is computed in fp32

RMS. The sum of squares has only positive terms: its relative error is τ = sum_error(n + 2, 1); with the mean and eps
3·u more. The root takes half of that, an approximate reciprocal root 2 units in the last place; two products follow:

    E = |y|·(½·(τ + 3u)/(1 − τ − 3u) + 8u)
        + |weight|·ulp(z/√…), which may be rounded before the weight (`intermediates`)

Layer. The mean is within δ = sum_error(n + 2, mean|z|) + 2u·|mean|, a difference within e = δ + u·|z − mean|. By two
passes or by Welford's recurrence, whose error grows with √(var·mean z²) (Chan, Golub, LeVeque, The American
Statistician 37 (1983) 242), the variance is within sum_error(n + 4, var + √(var·mean z²)) + δ². Not allowed is
mean z² − (mean z)², whose error grows with mean z². With t that error over var + eps, plus 3u:

    E = |weight|·(e/√… + |norm|·((1 − t)^-½ − 1 + 3u)) + 2u·|norm·weight| + u·|y|
    where the bracket is at most 2√n, since |norm| ≤ √n

With a residual, the norm and its statistics may be taken of the sum in fp32 or as it is rounded (`intermediates`).
out is rounded where it lies then, D = |weight|/√…·(half_ulp(z) + its mean + |norm|·its root mean square) from y. The
mean of a layer norm may lie between both, as Inductor's does of one row: 8 deviations of sums rounded in part.

Sums of squares beyond fp32 (2¹²⁸) are outside of the contract: rows of such values come out as zeros from torch's own
functions and from the form that models use, and no case has them. Up to there all must be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from sublight.kernels import row_scales
from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.intermediates import cast, moved
from sublight.kernels.norm.shape import Shape
from sublight.kernels.rounding import DTYPES, half_ulp, random_error, rounded, sum_error, unit_roundoff
from sublight.kernels.values import converted, numbers, random
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Op

FORMS, KINDS, QUANTS = ("bf16", "fp16", "fp32"), ("rms", "layer"), (None, "fp8", "int8")
U = unit_roundoff("fp32")

# Besides those of `values`: massive, one channel of 1e4; huge, a sum of squares of 1e37; offset, a mean of 100
# deviations; level, 1e4 and numbers 1/128 above it, at random; rows, magnitudes from 2^-20 to 2^10, row by row.
VALUES = ("normal", "outliers", "tiny", "zeros", "constant", "cancellation", "not_finite", "massive", "huge", "offset",
          "level", "rows")


def refusal(shape: Shape) -> str | None:
    if min(shape.rows, shape.width) < 1:
        return "rows and width must be at least 1"
    if not 1e-20 <= shape.eps <= 1:
        return f"eps is {shape.eps}; expected 1e-20 to 1: below it is lost in fp32"
    switches = (("kind", shape.kind, KINDS), ("form", shape.form, FORMS), ("quant", shape.quant, QUANTS))
    for said, value, known in switches:
        if value not in known:
            return f"{said} is {value!r}; expected one of {', '.join(map(str, known))}"
    return None


def inputs(case: Case) -> Tensors:
    shape, rng = case.shape, random(case)
    sizes = (shape.rows, shape.width)
    made = {"x": converted(_values(case.values, sizes, shape.form, rng), shape.form),
            "weight": converted(1 + torch.randn(shape.width, generator=rng) / 4, shape.form)}
    if shape.kind == "layer":
        made["bias"] = converted(torch.randn(shape.width, generator=rng) / 2, shape.form)
    if shape.residual:
        kind = "zeros" if case.values == "zeros" else "tiny" if case.values == "tiny" else "normal"
        made["residual"] = numbers(kind, sizes, shape.form, rng)
    return made


def _values(kind: str, sizes: tuple[int, int], form: str, rng: Any) -> Tensor:
    if kind in ("massive", "huge", "offset", "level", "rows"):
        x = torch.randn(sizes, generator=rng)
        if kind == "massive":
            x[:, sizes[1] // 3] = 1e4
        if kind == "huge":
            x *= 1e4 if form == "fp16" else math.sqrt(1e37 / sizes[1])
        if kind == "offset":
            x += 100
        if kind == "level":
            x = torch.where(x > 0, 1e4 * (1 + 1 / 128), 1e4)
        if kind == "rows":
            x *= torch.exp2(torch.linspace(-20, 10, sizes[0]))[:, None]
        return x
    return numbers(kind, sizes, form, rng)


def outputs(shape: Shape) -> Mapping[str, Spec]:
    sizes = (shape.rows, shape.width)
    made = {"out": Spec(sizes, shape.quant or shape.form)}
    if shape.quant:
        made["scale"] = Spec((shape.rows,), "fp32")
    if shape.residual:
        made["summed"] = Spec(sizes, shape.form)
    return made


def _sum(given: Tensors) -> Tensor:
    return given["x"].double() + (given["residual"].double() if "residual" in given else 0.0)


def _normed(shape: Shape, z: Tensor, given: Tensors, *, of: Tensor | None = None, rounded_norm: bool = False) -> Tensor:
    """y, in the format of z; its mean and mean square are those `of` another sum, where one is given."""
    weight, of = given["weight"].to(z.dtype), z if of is None else of
    if shape.kind == "rms":
        norm = z * (of.square().mean(1, keepdim=True) + shape.eps).rsqrt()
        return (cast(norm, shape.form) if rounded_norm else norm) * weight
    mean = of.mean(1, keepdim=True)
    root = ((of - mean).square().mean(1, keepdim=True) + shape.eps).rsqrt()
    return (z - mean) * root * weight + given["bias"].to(z.dtype)


def _all(shape: Shape, z: Tensor, given: Tensors, *, of: Tensor | None = None,
         rounded_norm: bool = False) -> dict[str, Tensor]:
    y = _normed(shape, z, given, of=of, rounded_norm=rounded_norm)
    made = {"out": y}
    if shape.quant:
        made["scale"] = row_scales.exact_scales(y, shape.quant)
    return made


def reference(shape: Shape, given: Tensors) -> Tensors:
    """Quantised: out is y itself, what q·scale should be."""
    z = _sum(given)
    return {**_all(shape, z, given), **({"summed": z} if shape.residual else {})}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    z, y = _sum(given), exact["out"]
    weight = given["weight"].double().abs()
    error = (_rms_error(shape, z, y, weight) if shape.kind == "rms" else _layer_error(shape, z, y, weight))
    error = error.nan_to_num(0.0)
    off = _by_sum(shape, z, weight) if shape.residual else torch.zeros_like(y)
    if shape.residual and shape.kind == "layer":
        error = error + _by_mean(shape, z, weight)
    error = error + half_ulp((y.abs() + error + off).nan_to_num(0.0), shape.form)
    made = dict(row_scales.bounds(y, error, shape.quant)) if shape.quant else {"out": error}
    if shape.residual:
        made["summed"] = rounded(z, U * z.abs(), shape.form)
    return made


def _by_sum(shape: Shape, z: Tensor, weight: Tensor) -> Tensor:
    """D: how far y moves where the sum is rounded."""
    far = z - z.mean(1, keepdim=True) if shape.kind == "layer" else z
    root, half = (far.square().mean(1, keepdim=True) + shape.eps).rsqrt(), half_ulp(z, shape.form)
    mean, square = half.mean(1, keepdim=True), half.square().mean(1, keepdim=True).sqrt()
    return weight * root * (half + mean + (far * root).abs() * square)


def _by_mean(shape: Shape, z: Tensor, weight: Tensor) -> Tensor:
    """How far y moves where some terms of the mean are rounded sums and others are not."""
    root = (z.var(1, correction=0, keepdim=True) + shape.eps).rsqrt()
    deviation = half_ulp(z, shape.form).square().sum(1, keepdim=True).sqrt() / math.sqrt(3) / shape.width
    return weight * root * random_error(deviation)


def _rms_error(shape: Shape, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    t = float(sum_error(shape.width + 2, torch.ones((), dtype=torch.float64))) + 3 * U
    norm = z * (z.square().mean(1, keepdim=True) + shape.eps).rsqrt()
    return y.abs() * (t / 2 / (1 - t) + 8 * U) + 2 * weight * half_ulp(norm, shape.form)


def _layer_error(shape: Shape, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    n = shape.width
    mean, square = z.mean(1, keepdim=True), z.square().mean(1, keepdim=True)
    far = z - mean
    var = far.square().mean(1, keepdim=True)
    root = (var + shape.eps).rsqrt()
    norm = (far * root).abs()
    shift = sum_error(n + 2, z.abs().mean(1, keepdim=True)) + 2 * U * mean.abs()
    t = (sum_error(n + 4, var + (var * square).sqrt()) + shift**2) / (var + shape.eps) + 3 * U
    off = torch.where(t < 1, (1 - t.clamp(max=0.999999)).rsqrt() - 1, torch.inf)
    bracket = (root * (1 + off) * (shift + U * far.abs()) + norm * (off + 3 * U)).nan_to_num(nan=torch.inf)
    return weight * bracket.clamp(max=2 * math.sqrt(n)) + 2 * U * norm * weight + U * y.abs()


def honest(shape: Shape, given: Tensors) -> Tensors:
    """One rounding at the end; the norm of the unrounded sum."""
    z = given["x"].float() + (given["residual"].float() if shape.residual else 0.0)
    y = _normed(shape, z, given)
    made = {"out": y.to(DTYPES[shape.form])}
    if shape.quant:
        made["out"], made["scale"] = row_scales.quantised(y, shape.quant)
    if shape.residual:
        made["summed"] = z.to(DTYPES[shape.form])
    return made


def judged(shape: Shape, given: Tensors, outputs: Tensors) -> Tensors:
    """Compared with the nearest norm that a kernel may take: of the rounded sum, with the statistics of either (as
    Inductor fuses it), itself rounded before the weight."""
    made = dict(row_scales.judged(outputs)) if shape.quant else {"out": outputs["out"].double()}
    sums = [_sum(given)]
    if shape.residual:
        made["summed"] = outputs["summed"].double()
        sums.append(made["summed"])
    rounds = (False, True) if shape.kind == "rms" else (False,)
    ways = [_all(shape, z, given, of=of, rounded_norm=how) for z in sums for of in sums for how in rounds]
    return moved(made, ways[0], ways[1:], form=None if shape.quant else shape.form)


def discrete(shape: Shape, given: Tensors, outputs: Tensors) -> tuple[str, ...]:
    return row_scales.faults(outputs) if shape.quant else ()


def op(shape: Shape) -> Op:
    return Normalisation(
        shape.rows * shape.width, shape.width, "rms" if shape.kind == "rms" else "mean", shape.form, shape.form,
        shape.form if shape.kind == "layer" else None, shape.residual, out=shape.quant)


def shape_of(op: Op) -> Shape | None:
    """The shape of a forward op with weights of its own format; of eps it knows nothing, and takes 1e-6."""
    if not isinstance(op, Normalisation) or op.backward or not op.channels or op.elements % op.channels:
        return None
    kind = "rms" if op.kind == "rms" else "layer"
    if op.weight != op.form or op.bias != (op.form if kind == "layer" else None):
        return None
    shape = Shape(op.elements // op.channels, op.channels, kind, op.form, op.residual, op.out)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    sizes = ((1, 64), (7, 128), (3, 1), (64, 333), (5, 4096), (31, 1009), (2, 7168), (129, 256), (17, 80))
    both = [Case(Shape(rows, width, kind, residual=residual), seed=i)
            for i, (rows, width) in enumerate(sizes) for kind in KINDS for residual in (False, True)]
    forms = [Case(Shape(13, 515, kind, form, residual), seed=30) for kind in KINDS for form in FORMS[1:]
             for residual in (False, True)]
    hard = [Case(Shape(11, 770, kind, form), values, 40) for values in VALUES[1:] for kind in KINDS for form in FORMS
            if values != "not_finite" or form != "fp16"]
    sums = [Case(Shape(11, 770, residual=True), values, 50)
            for values in ("outliers", "tiny", "zeros", "massive", "rows")]
    quants = [Case(Shape(19, 1030, kind, form, residual, quant), values, 60)
              for quant in QUANTS[1:] for form in FORMS[:2] for kind, residual, values in (
                  ("rms", False, "normal"), ("rms", True, "normal"), ("layer", False, "zeros"),
                  ("rms", False, "outliers"), ("rms", False, "zeros"), ("rms", True, "rows"))]
    eps = [Case(Shape(9, 512, eps=eps), values, 70) for eps in (1e-5, 1e-12, 1e-2) for values in ("normal", "rows")]
    return (*both, *forms, *hard, *sums, *quants, *eps)


CONTRACT = Contract(
    name="norm", title="RMSNorm and LayerNorm, with a residual and with a quantised output", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of, constant=("weight", "bias"), judged=judged, discrete=discrete,
)
