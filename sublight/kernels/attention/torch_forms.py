"""This file knows about how torch computes attention: its fused kernel, with grouped or with repeated heads; products
and a softmax; FlexAttention; Inductor.
"""

from __future__ import annotations

import math
from typing import Any

from torch.nn.functional import scaled_dot_product_attention

from sublight.kernels.attention.contract import seen
from sublight.kernels.attention.shape import Shape
from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.torch_places import both, compiled, filling, inductor


def _fused(shape: Shape, constants: Tensors, *, repeat: bool = False) -> Run:
    """scaled_dot_product_attention. `is_causal` aligns at the start, which is the end only of square shapes."""
    square = shape.causal and shape.q_length == shape.kv_length and shape.window is None
    mask = None if square else seen(shape)
    blind = None if mask is None or bool(mask.any(1).all()) else ~mask.any(1)[:, None, None]
    group = shape.heads // shape.kv_heads

    def compute(given: Tensors) -> Tensor:
        q, k, v = (given[name].transpose(1, 2) for name in "qkv")
        if repeat:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        allowed = None if mask is None else mask.to(q.device)
        out = scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=square, enable_gqa=not repeat)
        out = out.transpose(1, 2).contiguous()
        return out if blind is None else out.masked_fill(blind.to(q.device), 0.0)

    return filling(compute, "out")


def _repeated(shape: Shape, constants: Tensors) -> Run:
    return _fused(shape, constants, repeat=True)


def products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scores in fp32, weights rounded to the format of v, and a product in it that adds in fp32."""
    b, rows, heads, dim = q.shape
    group = heads // k.shape[2]
    grouped = q.view(b, rows, k.shape[2], group, dim).permute(0, 2, 3, 1, 4).float()
    keys, values = (x.transpose(1, 2).unsqueeze(2) for x in (k, v))
    scores = grouped @ keys.float().transpose(-1, -2) * dim**-0.5
    weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)
    out = weights.to(v.dtype) @ values
    return out.permute(0, 3, 1, 2, 4).reshape(b, rows, heads, dim)


def _products(shape: Shape, constants: Tensors, *, function: Any = products) -> Run:
    mask = seen(shape)

    def compute(given: Tensors) -> Tensor:
        q, k, v = (given[name] for name in "qkv")
        return function(q, k, v, None if mask is None else mask.to(q.device))

    return filling(compute, "out")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _products(shape, constants, function=compiled(products))


def _flexed(q: Tensor, k: Tensor, v: Tensor, blocks: Any, grouped: bool) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    out: Tensor = flex_attention(q, k, v, block_mask=blocks, enable_gqa=grouped)
    return out.transpose(1, 2).contiguous()


def _flex(shape: Shape, constants: Tensors) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask

    offset, window = shape.kv_length - shape.q_length, shape.window or shape.kv_length + shape.q_length

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q + offset) & (k > q + offset - window)

    def compute(given: Tensors) -> Tensor:
        q, k, v = (given[name].transpose(1, 2) for name in "qkv")
        blocks = create_block_mask(visible, None, None, shape.q_length, shape.kv_length, device=q.device) \
            if shape.causal else None
        return compiled(_flexed)(q, k, v, blocks, shape.heads != shape.kv_heads)

    return filling(compute, "out")


KERNELS: tuple[Kernel, ...] = (
    *both("attention", "torch", _fused), *both("attention", "repeat", _repeated),
    *both("attention", "products", _products), *inductor("attention", _inductor),
    *inductor("attention", _flex, name="flex"),
)
