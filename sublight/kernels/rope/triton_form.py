"""This file knows about rotary embedding in Triton: q turned, k turned into the cache, v copied into it, one launch."""

from __future__ import annotations

from sublight.kernels.contract import Spec, Tensors
from sublight.kernels.kernel import Kernel
from sublight.kernels.launch.call import Call, blocks, next_power_of_2
from sublight.kernels.launch.form import kernel, unknown_format
from sublight.kernels.launch.targets import Target
from sublight.kernels.rope.shape import Shape

CODE = "sublight.kernels.rope.triton_code:rotated"
TENSORS = ("q", "k", "v", "positions", "cos_sin", "slots", "q_out", "k_cache", "v_cache")


def unsupported(shape: Shape, target: Target) -> str | None:
    """Why there is no code for a shape on an architecture; None: there is."""
    return unknown_format(shape.form, target)


def tile(heads: int, dim: int) -> tuple[int, int]:
    """Heads of a block, and its warps: 16 elements a thread.

    >>> tile(32, 128), tile(5, 80), tile(1, 64)
    ((16, 4), (8, 2), (1, 1))
    """
    wide = next_power_of_2(dim)
    height = max(1, min(2048 // wide, next_power_of_2(heads)))
    return height, max(1, min(4, height * wide // 512))


def tensors(shape: Shape) -> dict[str, Spec]:
    """Inputs and outputs by name, as the contract has them."""
    rotary = shape.dim if shape.rotary is None else shape.rotary
    q, kv = (shape.tokens, shape.heads, shape.dim), (shape.tokens, shape.kv_heads, shape.dim)
    cache = Spec((shape.pages, shape.page, shape.kv_heads, shape.dim), shape.form)
    numbers = Spec((shape.tokens,), "int64")
    return {"q": Spec(q, shape.form), "k": Spec(kv, shape.form), "v": Spec(kv, shape.form), "positions": numbers,
            "cos_sin": Spec((shape.positions, rotary), "fp32"), "slots": numbers, "q_out": Spec(q, shape.form),
            "k_cache": cache, "v_cache": cache}


def calls(shape: Shape, tensors: Tensors, target: Target) -> tuple[Call, ...]:
    """The one call that writes q_out and both caches."""
    rotary = shape.dim if shape.rotary is None else shape.rotary
    height, warps = tile(shape.heads, shape.dim)
    rest = shape.dim - rotary
    grid = (shape.tokens, blocks(shape.heads, height) + blocks(shape.kv_heads, height))
    return (Call(CODE, grid,
                 {**{f"{name}_ptr": tensors[name] for name in TENSORS}, "heads": shape.heads,
                  "kv_heads": shape.kv_heads},
                 {"DIM": shape.dim, "ROTARY": rotary, "HEADS": height, "PAIRS": next_power_of_2(rotary // 2),
                  "REST": next_power_of_2(rest) if rest else 0, "WIDE": next_power_of_2(shape.dim),
                  "NEOX": shape.neox}, warps=warps),)


KERNELS: tuple[Kernel, ...] = (kernel("rope", calls, unsupported),)
