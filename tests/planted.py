"""Wrong implementations: how one is run on a contract's cases, what catches it, and whether the field's rule does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch

from sublight.kernels.contract import Case
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


@cache
def prepared(op: str) -> tuple[tuple[Case, Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Tensor]], ...]:
    """(case, inputs, reference, honest) of all cases."""
    kept = contract(op)
    made = []
    for case in kept.cases():
        given = kept.inputs(case)
        made.append((case, given, kept.reference(case.shape, given), kept.honest(case.shape, given)))
    return tuple(made)


def judged(op: str, compute: Compute) -> list[tuple[Case, Judgement, bool]]:
    """Each case, its judgement, and whether the field's rule passes it."""
    kept, found = contract(op), []
    for case, given, exact, honest in prepared(op):
        outputs = compute(case.shape, {name: tensor.clone() for name, tensor in given.items()})
        verdict = judge(kept, case, given, outputs, exact=exact, honest=honest)
        found.append((case, verdict, field_passes(kept, case, given, outputs, exact)))
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
