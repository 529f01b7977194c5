"""Shapes of an operator: as they are named, or those of a trace, of a model's step, or of workloads of others."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.kernels.contract import Contract
    from sublight.ops.op import Op
    from sublight.trace import Trace

SOURCES = ("shape", "from_trace", "from_model", "from_workloads")
MOST_NAMED = 5                           # operators without a contract that are named
GROWS, ALIKE = "kv_length", 1.05         # a cache grows by a token a step: lengths so near each other are taken as one


@dataclass(frozen=True, slots=True)
class Weighed:
    """A shape, and its share of what was asked: of the time of a trace, of a model's calls; None where it was named."""

    shape: Any
    share: float | None = None
    calls: int | None = None             # in a trace
    call_seconds: float | None = None    # of one of them there, in the mean


def asked(options: argparse.Namespace, contract: Contract) -> tuple[Weighed, ...]:
    """The shapes that the options ask for, the heaviest first. Raises InputError for none or several sources."""
    named = [name for name in SOURCES if getattr(options, name)]
    if len(named) != 1:
        got = " and ".join(f"--{name.replace('_', '-')}" for name in named) or "none"
        raise InputError(f"expected one of --shape, --from-trace, --from-model, --from-workloads; got {got}")
    if options.shape:
        from sublight.kernels.arena.sizes import parsed

        return tuple(Weighed(parsed(contract, text)) for text in options.shape)
    if options.from_workloads:
        return _of_workloads(options, contract)
    weighed = list(_of_trace(options.from_trace) if options.from_trace else _of_model(options))
    return of_calls(weighed, contract, options.top, "time" if options.from_trace else "calls")


def of_calls(weighed: Iterable[tuple[str, Op | None, float]], contract: Contract, top: int, unit: str,
            ) -> tuple[Weighed, ...]:
    """Shapes of what the contract covers; the rest is said."""
    shapes: dict[Any, list[float]] = {}
    rest: dict[str, float] = {}
    total = 0.0
    shape_of, of_another = cache(contract.shape_of), cache(partial(_of_another, contract=contract))
    for name, op, weight in weighed:                     # a trace asks for few operators, many times
        total += weight
        shape = shape_of(op) if op is not None else None
        if shape is not None and contract.refusal(shape) is None:
            shapes.setdefault(shape, []).append(weight)
        elif not of_another(op):
            rest[name] = rest.get(name, 0.0) + weight
    if rest and total:
        _say_rest(rest, total, unit)
    if not shapes:
        raise InputError(f"nothing in it is an operator of the contract {contract.name}")
    shapes = _grown(shapes)
    order = sorted(shapes, key=lambda shape: -sum(shapes[shape]))
    if len(order) > top:
        left = sum(sum(shapes[shape]) for shape in order[top:]) / total
        print(f"sublight: {len(order) - top} more shapes, {left:.1%} of the {unit}; --top {len(order)} takes all",
              file=sys.stderr)
    return tuple(_weighed(shape, shapes[shape], total, unit) for shape in order[:top])


def _weighed(shape: Any, weights: list[float], total: float, unit: str) -> Weighed:
    if unit != "time":
        return Weighed(shape, sum(weights) / total)
    return Weighed(shape, sum(weights) / total, len(weights), sum(weights) / len(weights) / 1e9)


def _grown(shapes: dict[Any, list[float]]) -> dict[Any, list[float]]:
    """Shapes that differ in the length of a cache alone, and little, as one: the longest."""
    out: dict[Any, list[float]] = {}
    for shape in sorted(shapes, key=lambda shape: -getattr(shape, GROWS, 0)):
        longer = next((other for other in out if hasattr(shape, GROWS)
                       and replace(shape, **{GROWS: getattr(other, GROWS)}) == other
                       and getattr(other, GROWS) <= ALIKE * getattr(shape, GROWS)), shape)
        out.setdefault(longer, []).extend(shapes[shape])
    return out


def _of_another(op: Op | None, contract: Contract) -> bool:
    """Has another contract a shape for it?"""
    from sublight.kernels import listed

    if op is None:
        return False
    others = (listed.contract(name) for name in listed.OPERATORS if name != contract.name)
    return any(other.shape_of(op) is not None for other in others)


def _say_rest(rest: dict[str, float], total: float, unit: str) -> None:
    order = sorted(rest, key=lambda name: -rest[name])
    named = ", ".join(f"{name} {rest[name] / total:.1%}" for name in order[:MOST_NAMED])
    more = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
    print(f"sublight: no contract for {sum(rest.values()) / total:.1%} of the {unit}: {named}{more}", file=sys.stderr)


def _of_trace(path: str) -> Iterator[tuple[str, Op | None, float]]:
    """Name, operator and nanoseconds of every operator call. A call of several operators gives each an equal part."""
    from sublight.cli import output
    from sublight.observe.read import read_all

    with output.progress() as report:
        traces = read_all([path], progress=report)
    for trace in traces:
        for name, ops, ns in _device_calls(trace) if len(trace.activities.ts_ns) else _host_calls(trace):
            for op in ops or (None,):
                yield name, op, ns / max(1, len(ops))


def _device_calls(trace: Trace) -> Iterator[tuple[str, tuple[Op, ...], float]]:
    from sublight.explain.calls import op_calls
    from sublight.explain.links import link

    took = trace.activities.dur_ns
    for call in op_calls(trace, link(trace)).calls:
        yield call.name, call.ops, float(took[list(call.activities)].sum())


def _host_calls(trace: Trace) -> Iterator[tuple[str, tuple[Op, ...], float]]:
    """Of a recording without a device: the outermost operators that a rule knows, with their time on their thread."""
    from sublight.ops.context import Context
    from sublight.ops.from_call import ops_of_call

    o = trace.ops
    within: dict[int, int] = {}                  # until when the last known operator of a thread runs
    rows = zip(o.ts_ns.tolist(), o.dur_ns.tolist(), o.name.tolist(), o.thread.tolist(), o.args.tolist(), strict=True)
    for start, took, name, thread, args in rows:
        if start < within.get(thread, start):
            continue
        ops = ops_of_call(trace.names[name], trace.op_args[args], context=Context()) if args >= 0 else None
        if ops:
            within[thread] = start + took
            yield trace.names[name], ops, float(took)


def _of_model(options: argparse.Namespace) -> Iterator[tuple[str, Op | None, float]]:
    """Name, operator and count of every operator of one rank in one step."""
    from sublight.models import ops
    from sublight.models.read import find

    phase = options.phase or "decode"
    if phase == "prefill" and options.tokens is None:
        raise InputError("--from-model with --phase prefill: expected --tokens N, new tokens of each sequence")
    model = find(options.from_model)
    for label, op, count in ops(model, phase=phase, tokens=options.tokens, context=options.context,
                                batch=options.batch, tp=options.tp):
        yield label, op, float(count)


def _of_workloads(options: argparse.Namespace, contract: Contract) -> tuple[Weighed, ...]:
    from sublight.kernels.arena.definitions import read_definition, read_workloads, shape_of_workload

    if not options.definition:
        raise InputError("--from-workloads: expected --definition FILE.json, which says what their axes mean")
    definition = read_definition(Path(options.definition))
    found = [shape_of_workload(contract, definition, workload) for workload in read_workloads(
        Path(options.from_workloads), definition)]
    return tuple(Weighed(shape) for shape in dict.fromkeys(found))[: options.top]
