"""This file knows about compiling a call of a Triton kernel ahead, for an architecture that is not here.

The types and the divisibility that Triton would see at run time are read off the arguments: without them loads are not
vectorised, and the code is another. An integer 1 becomes a constant, as at run time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sublight.kernels.contract import Shape, Spec, Tensor
from sublight.kernels.launch.call import OPTIONS, Argument, Call, kernel_of
from sublight.kernels.launch.targets import Target

TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "float8_e4m3fn": "fp8e4nv",
         "float8_e5m2": "fp8e5", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
         "bool": "i1"}
DIVISIBLE = ["tt.divisibility", 16]


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel for one architecture. Registers and spills stand in the cubin; kernels/inspect reads them."""

    name: str
    target: str                          # "sm_90"
    warps: int
    shared: int                          # bytes a block, dynamic
    seconds: float                       # that compiling took, or finding it in Triton's cache
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)


def compiled(call: Call, target: Target) -> Compiled:
    """The code of a call on an architecture. Raises what Triton raises where it cannot be compiled."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    began = time.perf_counter()
    kernel = kernel_of(call)
    types, constants, attributes = specialised(kernel.arg_names, {**call.arguments, **call.constants},
                                               set(call.constants))
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attributes)
    out = triton.compile(source, target=GPUTarget("cuda", target.capability, 32),
                         options={"num_warps": call.warps, "num_stages": call.stages, **OPTIONS})
    return Compiled(kernel.__name__, target.name, call.warps, out.metadata.shared, time.perf_counter() - began,
                    out.asm["cubin"], out.asm["ptx"])


def specialised(names: list[str], values: Mapping[str, Argument], constants: set[str]) -> tuple[
        dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Signature, constants and attributes of the parameters in order, as Triton's launcher finds them at run time.

    >>> specialised(["n", "k", "eps", "N"], {"n": 4096, "k": 1, "eps": 1e-6, "N": 64}, {"N"})[1:]
    ({(1,): 1, (3,): 64}, {(0,): [['tt.divisibility', 16]]})
    """
    types: dict[str, str] = {}
    fixed: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for at, name in enumerate(names):
        value = values[name]
        kind, divisible = ("constexpr", False) if name in constants else _kind(value)
        types[name] = kind
        if kind == "constexpr":
            fixed[(at,)] = value
        elif divisible:
            attributes[(at,)] = [list(DIVISIBLE)]
    return types, fixed, attributes


def _kind(value: Argument) -> tuple[str, bool]:
    """Triton's name for the type of an argument, and whether 16 divides it."""
    if value is None or (isinstance(value, int) and value == 1):
        return "constexpr", False
    if isinstance(value, int):
        return ("i32" if -2**31 <= value < 2**31 else "i64"), value % 16 == 0
    if isinstance(value, float):
        return "fp32", False
    if hasattr(value, "block_shape"):
        return f"tensordesc<{_form(value.base)}{list(value.block_shape)}>".replace(" ", ""), False
    return f"*{_form(value)}", value.data_ptr() % 16 == 0


def _form(tensor: Any) -> str:
    return TYPES[str(tensor.dtype).removeprefix("torch.")]


def placeholders(specs: Mapping[str, Spec]) -> dict[str, Tensor]:
    """Tensors without memory: enough to compile a call that is made of them."""
    import torch

    from sublight.kernels.rounding import DTYPES

    return {name: torch.empty(spec.sizes, dtype=DTYPES[spec.form], device="meta") for name, spec in specs.items()}


def compiled_for(op: str, shape: Shape, target: Target) -> tuple[Compiled, ...]:
    """The code of what an operator's Triton kernel launches for a shape on an architecture."""
    form = import_module(f"sublight.kernels.{op}.triton_form")
    return tuple(compiled(call, target) for call in form.calls(shape, placeholders(form.tensors(shape)), target))
