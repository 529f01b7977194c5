"""This file knows about what stands around an operator call and tells what its arguments leave open."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.ops.annotation import StepLoad
from sublight.trace import Collective


@dataclass(frozen=True, slots=True)
class KernelHint:
    """A kernel that carries the call out, and what its name tells (None: nothing)."""

    name: str
    category: str = "unclassified"
    number_format: str | None = None     # as kernel names spell it: "fp8 e4m3", "mxfp4", "tf32" …
    tile: tuple[int, ...] | None = None
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Context:
    """Everything but the arguments."""

    step: StepLoad | None = None         # the engine step that the call is part of
    collective: Collective | None = None  # what the communication kernel's record says
    group: int | None = None             # ranks of the smallest group that the run communicates in; None: unknown
    kernels: tuple[KernelHint, ...] = ()
    tf32: bool = True                    # the device multiplies fp32 matrices in tf32, if it is allowed to

    @property
    def math(self) -> str:
        """How fp32 matrices are multiplied: as the kernels' names say, else the fastest way that there is."""
        said = {k.number_format for k in self.kernels if k.category in ("gemm", "convolution", "attention")}
        if "tf32" in said:
            return "tf32"
        return "fp32" if said == {"fp32"} or not self.tf32 else "tf32"

    @property
    def attention_math(self) -> str:
        """How fused attention multiplies fp32: on tensor cores wherever the device has them for it, since kernels named
        for fp32 may split it into passes of a narrower format."""
        return "tf32" if self.tf32 else "fp32"

    def named(self, *parts: str) -> bool:
        """Does a kernel's name hold one of these?"""
        return any(part in kernel.name for kernel in self.kernels for part in parts)
