"""This file knows about modules of a torch tree that compute what our kernels compute: found by structure, proved by a
probe. A class name proves nothing: Gemma's norm is called RMSNorm too, and multiplies by 1 + weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import silu

Module: TypeAlias = Any                  # torch.nn.Module
Tensor: TypeAlias = Any

EPSILONS = ("eps", "variance_epsilon", "epsilon", "norm_eps")
MLPS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))     # gate, up, down: Hugging Face's, Meta's
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
ATTENTION = "scaled_dot_product_attention"
FORMS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
# Of outputs as a whole. bf16: an original that rounds three times on the way (2⁻⁹ each at most), and ours once.
NEAR = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-5}


@dataclass(frozen=True, slots=True)
class Norm:
    """x / √(mean x² + eps) · weight over the last dimension; the name of the attribute that holds eps."""

    eps: str

    def epsilon(self, module: Module, dtype: torch.dtype) -> float:
        value = getattr(module, self.eps)
        return torch.finfo(dtype).eps if value is None else float(value)   # torch.nn.RMSNorm(eps=None)


@dataclass(frozen=True, slots=True)
class Gated:
    """down(silu(gate(x)) · up(x)); the names of the three projections."""

    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Attends:
    """It calls scaled_dot_product_attention, itself or through a function that it is given."""


Meaning: TypeAlias = Norm | Gated | Attends


def meaning(module: Module) -> Meaning | None:
    """What a module looks like, by its structure alone; None: nothing of ours."""
    return _norm(module) or _gated(module) or _attends(module)


def _norm(module: Module) -> Norm | None:
    """One weight vector, no bias, nothing below it, and an eps."""
    names = [name for name, value in module.named_parameters() if value is not None]
    if names != ["weight"] or module.weight.dim() != 1 or any(module.children()) or any(module.buffers()):
        return None
    if isinstance(module, nn.RMSNorm):
        return Norm("eps")
    found = [name for name in EPSILONS if isinstance(getattr(module, name, None), float)]
    return Norm(found[0]) if len(found) == 1 else None


def _gated(module: Module) -> Gated | None:
    children = dict(module.named_children())
    for names in MLPS:
        if all(isinstance(children.get(name), nn.Module) for name in names):
            others = [child for name, child in children.items() if name not in names]
            own = list(module.parameters(recurse=False))
            return None if own or any(any(other.parameters()) for other in others) else Gated(*names)
    return None


def _attends(module: Module) -> Attends | None:
    children = dict(module.named_children())
    if all(name in children for name in PROJECTIONS):
        return Attends()
    code = getattr(type(module).forward, "__code__", None)
    return Attends() if code is not None and any(ATTENTION in c.co_names for c in _codes(code)) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def doubt(module: Module, what: Norm | Gated) -> str | None:
    """Why a module does not compute what it looks like; None: on a probe it does. Runs the module's own forward twice.

    The probe has small and large rows, so that an eps, a bound on the gates or another activation shows.
    """
    weight = module.weight if isinstance(what, Norm) else getattr(module, what.gate).weight
    if weight.dtype not in FORMS:
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}; ours takes {', '.join(FORMS.values())}"
    if weight.device.type != "cpu":
        return f"it is on {weight.device}; our kernels that are swapped in run on the CPU"
    was_training = [(m, m.training) for m in module.modules()]
    try:
        with torch.inference_mode():
            module.train(False)
            x = _probe(module, what, weight)
            exact = _exact_norm(x, module, what) if isinstance(what, Norm) else _exact_mlp(x, module, what)
            before = x.clone()
            made = module.forward(x)
    except Exception as error:            # any code may be behind forward: what it says is the reason
        return f"it did not run on a probe: {type(error).__name__}"
    finally:
        for each, training in was_training:
            each.training = training
    if not torch.equal(x, before):
        return "it writes on its input"
    if not isinstance(made, torch.Tensor) or made.shape != exact.shape or made.dtype != x.dtype:
        return "it returns something else than a tensor like its input"
    far = (made.double() - exact).norm(dim=-1) / exact.norm(dim=-1)        # row by row: a small row counts as much
    worst = float(far.nan_to_num(torch.inf).max())
    limit = NEAR[weight.dtype]
    return None if worst <= limit else f"on a probe it is {worst:.2g} off what it looks like ({limit:.2g} allowed)"


def _probe(module: Module, what: Norm | Gated, weight: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, weight.shape[-1], generator=generator) + 0.5     # a mean: one that is subtracted shows
    if isinstance(what, Norm):
        return (x * torch.tensor([what.epsilon(module, x.dtype)**0.5, 1.0, 100.0, 1e-3])[:, None]).to(weight.dtype)
    gate = getattr(module, what.gate)(x.to(weight.dtype)).float()
    deviation = float(gate.std().clamp(min=1e-6))
    largest = 10.0 if weight.dtype == torch.float16 else 1000.0            # fp16 would overflow
    return (x * torch.tensor([0.5, 2.0, 10.0, largest])[:, None] / deviation).to(weight.dtype)


def _exact_norm(x: Tensor, module: Module, what: Norm) -> Tensor:
    wide, eps = x.double(), what.epsilon(module, x.dtype)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * module.weight.double()


def _exact_mlp(x: Tensor, module: Module, what: Gated) -> Tensor:
    """Projections as they are; what lies between them in fp64, rounded once."""
    gate, up = (getattr(module, name)(x).double() for name in (what.gate, what.up))
    down: Tensor = getattr(module, what.down)((silu(gate) * up).to(x.dtype))
    return down.double()
