"""Products, experts, quantisation, dequantisation: torch's implementations keep the contracts, planted bugs do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

torch = pytest.importorskip("torch")

from conftest import minutes_more  # noqa: E402
from planted import Wrong, is_caught, prepared  # noqa: E402
from wrong_products import SOUND_FORMS, WRONG  # noqa: E402

from sublight.kernels.contract import Case  # noqa: E402
from sublight.kernels.dequantise.shape import Shape as Dequantise  # noqa: E402
from sublight.kernels.field_rule import passes  # noqa: E402
from sublight.kernels.gemm.shape import Shape as Gemm  # noqa: E402
from sublight.kernels.grouped_gemm.shape import Shape as GroupedGemm  # noqa: E402
from sublight.kernels.kernel import Kernel  # noqa: E402
from sublight.kernels.listed import contract, kernels  # noqa: E402
from sublight.kernels.moe.contract import used  # noqa: E402
from sublight.kernels.moe.shape import Shape as Moe  # noqa: E402
from sublight.kernels.policy import judge  # noqa: E402
from sublight.kernels.quantise.shape import Shape as Quantise  # noqa: E402
from sublight.kernels.rounding import DTYPES  # noqa: E402
from sublight.ops import Experts, Normalisation  # noqa: E402
from sublight.ops import Gemm as GemmOp  # noqa: E402

Tensor: TypeAlias = Any
OPERATORS = ("gemm", "grouped_gemm", "moe", "quantise", "dequantise")
PAGE = Path(__file__).parent.parent / "docs" / "kernel-contracts.md"
TORCH = [kernel for op in OPERATORS for kernel in kernels(op, where="cpu") if kernel.provider == "torch"]
# Inductor compiles for each kind of shape: a case in so many.
COMPILED = {"gemm": 5, "grouped_gemm": 3, "moe": 2, "quantise": 19, "dequantise": 15}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The matrices are small: threads cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def poisoned(op: str, case: Case) -> dict[str, Tensor]:
    """Outputs to be filled: NaN, or -77 where there is none."""
    specs = contract(op).outputs(case.shape)
    return {name: torch.full(spec.sizes, float("nan") if DTYPES[spec.form].is_floating_point else -77).to(
        DTYPES[spec.form]) for name, spec in specs.items()}


def faults(kernel: Kernel, every: int = 1) -> tuple[int, list[str]]:
    """How many cases a kernel takes, and what is wrong with its outputs."""
    kept, said, taken = contract(kernel.op), [], 0
    for made in prepared(kernel.op)[::every]:
        if kernel.refuses(made.case.shape):
            continue
        outputs, taken = poisoned(kernel.op, made.case), taken + 1
        kernel.build(made.case.shape, {name: made.given[name] for name in kept.constant})(made.given, outputs)
        said += [f"{made.case}: {fault}" for fault in made.judge(outputs).wrong]
    return taken, said


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy())


def named(value: Any) -> str:
    return f"{value.op}-{value.name}".replace(" ", "_") if isinstance(value, (Kernel, Wrong)) else str(value)


# ---- contracts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPERATORS)
def test_cases_are_many_and_try_all_kinds_of_values(op: str) -> None:
    kept = contract(op)
    cases = kept.cases()
    assert len({case.shape for case in cases}) >= 40 or op == "moe"
    assert len(cases) == len(set(cases)) >= 40
    assert {case.values for case in cases} == set(kept.values)
    assert [kept.refusal(case.shape) for case in cases] == [None] * len(cases)


@pytest.mark.parametrize("op", OPERATORS)
def test_inputs_are_the_same_for_the_same_case_alone(op: str) -> None:
    kept = contract(op)
    for case in kept.cases()[3:9]:
        one, same, other = (kept.inputs(c) for c in (case, case, Case(case.shape, case.values, case.seed + 1)))
        assert set(kept.constant) <= set(one)
        assert all(bits(one[name]) == bits(same[name]) for name in one)
        assert any(bits(one[name]) != bits(other[name]) for name in one) or case.values == "constant"


@pytest.mark.parametrize("op", OPERATORS)
def test_the_honest_implementation_keeps_the_contract(op: str) -> None:
    kept = contract(op)
    for case in kept.cases()[::7]:
        given = kept.inputs(case)
        verdict = judge(kept, case, given, kept.honest(case.shape, given))
        assert verdict.ok, (case, verdict.wrong)


@pytest.mark.parametrize(("op", "shape", "said"), [
    ("gemm", Gemm(0, 1, 1), "at least 1, not 0, 1, 1"), ("gemm", Gemm(1, 1, 1, "fp4"), "form is one of"),
    ("gemm", Gemm(1, 1, 1, out="int8"), "out is one of"),
    ("grouped_gemm", GroupedGemm(1, 0, 1, 1), "at least 1"), ("grouped_gemm", GroupedGemm(1, 1, 1, 1, "int8"), "form"),
    ("moe", Moe(1, 2, 3, 8, 8), "not 3 of 2"), ("moe", Moe(1, 2, 1, 8, 8, "fp8"), "form is one of bf16, fp16"),
    ("quantise", Quantise(1, 1, "fp4"), "to is one of fp8, int8, not 'fp4'"),
    ("quantise", Quantise(1, 1, block="64"), "block is one of tensor, row, 128"),
    ("dequantise", Dequantise(1, 1, "bf16"), "by is one of fp8, int8, not 'bf16'"),
])
def test_shapes_that_make_no_sense_are_refused_by_name(op: str, shape: Any, said: str) -> None:
    assert said in str(contract(op).refusal(shape))


def test_padding_is_nan_and_other_rows_are_not() -> None:
    kept = contract("grouped_gemm")
    given = kept.inputs(Case(GroupedGemm(40, 3, 8, 200, "fp8_block"), "padded"))
    end = int(given["offsets"][-1])
    assert end == 35
    for name in ("a", "a_scale"):
        assert bool(given[name][end:].double().isnan().all())
        assert bool(given[name][:end].double().isfinite().all())
    exact = kept.reference(GroupedGemm(40, 3, 8, 200, "fp8_block"), given)
    bound = kept.bound(GroupedGemm(40, 3, 8, 200, "fp8_block"), given, exact)["out"]
    assert bool(bound[end:].isposinf().all())
    assert bool(bound[:end].isfinite().all())


def test_routing_is_what_its_kind_says() -> None:
    kept, shape = contract("grouped_gemm"), GroupedGemm(64, 6, 8, 16)
    rows = {kind: [b - a for a, b in pairwise(kept.inputs(Case(shape, kind))["offsets"].tolist())]
            for kind in ("normal", "one_group", "empty_groups", "no_rows", "skewed")}
    assert sum(rows["normal"]) == 64
    assert min(rows["normal"]) > 0
    assert rows["one_group"] == [0, 0, 0, 56, 0, 0]
    assert [n > 0 for n in rows["empty_groups"]] == [False, True, False, True, False, False]
    assert rows["no_rows"] == [0] * 6
    assert rows["skewed"][-1] > 56 / 3


@pytest.mark.parametrize("shape", [Moe(1, 64, 8, 8, 8), Moe(16, 64, 8, 8, 8), Moe(3, 4, 4, 8, 8), Moe(200, 8, 1, 8, 8)])
def test_ordinary_routing_uses_as_many_experts_as_are_counted(shape: Moe) -> None:
    for seed in range(4):
        ids = contract("moe").inputs(Case(shape, seed=seed))["ids"]
        assert len(ids.unique()) == used(shape)
        assert all(len(set(row)) == shape.top_k for row in ids.tolist())


# ---- their work -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "shape", "flops", "read", "written"), [
    # 2·m·n·k; a and b; out
    ("gemm", Gemm(3, 5, 7), {("tensor", "bf16"): 210}, 2 * (21 + 35), 30),
    ("gemm", Gemm(3, 5, 7, "int8", "fp32"), {("tensor", "int8"): 210}, 21 + 35, 60),
    # 256·128 elements of b have two blocks of 128 x 128, 4 bytes of scales each
    ("gemm", Gemm(4, 256, 128, "fp8_block"), {("tensor", "fp8"): 2 * 4 * 256 * 128}, 512 + 256 * 128 + 8, 2048),
    # 3 of 8 groups have rows
    ("grouped_gemm", GroupedGemm(3, 8, 16, 32), {("tensor", "bf16"): 2 * 3 * 16 * 32}, 2 * (3 * 32 + 3 * 16 * 32), 96),
    # one token, 2 of 8 experts: three products of 4·6 each, 2 vector operations for each of 2·6 inner elements
    ("moe", Moe(1, 8, 2, 4, 6), {("tensor", "bf16"): 2 * 2 * 3 * 24, ("vector", "fp32"): 24}, 2 * (4 + 2 * 3 * 24), 8),
    ("quantise", Quantise(2, 300, "fp8", "128"), {("vector", "fp32"): 600}, 1200, 600 + 2 * 3 * 4),
    ("dequantise", Dequantise(2, 300, "int8", "tensor", "fp16"), {("vector", "fp32"): 600}, 600 + 4, 1200),
])
def test_work_is_what_a_hand_count_says(op: str, shape: Any, flops: Any, read: int, written: int) -> None:
    work = contract(op).op(shape).work()
    assert (dict(work.flops), work.bytes_read, work.bytes_written) == (flops, read, written)


@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_gives_its_shape_back_or_one_of_the_same_work(op: str) -> None:
    kept = contract(op)
    for case in kept.cases():
        back = kept.shape_of(kept.op(case.shape))
        if back is None:                 # groups of 128 that do not divide the width: an Elementwise does not tell
            assert case.shape.block == "128"
            assert case.shape.width % 128
        else:
            assert kept.op(back) == kept.op(case.shape)
            exact = op in ("gemm", "moe") or (op == "grouped_gemm" and case.shape.groups <= case.shape.rows)
            assert back == case.shape or not exact
    assert kept.shape_of(Normalisation(elements=8, channels=8)) is None


def test_how_fp32_is_multiplied_says_nothing_of_other_formats() -> None:
    shape_of = contract("gemm").shape_of
    assert shape_of(GemmOp(8, 64, 32, math="tf32")) == shape_of(GemmOp(8, 64, 32)) is not None
    assert shape_of(GemmOp(8, 64, 32, a="fp32", b="fp32", out="fp32", math="tf32")) is None


def test_experts_that_share_a_layer_are_no_layer() -> None:
    whole = contract("moe").op(Moe(4, 8, 2, 16, 32))
    assert isinstance(whole, Experts)
    assert contract("moe").shape_of(Experts(4, 2, 3, 16, 32)) == Moe(4, 3, 2, 16, 32)
    assert contract("moe").shape_of(Experts(4, 2, 3, 16, 32, gated=False)) is None
    assert contract("moe").shape_of(Experts(4, 2, 3, 16, 32, weights="fp8")) is None


# ---- implementations ------------------------------------------------------------------------------------------------


def test_what_torch_refuses_it_says() -> None:
    def refusals(op: str, shape: Any, where: str) -> dict[str, str | None]:
        return {k.name: k.refuses(shape) for k in kernels(op, where=where) if k.provider == "torch"}

    said = refusals("gemm", Gemm(8, 8, 8, "fp8"), "cpu")
    assert "not fp8" in str(said["torch"])
    assert said["scaled_mm"] is None
    assert "8 divides" in str(refusals("grouped_gemm", GroupedGemm(4, 2, 9, 8), "cpu")["grouped_mm"])
    assert "8 divides" in str(refusals("moe", Moe(4, 2, 1, 8, 9), "cpu")["sorted"])
    if not torch.cuda.is_available():
        for op, shape in (("gemm", Gemm(8, 8, 8)), ("quantise", Quantise(8, 8))):
            assert set(refusals(op, shape, "cuda").values()) == {"there is no GPU that torch can use"}


@pytest.mark.heavy
@pytest.mark.parametrize("kernel", [k for k in TORCH if k.name != "inductor"], ids=named)
def test_torch_keeps_the_contract_on_all_cases(kernel: Kernel) -> None:
    taken, said = faults(kernel)
    assert taken >= 40
    assert said == []


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")              # of torch's own, as its compiler is imported
@pytest.mark.parametrize("kernel", [pytest.param(k, marks=[] if k.op == "gemm" else minutes_more)
                                    for k in TORCH if k.name == "inductor"], ids=named)
def test_inductor_keeps_the_contract(kernel: Kernel) -> None:
    from torch._dynamo import config

    refused = [kernel.refuses(made.case.shape) or "" for made in prepared(kernel.op)]
    if any("C++ compiler" in why for why in refused):
        pytest.skip(refused[0])
    # Beyond the limit functions run eagerly, unnoticed.
    with config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        taken, said = faults(kernel, COMPILED[kernel.op])
    assert taken >= 5
    assert said == []


# ---- planted bugs ---------------------------------------------------------------------------------------------------


def passes_the_field(wrong: Wrong) -> bool:
    """Whether it passes 1e-2 for 99 % on every case of ordinary values."""
    return all(passes(made.kept, made.case, made.given, made.computed(wrong.compute), exact=made.exact)
               for made in prepared(wrong.op) if made.case.values == "normal")


@pytest.mark.heavy
@pytest.mark.parametrize("sound", SOUND_FORMS, ids=named)
def test_what_the_bugs_were_planted_in_is_sound(sound: Wrong) -> None:
    assert not is_caught(sound.op, sound.compute)


@pytest.mark.heavy
@pytest.mark.parametrize("wrong", WRONG, ids=named)
def test_a_planted_bug_is_caught(wrong: Wrong) -> None:
    assert is_caught(wrong.op, wrong.compute)


def test_a_planted_bug_is_caught_and_passes_the_field() -> None:
    wrong = next(w for w in WRONG if (w.op, w.name) == ("dequantise", "last cast truncates"))
    assert is_caught(wrong.op, wrong.compute)
    assert passes_the_field(wrong)


def test_the_example_of_the_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text("utf-8")
    code, shown = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.S)[0]
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == shown


def on_page(op: str) -> dict[str, bool]:
    """Planted bugs of an operator on the page, and whether it says that the field's rule lets them pass."""
    section = PAGE.read_text("utf-8").split(f"\n## {op}\n")[1].split("\n## ")[0]
    return {name: answer == "yes" for name, answer in re.findall(r"^\| (.+?) \| (yes|no) \|$", section, re.M)}


@pytest.mark.parametrize("op", OPERATORS)
def test_the_page_lists_the_planted_bugs(op: str) -> None:
    names = {wrong.name for wrong in WRONG if wrong.op == op}
    assert len(names) >= 8
    assert set(on_page(op)) == names


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPERATORS)
def test_the_page_says_what_passes_the_fields_rule(op: str) -> None:
    assert on_page(op) == {wrong.name: passes_the_field(wrong) for wrong in WRONG if wrong.op == op}


def test_the_fields_rule_lets_one_element_of_a_hundred_be_anything() -> None:
    kept, case = contract("gemm"), Case(Gemm(40, 50, 64))
    given = kept.inputs(case)
    out = kept.honest(case.shape, given)["out"]
    out.view(-1)[::100] = 1e30
    assert passes(kept, case, given, {"out": out})
    assert not judge(kept, case, given, {"out": out}).ok
    out.view(-1)[1] = 1e30
    assert not passes(kept, case, given, {"out": out})


def test_the_fields_rule_refuses_honest_fp8() -> None:
    kept, case = contract("quantise"), Case(Quantise(16, 512))
    given = kept.inputs(case)
    assert not passes(kept, case, given, kept.honest(case.shape, given))
