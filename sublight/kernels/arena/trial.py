"""This file knows about one call of a kernel under watch: what goes in, what must not be touched, what came out.

    ready    outputs poisoned, caches brought to their state; the process must have been idle until now
    call     timed here and there
    look     (some calls, drawn at random, which the process cannot tell from others) the outputs are read at once and
             again later, inputs must be what they were, outputs plain tensors; then they are judged
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from sublight.kernels.arena.outcome import CHEATED, PASSED, REFUSED, WRONG, Ended, Outcome, of_error
from sublight.kernels.arena.process import Arena, Call, KernelProcess
from sublight.kernels.arena.region import CONSTANT, INPUT, OUTPUT, Region, laid_out
from sublight.kernels.contract import Case, Contract, Spec, Tensor, Tensors

IDLE_NS = 250_000                        # of CPU time that a waiting process may use: the way back into its read()
LEAST_SETTLE, MOST_SETTLE = 0.002, 0.02  # seconds between two looks at outputs
STRUCTURE = ("int32", "int64")           # indices, lengths, tables: values that cannot be exchanged for one another
ALL_EXCHANGED = 1 << 18                  # so many elements at most can all get another one's value
LEAST_EXCHANGED, EXCHANGED = 64, 64      # else so many at least, or one in so many


@dataclass(frozen=True, slots=True)
class Setup:
    """A case with its tensors, ours and those of the region. Errors of the exact result are computed when asked for."""

    contract: Contract
    case: Case
    inputs: dict[str, Tensor]            # ours: what the region must hold
    region: Region

    @property
    def in_place(self) -> dict[str, Tensor]:
        return {name: self.inputs[name] for name in self.contract.outputs(self.case.shape) if name in self.inputs}


@dataclass(frozen=True, slots=True)
class Exact:
    """What a case's outputs ought to be, and what an honest implementation makes of them."""

    reference: Tensors
    honest: Tensors


@dataclass(frozen=True, slots=True)
class Look:
    """A call; which rules it broke; its outputs, where it was looked at and broke none."""

    call: Call
    broken: tuple[str, ...]
    outputs: Tensors | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """How a trial ended, and the errors of its outputs (policy.Errors), where there are some."""

    outcome: Outcome
    errors: tuple[Any, ...] = ()


def set_up(arena: Arena, contract: Contract, case: Case) -> Setup:
    """Make the inputs of a case and lay them out in the arena's memory."""
    from sublight.kernels.rounding import DTYPES

    forms = {dtype: form for form, dtype in DTYPES.items()}
    inputs = dict(contract.inputs(case))
    rows = [(name, CONSTANT if name in contract.constant else INPUT, Spec(tuple(tensor.shape), forms[tensor.dtype]))
            for name, tensor in inputs.items()]
    rows += [(name, OUTPUT, spec) for name, spec in contract.outputs(case.shape).items()]
    setup = Setup(contract, case, inputs, Region(arena.memory, *laid_out(rows)))
    restore(setup)
    return setup


def restore(setup: Setup) -> None:
    """Write all inputs again."""
    for buffer in setup.region.of(INPUT, CONSTANT):
        setup.region.write(buffer, setup.inputs[buffer.name])


def begin(process: KernelProcess, setup: Setup, *, device: str | None = None, evict_bytes: int = 0) -> Outcome:
    """Let the process build the kernel for a case; REFUSED, with the reason, where it cannot."""
    refused = process.shape(setup.case.shape, setup.region, device=device, evict_bytes=evict_bytes)
    if refused is not None:
        return Outcome(REFUSED, (refused,))
    process.build()
    return Outcome()


def change_inputs(setup: Setup, random: np.random.Generator, *, whole: bool = False) -> None:
    """Exchange values of elements within each input that is not constant, so that no call sees what another saw: few of
    them, which a kernel misses that looks at a sample, or (whole) all of them, where they are not too many: a kernel
    that adds what changed to its last result gains nothing.

    The multiset of values stays as the contract made it. Elements that are not finite stay where they are: they mark
    what must not be read. Indices stay.
    """
    import torch

    for buffer in setup.region.of(INPUT):
        tensor = setup.inputs[buffer.name]
        if buffer.form in STRUCTURE or tensor.numel() < 2:
            continue
        at = torch.from_numpy(_distinct(tensor.numel(), random, whole=whole))
        bits = tensor.view(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
        values = bits[at]
        kept = values.view(tensor.dtype).float().isfinite()
        at, values = at[kept], values[kept]
        bits[at] = values.roll(int(random.integers(1, max(2, len(values)))))
        setup.region.write(buffer, tensor)


def _distinct(size: int, random: np.random.Generator, *, whole: bool) -> np.ndarray:
    """Some of the places of a tensor, each once: steps that have no factor in common with its size."""
    count = min(size, max(ALL_EXCHANGED if whole else LEAST_EXCHANGED, size // EXCHANGED))
    step = next(step for step in iter(lambda: int(random.integers(1, size)), None) if gcd(step, size) == 1)
    return np.asarray((int(random.integers(size)) + step * np.arange(count, dtype=np.int64)) % size)


def watched(process: KernelProcess, setup: Setup, *, cache: str | None = None, look: bool = True) -> Look:
    """Call the kernel once. Raises Ended where its process ends, or the kernel raises."""
    region = setup.region
    idle = process.idle_ns()
    region.poison(setup.in_place)
    marks = {buffer: region.fingerprint(buffer) for buffer in region.of(INPUT, CONSTANT)} if look else {}
    process.ready(cache)
    call = process.call()
    broken = [*_worked(idle, "before it was called"), *region.touched_guards()]
    if call.error is not None:
        raise Ended(of_error(call.error))
    if not look:
        return Look(call, tuple(broken))
    broken += _settled(process, region, call)
    touched = [buffer.name for buffer, mark in marks.items() if region.fingerprint(buffer) != mark]
    if touched:
        broken.append(f"wrote on its input {', '.join(touched)}")
        restore(setup)
    broken += region.touched_guards()
    if others := process.others():
        broken.append(f"has {others} other processes running")
    return Look(call, tuple(dict.fromkeys(broken)), None if broken else region.copies(OUTPUT))


def _settled(process: KernelProcess, region: Region, call: Call) -> list[str]:
    """Read the outputs at once and later; the process must be idle in between."""
    outputs, wait = region.of(OUTPUT), min(max(call.wall_ns / 1e9, LEAST_SETTLE), MOST_SETTLE)
    at_once = [region.raw(buffer) for buffer in outputs]
    time.sleep(wait)
    broken = _worked(process.idle_ns(), "after its call had returned")
    direct = [region.raw(buffer) for buffer in outputs]
    broken += process.fetch()
    fetched = [region.raw(buffer) for buffer in outputs]
    time.sleep(wait)
    broken += _worked(process.idle_ns(), "after its call had returned")
    process.fetch()
    late = [region.raw(buffer) for buffer in outputs]
    if at_once != direct or fetched != late:
        broken.append("its outputs changed after its call had returned")
    return broken


def _worked(ns: int | None, when: str) -> list[str]:
    return [f"worked for {ns / 1e6:.1f} ms {when}"] if ns is not None and ns > IDLE_NS else []


def exact(setup: Setup) -> Exact:
    """The float64 reference and the honest implementation, of the inputs as they are now."""
    shape = setup.case.shape
    return Exact(setup.contract.reference(shape, setup.inputs), setup.contract.honest(shape, setup.inputs))


def judged(setup: Setup, look: Look, right: Exact) -> Judged:
    """Judge a call that was looked at."""
    from sublight.kernels.policy import judge

    if look.outputs is None:
        return Judged(Outcome(CHEATED, look.broken))
    found = judge(setup.contract, setup.case, setup.inputs, look.outputs, exact=right.reference, honest=right.honest)
    if empty := [name for name, made in look.outputs.items() if _unwritten(made, right.reference.get(name))]:
        return Judged(Outcome(WRONG, (f"all of {', '.join(empty)} is not finite, as before the call: a kernel fills "
                                      "outputs[…], and what it returns is not taken",)), found.errors)
    return Judged(Outcome(PASSED if found.ok else WRONG, found.wrong), found.errors)


def _unwritten(made: Tensor, exact: Tensor | None) -> bool:
    """Whether it is still all NaN, as it was before the call, and ought not to be."""
    return bool(made.is_floating_point() and exact is not None and made.numel() and made.float().isnan().all()
                and not exact.isnan().all())


def reseeded(case: Case, seed: int) -> Case:
    """The case with other values of the same kind: nobody knows them beforehand."""
    return replace(case, seed=case.seed + seed)


def shown(case: Case) -> Mapping[str, Any]:
    """A case as JSON has it."""
    from dataclasses import asdict

    return {"shape": asdict(case.shape), "values": case.values, "seed": case.seed}
