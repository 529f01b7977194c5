"""This file knows about how torch quantises: the largest of each block, a division, a cast; Inductor of the same."""

from __future__ import annotations

from sublight.kernels.contract import Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.quantise.contract import quantised
from sublight.kernels.quantise.shape import Shape
from sublight.kernels.torch_places import both, compiled, filling, inductor


def _plain(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: quantised(given["x"], shape.to, shape.block), "q", "scale")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    function = compiled(quantised)
    return filling(lambda given: function(given["x"], shape.to, shape.block), "q", "scale")


KERNELS: tuple[Kernel, ...] = (*both("quantise", "torch", _plain), *inductor("quantise", _inductor))
