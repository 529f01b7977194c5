"""This file knows about rounding: what one costs in each number format, and what many of them cost together.

    bound of an output = error before it is rounded (sums, scales, intermediates) + half a unit in its last place

Sources: Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), sections 2.1 (unit roundoff) and 3.1 (inner
products); Higham and Mary, SIAM J. Sci. Comput. 41 (2019) A2815 (many roundings at random); IEEE 754-2019, table 3.5;
Kalamkar et al., arXiv 1905.12322 (bf16); OCP 8-bit Floating Point Specification 1.0, table 1 (e4m3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format: significant bits (the hidden one too), exponent of the smallest normal number."""

    bits: int
    smallest: int
    largest: float
    dtype: Any
    flushes: bool                        # fast hardware modes flush its subnormal numbers (those of fp32) to zero


FORMATS = {
    "fp64": Format(53, -1022, 1.7976931348623157e308, torch.float64, False),
    "fp32": Format(24, -126, 3.4028234663852886e38, torch.float32, True),
    "bf16": Format(8, -126, 3.3895313892515355e38, torch.bfloat16, True),
    "fp16": Format(11, -14, 65504.0, torch.float16, False),
    "fp8": Format(4, -6, 448.0, torch.float8_e4m3fn, False),
}
DTYPES = {**{name: form.dtype for name, form in FORMATS.items()},
          "int8": torch.int8, "int32": torch.int32, "int64": torch.int64}

# How many standard deviations of accumulated rounding errors a bound holds. Higham and Mary, theorem 2.4: of N sums one
# lies beyond with a probability of at most 2·N·exp(−λ²/2): 3e-5 for N = 1e9.
DEVIATIONS = 8.0


def unit_roundoff(form: str) -> float:
    """The largest relative error of one rounding to nearest.

    >>> unit_roundoff("fp32") == 2**-24, unit_roundoff("bf16") == 2**-8, unit_roundoff("fp8") == 2**-4
    (True, True, True)
    """
    return 2.0 ** -FORMATS[form].bits


def half_ulp(value: Tensor, form: str) -> Tensor:
    """Half a unit in the last place of float64 values in a format: the largest error of rounding them to nearest.

    Below the smallest normal number the last place stays where it is. In fp32 and bf16 such a number may also become
    zero (CUDA's -ftz, flush-to-zero of x86), and the whole of it is allowed. int8: half a step.
    """
    if form == "int8":
        return torch.full_like(value, 0.5)
    kind = FORMATS[form]
    size = value.abs()
    _, exponent = torch.frexp(size)      # size = mantissa · 2^exponent, mantissa in [½, 1)
    last = torch.where(size == 0, kind.smallest, exponent - 1).clamp(min=kind.smallest) - kind.bits
    half = torch.ldexp(torch.ones_like(size), last)
    if not kind.flushes:
        return half
    return torch.where(size < 2.0**kind.smallest, torch.maximum(half, size), half)


def rounded(exact: Tensor, before: Tensor, form: str) -> Tensor:
    """Bound of an output: it lay within `before` of exact, then was rounded to nearest.

    |fl(y) − x| ≤ |y − x| + half_ulp(y), and |y| ≤ |x| + before: the last place may be that of the next binade.
    """
    return before + half_ulp(exact.abs() + before, form)


def sum_error(terms: int, magnitude: Tensor, form: str = "fp32") -> Tensor:
    """Bound of Σ xᵢ of `terms` terms added in any order in a format; magnitude is Σ|xᵢ|.

    Whatever the order, at most γₙ·Σ|xᵢ|, γₙ = n·u/(1 − n·u) (Higham, equation 3.5), and where the roundings are as
    good as random, λ·√n·u·Σ|xᵢ| (Higham and Mary). Tensor cores add 8 products at a time (A100; later ones more) to
    the sum and truncate (Fasi et al., PeerJ Computer Science 7 (2021) e330): n/8 errors of 2·u with one sign. So the
    bound is

        min(γₙ, max(λ·√n, n/4)·u) · Σ|xᵢ|

    A product of two 16-bit or 8-bit numbers is exact in fp32 and costs nothing; terms that are rounded themselves count
    once more.
    """
    u = unit_roundoff(form)
    surely = terms * u / (1 - terms * u) if terms * u < 1 else math.inf
    return min(surely, max(DEVIATIONS * math.sqrt(terms), terms / 4) * u) * magnitude


def random_error(deviation: Tensor) -> Tensor:
    """Bound of many independent roundings whose sum has this standard deviation.

    One rounding to nearest of x has at most u·|x|/√3 (uniform within half a unit in the last place).
    """
    return DEVIATIONS * deviation
