"""This file knows about reading a run: one path or several, one rank or several, in any format that we read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from sublight.errors import InputError
from sublight.observe.kineto import read_kineto
from sublight.observe.nsys import read_nsys, refuse_report
from sublight.observe.nsys_tables import is_sqlite
from sublight.observe.source import URLS, Damage, label, open_bytes
from sublight.trace import Trace, merge

Progress = Callable[[str, int], None]
TRACE_SIGNS = (b'"traceEvents"', b'"deviceProperties"', b'"ph"')
FEW = 3                                  # files of a folder that tell what it holds
TRACE_FILE = re.compile(r"^[^.].*\.(json(\.(gz|zst))?|zip|sqlite)$")


def read(path: str | Path) -> Trace:
    """One trace file as a Trace. Raises InputError (expected, got, where, what to do)."""
    traces = read_all([path])
    if len(traces) > 1:
        raise InputError(f"{label(str(path))} holds {len(traces)} ranks, expected one; read_all([path]) gives them all")
    return traces[0]


def read_all(paths: Sequence[str | Path], *, progress: Progress | None = None) -> tuple[Trace, ...]:
    """Traces of one run, one a rank, in rank order. Files that name the same rank in their metadata are one rank
    that was written in pieces; a file without a rank counts as a rank of its own.

    A folder stands for the traces in it. `progress` is called with a file's name and the text bytes read of it so far.
    """
    if not paths:
        raise InputError("no trace given; expected files, - for standard input, or http(s) URLs")
    names = [name for path in paths for name in _files(str(path))]
    if names.count("-") > 1:
        raise InputError("standard input can be read only once")
    read_so_far = [trace for name in names
                   for trace in _read_one(name, partial(progress, name) if progress else None)]
    ranks: dict[object, list[Trace]] = {}
    for ordinal, trace in enumerate(read_so_far):
        key: object = trace.rank if trace.rank_source == "metadata" else ("file", ordinal)
        ranks.setdefault(key, []).append(trace)
    merged = [_one(parts) for parts in ranks.values()]
    if len(merged) > 1:
        merged = _in_order(merged)
    return tuple(sorted(merged, key=lambda t: (t.rank is None, t.rank or 0)))


def holds_traces(path: str) -> bool:
    """Is this a trace, or a folder of them, as far as its beginning tells? What cannot be opened, standard input and
    URLs count as traces: reading them says more."""
    if path == "-" or path.startswith(URLS) or not Path(path).exists():
        return True
    if Path(path).is_dir():
        files = sorted(f for f in Path(path).iterdir() if f.is_file() and not f.name.startswith("."))
        return not files or any(holds_traces(str(f)) for f in files[:FEW])
    if is_sqlite(path) or Path(path).suffix in (".nsys-rep", ".qdrep"):
        return True
    try:
        head = next(iter(open_bytes(path, Damage())), b"")
    except InputError:
        return True
    return any(sign in head for sign in TRACE_SIGNS)


def _read_one(name: str, progress: Callable[[int], None] | None) -> tuple[Trace, ...]:
    """The traces of one file, told by its first bytes: an Nsight Systems export may hold several ranks."""
    refuse_report(name)
    return read_nsys(name, progress=progress) if is_sqlite(name) else (read_kineto(name, progress=progress),)


def _files(name: str) -> list[str]:
    """A path as it is; a folder as the traces that lie in it, rank 2 before rank 10. Raises InputError if none does."""
    if name == "-" or name.startswith(URLS) or not Path(name).is_dir():
        return [name]
    found = [str(f) for f in Path(name).iterdir() if f.is_file() and TRACE_FILE.search(f.name)]
    if not found:
        for report in sorted(Path(name).glob("*.nsys-rep")):
            refuse_report(str(report))
        raise InputError(f"{label(name)} is a folder without traces; expected files ending in .json, .json.gz, "
                         ".json.zst, .zip or .sqlite")
    return sorted(found, key=lambda f: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", f)])


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
