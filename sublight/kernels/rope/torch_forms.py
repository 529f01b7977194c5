"""This file knows about how torch computes `rope`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
