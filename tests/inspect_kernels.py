"""Two small Triton kernels, compiled ahead of time for any architecture; for the tests of the inspector."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def matmul(a, b, c, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    inner = tl.arange(0, K)
    rows, columns = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    left, right = a + rows[:, None] * k + inner[None, :], b + inner[:, None] * n + columns[None, :]
    sums = tl.zeros((M, N), tl.float32)
    for _ in range(0, k, K):
        sums = tl.dot(tl.load(left), tl.load(right), sums)
        left += K
        right += K * n
    tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.bfloat16))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add(a, b, c, n, B: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(c + at, tl.load(a + at, at < n) + tl.load(b + at, at < n), at < n)


def compiled(arch: int) -> dict[str, Any]:
    """Both kernels for sm_{arch}."""
    return {"matmul": _compiled(matmul, {"a": "*bf16", "b": "*bf16", "c": "*bf16", "n": "i32", "k": "i32"},
                                {"M": 64, "N": 64, "K": 32}, arch),
            "add": _compiled(add, {"a": "*fp32", "b": "*fp32", "c": "*fp32", "n": "i32"}, {"B": 1024}, arch)}


def _compiled(kernel: Any, types: dict[str, str], constants: dict[str, int], arch: int) -> Any:
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    divisible = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(kernel.arg_names) if name in types}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=divisible)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": 3})
