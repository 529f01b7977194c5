"""This file knows about attention in Triton: a readable kernel to compare with, not a rival of the vendors'."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sublight.kernels.attention.shape import Shape
from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target

CODE = "sublight.kernels.attention.triton_code:attended"
WIDEST = 256
MOST_HEADS = 65535                       # of all sequences: the second axis of a grid (CUDA C++ Programming Guide)


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries of a block, keys of a step; warps of a block, steps that are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


# By the columns of a head, rounded up to a power of two: the largest without spills; times are not measured.
TILES = {"sm_80": {64: Tile(128, 64, 8, 3), 128: Tile(128, 32, 8, 3), 256: Tile(64, 32, 8, 2)},
         "sm_90": {64: Tile(128, 128, 8, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 2)},
         "sm_100": {64: Tile(128, 128, 8, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 2)},
         "sm_120": {64: Tile(128, 64, 8, 3), 128: Tile(128, 32, 8, 3), 256: Tile(64, 32, 8, 2)}}


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    if shape.form not in ("bf16", "fp16"):
        return f"queries, keys and values are bf16 or fp16, got {shape.form!r}"
    if shape.dim > WIDEST:
        return f"a head has at most {WIDEST} columns, got {shape.dim}"
    if shape.batch * shape.heads > MOST_HEADS:
        return f"heads of all sequences are at most {MOST_HEADS}, got {shape.batch * shape.heads}"
    return unknown_format(shape.form, target)


def tile(shape: Shape, target: Target) -> Tile:
    """The tile of a shape: smaller where a sequence has few queries.

    >>> from sublight.kernels.launch.targets import target
    >>> tile(Shape(1, 4096, 4096, 32, 8, 128), target(90)), tile(Shape(1, 5, 4096, 32, 8, 80), target(90)).queries
    (Tile(queries=128, keys=64, warps=8, stages=3), 64)
    """
    found = TILES[target.name][max(64, next_power_of_2(shape.dim))]
    few = 64 if target.descriptors else 16                   # rows of the smallest tensor-core instruction
    queries = min(found.queries, max(few, next_power_of_2(shape.q_length)))
    return Tile(queries, found.keys, min(found.warps, max(1, queries // 8)), found.stages)


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    q = Spec((shape.batch, shape.q_length, shape.heads, shape.dim), shape.form)
    kv = Spec((shape.batch, shape.kv_length, shape.kv_heads, shape.dim), shape.form)
    return {"q": q, "k": kv, "v": kv, "out": q}


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that computes out."""
    chosen = tile(shape, target)
    return (Call(CODE, (blocks(shape.q_length, chosen.queries), shape.batch * shape.heads),
                 {"q_ptr": tensors["q"], "k_ptr": tensors["k"], "v_ptr": tensors["v"], "out_ptr": tensors["out"],
                  "q_length": shape.q_length, "kv_length": shape.kv_length, "heads": shape.heads,
                  "kv_heads": shape.kv_heads, "scale": math.log2(math.e) / math.sqrt(shape.dim),
                  "window": shape.window if shape.causal else None},
                 {"QUERIES": chosen.queries, "KEYS": chosen.keys, "DIM": shape.dim,
                  "COLUMNS": max(16, next_power_of_2(shape.dim)), "CAUSAL": shape.causal},
                 warps=chosen.warps, stages=chosen.stages),)


KERNELS: tuple[Kernel, ...] = (kernel("attention", calls, unsupported),)
