"""This file knows about when outputs are right: the errors of a kernel against float64, and what they may be.

    1  every output is there, in its sizes and its number format, and what has no error (indices) is right
    2  a value is not finite only where the reference is not, and then it is the same
    3  every element lies within the contract's bound
    4  the error as a whole (L2) is at most 1.5 times that of an honest implementation in the same formats

Never "so many elements may be anything". A bound that is infinite says that an element is not judged (padding).
An output named `scale` is held to its bound alone: it is one number that many share, and has no error as a whole.

Rule 4 sees what no element shows, such as casts that truncate (1.9 times the error of rounding to nearest). Where few
elements count, or the honest implementation had luck, its error says little. Then the floor holds:

    floor² = Σ (h²/3 + s²) + 6·√Σ (4h⁴/45 + 2s⁴), at most Σ bound²

h is half a unit in the last place of an output (a uniform error has the mean square h²/3 and of squares the variance
4h⁴/45), s = (bound − h)/λ is the deviation of what came before, since bounds hold λ = 8 deviations of accumulated
errors (`rounding`; a normal error has squares of variance 2s⁴), and 6 deviations of the sum are allowed. A quantised
output is all rounding: h is its bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors
from sublight.kernels.rounding import DEVIATIONS, DTYPES, half_ulp

TIMES_HONEST = 1.5                       # truncation is at 1.94, another order of sums within 1.05 (docs)
FLUCTUATIONS = 6.0                       # deviations of a sum of squares that chance may add
QUANTISED = ("fp8", "int8")
SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Errors:
    """How far one output is from the reference. Elements that are not judged count nowhere."""

    output: str
    rel_l2: float                        # ‖out − exact‖ / ‖exact‖; infinite where only the exact one is zero
    max_over_rms: float                  # the largest error, over the root mean square of exact
    cosine: float                        # of the angle between out and exact; 1 where both are zero
    share_of_bound: float                # the largest error / bound of an element: at most 1
    share_of_honest: float               # ‖error‖ over the honest one's, or floor/1.5 where that is more: at most 1.5
    non_finite: int                      # elements that are not finite where exact is, or the other way round


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether outputs keep the contract; each thing that is wrong, in a sentence; the errors of each output."""

    ok: bool
    wrong: tuple[str, ...]
    errors: tuple[Errors, ...]


def judge(contract: Contract, case: Case, inputs: Tensors, outputs: Tensors, *, exact: Tensors | None = None,
          honest: Tensors | None = None) -> Judgement:
    """Judges outputs of a kernel for a case.

    exact and honest are what the contract's reference and honest implementation return for these inputs; they are
    computed where they are not given.
    """
    specs = contract.outputs(case.shape)
    wrong = [fault for name, spec in specs.items() if (fault := _unlike(name, spec, outputs.get(name)))]
    if wrong:
        return Judgement(False, tuple(wrong), ())
    exact = contract.reference(case.shape, inputs) if exact is None else exact
    honest = contract.honest(case.shape, inputs) if honest is None else honest
    bound = contract.bound(case.shape, inputs, exact)
    values, honest_values = (_values(contract, case, inputs, made) for made in (outputs, honest))
    wrong += contract.discrete(case.shape, inputs, outputs) if contract.discrete else ()
    errors = []
    for name, value in values.items():
        form = specs[name].form if name in specs else "fp32"
        found = _Compared.of(name, form, value, exact[name].double(), bound[name].double(), honest_values[name])
        errors.append(found.errors())
        wrong += found.wrong(errors[-1])
    return Judgement(not wrong, tuple(wrong), tuple(errors))


def _unlike(name: str, spec: Spec, tensor: Tensor | None) -> str | None:
    """Why a tensor is not what the contract's output is to be; None where it is."""
    if tensor is None:
        return f"{name}: not returned"
    if not isinstance(tensor, torch.Tensor):
        return f"{name}: a {type(tensor).__name__}, expected a tensor"
    if tuple(tensor.shape) != tuple(spec.sizes):
        return f"{name}: sizes {tuple(tensor.shape)}, expected {tuple(spec.sizes)}"
    if tensor.dtype != DTYPES[spec.form]:
        return f"{name}: {tensor.dtype}, expected {DTYPES[spec.form]}"
    return None


def _values(contract: Contract, case: Case, inputs: Tensors, outputs: Tensors) -> Mapping[str, Tensor]:
    values = contract.judged(case.shape, inputs, outputs) if contract.judged else outputs
    return {name: value.double() for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class _Compared:
    """The judged elements of one output, flat, in float64."""

    name: str
    error: Tensor                        # |out − exact| where both are finite
    exact: Tensor
    value: Tensor
    bound: Tensor
    half: Tensor                         # half a unit in the last place
    honest: float                        # ‖honest − exact‖
    unlike: int                          # elements not finite where exact is, or not the same where it is not
    first: str                           # where the first of those is

    @classmethod
    def of(cls, name: str, form: str, value: Tensor, exact: Tensor, bound: Tensor, honest: Tensor) -> _Compared:
        judged = ~torch.isposinf(bound)
        finite = exact.isfinite()
        same = (value == exact) | (value.isnan() & exact.isnan())
        bad = judged & torch.where(finite, ~value.isfinite(), ~same)
        keep = judged & finite & value.isfinite()
        error, far = (value - exact).abs(), (honest - exact)[judged & finite].nan_to_num(0.0, 0.0, 0.0)
        half = bound if form in QUANTISED else half_ulp(exact, form).minimum(bound)
        place = tuple(bad.nonzero()[0].tolist()) if bool(bad.any()) else None
        return cls(name, error[keep], exact[keep], value[keep], bound[keep], half[keep], _norm(far), int(bad.sum()),
                   "" if place is None else f"first at {place}: {value[place].item()}, exact {exact[place].item():.6g}")

    def errors(self) -> Errors:
        far, size = _norm(self.error), _norm(self.exact)
        share = torch.where(self.error == 0, 0.0, self.error / self.bound)
        rms = size / math.sqrt(max(1, self.exact.numel()))
        return Errors(self.name, _over(far, size), _over(_largest(self.error), rms), self._cosine(), _largest(share),
                      _over(far, max(self.honest, self._floor() / TIMES_HONEST)), self.unlike)

    def wrong(self, errors: Errors) -> list[str]:
        said = []
        if self.unlike:
            said.append(f"{self.name}: {self.unlike} values are not finite where they should be, or the other way "
                        f"round ({self.first})")
        if errors.share_of_bound > 1:
            over = int((self.error > self.bound).sum())
            said.append(f"{self.name}: {over} of {self.error.numel()} elements lie beyond their bound, the worst "
                        f"{errors.share_of_bound:.3g} times")
        if self.name != SCALE and errors.share_of_honest > TIMES_HONEST:
            said.append(f"{self.name}: the error as a whole (relative L2 {errors.rel_l2:.3g}) is "
                        f"{errors.share_of_honest:.3g} times that of an honest implementation; allowed: {TIMES_HONEST}")
        return said

    def _cosine(self) -> float:
        sizes = _norm(self.value) * _norm(self.exact)
        if sizes == 0:
            return 1.0 if _norm(self.error) == 0 else 0.0
        biggest = max(_largest(self.value.abs()), _largest(self.exact.abs()))
        a, b = self.value / biggest, self.exact / biggest
        return float((a * b).sum()) / (_norm(a) * _norm(b))

    def _floor(self) -> float:
        """The error as a whole that an honest implementation may have by chance."""
        biggest = _largest(self.bound)
        if biggest == 0:
            return 0.0
        bound, half = self.bound / biggest, self.half / biggest        # so that fourth powers do not underflow
        before = (bound - half) / DEVIATIONS
        mean = float((half**2 / 3 + before**2).sum())
        variance = float((4 * half**4 / 45 + 2 * before**4).sum())
        return biggest * math.sqrt(min(mean + FLUCTUATIONS * math.sqrt(variance), float((bound**2).sum())))


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _norm(values: Tensor) -> float:
    """√Σx², without underflow."""
    biggest = _largest(values.abs())
    return biggest * float((values / biggest).pow(2).sum().sqrt()) if biggest else 0.0


def _over(value: float, by: float) -> float:
    return 0.0 if value == 0 else math.inf if by == 0 else value / by
