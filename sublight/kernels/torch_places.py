"""This file knows about where torch's implementations run: on the CPU, on a GPU where there is one, through Inductor
where there is a C++ compiler.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, MutableMapping
from functools import cache
from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Shape, Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run

Build: TypeAlias = Callable[[Shape, Tensors], Run]
Refusal: TypeAlias = Callable[[Shape], str | None]


def nothing(shape: Shape) -> str | None:
    """No shape is refused."""
    del shape
    return None


def both(op: str, name: str, build: Build, refuses: Refusal = nothing) -> tuple[Kernel, Kernel]:
    """The same calls of torch, on the CPU and on a GPU."""
    return (Kernel(op, name, build, refuses, returns=True, provider="torch"),
            Kernel(op, name, build, lambda shape: _no_gpu() or refuses(shape), "cuda", returns=True, provider="torch"))


def inductor(op: str, build: Build, refuses: Refusal = nothing, *, name: str = "inductor") -> tuple[Kernel, Kernel]:
    """What Inductor makes of a build whose functions went through `compiled`."""
    return both(op, name, build, lambda shape: _no_compiler() or refuses(shape))


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile of a function, once in a process: with sizes that may change, so that few shapes compile anew.

    Beyond its limit of recompilations torch would run the function uncompiled, under the same name: no limit here.
    """
    made = torch.compile(function, dynamic=True)

    def call(*args: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
            return made(*args)

    return call


def filling(compute: Callable[..., Any], *names: str) -> Run:
    """A run that puts what `compute(inputs)` returns, one tensor or a tuple, under these names."""
    def run(inputs: Tensors, outputs: MutableMapping[str, Tensor]) -> None:
        made = compute(inputs)
        outputs.update(zip(names, made if isinstance(made, tuple) else (made,), strict=True))

    return run


def _no_gpu() -> str | None:
    return None if torch.cuda.is_available() else "there is no GPU that torch can use"


def _no_compiler() -> str | None:
    named = os.environ.get("CXX")         # Inductor takes it too
    if named:
        return None if shutil.which(named) else f"Inductor needs a C++ compiler, and CXX={named} is not found"
    found = any(shutil.which(name) for name in ("c++", "g++", "clang++"))
    return None if found else "Inductor needs a C++ compiler, and none of c++, g++, clang++ is found"
