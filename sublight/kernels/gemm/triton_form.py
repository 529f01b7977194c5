"""This file knows about matrix products in Triton: which tile for which shape, descriptors or pointers.

Descriptors (the tensor memory accelerator) need rows of a, b and out that begin at multiples of 16 bytes. On sm_80 they
would be emulated with spills, on sm_120 pointers do as well: there, and for odd sizes, pointers are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.gemm.shape import Shape
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target

CODE = "sublight.kernels.gemm.triton_code:product"
SCALED = {"bf16": "no", "fp16": "no", "fp8": "tensor", "fp8_block": "block", "int8": "row"}
NBYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "int8": 1, "fp32": 4}
GROUP = 8                                # rows of tiles that blocks share in the L2 cache
READING = 64                             # between A100's 44 (1024 multiply-adds of bf16 a clock and SM; 5120 bytes a
                                         # clock of L2 over 108 SMs: its white paper) and twice that with H100's


@dataclass(frozen=True, slots=True)
class Tile:
    """m x n of the output a block, k columns a step; warps of a block, steps that are loaded ahead."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


# The largest tile of each target whose accumulator and operands fit registers and shared memory without spills, then
# smaller ones for products that would leave SMs idle. Checked by tests/test_triton_support.py; times are not measured.
WIDE = {"sm_80": (Tile(128, 128, 32, 8, 4), Tile(64, 128, 32, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5)),
        "sm_90": (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 128, 64, 4, 5), Tile(64, 64, 128, 4, 4)),
        "sm_100": (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(128, 64, 128, 4, 4)),
        "sm_120": (Tile(128, 128, 32, 8, 4), Tile(64, 128, 32, 4, 4), Tile(64, 64, 64, 4, 4), Tile(16, 64, 64, 4, 5))}
BLOCK_SCALED = {"sm_90": (Tile(128, 128, 128, 8, 4), Tile(64, 128, 128, 4, 4), Tile(64, 64, 128, 4, 5)),
                "sm_100": (Tile(128, 128, 128, 8, 4), Tile(128, 64, 128, 4, 4)),
                "sm_120": (Tile(128, 64, 128, 8, 3), Tile(64, 64, 128, 4, 3), Tile(16, 64, 128, 4, 4))}

# Rows that begin anywhere: each element has a pointer of its own, and these take registers.
ODD = {"sm_90": (Tile(128, 64, 32, 8, 3),), "sm_100": (Tile(128, 128, 32, 8, 3),)}
ODD_BLOCK_SCALED = {"sm_90": (Tile(64, 32, 128, 8, 3),), "sm_100": (Tile(64, 32, 128, 8, 3),),
                    "sm_120": (Tile(64, 32, 128, 16, 3),)}


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    return unknown_format(shape.form.removesuffix("_block"), target) or unknown_format(shape.out, target)


def tile(shape: Shape, target: Target) -> Tile:
    """The tile that is expected to be done first: whole waves of blocks times what one block does, padding included.

    A block multiplies m·n and reads m + n elements for each column of k. READING says how many multiply-adds of a
    tensor core take as long as one element from the L2 cache. Between equals the larger, which is named first.
    """
    scaled, odd = shape.form == "fp8_block", shape.k * NBYTES[shape.form] % 16 or shape.n * NBYTES[shape.out] % 16
    tiles = (BLOCK_SCALED if scaled else WIDE)[target.name]
    if odd:
        tiles = (ODD_BLOCK_SCALED if scaled else ODD).get(target.name, tiles)
    narrow = [Tile(t.m, t.n, t.k if scaled else t.k * 2 // NBYTES[shape.form], t.warps, t.stages) for t in tiles]
    return min(narrow, key=lambda t: blocks(blocks(shape.m, t.m) * blocks(shape.n, t.n), target.sms)
               * (t.m * t.n + READING * (t.m + t.n)))


def descriptors(shape: Shape, target: Target) -> bool:
    """Whether the tensor memory accelerator can read and write the matrices."""
    rows = ((shape.k, shape.form), (shape.n, shape.out))
    return target.descriptors and min(shape.m, shape.n, shape.k) > 0 and all(
        size * NBYTES[form] % 16 == 0 for size, form in rows)


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    m, n, steps = shape.m, shape.n, blocks(shape.k, 128)
    scales: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "fp8": ((), ()), "fp8_block": ((m, steps), (blocks(n, 128), steps)), "int8": ((m,), (n,))}
    out = {name: Spec((size, shape.k), shape.form.removesuffix("_block")) for name, size in (("a", m), ("b", n))}
    if shape.form in scales:
        out |= {name: Spec(sizes, "fp32") for name, sizes in zip(("a_scale", "b_scale"), scales[shape.form],
                                                                strict=True)}
    return out | {"out": Spec((m, n), shape.out)}


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes the product."""
    chosen, described = tile(shape, target), descriptors(shape, target)
    a, b, out = (tensors[name] for name in ("a", "b", "out"))
    if described:
        a, b, out = _described(a, chosen.m, chosen.k), _described(b, chosen.n, chosen.k), _described(
            out, chosen.m, chosen.n)
    tiles = blocks(shape.m, chosen.m) * blocks(shape.n, chosen.n)
    return (Call(CODE, (min(tiles, target.sms),),
                 {"a": a, "b": b, "out": out, "a_scale_ptr": tensors.get("a_scale"),
                  "b_scale_ptr": tensors.get("b_scale"), "m": shape.m, "n": shape.n, "k": shape.k},
                 {"M": chosen.m, "N": chosen.n, "K": chosen.k, "GROUP": GROUP, "SCALED": SCALED[shape.form],
                  "DESCRIPTORS": described}, warps=chosen.warps, stages=chosen.stages),)


def _described(tensor: Any, rows: int, columns: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, [rows, columns])


KERNELS: tuple[Kernel, ...] = (kernel("gemm", calls, unsupported),)
