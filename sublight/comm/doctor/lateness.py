"""This file knows about lateness: nodes that add a time to every call, so that small messages suffer and large ones do
not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import log

import numpy as np

from sublight.comm.doctor.agreed import Agreed, agree
from sublight.comm.doctor.faults import LEAST_SLOW
from sublight.comm.doctor.series import Series
from sublight.comm.doctor.tables import Setting, Table

LATE_SHARE = 0.3                   # of the deficit of small messages that large ones may still have
FEWEST_SIZES = 3


def is_late(series: Iterable[Series], agreed: Agreed, host: str) -> bool:
    """Whether a node that a table calls is late by a time rather than slow by a share: what it loses at large sizes is
    little of what it loses at small ones."""
    sizes = by_size(series, agreed, host)
    if len(sizes) < FEWEST_SIZES:
        return False
    small, large = max(s for _, s in sizes[:3]), float(np.median([s for _, s in sizes[-2:]]))
    return large < LEAST_SLOW and large < LATE_SHARE * small


def by_size(series: Iterable[Series], agreed: Agreed, host: str) -> list[tuple[int, float]]:
    """(bytes, deficit in logarithms) of a node's pairs against those of healthy nodes, over the tests of a setting."""
    own: dict[tuple[str, int], list[float]] = {}
    others: dict[tuple[str, int], list[float]] = {}
    for s in series:
        p = s.placement
        if p is None or len(p.hosts) != 2 or p.gpus_per_node != agreed.setting.gpus_per_node:
            continue
        if agreed.setting.rail and s.rail != agreed.setting.rail:
            continue
        slow = [h for h in p.hosts if h in agreed.nodes]
        if slow and slow != [host]:
            continue
        for point in s.points:
            (own if slow else others).setdefault((s.collective, point.nbytes), []).append(point.seconds)
    found: dict[int, list[float]] = {}
    for key, seconds in own.items():
        if key in others:
            found.setdefault(key[1], []).append(log(float(np.median(seconds)) / float(np.median(others[key]))))
    return sorted((nbytes, float(np.mean(values))) for nbytes, values in found.items())


def agree_without_late(series: Sequence[Series], tables: Sequence[Table]) -> tuple[Agreed, ...]:
    """What tables agree on; bandwidths without the nodes that are late there: at middle sizes a time looks like a
    share."""
    latency = agree([t for t in tables if t.measure == "latency"])
    late = {(a.setting, host) for a in latency for host in a.nodes if is_late(series, a, host)}
    return (*agree([_without(t, late) for t in tables if t.measure == "bandwidth"]), *latency)


def _without(table: Table, late: set[tuple[Setting, str]]) -> Table:
    kept = [k for k, host in enumerate(table.hosts) if (table.setting, host) not in late]
    return replace(table, hosts=tuple(table.hosts[k] for k in kept), values=table.values[np.ix_(kept, kept)])
