"""This file knows about the custom operators of serving engines (vLLM, SGLang, FlashAttention): recorded arguments ->
Ops. Positions are those of vLLM's csrc/torch_bindings.cpp and the functions that it registers in Python.
"""

from __future__ import annotations

from math import prod

from sublight.ops.answer import Answer, Rule
from sublight.ops.arguments import Arguments, Tensor
from sublight.ops.attention import Attention
from sublight.ops.collective import Communication
from sublight.ops.context import Context
from sublight.ops.elementwise import CacheWrite, Elementwise, Rotary
from sublight.ops.fused import Gated
from sublight.ops.gemm import Gemm
from sublight.ops.inferred import experts
from sublight.ops.normalisation import Normalisation
from sublight.ops.op import Operand


def _last(x: Tensor) -> int:
    return x.dims[-1] if x.dims else 1


def _rms_norm(a: Arguments, c: Context) -> Answer:
    """out, input, weight, epsilon"""
    out, x, weight = a.tensor(0), a.tensor(1), a.tensor(2)
    if not (out and x and weight and x.form):
        return None
    return (Normalisation(prod(x.dims), _last(x), "rms", x.form, weight.form),)


def _add_rms_norm(a: Arguments, c: Context) -> Answer:
    """input, residual, weight, epsilon: both are read and written"""
    x, residual, weight = a.tensor(0), a.tensor(1), a.tensor(2)
    if not (x and residual and weight and x.form) or x.dims != residual.dims:
        return None
    return (Normalisation(prod(x.dims), _last(x), "rms", x.form, weight.form, residual=True),)


def _rotary(a: Arguments, c: Context) -> Answer:
    """positions, query, key, head_size, cos_sin_cache, is_neox"""
    positions, q, k, size, table = a.tensor(0), a.tensor(1), a.tensor(2), a.integer(3), a.tensor(4)
    if not (positions and q and table and q.form and positions.form) or not size or size < 1:
        return None
    tokens, width = prod(positions.dims), prod(q.dims) + (prod(k.dims) if k else 0)
    if not tokens or width % (tokens * size):
        return None
    return (Rotary(tokens, width // (tokens * size), min(_last(table), size), q.form, positions.form),)


def _cache_write(a: Arguments, c: Context) -> Answer:
    """key, value, key_cache, value_cache, slot_mapping, …"""
    key, value, cache, slots = a.tensor(0), a.tensor(1), a.tensor(2), a.tensor(4)
    if not (key and value and cache and slots and key.form and cache.form and slots.form and key.dims):
        return None
    width = prod(key.dims[1:]) + prod(value.dims[1:])
    return (CacheWrite(min(key.dims[0], prod(slots.dims)), width, key.form, cache.form, slots.form),)


def _quantise(a: Arguments, c: Context) -> Answer:
    """out, input, scale"""
    out, x = a.tensor(0), a.tensor(1)
    if not (out and x and out.form) or out.dims != x.dims:
        return None
    return (Elementwise((x.operand(),), (Operand(out.distinct, out.form),), 1),)


def _act_and_mul(a: Arguments, c: Context) -> Answer:
    """out (…, d), input (…, 2d)"""
    out, x = a.tensor(0), a.tensor(1)
    if not (out and x and out.form) or 2 * prod(out.dims) != prod(x.dims):
        return None
    return (Elementwise((x.operand(),), (Operand(prod(out.dims), out.form),), 2),)


def _silu_and_mul(a: Arguments, c: Context) -> Answer:
    """out (…, d), input (…, 2d): the gate first"""
    out, x = a.tensor(0), a.tensor(1)
    if not (out and x and out.form and out.dims and out.dims[-1] and x.form == out.form):
        return _act_and_mul(a, c)
    if x.dims != (*out.dims[:-1], 2 * out.dims[-1]):
        return None
    return (Gated(prod(out.dims[:-1]), out.dims[-1], out.form),)


def _scaled_mm(a: Arguments, c: Context) -> Answer:
    """_C::cutlass_scaled_mm: out, a, b, a_scales, b_scales, bias"""
    out, x, w, bias = a.tensor(0), a.tensor(1), a.tensor(2), a.tensor(5)
    if not (out and x and w and out.form and x.form and w.form) or not len(x.dims) == len(w.dims) == len(out.dims) == 2:
        return None
    if x.dims[1] != w.dims[0] or out.dims != (x.dims[0], w.dims[1]):
        return None
    return (Gemm(*out.dims, x.dims[1], 1, x.form, w.form, out.form, addend=bias.operand() if bias else None),)


def _unified_attention(a: Arguments, c: Context) -> Answer:
    """query, key, value, output, layer_name: the step says how much there is to attend to.

    The cache may be kept in 8 bits whatever the format of the new keys. A kernel of a sliding window says so by its
    name, but not how wide it is: then each query sees itself at least. Kernels that say neither are taken to be
    unlimited, and marked.
    """
    q, k, v, out = (a.tensor(i) for i in range(4))
    if not (q and k and v and q.form) or not len(q.dims) == len(k.dims) == len(v.dims) == 3 or c.step is None:
        return None
    pairs, keys, queries = c.step.causal_pairs, c.step.least_keys, c.step.sum_q
    if pairs is None or keys is None or queries is None:
        return None
    sliding, said = c.named("Sliding", "sliding", "Chunked"), c.named("Causal")
    queries = min(queries, q.dims[0])
    return (Attention(
        queries if sliding else pairs, queries, queries if sliding else keys, q.dims[1], k.dims[1], q.dims[2],
        v.dims[2], q.form, "fp8", (out.form if out else None) or q.form, inferred=not (sliding or said),
    ),)


def _unified_mla(a: Arguments, c: Context) -> Answer:
    """query, latent (rank), k_rope, output, layer_name. Of the two orders of the products (with the latent, or with
    keys and values made of it) the one with fewer operations is counted; the projections are not."""
    q, latent, rope, out = (a.tensor(i) for i in range(4))
    if not (q and latent and rope and out and q.form and out.form) or len(q.dims) != 3 or c.step is None:
        return None
    pairs, keys, queries = c.step.causal_pairs, c.step.least_keys, c.step.sum_q
    if pairs is None or keys is None or queries is None or not q.dims[1] or not out.dims:
        return None
    d_v = prod(out.dims[1:]) // q.dims[1]
    return (Attention(pairs, queries, keys, q.dims[1], 1, q.dims[2], d_v, q.form, "fp8", out.form,
                      kv_width=_last(latent) + _last(rope)),)


def _flash_attn(a: Arguments, c: Context) -> Answer:
    """flash_attn::_flash_attn_forward: q, k, v, dropout_p, softmax_scale, causal, window_left, window_right, …"""
    q, k, v, causal = a.tensor(0), a.tensor(1), a.tensor(2), a.flag(5)
    if not (q and k and v and q.form) or not len(q.dims) == len(k.dims) == len(v.dims) == 4:
        return None
    if a.text(6) not in ("", "-1") or a.text(7) not in ("", "-1") or q.dims[0] != k.dims[0]:
        return None
    return (Attention.dense(
        batch=q.dims[0], q_length=q.dims[1], kv_length=k.dims[1], heads=q.dims[2], kv_heads=k.dims[2], d_qk=q.dims[3],
        d_v=v.dims[3], causal=None if causal is False else "end", form=q.form, math=c.attention_math,
    ),)


def _all_reduce(a: Arguments, c: Context) -> Answer:
    """tensor, reduce operation, group name: the group's size is that of the run's smallest, or two at least"""
    x = a.tensor(0)
    if not (x and x.form):
        return None
    return (Communication("all_reduce", c.group or 2, x.elements, x.form, inferred=c.group is None),)


def _experts(a: Arguments, c: Context) -> Answer:
    """hidden_states, router_logits, layer_name"""
    x, scores = a.tensor(0), a.tensor(1)
    if not (x and scores and x.form) or not len(x.dims) == len(scores.dims) == 2:
        return None
    found = experts(tokens=x.dims[0], width=x.dims[1], experts=scores.dims[1], form=x.form, kernels=c.kernels)
    return (found,) if found else None


# Operators that the work of an enclosing one does not include: attention is counted without the write to the cache.
APART = frozenset({"_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::concat_and_cache_mla"})

RULES: dict[str, Rule] = {
    "_C::rms_norm": _rms_norm, "_C::fused_add_rms_norm": _add_rms_norm, "_C::rotary_embedding": _rotary,
    "sgl_kernel::rmsnorm": _rms_norm, "sgl_kernel::fused_add_rmsnorm": _add_rms_norm,
    "_C_cache_ops::reshape_and_cache_flash": _cache_write, "_C::static_scaled_fp8_quant": _quantise,
    "_C::dynamic_scaled_fp8_quant": _quantise, "_C::dynamic_per_token_scaled_fp8_quant": _quantise,
    "_C::silu_and_mul": _silu_and_mul, "_C::gelu_and_mul": _act_and_mul, "_C::gelu_tanh_and_mul": _act_and_mul,
    "sgl_kernel::silu_and_mul": _silu_and_mul, "_C::cutlass_scaled_mm": _scaled_mm,
    "vllm::unified_attention_with_output": _unified_attention,
    "vllm::unified_mla_attention_with_output": _unified_mla,
    "flash_attn::_flash_attn_forward": _flash_attn,
    "symm_mem::multimem_all_reduce_": _all_reduce, "symm_mem::one_shot_all_reduce": _all_reduce,
    "symm_mem::two_shot_all_reduce_": _all_reduce, "vllm::all_reduce": _all_reduce,
    "_C_custom_ar::all_reduce": lambda a, c: None,               # its first argument is a pointer
    "vllm::moe_forward": _experts, "vllm::moe_forward_shared": _experts,
}
