"""This file knows about sums that softmax weights, Σ pⱼ·vⱼ: their value in float64 and how far a kernel may be from it.

    rows    queries that share keys and values       keys    of one sequence and one key head
    d       columns of q and k                       d_v     columns of v and out

Derivation. A kernel computes weights wⱼ = pⱼ·(1 + εⱼ), in any order, and out = Σ wⱼvⱼ / Σ wⱼ. Since Σ pⱼ = 1,

    Σwv/Σw − Σpv = Σ pⱼεⱼ(vⱼ − out) / (1 + Σ pⱼεⱼ),  at most  (Σ pⱼ|εⱼ||vⱼ| + |out|·Σ pⱼ|εⱼ|) / (1 − Σ pⱼ|εⱼ|)

ε has these parts, u = 2⁻²⁴:

    scores      δⱼ = sum_error(d, scale·Σ|qk|) + u·(4|sⱼ| + 4·max|s| + 8): the product in fp32; scale, log₂e and the
                subtracted maximum, a rounding of the scores each; the exponential, 2 units in the last place and one
                more for each unit of its argument (CUDA C++ Programming Guide, intrinsic functions: __expf,
                2 + ⌊|1.173·x|⌋). Through the exponential: |ε| ≤ e^δ − 1. The quotient stays between the smallest and
                the largest v, whatever the scores: that caps this part.
    weights     may be rounded to the format of v before they are multiplied: |ε| ≤ u(format), or half of the smallest
                fp16 number if that is more. At most Σ u·p|v|; and 8 deviations, 8/√3·√Σ(u·p·v)², where they are as
                good as random, or u·|out| where all weights are the same, and so are their errors: the sum of these
                two. The sum of weights may be taken of rounded ones: the same again with |out| for |v|.
    sums        Σ wv and Σ w of `keys` terms, rescaled now and then (online softmax): sum_error(2·keys + 16, …); then
                a division.

Scores are not rounded to 16 bits: that moves the weight of a score from 4 to 8 by up to 1.6 % in bf16 (half an ulp).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from sublight.kernels.rounding import DEVIATIONS, FORMATS, sum_error, unit_roundoff

Tensor: TypeAlias = Any
U = unit_roundoff("fp32")
MOST = 1 << 23                           # scores that are held at once, in float64


@dataclass(frozen=True, slots=True)
class Head:
    """What one key head of one sequence answers: q [rows, d], k [keys, d], v [keys, d_v]; seen [rows, keys] or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    seen: Tensor | None = None

    def exact(self) -> Tensor:
        """out [rows, d_v] in float64; a row that sees no key is zero."""
        return torch.cat([self._none(), *(weights @ self.v.double() for _, _, weights in self._chunks())])

    def error(self, form: str) -> Tensor:
        """The largest error before out is rounded, where weights are rounded to `form`."""
        return torch.cat([self._none(), *(self._error(rows, scores, p, form) for rows, scores, p in self._chunks())])

    def honest(self, form: str) -> Tensor:
        """A plain kernel: fp32 scores, maximum subtracted, weights rounded to `form`, divided at the end."""
        k, v, dtype = self.k.float(), self.v.float(), FORMATS[form].dtype
        scores = self.q.float() @ k.T * self.scale
        if self.seen is not None:
            scores = scores.masked_fill(~self.seen, -math.inf)
        if not len(k):
            return self.q.new_zeros(len(self.q), v.shape[1], dtype=torch.float32)
        most = scores.amax(1, keepdim=True)
        weights = (scores - most.where(most.isfinite(), torch.zeros_like(most))).exp()
        total = weights.sum(1, keepdim=True)
        return weights.to(dtype).float() @ v / total.where(total > 0, torch.ones_like(total))

    def _none(self) -> Tensor:
        return self.q.new_zeros(0, self.v.shape[1], dtype=torch.float64)

    def _chunks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(rows, their scores, their weights), few enough at a time."""
        k = self.k.double()
        step = max(1, MOST // max(1, len(k)))
        for start in range(0, len(self.q), step):
            rows = slice(start, start + step)
            scores = self.q[rows].double() @ k.T * self.scale
            if self.seen is not None:
                scores = scores.masked_fill(~self.seen[rows], -math.inf)
            yield rows, scores, scores.softmax(1).nan_to_num(0.0)

    def _error(self, rows: slice, scores: Tensor, p: Tensor, form: str) -> Tensor:
        keys, d = self.k.shape
        v, size = self.v.double(), self.v.double().abs()
        if not keys:
            return p @ v
        out, spread = (p @ v).abs(), p @ size
        magnitude = self.q[rows].double().abs() @ self.k.double().abs().T * self.scale
        finite = scores.where(p > 0, torch.zeros_like(scores)).abs()
        delta = sum_error(d, magnitude) + U * (4 * finite + 4 * finite.amax(1, keepdim=True) + 8)
        moved = p * delta.clamp(max=700).expm1()
        share = moved.sum(1, keepdim=True)
        by_scores = (moved @ size + out * share) / (1 - share).clamp(min=1e-300)
        by_scores = by_scores.where(share < 1, torch.full_like(by_scores, math.inf))
        by_scores = by_scores.minimum((v.amax(0) - v.amin(0)).expand_as(by_scores))
        sums = sum_error(2 * keys + 16, spread) + sum_error(keys + 16, out) + 4 * U * out
        return by_scores + _by_weights(p, v, out, form) + sums


def _by_weights(p: Tensor, v: Tensor, out: Tensor, form: str) -> Tensor:
    each = unit_roundoff(form) * p
    if form == "fp16":                   # its numbers do not get finer below 2^-14
        smallest = 2.0 ** (FORMATS[form].smallest - FORMATS[form].bits)
        each = each.clamp(min=smallest).where(p > 0, torch.zeros_like(p))
    surely = each @ v.abs() + each.sum(1, keepdim=True) * out
    spread = (each**2 @ v**2).sqrt() + (each**2).sum(1, keepdim=True).sqrt() * out
    return surely.minimum(DEVIATIONS / math.sqrt(3) * spread + unit_roundoff(form) * out)
