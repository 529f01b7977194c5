"""This file knows about measured against expected: for each test and size, what runs took and what the hardware
should."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from sublight.comm.bus import bus_bytes
from sublight.comm.doctor.view import View
from sublight.comm.expected import Expected
from sublight.work import Message


@dataclass(frozen=True, slots=True)
class Row:
    nbytes: int
    runs: int
    fastest_seconds: float
    median_seconds: float
    slowest_seconds: float
    median_bus: float | None
    expected: Expected


@dataclass(frozen=True, slots=True)
class Against:
    """One test over its sizes. runs: groups of hosts that ran it."""

    collective: str
    nodes: int
    gpus_per_node: int
    hosts: tuple[str, ...]
    runs: int
    rows: tuple[Row, ...]


def against_expected(view: View) -> tuple[Against, ...]:
    """Every test whose expected time is known; () without a cluster or a model."""
    groups: dict[tuple[str, int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    hosts: dict[tuple[str, int, int, int], set[tuple[str, ...]]] = defaultdict(set)
    for s in view.series:
        if s.placement is None:
            continue
        key = (s.collective, s.ranks, s.placement.nodes, s.placement.gpus_per_node)
        hosts[key].add(s.placement.hosts)
        for p in s.points:
            groups[key][p.nbytes].append(p.seconds)
    out = []
    for (collective, ranks, nodes, gpus), sizes in groups.items():
        rows = [row for nbytes, seconds in sorted(sizes.items()) if nbytes
                if (row := _row(view, Message(collective, ranks, nbytes), nodes, gpus, seconds)) is not None]
        if rows:
            took_part = hosts[collective, ranks, nodes, gpus]
            every = tuple(sorted({host for several in took_part for host in several}))
            out.append(Against(collective, nodes, gpus, every, len(took_part), tuple(rows)))
    return tuple(out)


def _row(view: View, message: Message, nodes: int, gpus: int, seconds: list[float]) -> Row | None:
    expected = view.expected(message, nodes, gpus)
    if expected is None:
        return None
    moved, middle = bus_bytes(message), median(seconds)
    bus = moved / middle if moved else None
    return Row(message.nbytes, len(seconds), min(seconds), middle, max(seconds), bus, expected)
