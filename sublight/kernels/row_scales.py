"""This file knows about outputs that are quantised with one dynamic scale a row: scale = largest |y| of the row / top.

top is 448 for fp8 (e4m3) and 127 for int8. A kernel may take y as it is in fp32 or rounded to the input's format. What
is judged is q·scale, with the kernel's own scale, and the scale itself. A row of zeros may have any positive scale.

Derivation. Let y be computed within E, u = 2⁻²⁴. The largest of a row is within the largest E of the row, so the scale
is within max E/top + 4·u·scale: a division or a reciprocal and a product. q·scale is y/scale rounded to the format of
q, which is half a unit in its last place there (int8: half), times the scale; E and 4·u·|y| come on top.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Tensors
from sublight.kernels.rounding import DTYPES, half_ulp, unit_roundoff

Tensor: TypeAlias = Any
U = unit_roundoff("fp32")
TOP = {"fp8": 448.0, "int8": 127.0}


def exact_scales(y: Tensor, form: str) -> Tensor:
    """[rows] of y [rows, width]."""
    return y.abs().amax(1) / TOP[form]


def quantised(y: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """A plain quantisation of y [rows, width] in fp32: q and scales."""
    scale = exact_scales(y, form)
    scale = scale.where(scale > 0, torch.ones_like(scale))
    q = (y / scale[:, None]).clamp(-TOP[form], TOP[form])
    return (q.round() if form == "int8" else q).to(DTYPES[form]), scale


def bounds(y: Tensor, error: Tensor, form: str) -> Tensors:
    """Of out (q·scale) and scale, where y in float64 is computed within error. Scales of zero rows are not judged."""
    scale = exact_scales(y, form)
    off = error.amax(1) / TOP[form] + 4 * U * scale
    largest = (scale + off)[:, None]
    at = (y.abs() + error) / (scale - off).clamp(min=1e-300)[:, None]
    step = half_ulp(at.clamp(max=TOP[form]), form) * largest
    return {"out": error + step + 4 * U * y.abs(), "scale": off.where(scale > 0, torch.full_like(off, torch.inf))}


def judged(outputs: Tensors) -> Tensors:
    """q·scale, and the scale, in float64."""
    scale = outputs["scale"].double()
    return {"out": outputs["out"].double() * scale[:, None], "scale": scale}


def faults(outputs: Tensors) -> tuple[str, ...]:
    """Of scales that their bound does not see: those of zero rows must be positive numbers too."""
    scale = outputs["scale"]
    bad = ~(scale.isfinite() & (scale > 0))
    if not bool(bad.any()):
        return ()
    row = int(bad.nonzero()[0])
    return (f"scale: {int(bad.sum())} are not positive numbers (row {row}: {float(scale[row])})",)
