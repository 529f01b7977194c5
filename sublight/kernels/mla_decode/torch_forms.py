"""This file knows about how torch computes latent attention: pages gathered, then its fused kernel, padded or sequence
by sequence, or products and a softmax.

The fused kernel wants values as wide as keys: of narrower ones torch makes products and a softmax (2.13 on a CPU, as
torch._fused_sdp_choice says). So it is given the keys, and what it returns beyond `rank` columns is dropped.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.decode.torch_forms import gathered
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.mla_decode.contract import scale_of
from sublight.kernels.mla_decode.shape import Shape
from sublight.kernels.pages import rows_of
from sublight.kernels.torch_places import both, compiled, filling, inductor

NAMES = ("q", "cache", "table", "lengths")


def _padded(shape: Shape, constants: Tensors) -> Run:
    """All sequences at once: heads are rows of one attention, a mask over what is beyond a sequence's length."""
    def compute(given: Tensors) -> Tensor:
        keys, used = gathered(given["cache"], given["table"], given["lengths"])
        keys = keys.unsqueeze(1)
        out = scaled_dot_product_attention(given["q"].unsqueeze(1), keys, keys, attn_mask=used[:, None, None],
                                           scale=scale_of(shape))
        empty = (given["lengths"] == 0)[:, None, None]
        return out[:, 0, :, :shape.rank].masked_fill(empty, 0.0).contiguous()

    return filling(compute, "out")


def _rows(shape: Shape, constants: Tensors) -> Run:
    """Sequence by sequence: heads are rows of one attention, which reads keys once."""
    def compute(given: Tensors) -> Tensor:
        out = torch.zeros_like(given["q"][..., :shape.rank])
        for b, length in enumerate(given["lengths"].tolist()):
            if length:
                keys = rows_of(given["cache"], given["table"][b], length)[None, None]
                found = scaled_dot_product_attention(given["q"][b][None, None], keys, keys, scale=scale_of(shape))
                out[b] = found[0, 0, :, :shape.rank]
        return out

    return filling(compute, "out")


def products(q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, rank: int, scale: float) -> Tensor:
    """Pages gathered, scores in fp32, weights rounded to the cache's format."""
    keys, used = gathered(cache, table, lengths)
    scores = q.float() @ keys.float().transpose(1, 2) * scale
    weights = scores.masked_fill(~used[:, None], -math.inf).softmax(-1).nan_to_num(0.0)
    return weights.to(keys.dtype) @ keys[..., :rank]


def _products(shape: Shape, constants: Tensors, *, function: Any = products) -> Run:
    return filling(lambda given: function(*(given[name] for name in NAMES), shape.rank, scale_of(shape)), "out")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _products(shape, constants, function=compiled(products))


KERNELS: tuple[Kernel, ...] = (
    *both("mla_decode", "torch", _padded), *both("mla_decode", "rows", _rows),
    *both("mla_decode", "products", _products), *inductor("mla_decode", _inductor),
)
