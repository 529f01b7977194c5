"""This file knows about how torch computes norms: its own functions, the form that models are written in, Inductor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import layer_norm, rms_norm

from sublight.kernels import row_scales
from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.norm.shape import Shape
from sublight.kernels.torch_places import both, compiled, filling, inductor


def functions(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """torch.nn.functional."""
    if bias is None:
        return rms_norm(x, (x.shape[1],), weight, eps)
    return layer_norm(x, (x.shape[1],), weight, bias, eps)


def written(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """As Hugging Face's models write it: in fp32, rounded, then times the weight."""
    z = x.float()
    if bias is None:
        return weight * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    far = z - z.mean(-1, keepdim=True)
    return (far * torch.rsqrt(far.pow(2).mean(-1, keepdim=True) + eps) * weight.float() + bias.float()).to(x.dtype)


def _whole(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, eps: float, quant: str | None,
           norm: Any) -> tuple[Tensor, ...]:
    z = x if residual is None else x + residual
    y = norm(z, weight, bias, eps)
    made = (y,) if quant is None else row_scales.quantised(y.float(), quant)
    return made if residual is None else (*made, z)


def _fused(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, eps: float,
           quant: str | None) -> tuple[Tensor, ...]:
    return _whole(x, weight, bias, residual, eps, quant, written)


def _run(shape: Shape, whole: Any) -> Run:
    names = ["out", *(["scale"] if shape.quant else []), *(["summed"] if shape.residual else [])]

    def compute(given: Tensors) -> tuple[Tensor, ...]:
        bias, residual = given.get("bias"), given.get("residual")
        made: tuple[Tensor, ...] = whole(given["x"], given["weight"], bias, residual, shape.eps, shape.quant)
        return made

    return filling(compute, *names)


def _functions(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, partial(_whole, norm=functions))


def _written(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, _fused)


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, compiled(_fused))


KERNELS: tuple[Kernel, ...] = (
    *both("norm", "torch", _functions), *both("norm", "eager", _written), *inductor("norm", _inductor),
)
