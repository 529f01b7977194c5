"""This file knows about how the figures of a kernel come from its code: resources, occupancy, mix, loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from sublight.errors import InputError
from sublight.kernels.inspect import ptx
from sublight.kernels.inspect.binding import LoopVerdict, unlisted, verdicts
from sublight.kernels.inspect.code import Function, Launch, Unit
from sublight.kernels.inspect.figures import Figures, LoopFigures
from sublight.kernels.inspect.loops import loops_in
from sublight.kernels.inspect.mix import mix_of
from sublight.kernels.inspect.occupancy import Occupancy, occupancy, warps_of

TENSOR_COLUMNS = 512             # of an SM, sm_100 (PTX ISA, tensor memory)
NO_WARPS = "occupancy needs the warps of a block, which this code does not say: --warps N"


def figures(unit: Unit, function: Function, asked: Launch | None = None) -> Figures:
    """What there is to say of one function. asked: what the user says of the launch, for what the code does not say."""
    launch = _launch(unit.launch, function, asked or Launch())
    bare = Figures(function.name, function.arch, unit.kind, unit.source, unit.producer, warps=launch.warps,
                   dynamic_shared=launch.dynamic_shared, cluster=launch.cluster,
                   notes=(function.missing,) if function.missing else ())
    if unit.kind == "ptx":
        return _of_ptx(bare, unit, function)
    return _with_loops(_with_resources(bare, function), function, launch)


def _launch(said: Launch, function: Function, asked: Launch) -> Launch:
    """The code's own word first: it is the one that runs."""
    warps = warps_of(function.resources, said)
    need = function.resources
    dynamic = asked.dynamic_shared if said.dynamic_shared is None else said.dynamic_shared
    if dynamic is None and need is not None and not need.uses_shared:
        dynamic = 0
    cluster = said.cluster if need is None or need.cluster is None else need.cluster
    return Launch(asked.warps if warps is None else warps, dynamic, cluster, said.blocks, said.tensor_columns)


def _of_ptx(bare: Figures, unit: Unit, function: Function) -> Figures:
    """Virtual registers say nothing: what PTX declares of threads and shared memory, and its kinds of instructions."""
    kernel = next((one for one in ptx.declared(unit.text) if one.name == function.name), None)
    if kernel is None:
        return bare
    threads = kernel.required_threads
    kinds = ", ".join(f"{count} {name}" for name, count in kernel.kinds)
    virtual = ", ".join(f"{count} {name}" for name, count in kernel.virtual)
    notes = (*bare.notes, f"virtual registers: {virtual or 'none'}", *((f"uses {kinds}",) if kinds else ()))
    return replace(bare, warps=bare.warps or (-(-threads // 32) if threads else None), shared=kernel.shared,
                   cluster=bare.cluster or kernel.cluster, notes=notes)


def _with_resources(bare: Figures, function: Function) -> Figures:
    need = function.resources
    if need is None:
        return bare
    out = replace(bare, registers=need.registers, stack=need.stack, shared=need.shared, reserved=need.reserved,
                  constant=need.constant, barriers=need.barriers)
    fit, why = _occupancy(out, function)
    return replace(out, occupancy=fit, notes=(*out.notes, *why))


def _occupancy(bare: Figures, function: Function) -> tuple[Occupancy | None, tuple[str, ...]]:
    """The occupancy, and what it takes for granted or why there is none."""
    assert function.resources is not None
    if bare.warps is None:
        most = function.resources.max_threads
        return None, (NO_WARPS + (f" (at most {-(-most // 32)})" if most else ""),)
    try:
        fit = occupancy(function.arch, function.resources, warps=bare.warps, dynamic_shared=bare.dynamic_shared or 0)
    except InputError as error:
        return None, (f"occupancy: {error}",)
    if bare.dynamic_shared is None:
        return fit, ("dynamic shared memory is not in this file and is taken as none: --dynamic-shared BYTES",)
    return fit, ()


def _with_loops(bare: Figures, function: Function, launch: Launch) -> Figures:
    if not function.instructions:
        return bare
    mix = mix_of(function)
    tensor: Counter[str] = Counter()
    for use in mix.tensor:
        tensor[use.kind.title] += use.count
    loads = tuple((row.opcode, row.count) for row in mix.loads)
    arrays = mix.array_loads + mix.array_stores
    notes = [*bare.notes]
    if arrays:
        notes.append(f"{arrays} accesses of arrays on the stack, at computed addresses: no spills")
    notes += _tensor_memory(function, launch)
    found = loops_in(function)
    missed = unlisted(function, found)
    notes += missed.notes
    if missed.unplaced and missed.unplaced not in notes:
        notes.append(f"{missed.unplaced}: how many spills are in loops is not known")
    if mix.unknown:
        notes.append(f"opcodes that are not known here: {', '.join(mix.unknown)}")
    return replace(
        bare, instructions=mix.count, mix=mix.pipes, tensor=tuple(tensor.items()), loads=loads,
        fallbacks=tuple(dict.fromkeys(use.deserves for use in mix.tensor if use.deserves)),
        spill_loads=mix.spill_loads, spill_stores=mix.spill_stores, unplaced=missed.unplaced, notes=tuple(notes),
        loops=tuple(_loop(verdict) for verdict in verdicts(function, launch, found)))


def _tensor_memory(function: Function, launch: Launch) -> tuple[str, ...]:
    """Blocks beyond what tensor memory holds are resident, but wait in tcgen05.alloc: no limit of occupancy."""
    if not any(one.name.startswith("UTC") and one.name.endswith("MMA") for one in function.instructions):
        return ()
    if not launch.tensor_columns:
        return (f"tensor memory ({TENSOR_COLUMNS} columns an SM) is given out while it runs and is not counted",)
    return (f"tensor memory: {launch.tensor_columns} of {TENSOR_COLUMNS} columns a block; at most "
            f"{TENSOR_COLUMNS // launch.tensor_columns} blocks of an SM have it at once",)


def _loop(verdict: LoopVerdict) -> LoopFigures:
    place: Any = verdict.lines
    line = None if place is None else f"{place[0]}:{place[1]}" + (f"-{place[2]}" if place[2] != place[1] else "")
    assumed = f"{verdict.warps} warps, {verdict.warps_from}" if verdict.warps_from.startswith("assumed") else ""
    notes = (*((assumed,) if assumed else ()), *verdict.refused, *verdict.notes)
    return LoopFigures(
        verdict.start, verdict.end, verdict.depth, verdict.instructions, verdict.hot, verdict.binds,
        verdict.tensor_limit, verdict.clocks, tuple(use.kind.title for use in verdict.mix.tensor),
        verdict.spill_loads, verdict.spill_stores, line, verdict.sometimes, notes)
