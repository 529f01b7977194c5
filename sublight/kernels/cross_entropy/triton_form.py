"""This file knows about cross entropy in Triton: each logit is read once, and nothing but the loss is written."""

from __future__ import annotations

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.cross_entropy.shape import Shape
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target

CODE = "sublight.kernels.cross_entropy.triton_code:cross_entropy"
EACH = 8                                 # logits a lane reads in one step: 128 bits of bf16


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    return unknown_format(shape.form, target)


def lanes(classes: int) -> int:
    """Lanes of a block, a thread each: enough to read a row in one step, from one warp to sixteen.

    >>> lanes(100), lanes(151936)
    (32, 512)
    """
    return max(32, min(512, next_power_of_2(blocks(classes, EACH))))


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    return {"logits": Spec((shape.rows, shape.classes), shape.form), "targets": Spec((shape.rows,), "int64"),
            "loss": Spec((shape.rows,), "fp32")}


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes the losses."""
    wide = lanes(shape.classes)
    return (Call(CODE, (shape.rows,),
                 {"logits_ptr": tensors["logits"], "targets_ptr": tensors["targets"], "loss_ptr": tensors["loss"],
                  "classes": shape.classes},
                 {"LANES": wide, "EACH": EACH}, warps=wide // 32),)


KERNELS: tuple[Kernel, ...] = (kernel("cross_entropy", calls, unsupported),)
