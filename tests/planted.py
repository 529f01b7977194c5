"""Wrong implementations: how one is run on a contract's cases, what catches it, and whether the field's rule does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Case, Contract
from sublight.kernels.field_rule import passes
from sublight.kernels.listed import contract
from sublight.kernels.policy import Judgement, judge

Tensor: TypeAlias = Any
Compute: TypeAlias = Callable[[Any, Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Wrong:
    """compute(shape, inputs) returns outputs; what is wrong with them is the name."""

    op: str
    name: str
    compute: Compute
    quantised: bool = False              # it shows in quantised outputs alone


@dataclass(frozen=True)
class Prepared:
    """A case with all that does not depend on who computes it."""

    kept: Contract                       # its bound is the one that was computed
    case: Case
    given: Mapping[str, Tensor]
    exact: Mapping[str, Tensor]
    honest: Mapping[str, Tensor]

    def judge(self, outputs: Mapping[str, Tensor]) -> Judgement:
        return judge(self.kept, self.case, self.given, outputs, exact=self.exact, honest=self.honest)

    def computed(self, compute: Compute) -> Mapping[str, Tensor]:
        return compute(self.case.shape, {name: tensor.clone() for name, tensor in self.given.items()})


@cache
def prepared(op: str) -> tuple[Prepared, ...]:
    return tuple(_prepared(op))


def _prepared(op: str) -> Iterator[Prepared]:
    kept = contract(op)
    for case in kept.cases():
        given = kept.inputs(case)
        exact = kept.reference(case.shape, given)
        bound = kept.bound(case.shape, given, exact)
        yield Prepared(replace(kept, bound=lambda *_, known=bound: known), case, given, exact,
                       kept.honest(case.shape, given))


def is_caught(op: str, compute: Compute) -> bool:
    """Whether one case at least fails; the hardest first, which are the contract's last."""
    return any(not made.judge(made.computed(compute)).ok for made in reversed(prepared(op)))


def field_rule(wrong: Wrong) -> str:
    """What the field's rule does on the cases that the field tries, of standard normal values: "passes" all, or
    "fails"; "-" of quantised outputs, where it does not pass even a sound kernel: fp8 is 6 % off."""
    if wrong.quantised:
        return "-"
    ordinary = [made for made in prepared(wrong.op)
                if made.case.values == "normal" and getattr(made.case.shape, "quant", None) is None]
    fine = all(passes(made.kept, made.case, made.given, made.computed(wrong.compute), exact=made.exact)
               for made in ordinary)
    return "passes" if fine else "fails"


def truncated(value: Tensor, dtype: Any) -> Tensor:
    """fp32 cast to a 16-bit format toward zero."""
    if dtype == torch.float32:
        return value
    near = value.to(dtype)
    above = near.float().abs() > value.abs()
    return torch.where(above, _toward_zero(near), near)


def _toward_zero(value: Tensor) -> Tensor:
    bits = value.view(torch.int16)
    return torch.where((bits & 0x7FFF) > 0, bits - 1, bits).view(value.dtype)
