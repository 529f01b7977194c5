"""Contracts of norms, SwiGLU, rotary embedding, routing and cross entropy: references against torch in float64, work
counted by hand, every implementation on every case, planted bugs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import wrong_rows  # noqa: E402
from conftest import minutes_more  # noqa: E402
from kept import (  # noqa: E402
    assert_compiled_is_right,
    assert_is_whole,
    assert_needs_a_gpu,
    faults,
    named,
    rounded_exact,
    same_bytes,
    torch_kernels,
)
from planted import is_caught, prepared, truncated  # noqa: E402
from torch.nn import functional  # noqa: E402

from sublight.kernels.contract import Case  # noqa: E402
from sublight.kernels.cross_entropy.shape import Shape as Loss  # noqa: E402
from sublight.kernels.listed import contract  # noqa: E402
from sublight.kernels.norm.shape import Shape as Norm  # noqa: E402
from sublight.kernels.policy import judge  # noqa: E402
from sublight.kernels.rope.shape import Shape as Rope  # noqa: E402
from sublight.kernels.routing.shape import Shape as Route  # noqa: E402
from sublight.kernels.swiglu.shape import Shape as Gate  # noqa: E402
from sublight.ops import CrossEntropy, Elementwise, Normalisation, Operand, RotaryWrite, Routing  # noqa: E402

OPS = ("norm", "swiglu", "rope", "routing", "cross_entropy")
EAGER, COMPILED = torch_kernels(OPS)

# ---- contracts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_a_contract_is_whole(op: str) -> None:
    assert_is_whole(contract(op))


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPS)
def test_the_exact_result_rounded_keeps_the_contract(op: str) -> None:
    for made in prepared(op):
        if getattr(made.case.shape, "quant", None) is None:
            assert made.judge(rounded_exact(made)).wrong == ()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_reference_is_a_norm(kind: str) -> None:
    kept, shape = contract("norm"), Norm(5, 37, kind, "bf16", residual=True, eps=1e-5)
    given = kept.inputs(Case(shape))
    z, weight = given["x"].double() + given["residual"].double(), given["weight"].double()
    found = functional.rms_norm(z, (37,), weight, 1e-5) if kind == "rms" else functional.layer_norm(
        z, (37,), weight, given["bias"].double(), 1e-5)
    exact = kept.reference(shape, given)
    assert torch.allclose(exact["out"], found, rtol=1e-12)
    assert torch.equal(exact["summed"], z)


def test_the_reference_is_swiglu() -> None:
    kept, shape = contract("swiglu"), Gate(3, 11)
    both = kept.inputs(Case(shape))["gate_up"]
    found = functional.silu(both[:, :11].double()) * both[:, 11:].double()
    assert torch.allclose(kept.reference(shape, {"gate_up": both})["out"], found, rtol=1e-12)


@pytest.mark.parametrize("neox", [True, False])
def test_the_reference_turns_pairs_as_complex_numbers(neox: bool) -> None:
    kept, shape = contract("rope"), Rope(6, 3, 2, 16, 2, 8, 4, 31, neox)
    given = kept.inputs(Case(shape, "skipped"))
    turns = given["cos_sin"][given["positions"]].double()
    exact = kept.reference(shape, given)
    first = given["q"][..., :8].double()
    a, b = (first[..., :4], first[..., 4:]) if neox else (first[..., ::2], first[..., 1::2])
    found = torch.complex(a, b) * torch.complex(turns[:, :4], turns[:, 4:])[:, None]
    merged = torch.cat([found.real, found.imag], -1) if neox else torch.view_as_real(found).flatten(-2)
    assert torch.allclose(exact["q_out"][..., :8], merged, rtol=1e-12, atol=1e-15)
    assert torch.equal(exact["q_out"][..., 8:], given["q"][..., 8:].double())
    for token, slot in enumerate(given["slots"].tolist()):
        if slot >= 0:
            assert torch.equal(exact["v_cache"][slot // 4, slot % 4], given["v"][token].double())


def test_slots_that_are_not_given_stay_as_they_were() -> None:
    kept, shape = contract("rope"), Rope(6, 3, 2, 16, 2, page=4)
    given = kept.inputs(Case(shape, "skipped"))
    assert given["slots"].tolist().count(-1) == 2
    others = [slot for slot in range(8) if slot not in given["slots"].tolist()]
    for name in ("k_cache", "v_cache"):
        old, new = (cache.double().flatten(0, 1)[others] for cache in (given[name], kept.reference(shape, given)[name]))
        assert same_bytes(old, new)
        assert not kept.bound(shape, given, kept.reference(shape, given))[name].flatten(0, 1)[others].any()


def test_the_reference_is_cross_entropy() -> None:
    kept, shape = contract("cross_entropy"), Loss(9, 50)
    given = kept.inputs(Case(shape, "ignored"))
    found = functional.cross_entropy(given["logits"].double(), given["targets"], reduction="none")
    exact = kept.reference(shape, given)["loss"]
    assert torch.allclose(exact, found, rtol=1e-12)
    assert not exact[::3].any()


def test_a_target_without_weight_costs_without_end() -> None:
    kept, shape = contract("cross_entropy"), Loss(1, 3, "fp32")
    given = {"logits": torch.tensor([[0.0, -math.inf, 1.0]]), "targets": torch.tensor([1])}
    assert kept.reference(shape, given)["loss"].tolist() == [math.inf]
    assert judge(kept, Case(shape), given, {"loss": torch.tensor([math.inf])}).ok
    assert not judge(kept, Case(shape), given, {"loss": torch.tensor([3e38])}).ok


# ---- what may differ ------------------------------------------------------------------------------------------------


def routed(logits: list[float], ids: list[int], weights: list[float] | None = None) -> tuple[str, ...]:
    """What is wrong with these ids of one token; weights are those of the ranks unless they are given."""
    kept, shape = contract("routing"), Route(1, len(logits), len(ids))
    given = {"logits": torch.tensor([logits])}
    right = kept.reference(shape, given)["weights"].float() if weights is None else torch.tensor([weights])
    outputs = {"weights": right, "ids": torch.tensor([ids], dtype=torch.int32)}
    return judge(kept, Case(shape), given, outputs).wrong


ULP = 2.0**-23                                       # of numbers from 1 to 2


@pytest.mark.parametrize(("logits", "ids"), [
    ([1.0, 3.0, 2.0], [1, 2]),
    ([1.0, 1.0, 0.0], [0, 1]), ([1.0, 1.0, 0.0], [1, 0]),                          # tied
    ([1.0, 1.0, 1.0], [2, 0]),
    ([1.0, 1.0 + ULP, 0.0], [0, 1]),                                               # weights in fp32 may be the same
    ([0.0, -200.0, -201.0], [0, 2]),                                               # both weights are lost in fp32
    ([0.0, -math.inf, -math.inf], [0, 2]),
])
def test_orders_that_are_right(logits: list[float], ids: list[int]) -> None:
    assert routed(logits, ids) == ()


@pytest.mark.parametrize(("logits", "ids", "said"), [
    ([1.0, 3.0, 2.0], [2, 1], "not the expert of their rank"),
    ([1.0, 3.0, 2.0], [1, 0], "not the expert of their rank"),
    ([1.0, 1.0, 0.0], [1, 1], "chosen twice"),
    ([1.0, 3.0, 2.0], [1, 3], "not from 0 to 2"), ([1.0, 3.0, 2.0], [-1, 2], "not from 0 to 2"),
    ([1.0, 1.0 + 64 * ULP, 0.0], [0, 1], "not the expert of their rank"),
    ([0.0, -20.0, -20.1], [0, 2], "not the expert of their rank"),
])
def test_orders_that_are_wrong(logits: list[float], ids: list[int], said: str) -> None:
    assert said in " ".join(routed(logits, ids))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_the_norm_may_be_of_the_rounded_sum(kind: str) -> None:
    """Both ways pass, and neither hides a cast that truncates."""
    kept, shape = contract("norm"), Norm(16, 512, kind, residual=True)
    given = kept.inputs(Case(shape))
    exact = kept.reference(shape, given)
    summed = exact["summed"].bfloat16()
    for z in (exact["summed"], summed.double()):
        y = kept.reference(replace(shape, residual=False), {**without(given, "residual"), "x": z})["out"].float()
        sound = {"out": y.bfloat16(), "summed": summed}
        assert judge(kept, Case(shape), given, sound).ok
        cut = {**sound, "out": truncated(y, torch.bfloat16)}
        assert "as a whole" in " ".join(judge(kept, Case(shape), given, cut).wrong)


def without(given: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != name}


def test_a_row_of_zeros_may_have_any_positive_scale() -> None:
    kept, shape = contract("norm"), Norm(4, 64, quant="fp8")
    given = kept.inputs(Case(shape, "zeros"))
    made = kept.honest(shape, given)
    for scale, ok in ((1.0, True), (1e-12, True), (0.0, False), (-1.0, False), (math.nan, False)):
        scales = made["scale"].clone()
        scales[1] = scale
        assert judge(kept, Case(shape, "zeros"), given, {**made, "scale": scales}).ok is ok, scale


@pytest.mark.parametrize(("op", "shape"), [
    ("norm", Norm(0, 4)), ("norm", Norm(4, 4, "group")), ("norm", Norm(4, 4, quant="fp4")),
    ("norm", Norm(4, 4, eps=0.0)), ("swiglu", Gate(4, 0)), ("swiglu", Gate(4, 4, "fp8")),
    ("rope", Rope(1, 1, 1, 64, 1, rotary=63)),
    ("rope", Rope(17, 1, 1, 64, 1)), ("rope", Rope(1, 1, 1, 64, 1, rotary=128)), ("routing", Route(1, 4, 5)),
    ("routing", Route(1, 4, 0)), ("cross_entropy", Loss(4, 0)), ("cross_entropy", Loss(4, 4, "int8")),
])
def test_shapes_that_make_no_sense_are_refused(op: str, shape: Any) -> None:
    assert contract(op).refusal(shape)


# ---- what operators have to do --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "shape", "read", "written"), [
    ("norm", Norm(4, 8), 2 * (32 + 8), 2 * 32),
    ("norm", Norm(4, 8, "layer", residual=True), 2 * (64 + 16), 2 * 64),
    ("norm", Norm(4, 8, residual=True, quant="fp8"), 2 * (64 + 8), 32 + 4 * 4 + 2 * 32),      # q, scales, sum
    ("swiglu", Gate(4, 8), 2 * 64, 2 * 32),
    ("swiglu", Gate(4, 8, "fp32", "int8"), 4 * 64, 32 + 4 * 4),
    # q, k, v; one row of 64 fp32; positions and slots of 8 bytes; q and both caches
    ("rope", Rope(3, 8, 2, 64, 1), 2 * 3 * 64 * 12 + 4 * 64 + 2 * 3 * 8, 2 * 3 * 64 * 12),
    ("routing", Route(5, 64, 8), 4 * 5 * 64, (4 + 4) * 5 * 8),
    ("cross_entropy", Loss(5, 100), 2 * 500 + 8 * 5, 4 * 5),
])
def test_bytes_counted_by_hand(op: str, shape: Any, read: int, written: int) -> None:
    work = contract(op).op(shape).work()
    assert (work.bytes_read, work.bytes_written) == (read, written)


def test_ops_of_no_contract_here() -> None:
    half = Operand(8, "bf16")
    for op, other in (("norm", Normalisation(64, 8, weight="fp32")), ("norm", Normalisation(64, 8, backward=True)),
                      ("norm", Normalisation(64, 8, "mean")),
                      ("swiglu", Elementwise((Operand(16, "bf16"),), (half,), 2)),
                      ("rope", RotaryWrite(4, 2, 1, 8, 8, positions="int32")),
                      ("routing", Routing(4, 8, 2, indices="int64")),
                      ("cross_entropy", CrossEntropy(4, 8, backward=True))):
        assert contract(op).shape_of(other) is None


# ---- implementations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "name"), EAGER)
def test_torch_keeps_the_contract_on_every_case(op: str, name: str) -> None:
    assert faults(named(op, name), prepared(op)) == []


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")          # torch's own, as it loads Inductor
@pytest.mark.parametrize(("op", "name"), [pytest.param(*one, marks=[] if one == ("norm", "inductor") else minutes_more)
                                          for one in COMPILED])
def test_compiled_forms_keep_the_contract(op: str, name: str) -> None:
    """On two cases: each new kind of shape takes Inductor seconds."""
    assert_compiled_is_right(op, name)


@pytest.mark.parametrize("op", OPS)
def test_kernels_for_a_gpu_are_refused_without_one(op: str) -> None:
    assert_needs_a_gpu(op)


# ---- planted bugs ---------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("sound", wrong_rows.SOUND_FORMS, ids=lambda wrong: wrong.op)
def test_the_form_that_bugs_are_planted_in_is_right(sound: Any) -> None:
    assert not is_caught(sound.op, sound.compute)


@pytest.mark.parametrize("wrong", wrong_rows.WRONG, ids=lambda wrong: f"{wrong.op}: {wrong.name}")
def test_a_planted_bug_is_caught(wrong: Any) -> None:
    assert is_caught(wrong.op, wrong.compute)


def test_at_least_eight_bugs_of_each_family_are_planted() -> None:
    assert all(len(forms) >= 8 for forms in wrong_rows.FAMILIES.values())
