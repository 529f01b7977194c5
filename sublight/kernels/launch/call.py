"""This file knows about one call of a Triton kernel as a value: it can be launched, interpreted, or compiled ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, util
from typing import Any, TypeAlias

# Products and sums may be fused (one rounding less). Said, because Triton 3.10 changes what it does unasked.
OPTIONS = {"enable_fp_fusion": True}

Argument: TypeAlias = Any                # a torch.Tensor, a TensorDescriptor of one, an int, a float, None


@dataclass(frozen=True, slots=True)
class Call:
    """What `kernel[grid](…)` needs. Tensors on torch's "meta" device are enough to compile."""

    code: str                                               # "sublight.kernels.norm.triton_code:normalised"
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: Mapping[str, int | float | bool | str]       # tl.constexpr parameters
    warps: int
    stages: int = 1                                         # of the software pipeline of loads


def kernel_of(call: Call) -> Any:
    """The decorated function that a call names."""
    module, name = call.code.split(":")
    return getattr(import_module(module), name)


def launch(call: Call) -> None:
    """Runs a call, on the GPU of its tensors, or here inside of `interpreted()`. An empty grid runs nothing."""
    if all(call.grid):
        kernel_of(call)[call.grid](**call.arguments, **call.constants, num_warps=call.warps, num_stages=call.stages,
                                   **OPTIONS)


def why_not_here() -> str | None:
    """Why Triton kernels cannot be launched on this machine; None: they can."""
    if util.find_spec("triton") is None:
        return "Triton is not installed: pip install 'sublight[triton]'"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device is available to torch"
    return None


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> [next_power_of_2(n) for n in (1, 2, 3, 1000)]
    [1, 2, 4, 1024]
    """
    return 1 << max(0, n - 1).bit_length()


def blocks(n: int, size: int) -> int:
    """How many blocks of a size cover n.

    >>> blocks(129, 64)
    3
    """
    return -(-n // size)
