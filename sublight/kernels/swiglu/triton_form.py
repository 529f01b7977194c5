"""This file knows about SwiGLU in Triton. A quantised output needs the largest value of its row: a block has it all."""

from __future__ import annotations

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target
from sublight.kernels.swiglu.shape import Shape

CODE = "sublight.kernels.swiglu.triton_code:gated"
WIDEST = 32768                           # a quantised row of float32 in the registers of 32 warps: 32 a thread
LARGEST = {None: 0, "fp8": 448, "int8": 127}


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    if shape.quant and shape.width > WIDEST:
        return f"a quantised row is kept in the registers of one block: width is at most {WIDEST}, got {shape.width}"
    return unknown_format(shape.form, target) or unknown_format(shape.quant, target)


def tile(rows: int, width: int, *, whole: bool) -> tuple[int, int, int]:
    """Rows and columns of a block, and its warps: 8 or 16 elements of out a thread. whole: a block has whole rows.

    >>> tile(4096, 14336, whole=False), tile(4096, 14336, whole=True), tile(4096, 64, whole=False)
    ((1, 1024, 4), (1, 16384, 32), (16, 64, 4))
    """
    columns = next_power_of_2(width) if whole else min(1024, next_power_of_2(width))
    height = max(1, min(1024 // columns, next_power_of_2(rows)))
    return height, columns, max(1, min(32, height * columns // (512 if whole and columns > 1024 else 256)))


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    out = {"gate_up": Spec((shape.rows, 2 * shape.width), shape.form),
           "out": Spec((shape.rows, shape.width), shape.quant or shape.form)}
    return out | ({"scale": Spec((shape.rows,), "fp32")} if shape.quant else {})


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes `tensors`' outputs from its inputs."""
    height, columns, warps = tile(shape.rows, shape.width, whole=shape.quant is not None)
    return (Call(CODE, (blocks(shape.rows, height), blocks(shape.width, columns)),
                 {"gate_up_ptr": tensors["gate_up"], "out_ptr": tensors["out"], "scale_ptr": tensors.get("scale"),
                  "rows": shape.rows, "width": shape.width},
                 {"ROWS": height, "COLUMNS": columns, "LARGEST": LARGEST[shape.quant]}, warps=warps),)


KERNELS: tuple[Kernel, ...] = (kernel("swiglu", calls, unsupported),)
