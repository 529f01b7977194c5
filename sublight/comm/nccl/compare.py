"""This file knows about what differs between two models of NCCL: graphs, table, and the choice per size."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.comm.nccl.choice import Model, switches, times
from sublight.comm.nccl.graph import PATH_CLASSES, PATTERNS, Graph


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that is not the same: what, here, there."""

    what: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A range of sizes where the choice differs; times are at its first byte, in microseconds."""

    function: str
    first: int
    last: int
    here: tuple[str, str]
    there: tuple[str, str]
    here_us: float
    there_us: float


def graphs_differ(here: Model, there: Model) -> tuple[Difference, ...]:
    """What differs in the graphs, the channels, and the facts of the communicator."""
    found = []
    for name in dict.fromkeys([*here.searched.graphs, *there.searched.graphs]):
        one, two = here.searched.graphs.get(name), there.searched.graphs.get(name)
        found += [Difference(f"{name}: {what}", a, b) for (what, a), (_, b) in
                  zip(graph_facts(one), graph_facts(two), strict=True) if a != b]
    for what, a, b in (("nodes", here.comm.nodes, there.comm.nodes), ("GPUs a node", here.comm.local_ranks,
                       there.comm.local_ranks), ("channels", here.comm.channels, there.comm.channels),
                       ("NVLS channels", here.comm.nvls_channels, there.comm.nvls_channels)):
        if a != b:
            found.append(Difference(what, str(a), str(b)))
    return tuple(found)


def graph_facts(graph: Graph | None) -> tuple[tuple[str, str], ...]:
    """A graph as names and values; dashes where there is none."""
    if graph is None or graph.channels == 0:
        return tuple((what, "-") for what in ("pattern", "channels", "GB/s inside", "GB/s across", "path inside",
                                              "path across"))
    return (("pattern", PATTERNS[graph.pattern]), ("channels", str(graph.channels)),
            ("GB/s inside", f"{graph.bw_intra:g}"), ("GB/s across", f"{graph.bw_inter:g}"),
            ("path inside", PATH_CLASSES[graph.type_intra]), ("path across", PATH_CLASSES[graph.type_inter]))


def lines_differ(here: Model, there: Model, functions: tuple[str, ...]) -> tuple[Difference, ...]:
    """Lines of the table that differ in the printed digits, or are off in one."""
    found = []
    for key in dict.fromkeys([*here.lines, *there.lines]):
        if key[0] not in functions:
            continue
        one, two = (_cell(model, key) for model in (here, there))
        if one != two:
            found.append(Difference(f"{key[0]} {key[1]}/{key[2]}", one, two))
    return tuple(found)


def _cell(model: Model, key: tuple[str, str, str]) -> str:
    line = model.lines.get(key)
    return "off" if line is None or line.off else f"{line.latency_us:.1f} µs, {line.bandwidth:.1f} GB/s"


def choices_differ(
    here: Model, there: Model, function: str, *, low: int = 1, high: int = 1 << 33, dtype: str = "fp16",
    op: str = "sum",
) -> tuple[Changed, ...]:
    """Every range of sizes in which the two choose differently, exact to the byte."""
    import numpy as np

    starts = {low}
    tables = []
    for model in (here, there):
        tables.append(switches(model, function, low=low, high=high, dtype=dtype, op=op))
        starts |= {switch.nbytes for switch in tables[-1]}
    firsts = sorted(starts)
    sizes = np.array(firsts, np.int64)
    costs = [times(model, function, sizes, dtype=dtype, op=op) for model in (here, there)]
    found: list[Changed] = []
    for place, first in enumerate(firsts):
        last = firsts[place + 1] - 1 if place + 1 < len(firsts) else high
        one, two = (min(cost, key=lambda name, cost=cost: float(cost[name][place])) for cost in costs)  # type: ignore[misc]
        if one == two:
            continue
        if found and found[-1].last == first - 1 and (found[-1].here, found[-1].there) == (one, two):
            found[-1] = Changed(function, found[-1].first, last, one, two, found[-1].here_us, found[-1].there_us)
        else:
            found.append(Changed(function, first, last, one, two, float(costs[0][one][place]),
                                 float(costs[1][two][place])))
    return tuple(found)
