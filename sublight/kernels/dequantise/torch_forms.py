"""This file knows about how torch dequantises: a product in fp32 and a cast; Inductor of the same."""

from __future__ import annotations

from sublight.kernels.contract import Tensors
from sublight.kernels.dequantise.contract import dequantised
from sublight.kernels.dequantise.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.torch_places import both, compiled, filling, inductor


def _plain(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: dequantised(given["q"], given["scale"], shape.block, shape.form), "x")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    function = compiled(dequantised)
    return filling(lambda given: function(given["q"], given["scale"], shape.block, shape.form), "x")


KERNELS: tuple[Kernel, ...] = (*both("dequantise", "torch", _plain), *inductor("dequantise", _inductor))
