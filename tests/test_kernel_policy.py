"""When outputs are right: roundings by format, bounds of sums, and what the policy lets pass and what not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sublight.kernels.contract import Case, Contract, Spec, Tensors  # noqa: E402
from sublight.kernels.policy import TIMES_HONEST, Judgement, judge  # noqa: E402
from sublight.kernels.rounding import DTYPES, FORMATS, half_ulp, rounded, sum_error, unit_roundoff  # noqa: E402
from sublight.ops import Elementwise, Operand  # noqa: E402

Tensor: TypeAlias = Any
EIGHT = ("fp8",)
SIXTEEN = ("bf16", "fp16")


# ---- a contract of one cast: out is x in a format -------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    width: int
    form: str = "bf16"


def cast_contract(x: Tensor, form: str = "bf16", before: float = 0.0) -> Contract:
    """Inputs are x; out may be off by `before` of x before it is rounded."""
    def reference(shape: Any, inputs: Tensors) -> Tensors:
        return {"out": x.double()}

    def bound(shape: Any, inputs: Tensors, exact: Tensors) -> Tensors:
        return {"out": rounded(exact["out"], before * exact["out"].abs(), form)}

    return Contract(
        name="cast", title="a cast", shape=Sizes, values=("normal",), refusal=lambda shape: None,
        inputs=lambda case: {"x": x}, outputs=lambda shape: {"out": Spec(tuple(x.shape), form)}, reference=reference,
        bound=bound, honest=lambda shape, inputs: {"out": x.double().to(DTYPES[form])}, cases=lambda: (),
        op=lambda shape: Elementwise((Operand(1, "fp32"),), (Operand(1, form),)), shape_of=lambda op: None)


def verdict(x: Tensor, out: Tensor, form: str = "bf16", **options: float) -> Judgement:
    return judge(cast_contract(x, form, **options), Case(Sizes(x.numel(), form)), {"x": x}, {"out": out})


NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float64))
RANDOM = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# ---- roundings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", SIXTEEN + EIGHT)
def test_half_a_last_place_is_half_the_gap_to_the_next_number(form: str) -> None:
    bits = torch.arange(2 ** (8 * DTYPES[form].itemsize - 1), dtype=torch.int32)
    values = bits.to({1: torch.uint8, 2: torch.int16}[DTYPES[form].itemsize]).view(DTYPES[form]).double()
    values = values[values.isfinite()]
    assert values[-1] == FORMATS[form].largest
    gap = values[1:] - values[:-1]                                     # from each number up to the next
    half = half_ulp(values[:-1], form)
    normal = values[:-1] >= 2.0 ** FORMATS[form].smallest
    assert torch.equal(half[normal], gap[normal] / 2)
    expected = torch.maximum(gap / 2, values[:-1]) if FORMATS[form].flushes else gap / 2
    assert torch.equal(half[~normal], expected[~normal])
    assert unit_roundoff(form) == float((half[normal] / values[:-1][normal]).max())


def test_an_integer_is_off_by_half() -> None:
    assert half_ulp(torch.tensor([0.0, 3.2], dtype=torch.float64), "int8").tolist() == [0.5, 0.5]


@given(st.integers(0, 2**32), st.integers(1, 700))
@settings(max_examples=30, deadline=None)
def test_sums_in_fp32_one_after_the_other_lie_within_their_bound(seed: int, terms: int) -> None:
    x = torch.randn(terms, 16, generator=torch.Generator().manual_seed(seed))
    total = torch.zeros(16)
    for row in x:
        total = total + row
    error = (total.double() - x.double().sum(0)).abs()
    assert bool((error <= sum_error(terms, x.double().abs().sum(0))).all())


def test_few_terms_are_bounded_surely_and_many_by_chance_or_truncation() -> None:
    one, u = torch.ones((), dtype=torch.float64), 2.0**-24
    assert float(sum_error(4, one)) == pytest.approx(4 * u, rel=1e-6)
    assert float(sum_error(1024, one)) == pytest.approx(8 * 32 * u)
    assert float(sum_error(2**20, one)) == pytest.approx(2**18 * u)


# ---- what passes ----------------------------------------------------------------------------------------------------


@given(NUMBERS, st.sampled_from((*SIXTEEN, "fp32")))
@settings(max_examples=60, deadline=None)
def test_the_nearest_number_always_passes(x: Tensor, form: str) -> None:
    assert verdict(x, x.to(DTYPES[form]), form).ok


@given(NUMBERS, st.integers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_a_power_of_two_leaves_the_judgement_as_it_was(x: Tensor, power: int) -> None:
    x = torch.where(x.abs() < 1e-3, torch.ones_like(x), x)             # no subnormal numbers on the way
    for out in (x.bfloat16(), (x * 1.006).bfloat16()):
        here, there = verdict(x, out), verdict(x * 2.0**power, out * 2.0**power)
        assert here.ok == there.ok
        assert here.errors == there.errors


def test_errors_say_how_far_it_is() -> None:
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = verdict(x, torch.tensor([3.0, 5.0]).bfloat16()).errors[0]
    assert found.rel_l2 == 1 / 5
    assert found.max_over_rms == pytest.approx(1 / math.sqrt(12.5))
    assert found.cosine == pytest.approx(29 / (5 * math.sqrt(34)))
    assert found.share_of_bound == 64                                  # half a last place of 4 in bf16 is 2^-6


def test_what_the_contract_does_not_judge_may_be_anything() -> None:
    x = torch.ones(4, dtype=torch.float64)
    kept = replace(cast_contract(x), bound=lambda *_: {"out": torch.tensor([0.0, 0.0, 0.0, math.inf])})
    for last, ok in ((math.nan, True), (1e30, True)):
        out = torch.tensor([1.0, 1.0, 1.0, last]).bfloat16()
        assert judge(kept, Case(Sizes(4)), {"x": x}, {"out": out}).ok is ok
    assert not judge(kept, Case(Sizes(4)), {"x": x}, {"out": torch.tensor([1.0, 1.0, math.nan, 1.0]).bfloat16()}).ok


def test_what_is_not_finite_has_to_be_the_same() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)
    assert verdict(x, x.bfloat16()).ok
    for place, value in ((0, 0.0), (1, -math.inf), (2, 3e38), (3, math.nan), (3, math.inf)):
        out = x.bfloat16()
        out[place] = value
        said = verdict(x, out)
        assert not said.ok
        assert f"first at ({place},)" in said.wrong[0]


# ---- what does not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "said"), [
    ({}, "out: not returned"), ({"out": [1.0]}, "a list, expected a tensor"),
    ({"out": torch.ones(3).bfloat16()}, "sizes (3,), expected (2,)"),
    ({"out": torch.ones(2)}, "torch.float32, expected torch.bfloat16"),
])
def test_outputs_of_another_kind_are_named(outputs: Any, said: str) -> None:
    x = torch.ones(2, dtype=torch.float64)
    found = judge(cast_contract(x), Case(Sizes(2)), {"x": x}, outputs)
    assert not found.ok
    assert said in found.wrong[0]


def test_one_element_of_thousands_is_enough() -> None:
    out = RANDOM.bfloat16()
    out[1234] += out[1234].abs() / 64
    said = verdict(RANDOM, out)
    assert said.wrong == (f"out: 1 of 4096 elements lie beyond their bound, the worst "
                          f"{said.errors[0].share_of_bound:.3g} times",)


def test_casts_that_truncate_are_seen_by_the_error_as_a_whole_alone() -> None:
    """Where the bound of an element is wide (1.2 units before the rounding), truncation hides in it; not in the sum."""
    near = RANDOM.bfloat16()
    bits = near.view(torch.int16)
    cut = torch.where(near.double().abs() > RANDOM.abs(), bits - 1, bits).view(torch.bfloat16)
    said = verdict(RANDOM, cut, before=1.2 * unit_roundoff("bf16"))
    assert said.errors[0].share_of_bound < 1
    assert TIMES_HONEST < said.errors[0].share_of_honest < 2.1
    assert len(said.wrong) == 1
    assert "the error as a whole" in said.wrong[0]


def test_the_floor_lets_an_unlucky_element_pass_and_no_more() -> None:
    """One number that happens to be exact in the honest implementation: half a last place is still no mistake."""
    x = torch.tensor([1.0], dtype=torch.float64)
    assert verdict(x, torch.tensor([1 + 2**-8], dtype=torch.float64).bfloat16()).ok
    up = torch.tensor([1 + 2.0**-7])                                   # the next number: a whole last place away
    assert not verdict(x, up.bfloat16()).ok


def test_a_scale_is_held_to_its_bound_alone() -> None:
    x = torch.full((64,), 1.0, dtype=torch.float64)
    kept = replace(cast_contract(x, "fp32"), outputs=lambda shape: {"scale": Spec((64,), "fp32")},
                   reference=lambda shape, inputs: {"scale": x},
                   bound=lambda *_: {"scale": torch.full((64,), 2.0**-9, dtype=torch.float64)},
                   honest=lambda *_: {"scale": x.float()})
    off = torch.full((64,), 1 + 2.0**-10)
    assert judge(kept, Case(Sizes(64)), {"x": x}, {"scale": off}).ok
    assert not judge(kept, Case(Sizes(64)), {"x": x}, {"scale": off + 2.0**-9}).ok
