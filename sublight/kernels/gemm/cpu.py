"""This file knows about our products with few rows on the CPU: bf16, the constant matrix packed ahead.

Any number of rows is right; it is made for up to some hundred, where weights are read once and packing pays.
"""

from __future__ import annotations

from pathlib import Path

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.gemm.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native.call import address, function, ours, threads

SOURCE = Path(__file__).with_name("gemm.cpp")
OUT = ("bf16", "fp32")


def refuses(shape: Shape) -> str | None:
    if shape.form != "bf16":
        return f"our CPU kernel takes bf16, not {shape.form}"
    return None if shape.out in OUT else f"our CPU kernel writes {' or '.join(OUT)}, not {shape.out}"


def packed(b: Tensor) -> Tensor:
    """b [n, k] in the order in which products read it: panels of columns, or AMX tiles."""
    import torch

    n, k = b.shape
    size = function(SOURCE, "gemm_packed_size", "ii", gives="i")(n, k)
    to = torch.empty(size, dtype=torch.bfloat16)
    function(SOURCE, "gemm_pack", "p ii p")(address(b), n, k, address(to))
    return to


def made(shape: Shape, constants: Tensors) -> Run:
    product = function(SOURCE, f"gemm_to_{shape.out}", "ppp iii t")
    b = packed(constants["b"])

    def run(inputs: Tensors, outputs: Tensors) -> None:
        product(address(inputs["a"]), address(b), address(outputs["out"]), shape.m, shape.n, shape.k, threads())

    return run


KERNELS: tuple[Kernel, ...] = (ours("gemm", SOURCE, made, refuses, packs=("b",)),)
