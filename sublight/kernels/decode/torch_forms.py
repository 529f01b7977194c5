"""This file knows about how torch computes `decode`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
