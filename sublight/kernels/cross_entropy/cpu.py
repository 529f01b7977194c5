"""This file knows about our cross entropy on the CPU."""

from __future__ import annotations

from pathlib import Path

from sublight.kernels.contract import Tensors
from sublight.kernels.cross_entropy.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native.call import address, function, ours, threads

SOURCE = Path(__file__).with_name("cross_entropy.cpp")
FORMS = ("bf16", "fp16", "fp32")
IGNORED = -100


def refuses(shape: Shape) -> str | None:
    return None if shape.form in FORMS else f"our CPU kernel takes {', '.join(FORMS)}, not {shape.form}"


def made(shape: Shape, constants: Tensors) -> Run:
    losses = function(SOURCE, f"cross_entropy_{shape.form}", "ppp iii t")

    def run(inputs: Tensors, outputs: Tensors) -> None:
        losses(address(inputs["logits"]), address(inputs["targets"]), address(outputs["loss"]), shape.rows,
               shape.classes, IGNORED, threads())

    return run


KERNELS: tuple[Kernel, ...] = (ours("cross_entropy", SOURCE, made, refuses),)
