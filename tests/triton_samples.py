"""Tiny kernels that the interpreter is tried with. Only imported by tests that have Triton."""

# Code of another language: the compiler's constants are in capitals, and types are tiles and pointers.
# ruff: noqa: N803
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def cast(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def twice(x):
    return x * 2


@triton.jit
def sums(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(a + at)
    tl.store(out + at, twice(x + tl.load(b + at)) - x)


@triton.jit
def fused(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.load(x + at)
    tl.store(out + at, tl.fma(y, y, tl.full([N], -1.0, tl.float32)))


@triton.jit
def largest(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.maximum(tl.load(a + at), tl.load(b + at)))


@triton.jit
def copy(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def unmasked_store(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n))


@triton.jit
def ordered(x, out, largest_out, N: tl.constexpr):
    at = tl.arange(0, N)
    y = tl.load(x + at)
    tl.store(out + at, tl.sort(y))
    tl.store(largest_out + at, tl.flip(tl.cumsum(y), 0))
