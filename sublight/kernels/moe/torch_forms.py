"""This file knows about how torch computes a layer of experts: a loop over experts, tokens sorted by expert and
_grouped_mm, a loop in fp32, Inductor.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, silu

from sublight.kernels.contract import Tensor, Tensors
from sublight.kernels.kernel import Kernel, Run
from sublight.kernels.moe.contract import shares
from sublight.kernels.moe.shape import Shape
from sublight.kernels.torch_places import both, compiled, filling, inductor


def _loop(shape: Shape, constants: Tensors, *, dtype: torch.dtype | None = None) -> Run:
    """As plain models have it, but that experts are added in fp32."""
    def compute(given: Tensors) -> Tensor:
        x = given["x"]
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for share in shares(given):
            one = share if dtype is None else share.to(dtype)
            gate, up = linear(one.x, one.gate_up).chunk(2, dim=-1)
            y = linear((silu(gate.float()) * up).to(gate.dtype), one.down)
            out.index_add_(0, share.tokens, y.float() * share.weight)
        return out.to(x.dtype)

    return filling(compute, "out")


def _fp32(shape: Shape, constants: Tensors) -> Run:
    return _loop(shape, constants, dtype=torch.float32)


def sorted_tokens(x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Rows of x, one for each expert of a token, sorted by expert; two grouped products; rows added up again."""
    order = ids.flatten().argsort(stable=True)
    token = order // ids.shape[1]
    experts = torch.arange(gate_up.shape[0], dtype=torch.int32, device=ids.device)
    ends = torch.searchsorted(ids.flatten()[order], experts, right=True, out_int32=True)
    gate, up = torch._grouped_mm(x[token], gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    h = (silu(gate.float()) * up).to(x.dtype)
    y = torch._grouped_mm(h, down.transpose(1, 2), offs=ends).float() * weights.flatten()[order][:, None]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    return out.index_add(0, token, y).to(x.dtype)


def _sorted(shape: Shape, constants: Tensors, *, compile_it: bool = False) -> Run:
    function = compiled(sorted_tokens) if compile_it else sorted_tokens
    return filling(lambda given: function(*(given[name] for name in ("x", "gate_up", "down", "ids", "weights"))), "out")


def _not_sorted(shape: Shape) -> str | None:
    if shape.width % 8 or shape.inner % 8:
        return f"_grouped_mm needs strides of 16 bytes: 8 divides width and inner, not {shape.width}, {shape.inner}"
    return None


def _not_compiled(shape: Shape) -> str | None:
    return _not_sorted(shape) or (None if shape.form == "bf16" else "Inductor takes _grouped_mm in bf16 alone")


def _inductor(shape: Shape, constants: Tensors) -> Run:
    return _sorted(shape, constants, compile_it=True)


KERNELS: tuple[Kernel, ...] = (
    *both("moe", "loop", _loop), *both("moe", "sorted", _sorted, _not_sorted), *both("moe", "fp32", _fp32),
    *inductor("moe", _inductor, _not_compiled),
)
