"""Our Triton kernels keep their contracts in the interpreter: a contract's cases, guard zones, outputs NaN before.

What a GPU adds (time, races, layouts, approximate functions) is not tried here.
"""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import pytest
from conftest import loaded

from sublight.kernels.contract import Case, Contract
from sublight.kernels.launch.call import Call, launch
from sublight.kernels.launch.targets import TARGETS, Target

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from sublight.kernels.attention.shape import Shape as AttentionShape  # noqa: E402
from sublight.kernels.launch.guards import Guards  # noqa: E402
from sublight.kernels.launch.interpret import interpreted  # noqa: E402
from sublight.kernels.listed import contract, kernels  # noqa: E402
from sublight.kernels.policy import Judgement, judge  # noqa: E402
from sublight.kernels.rounding import DTYPES  # noqa: E402

OPS = ("norm", "swiglu", "rope", "routing", "cross_entropy", "attention", "gemm")
ENOUGH = 42                              # cases of an operator
MOST_PROGRAMS = 100                      # of one case: the interpreter takes milliseconds for each
SMS = 4                                  # so that a persistent kernel has more tiles than blocks
BY_NAME = {target.name: replace(target, sms=SMS) for target in TARGETS}


def form_of(op: str) -> Any:
    return import_module(f"sublight.kernels.{op}.triton_form")


def tried(op: str, case: Case, target: Target, *, change: Any = lambda call: call) -> Judgement:
    """A case in the interpreter. Everything that was wrong, also outside of the outputs, stands in `wrong`."""
    kept: Contract = contract(op)
    inputs, guards = kept.inputs(case), Guards()
    given = {name: guards.copy(name, tensor) for name, tensor in inputs.items()}
    outputs = {name: given[name] if name in given else guards.empty(name, spec.sizes, DTYPES[spec.form])
               for name, spec in kept.outputs(case.shape).items()}
    with interpreted():
        for call in form_of(op).calls(case.shape, {**given, **outputs}, target):
            launch(change(call))
    found = judge(kept, case, inputs, outputs)
    spoilt = tuple(f"{name} was written" for name in inputs if name not in outputs
                   and not torch.equal(as_bytes(inputs[name]), as_bytes(given[name])))
    wrong = found.wrong + guards.broken() + spoilt
    return replace(found, ok=not wrong, wrong=wrong)


def as_bytes(tensor: Any) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


EXTRA = {"attention": tuple(Case(AttentionShape(1, q, kv, 2, 1, 64, window=window), "normal", seed)
                            for seed, (q, kv, window) in enumerate([(130, 260, 100), (65, 300, 1), (200, 200, 129),
                                                                    (150, 140, 64), (3, 257, 200), (129, 129, 128)]))}


@cache
def cases(op: str, target: str) -> tuple[Case, ...]:
    """A contract's cases that an architecture has code for and that the interpreter does soon: ENOUGH of them at least,
    where there are so many, and each kind of values in each format once."""
    known = BY_NAME[target]
    fits = [case for case in (*contract(op).cases(), *EXTRA.get(op, ()))
            if form_of(op).unsupported(case.shape, known) is None and programs(op, case, known) <= MOST_PROGRAMS]
    first = {(case.values, case.shape.form): case for case in reversed(fits)}
    step = max(1, len(fits) // ENOUGH)
    return tuple(case for at, case in enumerate(fits) if at % step == 0 or case in first.values())


def programs(op: str, case: Case, target: Target) -> int:
    form = form_of(op)
    empty = {name: torch.empty(spec.sizes, dtype=DTYPES[spec.form], device="meta")
             for name, spec in form.tensors(case.shape).items()}
    if op == "gemm":
        chosen = form.tile(case.shape, target)
        return int(-(-case.shape.m // chosen.m) * -(-case.shape.n // chosen.n) * -(-case.shape.k // chosen.k))
    calls: tuple[Call, ...] = form.calls(case.shape, empty, target)
    return max(prod(call.grid) for call in calls)


def trials() -> Iterator[Any]:
    for op in OPS:
        for target in ("sm_90",) if op != "gemm" else ("sm_80", "sm_90", "sm_120"):
            yield pytest.param(op, target, id=f"{op}-{target}")


@pytest.mark.heavy
@pytest.mark.parametrize(("op", "target"), list(trials()))
def test_the_contract_is_kept(op: str, target: str) -> None:
    wrong = {}
    for case in cases(op, target):
        found = tried(op, case, BY_NAME[target])
        if not found.ok:
            wrong[case] = found.wrong
    assert wrong == {}


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPS)
def test_the_cases_are_many_and_hard(op: str) -> None:
    tried_here = cases(op, "sm_90")
    assert len(tried_here) >= 40
    possible = {case.values for case in contract(op).cases()
                if form_of(op).unsupported(case.shape, BY_NAME["sm_90"]) is None}
    assert {case.values for case in tried_here} >= possible


@pytest.mark.heavy
@pytest.mark.parametrize("op", OPS)
def test_what_a_form_says_of_its_tensors_is_what_the_contract_has(op: str) -> None:
    for case in contract(op).cases():
        said = form_of(op).tensors(case.shape)
        known = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in contract(op).inputs(case).items()}
        known |= laid_out(contract(op).outputs(case.shape))
        assert laid_out(said) == known


def laid_out(specs: Any) -> dict[str, Any]:
    return {name: (tuple(spec.sizes), DTYPES[spec.form]) for name, spec in specs.items()}


# ---- faults are seen ---------------------------------------------------------------------------------------------

def argument(**changes: Any) -> Any:
    """The same call with other arguments: what a kernel would compute that got them wrong."""
    def change(call: Call) -> Call:
        arguments = {name: changes[name](value) if name in changes else value for name, value in call.arguments.items()}
        return replace(call, arguments=arguments)
    return change


def constant(**changes: Any) -> Any:
    return lambda call: replace(call, constants={**call.constants, **changes})


FAULTS = {
    "norm": (argument(width=lambda width: width - 1), argument(eps=lambda eps: eps * 1e6),
             argument(rows=lambda rows: rows + 1), constant(LARGEST=440)),
    "swiglu": (argument(width=lambda width: width - 1), argument(width=lambda width: width + 1)),
    "rope": (constant(NEOX=False), argument(positions_ptr=lambda at: at + 1), argument(heads=lambda heads: heads - 1)),
    "routing": (constant(RENORMALISE=False), argument(experts=lambda experts: experts - 1)),
    "cross_entropy": (argument(classes=lambda classes: classes - 1), argument(targets_ptr=lambda at: at * 0)),
    "attention": (argument(window=lambda window: (window or 40) - 1), argument(scale=lambda scale: scale * 1.05),
                  argument(kv_heads=lambda heads: heads * 2), constant(CAUSAL=False)),
    "gemm": (argument(k=lambda k: k - 1), argument(n=lambda n: n - 1), argument(m=lambda m: m + 1),
             constant(GROUP=0)),
}


@pytest.mark.heavy
@pytest.mark.parametrize(("op", "at"), [(op, at) for op in OPS for at in range(len(FAULTS[op]))])
def test_a_wrong_argument_is_seen(op: str, at: int) -> None:
    """On some case at the latest: outputs out of bounds, a zone that was written, an access outside."""
    from triton.runtime.errors import InterpreterError

    for case in cases(op, "sm_80"):
        try:
            if not tried(op, case, BY_NAME["sm_80"], change=FAULTS[op][at]).ok:
                return
        except (InterpreterError, ZeroDivisionError):
            return
    pytest.fail(f"{op}: fault {at} was not seen")


# ---- as kernels of their operators -------------------------------------------------------------------------------

@pytest.mark.parametrize("op", OPS)
def test_without_a_gpu_they_are_listed_and_refused_by_name(op: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    (ours,) = [kernel for kernel in kernels(op, where="cuda") if kernel.name == "triton"]
    assert ours.refuses(contract(op).cases()[0].shape) == "no CUDA device is available to torch"
    assert set(ours.key()) == {"source", "compiler"}


@pytest.mark.parametrize("module", [*(f"{op}.triton_form" for op in OPS),
                                    *(f"launch.{name}" for name in ("ahead", "bits", "call", "guards", "targets"))])
def test_examples_of_docstrings_are_true(module: str) -> None:
    assert doctest.testmod(import_module(f"sublight.kernels.{module}")).failed == 0


# ---- the script for a GPU ----------------------------------------------------------------------------------------

@pytest.mark.heavy
def test_the_script_for_a_gpu_checks_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    script = loaded(Path(__file__).parent.parent / "bench" / "gpu_kernels.py")
    found = script.check("routing", 600.0, True)
    assert (found["tried"], found["wrong"]) == (script.REHEARSED, [])
    assert found["tried"] + found["not_tried"] + found["refused"] == len(contract("routing").cases())
    one_less = argument(experts=lambda experts: experts - 1)
    monkeypatch.setattr(script, "launch", lambda call: launch(one_less(call)))
    assert len(script.check("routing", 600.0, True)["wrong"]) > 0
