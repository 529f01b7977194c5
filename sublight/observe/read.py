"""This file knows about reading a run: one path or several, one rank or several, in any format that we read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from sublight.errors import InputError
from sublight.observe.kineto import read_kineto
from sublight.trace import Trace, merge

Progress = Callable[[str, int], None]


def read(path: str | Path) -> Trace:
    """One trace file as a Trace. Raises InputError (expected, got, where, what to do)."""
    return read_all([path])[0]


def read_all(paths: Sequence[str | Path], *, progress: Progress | None = None) -> tuple[Trace, ...]:
    """Traces of one run, one a rank, in rank order. Files that name the same rank in their metadata are one rank
    that was written in pieces; a file without a rank counts as a rank of its own.

    `progress` is called with a file's name and the text bytes read of it so far.
    """
    if not paths:
        raise InputError("no trace given; expected files, - for standard input, or http(s) URLs")
    names = [str(p) for p in paths]
    if names.count("-") > 1:
        raise InputError("standard input can be read only once")
    read_so_far = [
        read_kineto(name, progress=partial(progress, name) if progress else None) for name in names
    ]
    ranks: dict[object, list[Trace]] = {}
    for ordinal, trace in enumerate(read_so_far):
        key: object = trace.rank if trace.rank_source == "metadata" else ("file", ordinal)
        ranks.setdefault(key, []).append(trace)
    merged = [_one(parts) for parts in ranks.values()]
    if len(merged) > 1:
        merged = _in_order(merged)
    return tuple(sorted(merged, key=lambda t: (t.rank is None, t.rank or 0)))


def _in_order(traces: list[Trace]) -> list[Trace]:
    """Ranks for the traces of a run that say none: the free numbers, in the order in which the files were named."""
    taken = {trace.rank for trace in traces}
    free = (number for number in count() if number not in taken)
    return [trace if trace.rank is not None else replace(trace, rank=next(free)) for trace in traces]


def _one(parts: list[Trace]) -> Trace:
    trace = merge(parts)
    worlds = sorted({part.world_size for part in parts if part.world_size})
    if len(worlds) > 1:
        files = ", ".join(trace.quality.files)
        raise InputError(f"{files} all say rank {trace.rank}, but of runs with {worlds[0]} and {worlds[-1]} ranks; "
                         "name the files of one run")
    if len(parts) > 1:
        note = f"{len(parts)} files say that they are rank {trace.rank}; read as one rank written in pieces"
        trace = replace(trace, quality=replace(trace.quality, notes=(*trace.quality.notes, note)))
    return trace
