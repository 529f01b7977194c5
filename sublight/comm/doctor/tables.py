"""This file knows about tables of nodes by nodes: every pair's level in one test, gathered from many files.

A level is a mean over message sizes, each size relative to the median of all pairs; a run that broke off before most of
them is left out. `bandwidth` takes the sizes where the median pair reaches most of its best; `latency` the smallest
sizes, as bytes a second as well, so that less is slower in both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from sublight.comm.doctor.series import Series, words
from sublight.result import Result

Floats = NDArray[np.float64]
Pair = tuple[str, str]
LARGE = 0.8                        # of the best median over sizes: from here a size counts as bandwidth
WHOLE = 0.75                       # of these sizes that a pair must have
SMALL_TIME = 0.1                   # of the longest median time: up to here a size counts as latency
SMALL_SIZES = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """What tables share: nodes and GPUs that took part, and on which rail."""

    nodes: int
    gpus_per_node: int
    rail: str


@dataclass(frozen=True, slots=True)
class Table:
    """values[i, j]: bytes per second of the pair of hosts i and j; nan where nothing was measured."""

    setting: Setting
    collective: str
    measure: str                   # "bandwidth" or "latency"
    hosts: tuple[str, ...]
    values: Floats

    @property
    def pairs(self) -> int:
        return int(np.isfinite(self.values).sum()) // 2


@dataclass(frozen=True, slots=True)
class Line:
    """Levels of single nodes in one test: bytes per second by host."""

    setting: Setting
    collective: str
    hosts: tuple[str, ...]
    values: Floats


def tables_of(series: Sequence[Series], results: Iterable[Result]) -> tuple[Table, ...]:
    """The tables of tests on two nodes, from series; where only averages are known (CSV), from those."""
    rails = _by_rail(series)
    groups: dict[tuple[Setting, str], dict[Pair, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for s in series:
        if s.placement and len(s.placement.hosts) == 2:
            rail = s.rail if (s.placement.gpus_per_node, s.collective) in rails else ""
            setting = Setting(2, s.placement.gpus_per_node, rail)
            groups[setting, s.collective][_pair(s.placement.hosts)].append(s)
    out = []
    for (setting, collective), by_pair in sorted(groups.items(), key=lambda g: _order(*g[0])):
        for measure, levels in (("bandwidth", bandwidths(by_pair)), ("latency", _latency(by_pair))):
            if levels:
                out.append(_table(setting, collective, measure, levels))
    known = {(t.setting.gpus_per_node, t.collective) for t in out}
    return (*out, *(t for t in _averages(results) if (t.setting.gpus_per_node, t.collective) not in known))


def lines_of(series: Sequence[Series]) -> tuple[Line, ...]:
    """The levels of tests on one node each."""
    groups: dict[tuple[Setting, str], dict[Pair, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for s in series:
        if s.placement and len(s.placement.hosts) == 1 and s.ranks > 1:
            host = s.placement.hosts[0]
            groups[Setting(1, s.placement.gpus_per_node, ""), s.collective][host, host].append(s)
    out = []
    for (setting, collective), by_host in sorted(groups.items(), key=lambda g: _order(*g[0])):
        levels = bandwidths(by_host)
        hosts = tuple(sorted(host for host, _ in levels))
        out.append(Line(setting, collective, hosts, np.array([levels[h, h] for h in hosts])))
    return tuple(out)


def _order(setting: Setting, collective: str) -> tuple[int, int, str, str]:
    return setting.nodes, setting.gpus_per_node, setting.rail, collective


def _pair(hosts: Sequence[str]) -> Pair:
    a, b = sorted(hosts)
    return a, b


def _by_rail(series: Sequence[Series]) -> set[tuple[int, str]]:
    """Tests in which pairs were measured on several rails each. Where every pair has its own, as a scheduler gives out
    GPUs, rails cannot be compared."""
    seen: dict[tuple[int, str], dict[Pair, set[str]]] = defaultdict(lambda: defaultdict(set))
    for s in series:
        if s.placement and len(s.placement.hosts) == 2 and s.rail:
            seen[s.placement.gpus_per_node, s.collective][_pair(s.placement.hosts)].add(s.rail)
    return {key for key, pairs in seen.items() if median(len(rails) for rails in pairs.values()) >= 2}


def _medians(by_pair: dict[Pair, list[Series]]) -> tuple[dict[int, float], dict[int, float]]:
    """Median bandwidth and time over pairs, by size."""
    bus: dict[int, list[float]] = defaultdict(list)
    seconds: dict[int, list[float]] = defaultdict(list)
    for several in by_pair.values():
        for point in (p for s in several for p in s.points):
            seconds[point.nbytes].append(point.seconds)
            if point.bus:
                bus[point.nbytes].append(point.bus)
    return {n: median(v) for n, v in bus.items()}, {n: median(v) for n, v in seconds.items()}


def bandwidths(by_pair: dict[Pair, list[Series]]) -> dict[Pair, float]:
    """The level of each pair, or of whatever else series are grouped by: see above. Bytes per second."""
    bus, _ = _medians(by_pair)
    if not bus:
        return {}
    best = max(bus.values())
    sizes = {n for n, b in bus.items() if b >= LARGE * best}
    scale = sum(bus[n] for n in sizes) / len(sizes)
    out = {}
    for pair, several in by_pair.items():
        ratios = [p.bus / bus[p.nbytes] for s in several for p in s.points if p.nbytes in sizes and p.bus]
        covered = {p.nbytes for s in several for p in s.points if p.bus} & sizes
        if len(covered) >= WHOLE * len(sizes):
            out[pair] = scale * sum(ratios) / len(ratios)
    return out


def _latency(by_pair: dict[Pair, list[Series]]) -> dict[Pair, float]:
    _, seconds = _medians(by_pair)
    longest = max(seconds.values(), default=0.0)
    small = [n for n in sorted(seconds) if n and seconds[n] <= SMALL_TIME * longest][:SMALL_SIZES]
    out = {}
    for pair, several in by_pair.items():
        ratios = [seconds[p.nbytes] / p.seconds for s in several for p in s.points if p.nbytes in small]
        if ratios:
            out[pair] = small[-1] / seconds[small[-1]] * sum(ratios) / len(ratios)
    return out


def _averages(results: Iterable[Result]) -> list[Table]:
    levels: dict[tuple[Setting, str], dict[Pair, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        if r.name != "average bus bandwidth" or not r.samples or not r.message or not r.placement:
            continue
        if len(r.placement.hosts) == 2:
            setting = Setting(2, r.placement.gpus_per_node, words(r).get("rail", ""))
            levels[setting, r.message.collective][_pair(r.placement.hosts)].append(r.samples[0])
    return [_table(setting, collective, "bandwidth", {pair: median(v) for pair, v in by_pair.items()})
            for (setting, collective), by_pair in sorted(levels.items(), key=lambda g: _order(*g[0]))]


def _table(setting: Setting, collective: str, measure: str, levels: dict[Pair, float]) -> Table:
    hosts = tuple(sorted({host for pair in levels for host in pair}, key=natural))
    place = {host: i for i, host in enumerate(hosts)}
    values = np.full((len(hosts), len(hosts)), np.nan)
    for (a, b), level in levels.items():
        if a != b:
            values[place[a], place[b]] = values[place[b], place[a]] = level
    return Table(setting, collective, measure, hosts, values)


def natural(host: str) -> tuple[object, ...]:
    """Orders node2 before node10."""
    import re

    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", host))
