"""This file knows about calling a function of our C++ libraries with torch's tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sublight.kernels.contract import Shape, Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.native import build

# p: an address or None; i: int64; f: float; t: the number of threads.
TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float, "t": ctypes.c_int}


@functools.cache
def function(source: Path, name: str, takes: str, *, gives: str = "") -> Any:
    """A function of a C++ file, compiled where the cache has it not: function(SOURCE, "rms_bf16", "pppppp ii f t")."""
    found = build.library(source)[name]
    found.argtypes = [TYPES[kind] for kind in takes.replace(" ", "")]
    found.restype = TYPES[gives] if gives else None
    return found


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's elements are; it is contiguous and stays alive as long as the call runs."""
    return None if tensor is None else int(tensor.data_ptr())


def form_of(tensor: Tensor) -> str:
    """The format of a tensor of 16 or 32 bits: "bf16", "fp16", "fp32"."""
    return {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}[str(tensor.dtype)]


def threads() -> int:
    """As many as torch uses for one operator."""
    import torch

    return int(torch.get_num_threads())


def ours(op: str, source: Path, made: Callable[[Shape, Tensors], Run], refuses: Callable[[Shape], str | None],
         packs: tuple[str, ...] = ()) -> Kernel:
    """Our kernel of an operator: refused without a compiler, keyed on sources, compiler, flags and processor."""
    return Kernel(op=op, name="sublight", build=made, refuses=lambda shape: build.refusal() or refuses(shape),
                  packs=packs, provider="sublight", key=lambda: build.key(source))
