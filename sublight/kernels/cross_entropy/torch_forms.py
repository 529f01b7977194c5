"""This file knows about how torch computes cross entropy: its own function and the plain form, both of logits in fp32,
and by Inductor. Of 16-bit logits its own function returns losses that are rounded to 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.cross_entropy.contract import IGNORED
from sublight.kernels.cross_entropy.shape import Shape
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.torch_places import both, compiled, filling, inductor


def function(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.float(), targets, reduction="none", ignore_index=IGNORED)


def plain(logits: Tensor, targets: Tensor) -> Tensor:
    wide, ignored = logits.float(), targets == IGNORED
    picked = wide.gather(1, targets.masked_fill(ignored, 0)[:, None])[:, 0]
    return torch.where(ignored, 0.0, torch.logsumexp(wide, 1) - picked)


def _run(compute: Any) -> Run:
    return filling(lambda given: compute(given["logits"], given["targets"]), "loss")


def _function(shape: Shape, constants: Tensors) -> Run:
    return _run(function)


def _plain(shape: Shape, constants: Tensors) -> Run:
    return _run(plain)


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _run(compiled(function))


KERNELS: tuple[Kernel, ...] = (
    *both("cross_entropy", "torch", _function), *both("cross_entropy", "logsumexp", _plain),
    *inductor("cross_entropy", _inductor),
)
