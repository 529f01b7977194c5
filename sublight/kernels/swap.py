"""This file knows about putting our CPU kernels in the place of what a torch model computes, and taking them out again.

    applied = sublight.kernels.apply(model)
    ...                                   # model.eval(), under torch.no_grad() or torch.inference_mode()
    applied.undo()

A module keeps its parameters, hooks, name and state_dict; its class becomes a subclass with another `forward` (so a
deep copy of the model works, on its own weights). Our kernel runs on the CPU, in bf16, fp16 or fp32, where nothing
needs a gradient. In training, under autocast or torch.compile, and for inputs that it does not take, the module's own
forward runs; `applied.calls()` counts both. Our kernels are operators of torch (`sublight::rms_norm`), so a profiler
sees them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from sublight.errors import InputError
from sublight.kernels.arena.choice import ChoiceTable
from sublight.kernels.contract import Shape, Tensor
from sublight.kernels.decode import cpu as decode
from sublight.kernels.decode.shape import Shape as DecodeShape
from sublight.kernels.native import build
from sublight.kernels.norm import cpu as norm
from sublight.kernels.norm.shape import Shape as NormShape
from sublight.kernels.recognise import FORMS, Attends, Gated, Meaning, Module, Norm, doubt, meaning
from sublight.kernels.swiglu import cpu as swiglu
from sublight.kernels.swiglu.shape import Shape as SwigluShape

# Which kernel to take for an operator and a shape. Another name than ours, or None: the module's own forward.
Choice: TypeAlias = Callable[[str, Shape], str | None]
Choices: TypeAlias = Mapping[str, str] | Iterable[ChoiceTable] | Choice
OURS = "sublight"
OPERATORS: Mapping[type, str] = {Norm: "norm", Gated: "swiglu", Attends: "decode"}
SOURCES: Mapping[type, Path] = {Norm: norm.SOURCE, Gated: swiglu.SOURCE, Attends: decode.SOURCE}

LIBRARY = torch.library.Library("sublight", "DEF")
LIBRARY.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
LIBRARY.define("swiglu(Tensor gate, Tensor up) -> Tensor")
LIBRARY.define("decode(Tensor q, Tensor k, Tensor v, float? scale) -> Tensor")
LIBRARY.impl("rms_norm", norm.rms_norm, "CPU")
LIBRARY.impl("swiglu", swiglu.swiglu, "CPU")
LIBRARY.impl("decode", lambda q, k, v, scale: decode.attend(q, k, v, scale=scale), "CPU")


@dataclass(slots=True)
class Calls:
    """How often our kernel ran in a module, and how often the module's own forward (or torch's attention) did."""

    ours: int = 0
    own: int = 0


@dataclass(frozen=True, slots=True)
class Swapped:
    """A module whose forward is ours now: its path in the tree, the operator."""

    path: str
    op: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A module that looks like an operator of ours and stays as it is, and why."""

    path: str
    op: str
    why: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did."""

    swapped: tuple[Swapped, ...]
    kept: tuple[Kept, ...]
    _undo: Callable[[], None] = field(repr=False)
    _calls: Mapping[str, Calls] = field(repr=False)

    def undo(self) -> None:
        """Every module gets its own class back; a second time does nothing."""
        self._undo()

    def calls(self) -> Mapping[str, Calls]:
        """By path: how often ours ran, so far."""
        return {path: Calls(found.ours, found.own) for path, found in self._calls.items()}


def apply(model: Module, *, choices: Choices | None = None) -> Applied:
    """Swaps RMSNorm, SwiGLU and decode attention in a torch module tree for our CPU kernels, where a choice says so.

    choices: tables of the arena (`arena.choice.load`), a kernel's name by operator ("norm", "swiglu", "decode"), or a
    function of operator and shape; ours is "sublight". Asked once at each new shape; where a table has no shape near
    enough, or a faster kernel than ours, the module's own forward runs. Without choices: ours everywhere. A norm or a
    gated layer is swapped only if it returns on a probe what it looks like; attention call by call (see `_Decode`).

    Raises InputError where our kernels cannot be built, or for an operator that is not swapped.
    """
    cannot = build.refusal()
    if cannot:
        raise InputError(cannot)
    if isinstance(choices, Iterable) and not isinstance(choices, Mapping):
        choices = _from_tables({table.op: table for table in choices})
    choose = _choice(choices)
    swapped: dict[str, tuple[Module, type, Calls, str]] = {}
    kept: list[Kept] = []
    found = [(path, module, what) for path, module in model.named_modules() if (what := meaning(module)) is not None]
    for kind in {type(what) for _, _, what in found}:
        build.library(SOURCES[kind])      # now: not in the middle of a first forward, which could fail
    for path, module, what in found:
        op = OPERATORS[type(what)]
        why = _reason(module, what, choices)
        if why is None:
            calls, was = Calls(), type(module)
            why = _change(module, _subclass(was, what, calls, choose))
            if why is None:
                swapped[path] = (module, was, calls, op)
        if why is not None:
            kept.append(Kept(path, op, why))

    def undo() -> None:
        while swapped:
            _, (module, was, _, _) = swapped.popitem()
            module.__class__ = was

    return Applied(tuple(Swapped(path, op) for path, (_, _, _, op) in swapped.items()), tuple(kept), undo,
                   {path: calls for path, (_, _, calls, _) in swapped.items()})


def decode_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """Attention of one query token over a cache in one piece by our kernel; where it cannot, by torch's.

    q [batch, heads, 1, dim]; k, v [batch, kv_heads, tokens, dim], heads a multiple of kv_heads; every token is seen.
    """
    made = _decoded(q, k, v, scale=scale)
    return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True) if made is None else made


def _from_tables(tables: Mapping[str, ChoiceTable]) -> Choice:
    def choose(op: str, shape: Shape) -> str | None:
        if op not in tables:
            return None
        try:
            found = tables[op].nearest(asdict(shape)).choice
        except InputError:                # no shape near enough was measured
            return None
        return OURS if OURS in (found.kernel, *found.tied) else found.kernel

    return choose


def _choice(choices: Mapping[str, str] | Choice | None) -> Choice:
    if callable(choices):
        found: dict[tuple[str, Shape], str | None] = {}

        def choose(op: str, shape: Shape) -> str | None:
            key = (op, shape)
            if key not in found:
                found[key] = choices(op, shape)
            return found[key]

        return choose
    table = dict.fromkeys(OPERATORS.values(), OURS) if choices is None else dict(choices)
    for op in table:
        if op not in OPERATORS.values():
            near = difflib.get_close_matches(op, OPERATORS.values(), n=1)
            raise InputError(f"apply swaps {', '.join(OPERATORS.values())}, not {op!r}"
                             + (f"; did you mean {near[0]}?" if near else ""))
    return lambda op, shape: table.get(op)


def _reason(module: Module, what: Meaning, choices: Mapping[str, str] | Choice | None) -> str | None:
    """Why a module is not swapped; None: it is."""
    op = OPERATORS[type(what)]
    if isinstance(choices, Mapping) and choices.get(op) != OURS:
        return f"the choice is {choices[op]}" if op in choices else "there is no choice for it"
    if getattr(type(module), "_sublight", False):
        return "it is swapped already"
    if "forward" in vars(module):
        return "its forward was replaced on the module itself, by another library"
    return None if isinstance(what, Attends) else doubt(module, what)


def _change(module: Module, to: type) -> str | None:
    try:
        module.__class__ = to
    except TypeError as error:
        return f"its class cannot be changed: {error}"
    return None


def _subclass(was: Any, what: Meaning, calls: Calls, choose: Choice) -> type:
    """The module's class with another forward. It goes by the same name: what prints a model prints the same."""
    if isinstance(what, Attends):
        def forward(self: Module, *args: Any, **options: Any) -> Any:
            if torch.is_grad_enabled() or _watched():
                calls.own += 1
                return was.forward(self, *args, **options)
            with _Decode(calls, choose):
                return was.forward(self, *args, **options)
    else:
        compute = _norm if isinstance(what, Norm) else _gated

        def forward(self: Module, *args: Any, **options: Any) -> Any:
            made = None
            if len(args) == 1 and not options and not self.training:
                made = compute(self, what, args[0], choose)
            if made is None:
                calls.own += 1
                return was.forward(self, *args, **options)
            calls.ours += 1
            return made

    return type(was.__name__, (was,), {"forward": forward, "_sublight": True, "__module__": was.__module__,
                                       "__qualname__": was.__qualname__, "__doc__": was.__doc__})


def _norm(module: Module, what: Any, x: Any, choose: Choice) -> Tensor | None:
    weight = module.weight
    if not _takes(x, weight):
        return None
    width = weight.shape[0]
    if x.dim() < 1 or x.shape[-1] != width:
        return None
    if choose("norm", NormShape(x.numel() // width, width, form=FORMS[x.dtype])) != OURS:      # eps takes no time
        return None
    return torch.ops.sublight.rms_norm(x.contiguous(), weight.detach().contiguous(), what.epsilon(module, x.dtype))


def _gated(module: Module, what: Any, x: Any, choose: Choice) -> Tensor | None:
    """Its projections run as they are, with their hooks; what lies between them is ours."""
    if not _takes(x):
        return None
    gate, up = getattr(module, what.gate)(x), getattr(module, what.up)(x)
    rows = gate.numel() // max(1, gate.shape[-1])
    same = _takes(gate, up) and gate.shape == up.shape
    if same and choose("swiglu", SwigluShape(rows, gate.shape[-1], form=FORMS[gate.dtype])) == OURS:
        return getattr(module, what.down)(torch.ops.sublight.swiglu(gate.contiguous(), up.contiguous()))
    return None


def _takes(*tensors: Any) -> bool:
    """Plain tensors on the CPU, of one format that we have, none empty, and nobody who wants a gradient or a graph."""
    first = tensors[0]
    return (all(type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu" and x.dtype in FORMS
                and x.dtype == first.dtype and x.layout == torch.strided and x.numel() > 0 for x in tensors)
            and not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)) and not _watched())


def _watched() -> bool:
    """Whether operators are traced or changed on their way: compiled, scripted, under autocast or a transform."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu")
                or torch._C._functorch.maybe_current_level() is not None)


class _Decode(TorchFunctionMode):         # type: ignore[misc, unused-ignore]
    """While an attention module runs: its call of scaled_dot_product_attention is ours where it has one query token.

    That is the function itself and not the module, so nothing about the module is guessed: a mask that hides a token,
    dropout, or a causal mask (which torch aligns at the first key) goes to torch.
    """

    def __init__(self, calls: Calls, choose: Choice) -> None:
        super().__init__()
        self.calls, self.choose = calls, choose

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function is not scaled_dot_product_attention:
            return function(*args, **options)
        made = _decoded(*args, choose=self.choose, **options)
        if made is None:
            self.calls.own += 1
            return function(*args, **options)
        self.calls.ours += 1
        return made


def _decoded(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
             is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
             *, choose: Choice | None = None) -> Tensor | None:
    """What scaled_dot_product_attention returns for these arguments, by our kernel; None: it does not take them."""
    if not _takes(query, key, value) or query.dim() != 4 or query.shape[2] != 1 or dropout_p or is_causal:
        return None
    (batch, heads, _, dim), kv_heads, tokens = query.shape, key.shape[1], key.shape[2]
    if key.shape != value.shape or key.shape[0] != batch or key.shape[3] != dim or heads % kv_heads:
        return None
    if (heads != kv_heads and choose is not None and not enable_gqa) or key.stride() != value.stride():
        return None
    if key.stride(3) != 1 or (scale is not None and not math.isfinite(scale)):
        return None
    if attn_mask is not None and not _shows_all(attn_mask, query, tokens):
        return None
    shape = DecodeShape(batch, tokens, heads, kv_heads, dim, form=FORMS[query.dtype])
    if decode.refuses(shape) or (choose is not None and choose("decode", shape) != OURS):
        return None
    return torch.ops.sublight.decode(query.contiguous(), key, value, scale)


def _shows_all(mask: Tensor, query: Tensor, tokens: int) -> bool:
    """A mask that torch would take (another one is its error to raise) and that hides or weighs no token."""
    sizes = (*query.shape[:3], tokens)
    if not 2 <= mask.dim() <= 4 or any(a not in (1, b) for a, b in zip(mask.shape[::-1], sizes[::-1], strict=False)):
        return False
    if mask.dtype == torch.bool:
        return bool(mask.all())
    return mask.dtype in (query.dtype, torch.float32) and not bool(mask.any())
