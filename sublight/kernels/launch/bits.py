"""This file knows about narrow floating-point formats as bits: to float32 and back, to nearest with ties to even.

    bf16      1 sign, 8 exponent, 7 mantissa bits: the upper half of a float32
    fp8e4nv   1, 4, 3: e4m3fn; no infinity, 448 the largest, NaN is 0x7f and 0xff
    fp8e5     1, 5, 2: e5m2; 57344 the largest finite

What lies beyond the largest fp8 number becomes that number, infinities too, as cvt.rn.satfinite does, the only
conversion to fp8 that NVIDIA's GPUs have (PTX ISA, cvt); torch makes NaN of it. Formats: OCP 8-bit Floating Point
Specification 1.0. Names are Triton's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

NARROW = ("bf16", "fp8e4nv", "fp8e5")
LARGEST_CODE = {"fp8e4nv": 0x7E, "fp8e5": 0x7B}
NAN = {"bf16": 0x7FFF, "fp8e4nv": 0x7F, "fp8e5": 0x7F}
EXPONENT = {"fp8e4nv": (4, 7), "fp8e5": (5, 15)}            # bits, bias

Array = np.ndarray[Any, Any]


def to_float(bits: Array, form: str) -> Array:
    """float32 values of unsigned integers that hold a narrow format; exact.

    >>> to_float(np.array([0x3F80, 0xC000], np.uint16), "bf16").tolist()
    [1.0, -2.0]
    >>> to_float(np.array([0x38, 0x7E, 0x01], np.uint8), "fp8e4nv").tolist()
    [1.0, 448.0, 0.001953125]
    """
    if form == "bf16":
        wide: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return wide
    values: Array = _values(form)[bits]
    return values


def from_float(values: Array, form: str, *, toward_zero: bool = False) -> Array:
    """The bits of real numbers in a narrow format.

    >>> from_float(np.array([1.0, 1.00390625, 1.01171875], np.float32), "bf16").tolist()   # ties go to even
    [16256, 16256, 16258]
    >>> from_float(np.array([1e9, -0.001, 17.0]), "fp8e4nv").tolist()
    [126, 129, 88]
    """
    if form == "bf16":
        return _bf16(values.astype(np.float32), toward_zero)
    return _fp8(values.astype(np.float64), form, toward_zero)


def _bf16(values: Array, toward_zero: bool) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    up = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + up) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(NAN["bf16"]), rounded)


def _fp8(values: Array, form: str, toward_zero: bool) -> Array:
    size = np.abs(values)
    finite = _values(form)[: LARGEST_CODE[form] + 1].astype(np.float64)
    if toward_zero:
        code = np.searchsorted(finite, size, side="right") - 1
    else:
        middle = (finite[1:] + finite[:-1]) / 2
        code = np.searchsorted(middle, size, side="left")
        tie = (code < len(middle)) & (middle[np.minimum(code, len(middle) - 1)] == size)
        code = code + (tie & (code % 2 == 1))
    signed = np.where(np.isnan(values), NAN[form], code) | (np.signbit(values).astype(np.int64) << 7)
    out: Array = signed.astype(np.uint8)
    return out


@cache
def _values(form: str) -> Array:
    """What each of the 256 codes stands for."""
    exponent_bits, bias = EXPONENT[form]
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    if form == "fp8e5":
        values[0x7C] = np.inf
    beyond = LARGEST_CODE[form] + (2 if form == "fp8e5" else 1)
    values[beyond:] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)
