"""This file knows about our RMSNorm and LayerNorm on the CPU."""

from __future__ import annotations

from pathlib import Path

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native.call import address, form_of, function, ours, threads
from sublight.kernels.norm.shape import Shape

SOURCE = Path(__file__).with_name("norm.cpp")
FORMS = ("bf16", "fp16", "fp32")
TAKES = "pppppp ii f t"


def refuses(shape: Shape) -> str | None:
    if shape.form not in FORMS:
        return f"our CPU kernel takes {', '.join(FORMS)}, not {shape.form}"
    return "our CPU kernel does not quantise" if shape.quant else None


def made(shape: Shape, constants: Tensors) -> Run:
    norm = function(SOURCE, f"{shape.kind}_{shape.form}", TAKES)

    def run(inputs: Tensors, outputs: Tensors) -> None:
        norm(*(address(inputs.get(name)) for name in ("x", "residual", "weight", "bias")), address(outputs["out"]),
             address(outputs.get("summed")), shape.rows, shape.width, shape.eps, threads())

    return run


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension of a contiguous bf16, fp16 or fp32 tensor; the weight has its format."""
    import torch

    out, width = torch.empty_like(x), x.shape[-1]
    norm = function(SOURCE, f"rms_{form_of(x)}", TAKES)
    norm(address(x), None, address(weight), None, address(out), None, x.numel() // width, width, eps, threads())
    return out


KERNELS: tuple[Kernel, ...] = (ours("norm", SOURCE, made, refuses),)
