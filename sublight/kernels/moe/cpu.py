"""This file knows about our layer of experts on the CPU: bf16, weights packed ahead, rows grouped by expert."""

from __future__ import annotations

from pathlib import Path

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.moe.shape import Shape
from sublight.kernels.native.call import address, function, ours, threads

SOURCE = Path(__file__).with_name("moe.cpp")


def refuses(shape: Shape) -> str | None:
    return None if shape.form == "bf16" else f"our CPU kernel takes bf16, not {shape.form}"


def packed(shape: Shape, constants: Tensors) -> tuple[Tensor, Tensor]:
    """gate_up and down of all experts in the order in which products read them."""
    import torch

    sizes = [function(SOURCE, name, "ii", gives="i")(shape.width, shape.inner)
             for name in ("moe_gate_up_size", "moe_down_size")]
    gate_up, down = (torch.empty(shape.experts * size, dtype=torch.bfloat16) for size in sizes)
    function(SOURCE, "moe_pack", "pp iii pp")(
        address(constants["gate_up"]), address(constants["down"]), shape.experts, shape.width, shape.inner,
        address(gate_up), address(down))
    return gate_up, down


def made(shape: Shape, constants: Tensors) -> Run:
    layer = function(SOURCE, "moe_bf16", "pppppp iiiii t")
    gate_up, down = packed(shape, constants)

    def run(inputs: Tensors, outputs: Tensors) -> None:
        layer(address(inputs["x"]), address(gate_up), address(down), address(inputs["ids"]), address(inputs["weights"]),
              address(outputs["out"]), shape.tokens, shape.experts, shape.top_k, shape.width, shape.inner, threads())

    return run


KERNELS: tuple[Kernel, ...] = (ours("moe", SOURCE, made, refuses, packs=("gate_up", "down")),)
