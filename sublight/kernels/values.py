"""This file knows about the values that contracts try: ordinary ones, and those at which kernels have failed.

    normal         standard normal; fp8 and int8 over a quarter of their range, clipped
    outliers       one in a hundred is 50 times as large: activations of large models (Dettmers et al., 2208.07339)
    tiny           1e-15 and its like; fp16: subnormal numbers
    zeros          every other row is zero
    constant       1.5 everywhere: sums are exact, so any error is a mistake
    cancellation   the second half of each row is the first, negated, but for a sixteenth: sums nearly vanish
    largest        the ends of the range of 8-bit formats (448; 127 and -128), at random; others: normal
    not_finite     normal, with a NaN in one row and an infinity in another: they must reach those rows, and no others

Scales of quantised inputs (fp32): about 0.01; `tiny_scales` 1e-23 (NaN in flashinfer#2595), `zero_scales` every third
is zero, `wide_scales` from 2^-20 to 2^10: a scale that is taken from the wrong place shows.
"""

from __future__ import annotations

import zlib
from math import prod
from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Case
from sublight.kernels.rounding import DTYPES

Tensor: TypeAlias = Any
Random: TypeAlias = Any                  # torch.Generator

SPREAD = {"fp8": 112.0, "int8": 32.0}
RANGE = {"fp8": (-448.0, 448.0), "int8": (-128.0, 127.0)}
TINY = {"fp16": 2.0**-14, "fp8": 2.0**-13, "int8": 2.0**-4}


def random(case: Case) -> Random:
    """A generator that is the same for the same case, in every process."""
    return torch.Generator().manual_seed(zlib.crc32(repr(case).encode()))


def numbers(kind: str, sizes: tuple[int, ...], form: str, rng: Random) -> Tensor:
    """Numbers of one of the kinds above, in a format; kinds of scales and of routing give normal ones."""
    x = torch.randn(sizes, generator=rng) * SPREAD.get(form, 1.0)
    if kind == "outliers":
        x = torch.where(torch.rand(sizes, generator=rng) < 0.01, 50 * x, x)
    elif kind == "tiny":
        x = x * TINY.get(form, 1e-15)
    elif kind == "zeros":
        x[1::2] = 0
    elif kind == "constant":
        x = torch.full(sizes, 1.5 if form != "int8" else 2.0)
    elif kind == "cancellation":
        x = _cancelling(x)
    elif kind == "largest" and form in RANGE:
        low, high = RANGE[form]
        x = torch.where(x > 0, high, low)
    elif kind == "not_finite":
        x = _not_finite(x)
    return converted(x, form)


def converted(x: Tensor, form: str) -> Tensor:
    """In a number format, clipped to its range where that ends early."""
    if form in RANGE:
        low, high = RANGE[form]
        x = x.clamp(low, high)
    return (x.round() if form == "int8" else x).to(DTYPES[form])


def scales(kind: str, sizes: tuple[int, ...], rng: Random) -> Tensor:
    """Scales in fp32 for one of the kinds above."""
    scale = 0.01 * torch.exp2(torch.rand(sizes, generator=rng) * 2 - 1)
    if kind == "tiny_scales":
        return scale * 1e-21
    if kind == "zero_scales":
        return torch.where(torch.arange(prod(sizes)).reshape(sizes) % 3 == 1, 0.0, scale)
    if kind == "wide_scales":
        return torch.exp2(torch.randint(-20, 11, sizes, generator=rng).float())
    return scale


def _cancelling(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    x[..., half : 2 * half] = -x[..., :half] * (1 + torch.sign(x[..., half : 2 * half]) / 16)
    return x


def _not_finite(x: Tensor) -> Tensor:
    """A NaN in the first row and an infinity in the last; one row: the NaN alone."""
    rows = x.reshape(-1, x.shape[-1])
    if rows.numel():
        rows[-1, -1] = torch.inf
        rows[0, rows.shape[-1] // 2] = torch.nan
    return x


def second_operand(kind: str, sizes: tuple[int, ...], form: str, rng: Random) -> Tensor:
    """The other operand of a product, [..., k], beside a first one of `numbers(kind, …)`: ordinary where one special
    operand is enough; of a cancellation it repeats itself where the first one changes its sign."""
    made = numbers("normal" if kind in ("not_finite", "cancellation", "zeros") else kind, sizes, form, rng)
    half = sizes[-1] // 2
    if kind == "cancellation" and half:
        made[..., half : 2 * half] = made[..., :half].clone()
    return made
