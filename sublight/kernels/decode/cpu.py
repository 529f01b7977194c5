"""This file knows about our attention of one query token on the CPU, over pages or over caches in one piece."""

from __future__ import annotations

import ctypes
from pathlib import Path

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.decode.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native.call import address, form_of, function, ours, threads

SOURCE = Path(__file__).with_name("decode.cpp")
FORMS = ("bf16", "fp32")
TAKES = "pppppp iiiiii p f t"


def refuses(shape: Shape) -> str | None:
    return None if shape.form in FORMS else f"our CPU kernel takes {' and '.join(FORMS)}, not {shape.form}"


def made(shape: Shape, constants: Tensors) -> Run:
    decode = function(SOURCE, f"decode_{shape.form}", TAKES)
    token = shape.kv_heads * shape.dim
    strides = (ctypes.c_int64 * 3)(shape.page * token, token, shape.dim)

    def run(inputs: Tensors, outputs: Tensors) -> None:
        decode(*(address(inputs[name]) for name in ("q", "k_cache", "v_cache", "table", "lengths")),
               address(outputs["out"]), shape.batch, shape.heads, shape.kv_heads, shape.dim, inputs["table"].shape[1],
               shape.page, strides, shape.dim**-0.5, threads())

    return run


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Attention of one query token to all of a cache in one piece: what scaled_dot_product_attention returns for it.

    q [batch, heads, 1, dim] (contiguous); k, v [batch, kv_heads, tokens, dim] with the same strides, that of the last
    dimension 1; bf16 or fp32. scale is 1/√dim unless said. heads is a multiple of kv_heads.
    """
    import torch

    batch, heads, _, dim = q.shape
    decode = function(SOURCE, f"decode_{form_of(q)}", TAKES)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lengths = torch.full((batch,), k.shape[2], dtype=torch.int32)
    strides = (ctypes.c_int64 * 3)(k.stride(0), k.stride(2), k.stride(1))
    decode(address(q), address(k), address(v), None, address(lengths), address(out), batch, heads, k.shape[1], dim, 0,
           1, strides, dim**-0.5 if scale is None else scale, threads())
    return out


KERNELS: tuple[Kernel, ...] = (ours("decode", SOURCE, made, refuses),)
