"""This file knows about how torch multiplies groups of rows: _grouped_mm, a loop, a loop in fp32, Inductor."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.grouped_gemm.contract import each_group
from sublight.kernels.grouped_gemm.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.products import unscaled
from sublight.kernels.rounding import DTYPES
from sublight.kernels.torch_places import both, compiled, filling, inductor


def grouped(a: Tensor, b: Tensor, offsets: Tensor) -> Tensor:
    """torch._grouped_mm wants the ends of groups, and each matrix as [k, n]."""
    return torch._grouped_mm(a, b.transpose(1, 2), offs=offsets[1:])


def _grouped(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: grouped(given["a"], given["b"], given["offsets"]), "out")


def _not_grouped(shape: Shape) -> str | None:
    if shape.form != "bf16" or shape.out != "bf16":
        return f"_grouped_mm is tried from bf16 to bf16, not from {shape.form} to {shape.out}"
    if shape.k % 8 or shape.n % 8:
        return f"_grouped_mm needs strides of 16 bytes: n and k that 8 divides, not {shape.n} and {shape.k}"
    return None


def _loop(shape: Shape, constants: Tensors) -> Run:
    def compute(given: Tensors) -> Tensor:
        out = given["a"].new_zeros(shape.rows, shape.n)
        for rows, (a, b, _, _) in each_group(given):
            out[rows] = linear(a, b)
        return out

    return filling(compute, "out")


def _not_loop(shape: Shape) -> str | None:
    if shape.form != "bf16" or shape.out != "bf16":
        return f"linear takes and gives one 16-bit format, not {shape.form} and {shape.out}"
    return None


def _fp32(shape: Shape, constants: Tensors) -> Run:
    def compute(given: Tensors) -> Tensor:
        out = torch.zeros(shape.rows, shape.n, dtype=DTYPES[shape.out], device=given["a"].device)
        for rows, operands in each_group(given):
            a, b = unscaled(shape.form, *operands, torch.float32)
            out[rows] = (a @ b.t()).to(out.dtype)
        return out

    return filling(compute, "out")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    function = compiled(grouped)
    return filling(lambda given: function(given["a"], given["b"], given["offsets"]), "out")


KERNELS: tuple[Kernel, ...] = (
    *both("grouped_gemm", "grouped_mm", _grouped, _not_grouped), *both("grouped_gemm", "loop", _loop, _not_loop),
    *both("grouped_gemm", "fp32", _fp32), *inductor("grouped_gemm", _inductor, _not_grouped),
)
