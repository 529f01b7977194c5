"""This file knows about how torch computes `mla_decode`."""

from sublight.kernels.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
