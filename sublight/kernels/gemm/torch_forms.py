"""This file knows about how torch multiplies matrices: linear, _scaled_mm, _int_mm, all of them in fp32, Inductor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.gemm.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.products import unscaled
from sublight.kernels.rounding import DTYPES
from sublight.kernels.torch_places import Build, both, compiled, filling, inductor


def _linear(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: linear(given["a"], given["b"]), "out")


def _not_linear(shape: Shape) -> str | None:
    if shape.form not in ("bf16", "fp16") or shape.out != shape.form:
        return f"linear takes and gives one 16-bit format, not {shape.form} and {shape.out}"
    return None


def _scaled(shape: Shape, constants: Tensors) -> Run:
    """use_fast_accum=False: on sm_90 partial sums are promoted to fp32, which the contract asks for."""
    def compute(given: Tensors) -> Tensor:
        return torch._scaled_mm(given["a"], given["b"].t(), given["a_scale"], given["b_scale"],
                                out_dtype=DTYPES[shape.out], use_fast_accum=False)

    return filling(compute, "out")


def _not_scaled(shape: Shape, *, cuda: bool = False) -> str | None:
    if shape.form != "fp8":
        return f"_scaled_mm is tried with a scale of each fp8 tensor, not with {shape.form}"
    if cuda and (shape.n % 16 or shape.k % 16):                        # cuBLASLt, alignment of fp8 matrices
        return f"_scaled_mm on a GPU needs n and k that 16 divides, not {shape.n} and {shape.k}"
    return None


def scale_sums(sums: Tensor, a_scale: Tensor, b_scale: Tensor, out: Any) -> Tensor:
    """int32 sums times the scales of their row and column."""
    return (sums.float() * a_scale[:, None] * b_scale).to(out)


def _integers(shape: Shape, constants: Tensors, *, compile_scales: bool = False) -> Run:
    function = compiled(scale_sums) if compile_scales else scale_sums

    def compute(given: Tensors) -> Tensor:
        sums = torch._int_mm(given["a"], given["b"].t())
        return function(sums, given["a_scale"], given["b_scale"], DTYPES[shape.out])

    return filling(compute, "out")


def _not_integers(shape: Shape, *, cuda: bool = False) -> str | None:
    if shape.form != "int8":
        return f"_int_mm multiplies int8, not {shape.form}"
    if cuda and (shape.m <= 16 or shape.n % 8 or shape.k % 8):         # torch's own check
        return f"_int_mm on a GPU needs m above 16, n and k that 8 divides, not {shape.m}, {shape.n}, {shape.k}"
    return None


def in_fp32(form: str, a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None, out: Any) -> Tensor:
    """Both matrices in fp32, times their scales, then a product in fp32."""
    wide_a, wide_b = unscaled(form, a, b, a_scale, b_scale, torch.float32)
    return (wide_a @ wide_b.t()).to(out)


def _fp32(shape: Shape, constants: Tensors, *, compile_it: bool = False) -> Run:
    function = compiled(in_fp32) if compile_it else in_fp32

    def compute(given: Tensors) -> Tensor:
        return function(shape.form, given["a"], given["b"], given.get("a_scale"), given.get("b_scale"),
                        DTYPES[shape.out])

    return filling(compute, "out")


def _not_fp32(shape: Shape) -> str | None:
    return "a sum of int8 products is exact, of fp32 ones it is not" if shape.form == "int8" else None


def _inductor(shape: Shape, constants: Tensors) -> Run:
    if shape.form == "int8":
        return _integers(shape, constants, compile_scales=True)
    if _not_linear(shape) is None:
        function = compiled(linear)
        return filling(lambda given: function(given["a"], given["b"]), "out")
    return _fp32(shape, constants, compile_it=True)


def _placed(name: str, build: Build, refuses: Callable[..., str | None]) -> tuple[Kernel, Kernel]:
    """As `both`, for calls that need other sizes on a GPU."""
    return (both("gemm", name, build, refuses)[0], both("gemm", name, build, partial(refuses, cuda=True))[1])


KERNELS: tuple[Kernel, ...] = (
    *both("gemm", "torch", _linear, _not_linear), *_placed("scaled_mm", _scaled, _not_scaled),
    *_placed("int_mm", _integers, _not_integers), *both("gemm", "fp32", _fp32, _not_fp32),
    *inductor("gemm", _inductor),
)
