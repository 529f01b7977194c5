"""This file knows about how torch computes SwiGLU: in the input's format as models do, in fp32, and by Inductor."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import silu

from sublight.kernels import row_scales
from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.swiglu.shape import Shape
from sublight.kernels.torch_places import both, compiled, filling, inductor


def _in_format(gate_up: Tensor, width: int, quant: str | None) -> Any:
    """silu is rounded to the input's format, and so is the product."""
    y = silu(gate_up[:, :width]) * gate_up[:, width:]
    return y if quant is None else row_scales.quantised(y.float(), quant)


def _in_fp32(gate_up: Tensor, width: int, quant: str | None) -> Any:
    wide = gate_up.float()
    y = silu(wide[:, :width]) * wide[:, width:]
    return y.to(gate_up.dtype) if quant is None else row_scales.quantised(y, quant)


def _run(shape: Shape, function: Any) -> Run:
    names = ("out", "scale") if shape.quant else ("out",)
    return filling(lambda given: function(given["gate_up"], shape.width, shape.quant), *names)


def _eager(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, _in_format)


def _fp32(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, _in_fp32)


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, compiled(_in_format))


KERNELS: tuple[Kernel, ...] = (
    *both("swiglu", "torch", _eager), *both("swiglu", "fp32", _fp32), *inductor("swiglu", _inductor),
)
