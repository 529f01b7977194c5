"""This file knows about the operators that sublight itself puts into a torch model (`sublight.kernels.apply`): recorded
arguments -> Ops."""

from __future__ import annotations

from math import prod

from sublight.ops.answer import Answer, Rule
from sublight.ops.arguments import Arguments
from sublight.ops.attention import Attention
from sublight.ops.context import Context
from sublight.ops.fused import Gated
from sublight.ops.normalisation import Normalisation


def _rms_norm(a: Arguments, c: Context) -> Answer:
    """x, weight, eps"""
    x, weight = a.tensor(0), a.tensor(1)
    if not (x and weight and x.form and x.dims):
        return None
    return (Normalisation(prod(x.dims), x.dims[-1], "rms", x.form, weight.form),)


def _swiglu(a: Arguments, c: Context) -> Answer:
    """gate, up: tensors of one size"""
    gate, up = a.tensor(0), a.tensor(1)
    if not (gate and up and gate.form and gate.dims) or gate.dims != up.dims:
        return None
    return (Gated(prod(gate.dims[:-1]), gate.dims[-1], gate.form),)


def _decode(a: Arguments, c: Context) -> Answer:
    """q [batch, heads, 1, dim], k and v [batch, kv_heads, tokens, dim], scale: all tokens are seen"""
    q, k, v = (a.tensor(i) for i in range(3))
    if not (q and k and v and q.form) or not len(q.dims) == len(k.dims) == len(v.dims) == 4:
        return None
    return (Attention.dense(
        batch=q.dims[0], q_length=q.dims[2], kv_length=k.dims[2], heads=q.dims[1], kv_heads=k.dims[1], d_qk=q.dims[3],
        d_v=v.dims[3], form=q.form),)


RULES: dict[str, Rule] = {"sublight::rms_norm": _rms_norm, "sublight::swiglu": _swiglu, "sublight::decode": _decode}
