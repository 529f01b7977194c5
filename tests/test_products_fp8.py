"""Sums of fp8 products as tensor cores of sm_90 are said to make them (14 bits, truncated) keep the contract."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

torch = pytest.importorskip("torch")

from sublight.kernels.contract import Case  # noqa: E402
from sublight.kernels.gemm.contract import CONTRACT  # noqa: E402
from sublight.kernels.gemm.shape import Shape  # noqa: E402
from sublight.kernels.policy import judge  # noqa: E402

Tensor: TypeAlias = Any


def step(total: Tensor, a: Tensor, b: Tensor, bits: int) -> Tensor:
    """One instruction: 32 products and the accumulator, aligned to the largest, truncated to so many bits, added."""
    terms = torch.cat([total[..., None], a[:, None, :] * b[None]], -1)
    largest = terms.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    last = torch.exp2(torch.floor(torch.log2(largest)) - (bits - 1))
    return (torch.trunc(terms / last) * last).sum(-1)


def tensor_core(a: Tensor, b: Tensor, *, bits: int = 14, promote: bool = True) -> Tensor:
    """a·bᵀ in fp32, partial sums promoted to fp32 every 128 of k, or never."""
    a, b = (torch.nn.functional.pad(x.double(), (0, -x.shape[1] % 32)) for x in (a, b))
    out = torch.zeros(len(a), len(b), dtype=torch.float64)
    total = out.clone()
    for i, at in enumerate(range(0, a.shape[1], 32)):
        total = step(total, a[:, at:at + 32], b[:, at:at + 32], bits)
        if promote and i % 4 == 3:
            out, total = (out + total).float().double(), torch.zeros_like(total)
    return (out + total).float()


def judged(k: int, values: str, **how: Any) -> Any:
    case = Case(Shape(4, 17, k, "fp8"), values)
    given = CONTRACT.inputs(case)
    out = tensor_core(given["a"], given["b"], **how) * given["a_scale"] * given["b_scale"]
    return judge(CONTRACT, case, given, {"out": out.bfloat16()})


@pytest.mark.parametrize("values", ["normal", "outliers", "largest", "cancellation"])
@pytest.mark.parametrize("k", [100, 128, 1031])
def test_sums_of_14_bits_that_are_promoted_keep_the_contract(k: int, values: str) -> None:
    verdict = judged(k, values)
    assert verdict.ok, verdict.wrong
    assert verdict.errors[0].share_of_bound < 0.5


@pytest.mark.heavy
def test_without_promotion_errors_grow_and_still_pass() -> None:
    with_it, without = judged(8192, "normal"), judged(8192, "normal", promote=False)
    assert without.ok
    assert without.errors[0].share_of_honest > 1.15 * with_it.errors[0].share_of_honest


def test_constants_are_exact_even_there() -> None:
    assert judged(512, "constant").errors == judged(512, "constant", bits=52).errors


@pytest.mark.parametrize("bits", [10, 11])
def test_sums_of_fewer_bits_do_not(bits: int) -> None:
    assert not judged(1031, "normal", bits=bits, promote=False).ok
