"""This file knows about normalisation in Triton: RMSNorm and LayerNorm, with a residual, with a quantised output.

One read of x, one write of out: the row stays in registers between the sum of squares and the product. With the sum
in float32 the norm is taken of the unrounded sum.
"""

from __future__ import annotations

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target
from sublight.kernels.norm.shape import Shape

CODE = "sublight.kernels.norm.triton_code:normalised"
WIDEST = 32768                           # a row of float32 in the registers of 32 warps: 32 a thread
LARGEST = {None: 0, "fp8": 448, "int8": 127}


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    if shape.width > WIDEST:
        return f"a row is kept in the registers of one block: width is at most {WIDEST}, got {shape.width}"
    return unknown_format(shape.form, target) or unknown_format(shape.quant, target)


def tile(rows: int, width: int) -> tuple[int, int, int]:
    """Rows and columns of a block, and its warps: 16 elements a thread, two loads of 128 bits of bf16.

    >>> tile(4096, 4096), tile(4096, 128), tile(3, 16384)
    ((1, 4096, 8), (16, 128, 4), (1, 16384, 32))
    """
    columns = next_power_of_2(width)
    height = max(1, min(2048 // columns, next_power_of_2(rows)))
    return height, columns, max(1, min(32, height * columns // 512))


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    whole, form = (shape.rows, shape.width), shape.form
    out = {"x": Spec(whole, form), "weight": Spec((shape.width,), form), "out": Spec(whole, shape.quant or form)}
    if shape.kind == "layer":
        out["bias"] = Spec((shape.width,), form)
    if shape.residual:
        out |= {"residual": Spec(whole, form), "summed": Spec(whole, form)}
    return out | ({"scale": Spec((shape.rows,), "fp32")} if shape.quant else {})


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes `tensors`' outputs from its inputs."""
    height, columns, warps = tile(shape.rows, shape.width)
    arguments = {f"{name}_ptr": tensors.get(name) for name in
                 ("x", "weight", "bias", "residual", "out", "scale", "summed")}
    return (Call(CODE, (blocks(shape.rows, height),),
                 {**arguments, "rows": shape.rows, "width": shape.width, "eps": shape.eps},
                 {"ROWS": height, "COLUMNS": columns, "LAYER": shape.kind == "layer", "LARGEST": LARGEST[shape.quant]},
                 warps=warps),)


KERNELS: tuple[Kernel, ...] = (kernel("norm", calls, unsupported),)
