"""Wrong implementations: how one is run on a contract's cases, what catches it, and whether the field's rule does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Case, Contract
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


def judged(op: str, compute: Compute) -> list[tuple[Case, Judgement, bool]]:
    """Each case, its judgement, and whether the field's rule passes it."""
    found = []
    for made in prepared(op):
        outputs = made.computed(compute)
        found.append((made.case, made.judge(outputs),
                      field_passes(made.kept, made.case, made.given, outputs, made.exact)))
    return found


def field_passes(kept: Any, case: Case, given: Mapping[str, Tensor], outputs: Mapping[str, Tensor],
                 exact: Mapping[str, Tensor]) -> bool:
    """|out - exact| <= 0.01 + 0.01·|exact| for 99 % of the elements of each output, and nothing that is not finite
    where exact is: the default of SOL-ExecBench. Indices are not compared."""
    values = kept.judged(case.shape, given, outputs) if kept.judged else outputs
    for name, value in values.items():
        right, value = exact[name].double(), value.double()
        finite = right.isfinite()
        if not bool(value[finite].isfinite().all()):
            return False
        near = (value[finite] - right[finite]).abs() <= 1e-2 + 1e-2 * right[finite].abs()
        if near.numel() and float(near.double().mean()) < 0.99:
            return False
    return True


def passes_field_where_ordinary(found: list[tuple[Case, Judgement, bool]]) -> bool:
    """On every case of standard normal values, which is what the field tries. Quantised outputs are left out: the rule
    does not pass even a sound one, whose fp8 is 6 % off."""
    return all(field for case, _, field in found
               if case.values == "normal" and getattr(case.shape, "quant", None) is None)


def only_quantised(found: list[tuple[Case, Judgement, bool]]) -> bool:
    """Whether the bug shows in quantised outputs alone."""
    return all(case.shape.quant for case, verdict, _ in found if not verdict.ok and hasattr(case.shape, "quant")) and \
        hasattr(found[0][0].shape, "quant")


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
