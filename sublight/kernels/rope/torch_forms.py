"""This file knows about how torch rotates queries and keys and writes the KV cache: in fp32, eagerly or by Inductor."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.rope.contract import rotary_of
from sublight.kernels.rope.shape import Shape
from sublight.kernels.torch_places import both, compiled, inductor


def rotated(x: Tensor, cos: Tensor, sin: Tensor, rotary: int, neox: bool) -> Tensor:
    """x [tokens, heads, dim]; cos, sin [tokens, 1, rotary / 2] fp32."""
    turned = x[..., :rotary].float()
    a, b = turned.chunk(2, -1) if neox else (turned[..., ::2], turned[..., 1::2])
    pair = (a * cos - b * sin, b * cos + a * sin)
    merged = torch.cat(pair, -1) if neox else torch.stack(pair, -1).flatten(-2)
    return torch.cat([merged.to(x.dtype), x[..., rotary:]], -1)


def both_rotated(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, rotary: int, neox: bool) -> Any:
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, -1)
    return rotated(q, cos, sin, rotary, neox), rotated(k, cos, sin, rotary, neox)


def _run(shape: Shape, rotate: Any) -> Run:
    rotary = rotary_of(shape)

    def run(inputs: Tensors, outputs: MutableMapping[str, Tensor]) -> None:
        q, k = rotate(inputs["q"], inputs["k"], inputs["positions"], inputs["cos_sin"], rotary, shape.neox)
        outputs["q_out"] = q
        there = inputs["slots"] >= 0
        slots = inputs["slots"][there]
        for name, tokens in (("k_cache", k), ("v_cache", inputs["v"])):
            outputs[name].flatten(0, 1)[slots] = tokens[there]

    return run


def _eager(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, both_rotated)


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _run(shape, compiled(both_rotated))


KERNELS: tuple[Kernel, ...] = (*both("rope", "torch", _eager), *inductor("rope", _inductor))
