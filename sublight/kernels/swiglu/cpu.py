"""This file knows about our SwiGLU on the CPU."""

from __future__ import annotations

from pathlib import Path

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native.call import address, form_of, function, ours, threads
from sublight.kernels.swiglu.shape import Shape

SOURCE = Path(__file__).with_name("swiglu.cpp")
FORMS = ("bf16", "fp16", "fp32")


def refuses(shape: Shape) -> str | None:
    if shape.form not in FORMS:
        return f"our CPU kernel takes {', '.join(FORMS)}, not {shape.form}"
    return f"our CPU kernel quantises to int8, not {shape.quant}" if shape.quant not in (None, "int8") else None


def made(shape: Shape, constants: Tensors) -> Run:
    if shape.quant:
        return _quantised(shape)
    swiglu = function(SOURCE, f"swiglu_{shape.form}", "pp ii t")

    def run(inputs: Tensors, outputs: Tensors) -> None:
        swiglu(address(inputs["gate_up"]), address(outputs["out"]), shape.rows, shape.width, threads())

    return run


def _quantised(shape: Shape) -> Run:
    swiglu = function(SOURCE, f"swiglu_{shape.form}_{shape.quant}", "ppp ii t")

    def run(inputs: Tensors, outputs: Tensors) -> None:
        swiglu(address(inputs["gate_up"]), address(outputs["out"]), address(outputs["scale"]), shape.rows, shape.width,
               threads())

    return run


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up of two contiguous tensors of the same sizes, both bf16, fp16 or fp32."""
    import torch

    out = torch.empty_like(gate)
    apart = function(SOURCE, f"swiglu_apart_{form_of(gate)}", "ppp i t")
    apart(address(gate), address(up), address(out), gate.numel(), threads())
    return out


KERNELS: tuple[Kernel, ...] = (ours("swiglu", SOURCE, made, refuses),)
