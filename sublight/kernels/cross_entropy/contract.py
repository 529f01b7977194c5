"""This file knows about what cross entropy must return: loss = log Σ exp xⱼ − x of the target, in fp32. u = 2⁻²⁴.

Derivation. With m = max x and S = Σ exp(xⱼ − m), loss = m + log S − x. The exponentials have relative errors of
rⱼ = (8 + 4·|xⱼ − m|)·u (the difference, an argument in powers of two, and CUDA's __expf), S that of its terms and of
its sum, the logarithm turns them into absolute ones and has 4·u·(1 + log S) of its own; sums of numbers as large as m
and x follow, each rounded:

    E = Σ pⱼrⱼ + sum_error(classes + 2, 1) + 4u·(1 + log S) + 2u·(|m| + |m + log S| + |x|)

A row whose target is -100 is ignored: its loss is 0. A logit of -inf has no weight; as the target its loss is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.cross_entropy.shape import Shape
from sublight.kernels.rounding import rounded, sum_error, unit_roundoff
from sublight.kernels.values import converted, numbers, random
from sublight.ops.op import Op
from sublight.ops.reduction import CrossEntropy

FORMS = ("bf16", "fp16", "fp32")
IGNORED = -100
U = unit_roundoff("fp32")

# Besides those of `values`: peaked, 100 times as large; lifted, all by 1000, so that their exponentials overflow;
# equal; masked, a third is -inf, targets too; ignored, every third row; all_ignored; sure, the target is far above all
# others; ends, targets are the first and the last class; not_a_number, one NaN, which must reach its row and no other.
VALUES = ("normal", "outliers", "tiny", "zeros", "peaked", "lifted", "equal", "masked", "ignored", "all_ignored",
          "sure", "ends", "not_a_number")


def refusal(shape: Shape) -> str | None:
    if min(shape.rows, shape.classes) < 1:
        return "rows and classes must be at least 1"
    return None if shape.form in FORMS else f"form is {shape.form!r}; expected one of {', '.join(FORMS)}"


def inputs(case: Case) -> Tensors:
    shape, rng, kind = case.shape, random(case), case.values
    targets = torch.randint(0, shape.classes, (shape.rows,), generator=rng)
    x = 3 * torch.randn(shape.rows, shape.classes, generator=rng)
    if kind in ("outliers", "tiny", "zeros"):
        x = numbers(kind, (shape.rows, shape.classes), "fp32", rng)
    elif kind in ("peaked", "lifted"):
        x = x * 100 if kind == "peaked" else x + 1000
    elif kind == "equal":
        x[:] = 2.5
    elif kind == "masked":
        x[torch.rand(x.shape, generator=rng) < 1 / 3] = -torch.inf
        x[:, shape.classes // 2] = 0.0
    elif kind in ("ignored", "all_ignored"):
        targets[torch.arange(shape.rows) % (3 if kind == "ignored" else 1) == 0] = IGNORED
    elif kind == "sure":
        x[torch.arange(shape.rows), targets] += 40
    elif kind == "ends":
        targets = torch.where(torch.arange(shape.rows) % 2 == 0, 0, shape.classes - 1)
    elif kind == "not_a_number":
        x[shape.rows // 2, shape.classes - 1] = torch.nan
    return {"logits": converted(x, shape.form), "targets": targets}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"loss": Spec((shape.rows,), "fp32")}


def _target(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of the targets, and which rows are ignored."""
    ignored = targets == IGNORED
    return x.gather(1, targets.masked_fill(ignored, 0)[:, None])[:, 0], ignored


def reference(shape: Shape, given: Tensors) -> Tensors:
    x = given["logits"].double()
    picked, ignored = _target(x, given["targets"])
    return {"loss": (x.logsumexp(1) - picked).masked_fill(ignored, 0.0)}


def bound(shape: Shape, given: Tensors, exact: Tensors) -> Tensors:
    x = given["logits"].double()
    picked, ignored = _target(x, given["targets"])
    most, total = x.amax(1), x.logsumexp(1)
    p = x.softmax(1)
    far = (most[:, None] - x).where(p > 0, torch.zeros_like(x))
    error = (p * (8 + 4 * far)).sum(1) * U + sum_error(shape.classes + 2, torch.ones_like(most))
    error = error + 4 * U * (1 + total - most) + 2 * U * (most.abs() + total.abs() + picked.abs())
    loss = rounded(exact["loss"].nan_to_num(0.0, 0.0, 0.0), error.nan_to_num(0.0, 0.0, 0.0), "fp32")
    return {"loss": loss.masked_fill(ignored, 0.0)}


def honest(shape: Shape, given: Tensors) -> Tensors:
    x = given["logits"].float()
    picked, ignored = _target(x, given["targets"])
    return {"loss": (x.logsumexp(1) - picked).masked_fill(ignored, 0.0)}


def op(shape: Shape) -> Op:
    return CrossEntropy(shape.rows, shape.classes, shape.form, losses=None if shape.form == "fp32" else "fp32")


def shape_of(op: Op) -> Shape | None:
    """Of forward ops with int64 targets; in which format the losses are written makes no other shape."""
    if not isinstance(op, CrossEntropy) or op.backward or op.target != "int64":
        return None
    shape = Shape(op.rows, op.classes, op.form)
    return shape if refusal(shape) is None else None


def cases() -> tuple[Case, ...]:
    sizes = ((1, 1), (1, 2), (7, 128), (64, 333), (5, 4096), (31, 1009), (2, 32000), (129, 257), (17, 80), (3, 1),
             (1, 151936))
    ordinary = [Case(Shape(rows, classes), seed=i) for i, (rows, classes) in enumerate(sizes)]
    forms = [Case(Shape(13, classes, form), seed=20) for form in FORMS[1:] for classes in (515, 8191)]
    hard = [Case(Shape(23, 770, form), values, 40) for values in VALUES[1:] for form in FORMS]
    return (*ordinary, *forms, *hard)


CONTRACT = Contract(
    name="cross_entropy", title="cross entropy of logits and targets, row by row", shape=Shape, values=VALUES,
    refusal=refusal, inputs=inputs, outputs=outputs, reference=reference, bound=bound, honest=honest, cases=cases,
    op=op, shape_of=shape_of,
)
