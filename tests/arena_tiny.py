"""A tiny operator with a contract, for the arena's own tests: out = 2·x·weight, and how many of a row are positive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from arena_tiny_shape import Shape

from sublight.kernels.contract import Case, Contract, Spec
from sublight.kernels.rounding import half_ulp
from sublight.ops import Elementwise, Op, Operand

Tensors = Mapping[str, Any]


def refusal(shape: Shape) -> str | None:
    return "no rows" if shape.rows < 0 else None


def inputs(case: Case) -> Tensors:
    shape, random = case.shape, torch.Generator().manual_seed(case.seed)
    x = torch.randn(shape.rows, shape.width, generator=random)
    if case.values == "outliers":
        x[:, ::7] *= 100
    return {"x": x.bfloat16(), "weight": torch.rand(shape.width, generator=random).bfloat16() + 1}


def outputs(shape: Shape) -> Mapping[str, Spec]:
    return {"out": Spec((shape.rows, shape.width), "bf16"), "positive": Spec((shape.rows,), "int32")}


def reference(shape: Shape, inputs: Tensors) -> Tensors:
    return {"out": 2 * inputs["x"].double() * inputs["weight"].double()}


def bound(shape: Shape, inputs: Tensors, exact: Tensors) -> Tensors:
    return {"out": half_ulp(exact["out"], "bf16") * 1.01}


def honest(shape: Shape, inputs: Tensors) -> Tensors:
    out = (2 * inputs["x"].float() * inputs["weight"].float()).bfloat16()
    return {"out": out, "positive": (inputs["x"] > 0).sum(1).int()}


def judged(shape: Shape, inputs: Tensors, outputs: Tensors) -> Tensors:
    return {"out": outputs["out"].double()}


def discrete(shape: Shape, inputs: Tensors, outputs: Tensors) -> tuple[str, ...]:
    right = bool((outputs["positive"] == (inputs["x"] > 0).sum(1)).all())
    return () if right else ("positive: not how many of a row are",)


def cases() -> tuple[Case, ...]:
    return tuple(Case(Shape(rows, width), values) for rows, width in ((1, 1), (3, 17), (64, 257))
                 for values in ("normal", "outliers"))


def op(shape: Shape) -> Op:
    """bf16 in, bf16 out, one multiplication of two: the op of elementwise products."""
    size = shape.rows * shape.width
    return Elementwise(reads=(Operand(size, "bf16"), Operand(shape.width, "bf16")), writes=(Operand(size, "bf16"),),
                       operations=2)


CONTRACT = Contract("tiny", "twice a product", Shape, ("normal", "outliers"), refusal, inputs, outputs, reference,
                    bound, honest, cases, op, lambda op: None, constant=("weight",), judged=judged, discrete=discrete)
