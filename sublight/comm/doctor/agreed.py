"""This file knows about what several tests of the same nodes agree on: their tables looked at one by one, and
together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sublight.comm.doctor.faults import FALSE_ALARM, FEW_NODES, LEAST_SLOW, Faults, Floats, Split, locate
from sublight.comm.doctor.tables import Pair, Setting, Table, natural

REPORTED_GAP = 1.05                # between levels of groups; smaller ones are fitted, but not worth a finding
LEAST_LATE = 0.25                  # of small messages, in logarithms: latencies spread more than bandwidths


@dataclass(frozen=True, slots=True)
class NodeIn:
    """A node in one table: its pairs with healthy nodes."""

    table: Table
    slow_pairs: int
    pairs: int
    level: float                   # median over its pairs, bytes per second
    healthy: float                 # of pairs of healthy nodes
    called: bool                   # by this table alone


@dataclass(frozen=True, slots=True)
class PairIn:
    table: Table
    level: float
    healthy: float


@dataclass(frozen=True, slots=True)
class Groups:
    """Two groups of hosts; kind as in faults.Split; (table, inside first, between, inside second) in bytes per
    second."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    kind: str
    levels: tuple[tuple[Table, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Agreed:
    """The faults of one setting and measure."""

    setting: Setting
    measure: str
    tables: tuple[Table, ...]
    hosts: tuple[str, ...]
    nodes: dict[str, tuple[NodeIn, ...]]
    pairs: dict[Pair, tuple[PairIn, ...]]
    groups: Groups | None


def agree(tables: Sequence[Table]) -> tuple[Agreed, ...]:
    """One Agreed for each setting and measure."""
    together: dict[tuple[Setting, str], list[Table]] = defaultdict(list)
    for table in tables:
        together[table.setting, table.measure].append(table)
    return tuple(_agreed(setting, measure, found) for (setting, measure), found in together.items())


def _agreed(setting: Setting, measure: str, tables: list[Table]) -> Agreed:
    least = LEAST_SLOW if measure == "bandwidth" else LEAST_LATE
    hosts = tuple(sorted({host for table in tables for host in table.hosts}, key=natural))
    logs = [_on(table, hosts) for table in tables]
    alarm = FALSE_ALARM / len(tables)
    alone = [locate(one, least_slow=least, alarm=alarm) for one in logs]
    rest = [log - faults.level for log, faults in zip(logs, alone, strict=True) if faults is not None]
    pooled = locate(*rest, least_slow=least) if len(rest) > 1 else None
    if pooled is not None and len(hosts) < FEW_NODES:      # one test of few nodes tells noise from faults badly
        alone = [faults and replace(faults, nodes=(), pairs=(), split=None) for faults in alone]
    split = next((f.split for f in (pooled, *alone) if f is not None and f.split), None)
    split = split or _apart(logs, [f for f in (pooled, *alone) if f is not None])
    if split is not None:                # groups that one test shows are there in all of them
        alone = [locate(one, least_slow=least, alarm=alarm, second=split.second) for one in logs]
    views = [faults for faults in (pooled if pooled is not None and (pooled.split or not split) else None, *alone)
             if faults is not None]
    split = split if measure == "bandwidth" else None
    nodes = {hosts[n.node] for faults in views for n in faults.nodes}
    pairs = {p.pair for faults in views for p in faults.pairs}
    own = [(table, log, faults) for table, log, faults in zip(tables, logs, alone, strict=True) if faults is not None]
    return Agreed(
        setting, measure, tuple(tables), hosts,
        {host: tuple(_node_in(hosts, host, nodes, *one, least) for one in own) for host in sorted(nodes, key=natural)},
        {(hosts[i], hosts[j]): tuple(PairIn(t, float(np.exp(log[i, j])), float(np.exp(f.healthy(i, j))))
                                     for t, log, f in own if np.isfinite(log[i, j]))
         for i, j in sorted(pairs) if hosts[i] not in nodes and hosts[j] not in nodes},
        _groups(split, hosts, own),
    )


def _apart(logs: Sequence[Floats], views: Sequence[Faults]) -> Split | None:
    """Slow nodes that are as fast with each other as healthy ones are: a group that others reach badly."""
    called = tuple(sorted({n.node for faults in views for n in faults.nodes}))
    if len(called) < 2:
        return None
    for log in logs:
        known = locate(log, second=called)
        if known is None or known.split is None:
            return None
        one, two, between = known.split.inside_first, known.split.inside_second, known.split.between
        if two < (one + between) / 2 or between > one - LEAST_SLOW / 2:
            return None
    return replace(known.split, kind="between") if known is not None and known.split is not None else None


def _on(table: Table, hosts: tuple[str, ...]) -> Floats:
    """Logarithms of a table's values, on a larger list of hosts."""
    at = [hosts.index(host) for host in table.hosts]
    out = np.full((len(hosts), len(hosts)), np.nan)
    out[np.ix_(at, at)] = np.log(table.values)
    return out


def _node_in(
    hosts: tuple[str, ...], host: str, slow: set[str], table: Table, log: Floats, faults: Faults, least: float
) -> NodeIn:
    at = hosts.index(host)
    wanted = np.array([faults.healthy(at, k) for k in range(len(hosts))])
    known = np.isfinite(log[at])
    if (known & (healthy := np.array([other not in slow for other in hosts]))).any():
        known &= healthy
    own, wanted = log[at][known], wanted[known]
    deficit = float(np.median(wanted - own)) if len(own) else 0.0
    middle = float(np.median(wanted)) if len(own) else faults.level
    return NodeIn(table, int((own < wanted - max(least, deficit) / 2).sum()), len(own), float(np.exp(middle - deficit)),
                  float(np.exp(middle)),
                  any(hosts[n.node] == host for n in faults.nodes))


def _groups(
    split: Split | None, hosts: tuple[str, ...], own: Sequence[tuple[Table, Floats, Faults]]
) -> Groups | None:
    if split is None:
        return None
    second = np.isin(np.arange(len(hosts)), split.second)
    levels = []
    for table, log, _ in own:
        i, j = np.triu_indices(len(hosts), 1)
        values, block = log[i, j], second[i].astype(int) + second[j].astype(int)
        known = np.isfinite(values)
        if all((known & (block == b)).any() for b in range(3)):
            one, between, two = (float(np.exp(np.median(values[known & (block == b)]))) for b in range(3))
            levels.append((table, one, between, two))
    if all(max(each) < REPORTED_GAP * min(each) for _, *each in levels):
        return None
    first, other = (tuple(hosts[k] for k in group) for group in (split.first, split.second))
    return Groups(first, other, split.kind, tuple(levels))
