"""This file knows about how torch computes `attention`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
