"""This file knows about runs of three or more nodes: which node, or rail, all of the slow ones share.

Runs of as many nodes and the same test are compared where they took different nodes (all but one in turn, halves,
random choices), and runs of the same nodes where they took different rails. A node is named where every run with it is
slower than every run without it; nodes that were always together cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from sublight.comm.doctor.faults import LEAST_SLOW
from sublight.comm.doctor.series import Series, words
from sublight.comm.doctor.tables import Pair, Setting, bandwidths, natural
from sublight.result import Result

FEWEST_RUNS, FEWEST_RAILS = 4, 3
SPREADS = 4.0                      # standard errors that levels must lie apart
LEAST_SPREAD = 0.015               # of repeated runs, in logarithms: as faults.PRIOR_SPREAD
Levels = dict[Pair, float]         # (rail, hosts, one a line) -> bytes per second


@dataclass(frozen=True, slots=True)
class Shared:
    """What the slow runs of a test share. hosts: several where they always took part together. Levels in bytes per
    second, medians over runs."""

    setting: Setting
    collective: str
    hosts: tuple[str, ...]
    level: float
    healthy: float
    slow_runs: int
    runs: int


def nodes_in_runs(series: Sequence[Series], results: Iterable[Result]) -> tuple[Shared, ...]:
    """The nodes that all slow runs of a test share and no fast one has."""
    out = []
    for (nodes, gpus, collective), levels in _levels(series, results).items():
        if nodes < 3:
            continue
        rails: dict[str, Levels] = defaultdict(dict)
        for (rail, hosts), level in levels.items():
            rails[rail if _by_rail(levels) else ""][rail, hosts] = level
        for rail, found in rails.items():
            shared = _shared(Setting(nodes, gpus, rail), collective, found)
            out += [shared] if shared is not None else []
    return tuple(out)


def rails_in_runs(series: Sequence[Series], results: Iterable[Result]) -> tuple[Shared, ...]:
    """Rails on which runs of the same three or more nodes (or of the only pair) are slower than on others."""
    out = []
    for (nodes, gpus, collective), levels in _levels(series, results).items():
        same: dict[str, dict[str, float]] = defaultdict(dict)
        for (rail, hosts), level in levels.items():
            if rail and "-" not in rail:       # nodes that took part on different rails say nothing of one
                same[hosts][rail] = level
        if nodes < 3 and len({hosts for _, hosts in levels}) > 1:
            continue
        for hosts, by_rail in same.items():
            slow = dict(_slow_rails(by_rail))
            if len(slow) <= len(by_rail) / 2:
                out += [Shared(Setting(nodes, gpus, rail), collective, tuple(hosts.split("\n")), by_rail[rail], healthy,
                               1, len(by_rail)) for rail, healthy in slow.items()]
    return tuple(out)


def _slow_rails(by_rail: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    if len(by_rail) < FEWEST_RAILS:
        return
    logs = {rail: log(level) for rail, level in by_rail.items()}
    middle = median(logs.values())
    spread = max(LEAST_SPREAD, 1.4826 * median(abs(value - middle) for value in logs.values()))
    for rail, value in logs.items():
        healthy = median(other for name, other in logs.items() if name != rail)
        if healthy - value > max(LEAST_SLOW, SPREADS * spread):
            yield rail, exp(healthy)


def _by_rail(levels: Levels) -> bool:
    """Whether most sets of nodes were measured on several rails."""
    seen: dict[str, set[str]] = defaultdict(set)
    for rail, hosts in levels:
        seen[hosts].add(rail)
    return median(len(rails) for rails in seen.values()) >= 2


def _levels(series: Sequence[Series], results: Iterable[Result]) -> dict[tuple[int, int, str], Levels]:
    """The level of each run by nodes, GPUs a node and collective: as tables have it; from averages where a test has no
    times."""
    groups: dict[tuple[int, int, str], dict[Pair, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for s in series:
        if s.placement and len(s.placement.hosts) > 1:
            key = len(s.placement.hosts), s.placement.gpus_per_node, s.collective
            groups[key][s.rail, _set(s.placement.hosts)].append(s)
    averages: dict[tuple[int, int, str], dict[Pair, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        if r.name == "average bus bandwidth" and r.samples and r.message and r.placement and len(r.placement.hosts) > 1:
            key = len(r.placement.hosts), r.placement.gpus_per_node, r.message.collective
            if key not in groups:
                averages[key][words(r).get("rail", ""), _set(r.placement.hosts)].append(r.samples[0])
    return {key: bandwidths(found) for key, found in groups.items()} | {
        key: {which: median(values) for which, values in found.items()} for key, found in averages.items()}


def _set(hosts: Sequence[str]) -> str:
    return "\n".join(sorted(hosts, key=natural))


def _shared(setting: Setting, collective: str, levels: Levels) -> Shared | None:
    """The nodes that best tell slow runs from fast ones, where they tell them all."""
    runs = [(frozenset(hosts.split("\n")), log(level)) for (_, hosts), level in levels.items()]
    if len(runs) < FEWEST_RUNS:
        return None
    alike: dict[tuple[bool, ...], list[str]] = defaultdict(list)
    for host in sorted({host for hosts, _ in runs for host in hosts}, key=natural):
        alike[tuple(host in hosts for hosts, _ in runs)].append(host)
    best: Shared | None = None
    for has, hosts in alike.items():
        own = [value for (_, value), there in zip(runs, has, strict=True) if there]
        rest = [value for (_, value), there in zip(runs, has, strict=True) if not there]
        if own and rest and _apart(own, rest):
            found = Shared(setting, collective, tuple(hosts), exp(median(own)), exp(median(rest)), len(own), len(runs))
            best = found if best is None or found.healthy / found.level > best.healthy / best.level else best
    return best


def _apart(own: Sequence[float], rest: Sequence[float]) -> bool:
    """Whether every run with a node is slower than every run without it, by more than they spread."""
    gap = median(rest) - median(own)
    off = [abs(value - median(side)) for side in (own, rest) if len(side) > 1 for value in side]
    spread = max(LEAST_SPREAD, 1.4826 * median(off)) if off else LEAST_SPREAD
    error = spread * (1 / len(own) + 1 / len(rest)) ** 0.5
    return gap > max(LEAST_SLOW, SPREADS * error) and max(own) < min(rest) - LEAST_SLOW / 2
