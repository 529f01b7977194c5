"""This file knows about a prediction beside what NCCL logged: which graphs, lines and choices agree, and which not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sublight.comm.nccl.choice import Model, choose
from sublight.comm.nccl.graph import PATH_CLASSES, PATTERNS
from sublight.comm.nccl.tuning import Key
from sublight.errors import InputError

PATTERN_OF = {"ring": (4,), "tree": (1, 2, 3), "nvls": (5,), "collnet direct": (6,)}


@dataclass(frozen=True, slots=True)
class Compared:
    """One fact, as predicted and as logged."""

    what: str
    predicted: str
    logged: str

    @property
    def same(self) -> bool:
        return self.predicted == self.logged


def graphs_beside(model: Model, logged: Iterable[tuple[int, int, float, float, str, str]]) -> tuple[Compared, ...]:
    """Graphs of a log (pattern, channels, rates inside and across, path classes) beside those of the model."""
    found, taken = [], set()
    for pattern, channels, intra, inter, inside, across in logged:
        name = next((n for n, patterns in PATTERN_OF.items() if pattern in patterns and n not in taken), None)
        if name is None:
            continue
        taken.add(name)
        graph = model.searched.graphs.get(name)
        ours = "none" if graph is None or graph.channels == 0 else _graph(
            graph.pattern, graph.channels, graph.bw_intra, graph.bw_inter, PATH_CLASSES[graph.type_intra],
            PATH_CLASSES[graph.type_inter])
        theirs = _graph(pattern, channels, intra, inter, inside, across) if channels else "none"
        found.append(Compared(f"graph {name}", ours, theirs))
    return tuple(found)


def _graph(pattern: int, channels: int, intra: float, inter: float, inside: str, across: str) -> str:
    return f"{PATTERNS.get(pattern, pattern)}, {channels} x {intra:g}/{inter:g} GB/s, {inside}/{across}"


def channels_beside(model: Model, channels: int | None, nvls_channels: int | None) -> tuple[Compared, ...]:
    """The channels of the communicator."""
    rows = (("channels", model.comm.channels, channels), ("NVLS channels", model.comm.nvls_channels, nvls_channels))
    return tuple(Compared(what, str(ours), str(theirs)) for what, ours, theirs in rows if theirs is not None)


def table_beside(model: Model, logged: Mapping[Key, tuple[float, float]]) -> tuple[Compared, ...]:
    """Lines of the table in the digits that NCCL prints; lines that are off in both are left out."""
    found = []
    for key, (latency, bandwidth) in logged.items():
        line = model.lines.get(key)
        on = line is not None and not line.off
        if not on and bandwidth == 0:
            continue
        ours = f"{line.latency_us:.1f} / {line.bandwidth:.1f}" if line is not None and on else "off"
        theirs = f"{latency:.1f} / {bandwidth:.1f}" if bandwidth else "off"
        found.append(Compared(f"{key[0]} {key[1]}/{key[2]}", ours, theirs))
    return tuple(found)


def choices_beside(
    model: Model, logged: Iterable[tuple[str, int, str, str]], *, dtype: str, op: str,
) -> tuple[Compared, ...]:
    """Choices of a log (function, bytes, algorithm, protocol) beside those of the model, in order of size."""
    found = []
    for function, nbytes, algorithm, protocol in sorted(logged):
        try:
            ours = choose(model, function, nbytes, dtype=dtype, op=op).best.name
        except InputError:
            ours = "none"
        found.append(Compared(f"{function} {nbytes:,} B", ours, f"{algorithm}/{protocol}"))
    return tuple(found)
