"""This file knows about how torch computes `routing`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
