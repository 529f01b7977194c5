"""This file knows about how torch routes: softmax then top-k, top-k then softmax of the chosen, and by Inductor."""

from __future__ import annotations

from typing import Any

import torch

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.routing.shape import Shape
from sublight.kernels.torch_places import both, compiled, filling, inductor


def chosen(logits: Tensor, top_k: int, renormalise: bool) -> Any:
    weights, ids = logits.float().softmax(1).topk(top_k, 1)
    return weights / weights.sum(1, keepdim=True) if renormalise else weights, ids.to(torch.int32)


def chosen_first(logits: Tensor, top_k: int, renormalise: bool) -> Any:
    """The exponentials of the chosen alone, where they are renormalised; over the sum of all where not."""
    wide = logits.float()
    largest, ids = wide.topk(top_k, 1)
    if renormalise:
        return largest.softmax(1), ids.to(torch.int32)
    most = largest[:, :1]                # not exp(x - logsumexp): where logits are large that rounds their difference
    return (largest - most).exp() / (wide - most).exp().sum(1, keepdim=True), ids.to(torch.int32)


def _run(shape: Shape, function: Any) -> Run:
    return filling(lambda given: function(given["logits"], shape.top_k, shape.renormalise), "weights", "ids")


def _eager(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, chosen)


def _first(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, chosen_first)


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, compiled(chosen))


KERNELS: tuple[Kernel, ...] = (
    *both("routing", "torch", _eager), *both("routing", "topk_first", _first), *inductor("routing", _inductor),
)
