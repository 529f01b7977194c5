"""This file knows about PyTorch's matrix products, convolutions and attention: recorded arguments -> Ops."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from sublight.ops.answer import Answer, Rule
from sublight.ops.arguments import Arguments, Tensor
from sublight.ops.attention import Attention
from sublight.ops.context import Context
from sublight.ops.convolution import Convolution
from sublight.ops.gemm import Gemm
from sublight.ops.op import Operand
from sublight.ops.shapes import broadcast

# ---- matrix products -----------------------------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, c: Context, *, out: str | None = None, addend: Operand | None = None) -> Answer:
    """(…, m, k) · (…, k, n) as matmul does it: vectors are matrices of one row or column."""
    if not a.dims or not b.dims or not a.form or not b.form:
        return None
    rows, columns = (1, *a.dims) if len(a.dims) == 1 else a.dims, (*b.dims, 1) if len(b.dims) == 1 else b.dims
    (m, k), (k_too, n) = rows[-2:], columns[-2:]
    shape = broadcast(rows[:-2], columns[:-2])
    if k != k_too or shape is None:
        return None
    pack = 2 if a.form == "fp4" and b.form == "fp4" else 1                # two values lie in one element along k
    batch = prod(shape)
    if len(rows) > 2 and len(columns) == 2:                              # one matrix for all: a tall product
        m, batch = m * batch, 1
    full = batch * m * k * pack, batch * k * n * pack
    return (Gemm(
        m, n, k * pack, batch, a.form, b.form, out or a.form, math=c.math,
        a_elements=a.distinct if a.distinct != full[0] else None,
        b_elements=b.distinct if b.distinct != full[1] else None, addend=addend,
    ),)


def mm(a: Arguments, c: Context) -> Answer:
    left, right = a.tensor(0), a.tensor(1)
    return _product(left, right, c) if left and right else None


def addmm(a: Arguments, c: Context) -> Answer:
    addend, left, right = a.tensor(0), a.tensor(1), a.tensor(2)
    if not (addend and left and right):
        return None
    return _product(left, right, c, addend=None if a.number(3) == 0.0 else addend.operand())


def linear(a: Arguments, c: Context) -> Answer:
    x, w, bias = a.tensor(0), a.tensor(1), a.tensor(2)
    if not (x and w and len(w.dims) == 2):
        return None
    strides = w.strides and w.strides[::-1]
    return _product(x, Tensor(w.dims[::-1], w.form, strides), c, addend=bias.operand() if bias else None)


def scaled_mm(a: Arguments, c: Context) -> Answer:
    """self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum"""
    left, right, bias = a.tensor(0), a.tensor(1), a.tensor(4)
    if not (left and right):
        return None
    return _product(left, right, c, out=a.dtype(6), addend=bias.operand() if bias else None)


def int_mm(a: Arguments, c: Context) -> Answer:
    left, right = a.tensor(0), a.tensor(1)
    return _product(left, right, c, out="int32") if left and right else None


EQUATION = re.compile(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]*)")


def einsum(a: Arguments, c: Context) -> Answer:
    """Two operands whose equation was recorded: letters of both and the result are a batch, others m, n or k."""
    found = EQUATION.fullmatch(a.text(0).replace(" ", ""))
    pair = a.tensors(1)
    if not found or not pair or len(pair) != 2 or not all(t.form for t in pair):
        return None
    left, right, out = found.groups()
    if len(left) != len(pair[0].dims) or len(right) != len(pair[1].dims) or any(len(set(s)) != len(s)
                                                                               for s in (left, right, out)):
        return None
    size = dict(zip(left + right, pair[0].dims + pair[1].dims, strict=True))
    shared = set(left) & set(right)
    if set(left) ^ set(right) != (set(left) ^ set(right)) & set(out) or not set(out) <= set(left + right):
        return None

    def product_of(letters: set[str]) -> int:
        return prod(size[x] for x in letters)

    forms = [t.form or "" for t in pair]
    return (Gemm(product_of(set(left) - shared), product_of(set(right) - shared), product_of(shared - set(out)),
                 product_of(shared & set(out)), forms[0], forms[1], forms[0], math=c.math),)


# ---- convolution ---------------------------------------------------------------------------------------------------


def convolve(a: Arguments, c: Context) -> Answer:
    """aten::convolution: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups"""
    x, w = a.tensor(0), a.tensor(1)
    stride, padding, dilation, groups = a.integers(3), a.integers(4), a.integers(5), a.integer(8)
    if not (x and w) or a.flag(6) is not False:
        return None
    return _convolution(x, w, stride, padding, dilation, groups, c, bias=a.tensor(2) is not None)


def cudnn_convolve(a: Arguments, c: Context) -> Answer:
    """aten::cudnn_convolution: input, weight, padding, stride, dilation, groups, …"""
    x, w = a.tensor(0), a.tensor(1)
    if not (x and w):
        return None
    return _convolution(x, w, a.integers(3), a.integers(2), a.integers(4), a.integer(5), c, bias=False)


def _convolution(
    x: Tensor, w: Tensor, stride: tuple[int, ...] | None, padding: tuple[int, ...] | None,
    dilation: tuple[int, ...] | None, groups: int | None, c: Context, *, bias: bool,
) -> Answer:
    spatial = len(x.dims) - 2
    if spatial < 1 or len(w.dims) != len(x.dims) or not (stride and padding and dilation and groups) or groups < 1:
        return None
    if any(len(v) not in (1, spatial) for v in (stride, padding, dilation)) or min(*stride, *dilation) < 1:
        return None
    stride, padding, dilation = (v * spatial if len(v) == 1 else v for v in (stride, padding, dilation))
    out = tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in
                zip(x.dims[2:], w.dims[2:], stride, padding, dilation, strict=True))
    if min(out) < 1 or min(padding) < 0 or not x.form or x.dims[1] != w.dims[1] * groups:
        return None
    return (Convolution(
        x.dims[0], x.dims[1], w.dims[0], x.dims[2:], w.dims[2:], out, stride, padding, max(dilation) > 1, groups,
        x.form, c.math, bias, transformed=c.named("winograd", "Winograd", "fft", "FFT"),
    ),)


def convolve_back(a: Arguments, c: Context) -> Answer:
    """aten::convolution_backward: grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
    output_padding, groups, output_mask"""
    dy, x, w = a.tensor(0), a.tensor(1), a.tensor(2)
    mask = re.findall(r"True|False|true|false", a.text(10))
    if not (dy and x and w) or a.flag(7) is not False:
        return None
    forward = _convolution(x, w, a.integers(4), a.integers(5), a.integers(6), a.integer(9), c, bias=False)
    if not forward or not isinstance(forward[0], Convolution) or len(mask) != 3:
        return None
    wanted = [m.lower() == "true" for m in mask]
    return (replace(forward[0], forward=False, to_input=wanted[0], to_weight=wanted[1], to_bias=wanted[2]),)


# ---- attention -----------------------------------------------------------------------------------------------------


def _sdpa(
    q: Tensor | None, k: Tensor | None, v: Tensor | None, c: Context, *, heads_at: int, causal: str | None,
    mask: Tensor | None = None, backward: bool = False, sequences: tuple[int, int] | None = None,
) -> Answer:
    """4-dimensional queries, keys and values with heads at position 1 or 2; or, with `sequences` (of queries and of
    keys), 3-dimensional packed ones: (tokens, heads, d)."""
    if not (q and k and v) or not q.form or not k.form:
        return None
    if len(q.dims) == len(k.dims) == len(v.dims) == 3 and sequences:
        (tq, h, d), (tk, hk, _), dv = q.dims, k.dims, v.dims[-1]
        batch = max(1, min(sequences))
        # Equally long sequences have the fewest pairs that a packing of so many can have.
        pairs = tq if tq != tk else -(-tq * tq // batch) if causal is None else (-(-tq * tq // batch) + tq) // 2
        return (Attention(pairs, tq, tk, h, hk, d, dv, q.form, k.form, q.form, c.attention_math, backward=backward),)
    if not len(q.dims) == len(k.dims) == len(v.dims) == 4:
        return None
    length_at = 3 - heads_at
    if q.dims[0] != k.dims[0] or q.dims[3] != k.dims[3] or k.dims[length_at] != v.dims[length_at]:
        return None
    return (Attention.dense(
        batch=q.dims[0], q_length=q.dims[length_at], kv_length=k.dims[length_at], heads=q.dims[heads_at],
        kv_heads=k.dims[heads_at], d_qk=q.dims[3], d_v=v.dims[3], causal=causal, form=q.form, math=c.attention_math,
        backward=backward, mask=mask.operand() if mask else None,
    ),)


def _causal(flag: bool | None, how: str = "start") -> str | None:
    """Where the flag was not recorded, the fewer pairs."""
    return None if flag is False else how


def _packed(cu_q: Tensor | None, cu_k: Tensor | None) -> tuple[int, int] | None:
    """Numbers of sequences, from the sizes of the tensors of their starts."""
    return (max(prod(cu_q.dims) - 1, 1), max(prod(cu_k.dims) - 1, 1)) if cu_q and cu_k else None


def attend(a: Arguments, c: Context) -> Answer:
    """aten::scaled_dot_product_attention: query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa"""
    return _sdpa(a.tensor(0), a.tensor(1), a.tensor(2), c, heads_at=1, causal=_causal(a.flag(5)), mask=a.tensor(3))


def attend_flash(a: Arguments, c: Context) -> Answer:
    """aten::_scaled_dot_product_flash_attention: query, key, value, dropout_p, is_causal, …"""
    return _sdpa(a.tensor(0), a.tensor(1), a.tensor(2), c, heads_at=1, causal=_causal(a.flag(4)))


def attend_efficient(a: Arguments, c: Context) -> Answer:
    """aten::_scaled_dot_product_efficient_attention, _cudnn_attention: query, key, value, attn_bias,
    compute_log_sumexp, dropout_p, is_causal, …"""
    return _sdpa(a.tensor(0), a.tensor(1), a.tensor(2), c, heads_at=1, causal=_causal(a.flag(6)), mask=a.tensor(3))


def flash(a: Arguments, c: Context) -> Answer:
    """aten::_flash_attention_forward: query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
    return_debug_mask, scale, window_size_left, …"""
    if a.text(11) not in ("", "-1") or a.text(12) not in ("", "-1"):
        return None                                                     # a window: fewer pairs
    return _sdpa(a.tensor(0), a.tensor(1), a.tensor(2), c, heads_at=2, causal=_causal(a.flag(8)),
                 sequences=_packed(a.tensor(3), a.tensor(4)))


def efficient(a: Arguments, c: Context) -> Answer:
    """aten::_efficient_attention_forward: query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
    max_seqlen_k, dropout_p, custom_mask_type (0: none), …"""
    if a.tensor(4) or a.text(9) not in ("0", "1", ""):
        return None
    return _sdpa(a.tensor(0), a.tensor(1), a.tensor(2), c, heads_at=2, mask=a.tensor(3),
                 causal=None if a.text(9) == "0" else "start")


def flash_back(heads_at: int, causal_at: int, starts_at: int | None) -> Rule:
    """grad_out, query, key, value, out, logsumexp, …"""
    def rule(a: Arguments, c: Context) -> Answer:
        starts = _packed(a.tensor(starts_at), a.tensor(starts_at + 1)) if starts_at is not None else None
        return _sdpa(a.tensor(1), a.tensor(2), a.tensor(3), c, heads_at=heads_at,
                     causal=_causal(a.flag(causal_at)), backward=True, sequences=starts)
    return rule
