"""This file knows about the recorded arguments of an operator call: JSON texts of a trace -> tensors and values.

Nothing here trusts the text: what is not as the recorder writes it makes the arguments unknown, never an exception.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

from sublight.ops.op import Operand, distinct_elements
from sublight.trace import OpArgs

# Type names of PyTorch's recorder (c10::ScalarType as C++ spells it) to number formats.
FORMS = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64", "at::BFloat16": "bf16",
    "at::Half": "fp16", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8", "c10::Float8_e8m0fnu": "fp8", "c10::Float4_e2m1fn_x2": "fp4", "bool": "bool",
    "unsigned char": "uint8", "signed char": "int8", "short": "int16", "short int": "int16", "int": "int32",
    "long": "int64", "long int": "int64", "long long": "int64", "c10::complex<float>": "complex64",
}
# Numbers of c10::ScalarType, as an argument `dtype` is recorded.
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 9: "complex64",
    11: "bool", 15: "bf16", 23: "fp8", 24: "fp8", 25: "fp8", 26: "fp8", 44: "fp8", 45: "fp4",
}
LISTS = frozenset({"TensorList", "GenericList"})
LARGEST = 1 << 50                        # of a dimension, and of a tensor's elements: no memory holds more
LONGEST_TEXT = 200_000
MOST_DIMS = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes, number format and strides; None: not recorded. Two fp4 values lie in one recorded element."""

    dims: tuple[int, ...]
    form: str | None
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return prod(self.dims) * (2 if self.form == "fp4" else 1)

    @property
    def distinct(self) -> int:
        """Elements at different addresses."""
        return distinct_elements(self.dims, self.strides) * (2 if self.form == "fp4" else 1)

    def operand(self, form: str | None = None) -> Operand:
        """All its distinct elements, to be read. A tensor without dimensions may be a number on the host: nothing."""
        known = self.form or form
        assert known is not None, "callers ask for tensors whose format is known"
        return Operand(self.distinct if self.dims else 0, known)


@dataclass(frozen=True, slots=True)
class Arguments:
    """By position: a tensor, a list of tensors, or None where the argument is neither; and its value as text."""

    values: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    texts: tuple[str, ...]               # "" where not recorded
    strided: bool                        # strides were recorded

    def tensor(self, i: int) -> Tensor | None:
        """The i-th argument, if it is a tensor of a known format."""
        value = self.values[i] if i < len(self.values) else None
        return value if isinstance(value, Tensor) and value.form else None

    def tensors(self, i: int) -> tuple[Tensor, ...] | None:
        """The i-th argument, if it is a list of tensors. Their format may be unknown."""
        value = self.values[i] if i < len(self.values) else None
        return value if isinstance(value, tuple) else None

    def text(self, i: int) -> str:
        return self.texts[i] if i < len(self.texts) else ""

    def integer(self, i: int) -> int | None:
        try:
            value = int(self.text(i))
        except ValueError:
            return None
        return value if abs(value) <= LARGEST else None

    def number(self, i: int) -> float | None:
        try:
            return float(self.text(i))
        except ValueError:
            return None

    def flag(self, i: int) -> bool | None:
        return {"True": True, "False": False}.get(self.text(i))

    def integers(self, i: int) -> tuple[int, ...] | None:
        """A list of integers: "[-1]"."""
        value = _json(self.text(i))
        return tuple(value) if isinstance(value, list) and all(_is_integer(v) for v in value) else None

    def dtype(self, i: int) -> str | None:
        number = self.integer(i)
        return None if number is None else SCALAR_TYPES.get(number)


def arguments(recorded: OpArgs) -> Arguments | None:
    """None where sizes or types were not recorded, or are not as the recorder writes them."""
    dims, types = _json(recorded.dims), _json(recorded.types)
    strides, concrete = _json(recorded.strides), _json(recorded.concrete)
    if not (isinstance(dims, list) and isinstance(types, list) and len(dims) == len(types)):
        return None
    if not (isinstance(strides, list) and len(strides) == len(dims)):
        strides = [None] * len(dims)
    values = []
    for size, kind, stride in zip(dims, types, strides, strict=True):
        try:
            values.append(_value(size, kind, stride))
        except ValueError:
            return None
    texts = concrete if isinstance(concrete, list) and all(isinstance(t, str) for t in concrete) else []
    return Arguments(tuple(values), tuple(texts), strides != [None] * len(dims))


def _value(size: Any, kind: Any, stride: Any) -> Tensor | tuple[Tensor, ...] | None:
    """Raises ValueError where a tensor has no sizes."""
    if isinstance(kind, str) and kind in FORMS:
        return _tensor(size, FORMS[kind], stride)
    if not isinstance(size, list) or not size or not all(isinstance(member, list) for member in size):
        return None
    listed = isinstance(kind, list) and len(kind) == len(size)
    if not listed and not (isinstance(kind, str) and kind in LISTS):
        return None
    forms = [FORMS.get(k) if isinstance(k, str) else None for k in kind] if listed else [None] * len(size)
    strides = stride if _fits(stride, size) else [None] * len(size)
    return tuple(_tensor(d, form, s) for d, form, s in zip(size, forms, strides, strict=True))


def _fits(stride: Any, size: list[Any]) -> bool:
    return isinstance(stride, list) and len(stride) == len(size)


def _tensor(size: Any, form: str | None, stride: Any) -> Tensor:
    """Raises ValueError where these are no sizes."""
    if not (isinstance(size, list) and len(size) <= MOST_DIMS and all(_is_integer(d) and d >= 0 for d in size)):
        raise ValueError
    if prod(size) > LARGEST or max(size, default=0) > LARGEST:
        raise ValueError
    usable = _fits(stride, size) and all(_is_integer(s) and abs(s) <= LARGEST for s in stride)
    return Tensor(tuple(size), form, tuple(stride) if usable else None)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _json(text: str) -> Any:
    if not text or len(text) > LONGEST_TEXT:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
