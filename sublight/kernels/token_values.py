"""This file knows about the kinds of values that queries, keys and values of attention have in a case."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any

# normal      standard normal
# outliers    one element in fifty is ±1e4: one key takes all
# peaked      scores of ±300 and more: their exponentials overflow fp32 where the largest is not subtracted
# sunk        all scores are far below zero: their exponentials are all zero where the largest is not subtracted
# equal       all keys are the same, so all weights are; so they are where queries are zero
# cancelling  equal weights of values that sum to nearly nothing
# tiny        values of 1e-6: subnormal in fp16
KINDS = ("normal", "outliers", "peaked", "sunk", "equal", "zero", "cancelling", "tiny")


def shaped(q: Tensor, k: Tensor, v: Tensor, kind: str, *, random: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal q, k, v [.., tokens, heads, dim] turned into a kind, in float32. k and v may be one tensor (MLA).

    Raises ValueError for a kind that is not one.
    """
    dim = q.shape[-1]
    if kind == "normal":
        return q, k, v
    if kind == "outliers":
        return _outliers(q, random), _outliers(k, random), _outliers(v, random)
    if kind == "peaked":
        return q * 100.0, k, v
    if kind == "sunk":
        return q.abs() * 20.0, -k.abs() * 20.0 / dim**0.5 * 8.0, v
    if kind == "equal":
        return q, k[..., :1, :, :].expand_as(k).contiguous(), v
    if kind == "zero":
        return q * 0.0, k, v
    if kind == "cancelling":
        sign = 1.0 - 2.0 * (torch.arange(v.shape[-3]) % 2)
        return q * 0.0, k, sign[:, None, None] * (1.0 + v / 16.0)
    if kind == "tiny":
        return q, k, v * 1e-6
    raise ValueError(f"no kind of values is named {kind!r}; there are {', '.join(KINDS)}")


def _outliers(x: Tensor, random: Any) -> Tensor:
    return torch.where(torch.rand(x.shape, generator=random) < 0.02, x.sign() * 1e4, x)
