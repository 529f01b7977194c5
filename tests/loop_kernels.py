"""Triton kernels whose loops docs/kernel-loops.md counts by hand: textbook forms, not tuned ones.

Legend: M, N, K sizes of a product; S tokens; D elements of a head; BM, BN, BK their blocks.
"""

# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, a_row, b_row, c_row, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A·B from pointers."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = a_ptr + (m % M)[:, None] * a_row + k[None, :]
    b = b_ptr + k[:, None] * b_row + (n % N)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        x = tl.load(a, mask=k[None, :] < K - i * BK, other=0.0)
        y = tl.load(b, mask=k[:, None] < K - i * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK
        b += BK * b_row
    tl.store(c_ptr + m[:, None] * c_row + n[None, :], acc.to(tl.bfloat16), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def matmul_tma(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A·B through tensor descriptors."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([m, i * BK]), b_desc.load([i * BK, n]), acc)
    c_desc.store([m, n], acc.to(tl.bfloat16))


@triton.jit
def matmul_fp8_scaled(a_ptr, b_ptr, c_ptr, a_scale, b_scale, M, N, K, a_row, b_row, c_row, a_scales, b_scales,
                      BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A·B of fp8: a scale for 128 elements of a row of A and for 128x128 of B, as DeepSeek-V3's; every partial
    product is scaled and added in fp32."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = a_ptr + (m % M)[:, None] * a_row + k[None, :]
    b = b_ptr + k[:, None] + (n % N)[None, :] * b_row
    s, t = a_scale + (m % M) * a_scales, b_scale + (n % N // 128) * b_scales
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        x, y = tl.load(a), tl.load(b)
        x_scale, y_scale = tl.load(s + i), tl.load(t + i)
        acc += tl.dot(x, y) * x_scale[:, None] * y_scale[None, :]
        a += BK
        b += BK
    tl.store(c_ptr + m[:, None] * c_row + n[None, :], acc.to(tl.bfloat16), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, S, q_head, k_head, scale,
              BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Causal attention with an online softmax: FlashAttention-2's forward."""
    block, head = tl.program_id(0), tl.program_id(1)
    m, d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(q_ptr + head * q_head + m[:, None] * D + d[None, :], mask=m[:, None] < S, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.minimum(S, (block + 1) * BM), BN):
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptr + head * k_head + n[:, None] * D + d[None, :], mask=n[:, None] < S, other=0.0)
        s = tl.where((n[None, :] < S) & (m[:, None] >= n[None, :]), tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp2(s - higher[:, None]), tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + head * k_head + n[:, None] * D + d[None, :], mask=n[:, None] < S, other=0.0)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * shrink[:, None])
        top = higher
    tl.store(o_ptr + head * q_head + m[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.bfloat16),
             mask=m[:, None] < S)


class Job(NamedTuple):
    """A kernel, the types of its arguments, its blocks, and how it is launched."""

    kernel: Any
    types: dict[str, str]
    blocks: dict[str, int]
    warps: int
    stages: int


POINTERS = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16")
SIZES = dict.fromkeys(("M", "N", "K", "a_row", "b_row", "c_row"), "i32")
FP8 = {"a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "c_ptr": "*bf16", "a_scale": "*fp32", "b_scale": "*fp32",
       **SIZES, "a_scales": "i32", "b_scales": "i32"}
HEADS = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "o_ptr"), "*bf16")
TILES = {"a_desc": "tensordesc<bf16[128,64]>", "b_desc": "tensordesc<bf16[64,256]>",
         "c_desc": "tensordesc<bf16[128,256]>", "K": "i32"}
JOBS = {
    "matmul": Job(matmul, POINTERS | SIZES, {"BM": 128, "BN": 128, "BK": 32}, 8, 3),
    "matmul_tma": Job(matmul_tma, TILES, {"BM": 128, "BN": 256, "BK": 64}, 8, 3),
    "matmul_fp8_scaled": Job(matmul_fp8_scaled, FP8, {"BM": 128, "BN": 128, "BK": 128}, 8, 3),
    "attention": Job(attention, HEADS | {"S": "i32", "q_head": "i32", "k_head": "i32", "scale": "fp32"},
                     {"BM": 128, "BN": 64, "D": 128}, 8, 2),
}


def cubin(name: str, arch: int) -> bytes:
    """The cubin that Triton makes of a kernel, without a GPU. Pointers and sizes are multiples of 16, as Triton finds
    them at run time: without that no access is wide."""
    job = JOBS[name]
    names = job.kernel.arg_names
    signature = {argument: job.types.get(argument, "constexpr") for argument in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, argument in enumerate(names)
               if job.types.get(argument, "").startswith(("*", "i32"))}
    source = ASTSource(fn=job.kernel, signature=signature, constexprs=job.blocks, attrs=aligned)
    options = {"num_warps": job.warps, "num_stages": job.stages}
    image: bytes = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["cubin"]
    return image
