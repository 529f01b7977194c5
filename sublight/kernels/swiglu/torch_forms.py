"""This file knows about how torch computes `swiglu`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
