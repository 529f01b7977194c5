"""This file knows about how torch computes attention of one new token: it has no kernel for a cache in pages, so pages
are gathered first; then its fused kernel, padded or sequence by sequence, or products and a softmax.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.decode.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.pages import rows_of
from sublight.kernels.torch_places import both, compiled, filling, inductor


def gathered(cache: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """[batch, tokens, ..] with zeros where a sequence has none, and [batch, tokens]: where it has one."""
    tokens = cache[table.long()].flatten(1, 2)
    used = torch.arange(tokens.shape[1], device=cache.device) < lengths[:, None]
    return tokens.where(used.view(*used.shape, *[1] * (tokens.dim() - 2)), torch.zeros_like(tokens)), used


def _padded(shape: Shape, constants: Tensors, *, repeat: bool = False) -> Run:
    """All sequences at once: pages gathered, a mask over what is beyond a sequence's length."""
    group = shape.heads // shape.kv_heads

    def compute(given: Tensors) -> Tensor:
        (k, used), (v, _) = (gathered(given[name], given["table"], given["lengths"]) for name in ("k_cache", "v_cache"))
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if repeat:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = scaled_dot_product_attention(given["q"].unsqueeze(2), k, v, attn_mask=used[:, None, None],
                                           enable_gqa=not repeat)
        return out[:, :, 0].masked_fill((given["lengths"] == 0)[:, None, None], 0.0)

    return filling(compute, "out")


def _repeated(shape: Shape, constants: Tensors) -> Run:
    return _padded(shape, constants, repeat=True)


def _rows(shape: Shape, constants: Tensors) -> Run:
    """Sequence by sequence: the query heads that share a key head are rows of one attention, which reads keys once."""
    def compute(given: Tensors) -> Tensor:
        out = torch.zeros_like(given["q"])
        q = given["q"].view(shape.batch, 1, shape.kv_heads, -1, shape.dim)
        for b, length in enumerate(given["lengths"].tolist()):
            if length:
                k, v = (rows_of(given[name], given["table"][b], length).transpose(0, 1).unsqueeze(0)
                        for name in ("k_cache", "v_cache"))
                out[b] = scaled_dot_product_attention(q[b], k, v).view(shape.heads, shape.dim)
        return out

    return filling(compute, "out")


def products(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    """Pages gathered, scores in fp32, weights rounded to the cache's format."""
    (k, used), (v, _) = (gathered(cache, table, lengths) for cache in (k_cache, v_cache))
    batch, heads, dim = q.shape
    grouped = q.view(batch, k.shape[2], -1, dim).float()
    scores = grouped @ k.permute(0, 2, 3, 1).float() * dim**-0.5
    weights = scores.masked_fill(~used[:, None, None], -math.inf).softmax(-1).nan_to_num(0.0)
    return (weights.to(v.dtype) @ v.transpose(1, 2)).view(batch, heads, dim)


def _products(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: products(*(given[name] for name in NAMES)), "out")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return filling(lambda given: compiled(products)(*(given[name] for name in NAMES)), "out")



NAMES = ("q", "k_cache", "v_cache", "table", "lengths")
KERNELS: tuple[Kernel, ...] = (
    *both("decode", "torch", _padded), *both("decode", "repeat", _repeated), *both("decode", "rows", _rows),
    *both("decode", "products", _products), *inductor("decode", _inductor),
)
