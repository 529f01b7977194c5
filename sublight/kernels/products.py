"""This file knows about the errors of matrix products in the formats that matrix hardware has, scaled or not.

    x = Σ aᵢ·bᵢ, aᵢ and bᵢ with their scales;  S = Σ |aᵢ·bᵢ|;  u = 2⁻²⁴, of fp32

    bf16, fp16   products are exact in fp32, n = k additions:     min(γₙ, max(8·√n, n/4)·u)·S  (rounding.sum_error)
    int8         sums are exact in int32; the conversion and two scales: 3 roundings, γ₃·|x|
    fp8          as bf16, with 2 roundings for scales, and what tensor cores drop (below)
    fp8_block    as fp8, with 3 roundings more for each 128 of k: two scales and an addition

Then the output is rounded (rounding.rounded). What fp8 tensor cores drop: on sm_90 they align 32 products and the
accumulator to the largest of them, and keep 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2). Of 33 terms each
loses up to ε = 2⁻¹³ of the largest, toward zero. The bound takes partial sums to be promoted to fp32 after 128 of k, 4
steps, as DeepGEMM does and cuBLAS without fast accumulation. With the accumulator as a walk of root mean square
√Σ(aᵢbᵢ)² and a drift |Σ aᵢbᵢ| in the block β, the deviation and the bias are

    σ² = (132/3)·ε²·Σ_β [Σ(aᵢbᵢ)² + (Σ aᵢbᵢ)²]          bias = 33·ε·|x|

(truncation of half of 33 terms by half of ε of half the block's sum on average, in 4 steps). The bound holds 8σ + bias.
No GPU was at hand: the model is the paper's, and its simulation in tests/test_products_fp8.py uses a quarter of the
bound. Without promotion it passes the policy for k = 8192 too, at 1.3 times the honest error.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from sublight.kernels.rounding import DTYPES, random_error, rounded, sum_error

Tensor: TypeAlias = Any

BLOCK = 128
KEPT = 2.0**-13                          # of the largest term, what truncation to 14 bits can drop
STEPS, TERMS = 4, 33                     # MMAs of 32 in a block; terms that one adds


def blocks(size: int) -> int:
    """How many blocks of 128 cover a size."""
    return -(-size // BLOCK)


def spread(scale: Tensor, sizes: tuple[int, int], *, by: tuple[int, int]) -> Tensor:
    """Scales of blocks, repeated for the rows and columns of the last two dimensions that share them."""
    rows, columns = sizes
    wide = scale.repeat_interleave(by[0], dim=-2)[..., :rows, :]
    return wide.repeat_interleave(by[1], dim=-1)[..., :columns]


def unscaled(form: str, a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None,
             dtype: Any = torch.float64) -> tuple[Tensor, Tensor]:
    """a [m, k] and b [..., n, k] times their scales, in a wider type: exact in float64."""
    a, b = a.to(dtype), b.to(dtype)
    if a_scale is None or b_scale is None:
        return a, b
    a_scale, b_scale = a_scale.to(dtype), b_scale.to(dtype)
    if form == "fp8_block":
        a_size, b_size = (a.shape[-2], a.shape[-1]), (b.shape[-2], b.shape[-1])
        return a * spread(a_scale, a_size, by=(1, BLOCK)), b * spread(b_scale, b_size, by=(BLOCK, BLOCK))
    if form == "int8":
        return a * a_scale[..., None], b * b_scale[..., None]
    return a * a_scale, b * b_scale


def product(form: str, a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None) -> Tensor:
    """a·bᵀ [m, n] in float64. With one scale for a row, sums of integers and of fp8 are exact, so zero is zero."""
    if form in ("int8", "fp8") and a_scale is not None and b_scale is not None:
        sums = a.double() @ b.double().T
        return sums * (a_scale.double()[:, None] * b_scale.double() if form == "int8" else
                       a_scale.double() * b_scale.double())
    wide_a, wide_b = unscaled(form, a, b, a_scale, b_scale)
    return wide_a @ wide_b.T


def product_bound(form: str, a: Tensor, b: Tensor, exact: Tensor, out: str) -> Tensor:
    """Bound of out = a·bᵀ: a [m, k], b [n, k] in float64 with their scales, exact [m, n], out a number format."""
    k = a.shape[-1]
    if form == "int8":
        return rounded(exact, sum_error(3, exact.abs()), out)
    terms = {"fp8": k + 2, "fp8_block": k + 3 * blocks(k)}.get(form, k)
    before = sum_error(terms, a.abs() @ b.abs().T)
    if form.startswith("fp8"):
        before = before + _dropped(a, b, exact)
    return rounded(exact, before, out)


def honest_product(form: str, a: Tensor, b: Tensor, a_scale: Tensor | None, b_scale: Tensor | None,
                   out: str) -> Tensor:
    """a·bᵀ as plain code has it: sums and scales in fp32 (int8: sums exact), one rounding to the output's format."""
    if form == "int8" and a_scale is not None and b_scale is not None:
        sums = (a.double() @ b.double().T).float()               # exact below 2^53, so one rounding to fp32
        return (sums * a_scale[:, None] * b_scale[None, :]).to(DTYPES[out])
    if form == "fp8" and a_scale is not None and b_scale is not None:
        return ((a.float() @ b.float().T) * a_scale * b_scale).to(DTYPES[out])
    wide_a, wide_b = unscaled(form, a, b, a_scale, b_scale, torch.float32)
    return (wide_a @ wide_b.T).to(DTYPES[out])


def _dropped(a: Tensor, b: Tensor, exact: Tensor) -> Tensor:
    walk = a.square() @ b.square().T
    for part_a, part_b in zip(a.split(BLOCK, -1), b.split(BLOCK, -1), strict=True):
        walk += (part_a @ part_b.T).square()
    return random_error(KEPT * (STEPS * TERMS / 3) ** 0.5 * walk.sqrt()) + TERMS * KEPT * exact.abs()
