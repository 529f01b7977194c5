"""What every contract must be, and every implementation that this machine has: shared by the tests of contracts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
import torch
from planted import Prepared, prepared

from sublight.kernels.contract import Contract, Spec
from sublight.kernels.kernel import Kernel
from sublight.kernels.listed import kernels
from sublight.kernels.rounding import DTYPES

Tensor: TypeAlias = Any
COMPILERS = ("inductor", "flex")


def named(op: str, name: str) -> Kernel:
    return next(kernel for kernel in kernels(op, where="cpu") if kernel.name == name and kernel.provider == "torch")


def torch_kernels(ops: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """(op, name) of torch's implementations on the CPU: eager ones, of which one an operator is tried by `make test`,
    and compiled ones."""
    found = [(op, kernel.name) for op in ops for kernel in kernels(op, where="cpu") if kernel.provider == "torch"]
    eager = [pytest.param(op, name, marks=[] if name == "torch" else [pytest.mark.heavy])
             for op, name in found if name not in COMPILERS]
    return eager, [one for one in found if one[1] in COMPILERS]


def poisoned(spec: Spec) -> Tensor:
    """A tensor whose every byte is 0xff: NaN in floating-point formats, -1 in others."""
    made = torch.empty(spec.sizes, dtype=DTYPES[spec.form])
    made.view(torch.uint8).fill_(0xFF)
    return made


def run(kernel: Kernel, made: Prepared) -> Mapping[str, Tensor]:
    """Outputs of a kernel on fresh buffers; it must leave its inputs as they are."""
    given = {name: tensor.clone() for name, tensor in made.given.items()}
    outputs = {name: given[name].clone() if name in given else poisoned(spec)
               for name, spec in made.kept.outputs(made.case.shape).items()}
    kernel.build(made.case.shape, {name: given[name] for name in made.kept.constant if name in given})(given, outputs)
    for name, tensor in given.items():
        assert same_bytes(tensor, made.given[name]), f"{kernel.name} wrote on its input {name} ({made.case})"
    return outputs


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))


def faults(kernel: Kernel, cases: tuple[Prepared, ...]) -> list[str]:
    """What is wrong with a kernel on these cases."""
    return [f"{kernel.name}, {made.case}: {wrong}" for made in cases if kernel.refuses(made.case.shape) is None
            for wrong in made.judge(run(kernel, made)).wrong]


def assert_is_whole(kept: Contract) -> None:
    """At least 40 different cases; inputs that are the same each time; an op of each that leads back to it; an honest
    implementation and the exact results, rounded, that keep it."""
    cases = prepared(kept.name)
    assert len({made.case for made in cases}) == len(cases) >= 40
    assert {made.case.values for made in cases} == set(kept.values)
    for made in cases:
        shape = made.case.shape
        assert kept.refusal(shape) is None
        op = kept.op(shape)
        back = kept.shape_of(op)
        assert back is not None
        assert kept.op(back) == op
        assert all(tensor.is_contiguous() for tensor in made.given.values())
    for made in cases[::3]:              # the others are judged where implementations are
        assert made.judge(made.honest).wrong == ()
        again = kept.inputs(made.case)
        assert all(same_bytes(again[name], tensor) for name, tensor in made.given.items())


def rounded_exact(made: Prepared) -> Mapping[str, Tensor]:
    """The reference in the outputs' formats: the best that a kernel can return."""
    specs = made.kept.outputs(made.case.shape)
    return {name: made.exact[name].to(DTYPES[spec.form]) for name, spec in specs.items()}


def assert_compiled_is_right(op: str, name: str) -> None:
    """On an ordinary case and one of other values whose switches are the same: one compilation."""
    kernel, cases = named(op, name), prepared(op)
    if why := kernel.refuses(cases[0].case.shape):
        pytest.skip(why)
    pair = next((one, other) for other in reversed(cases) for one in reversed(cases)
                if other.case.values not in ("normal", "empty") and one.case.values == "normal"
                and other.case.shape.form == "bf16" and _switches(one) == _switches(other))
    assert faults(kernel, pair) == []


def _switches(made: Prepared) -> list[Any]:
    """What is no size."""
    values = [getattr(made.case.shape, name) for name in type(made.case.shape).__dataclass_fields__]
    return [value for value in values if type(value) is not int]


def assert_needs_a_gpu(op: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    shape = prepared(op)[0].case.shape
    for kernel in kernels(op, where="cuda"):
        if kernel.provider == "torch":
            assert kernel.refuses(shape) == "there is no GPU that torch can use"
