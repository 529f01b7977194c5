"""This file knows about everything that a finding may look at: series, tables, faults that they agree on, expected
times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from sublight.cluster import Cluster, Node
from sublight.comm.doctor.agreed import Agreed
from sublight.comm.doctor.lateness import agree_without_late
from sublight.comm.doctor.series import Series, series_of
from sublight.comm.doctor.tables import Line, Pair, Setting, Table, lines_of, natural, tables_of
from sublight.comm.expected import Expected
from sublight.finding import Finding
from sublight.result import Result
from sublight.work import Message

Expect = Callable[[Message, Cluster], Expected]


@dataclass(frozen=True, slots=True)
class Located:
    """A finding and where it points. message sizes in bytes where it is about some."""

    finding: Finding
    nodes: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    rails: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """Combinations of a test that others have and these pairs lack."""

    setting: Setting
    collective: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class View:
    results: tuple[Result, ...]
    series: tuple[Series, ...]
    tables: tuple[Table, ...]
    lines: tuple[Line, ...]
    agreed: tuple[Agreed, ...]
    failures: tuple[Result, ...]
    absent: tuple[Absent, ...]
    hosts: tuple[str, ...]
    clusters: Mapping[tuple[int, int], Cluster] = field(default_factory=dict)     # by nodes and GPUs a node
    expect: Expect | None = None
    expect_refused: str | None = None

    def expected(self, message: Message, nodes: int, gpus: int) -> Expected | None:
        """The expected time, or None where the cluster or the model is not known."""
        cluster = self.clusters.get((nodes, gpus))
        if cluster is None or self.expect is None:
            return None
        try:
            return self.expect(message, cluster)
        except (ValueError, KeyError, NotImplementedError):
            return None


def view_of(
    results: tuple[Result, ...], *, node: Node | None, expect: Expect | None, refused: str | None = None
) -> View:
    """Everything about these Results. node: the hardware, where it is known."""
    series = series_of(results)
    tables = tables_of(series, results)
    placements = {(r.placement.nodes, r.placement.gpus_per_node) for r in results if r.placement}
    clusters = {(n, g): Cluster(node, n, g) for n, g in placements if node is not None and g <= node.gpus}
    failures = tuple(r for r in results if r.failure)
    hosts = tuple(sorted({h for r in results if r.placement for h in r.placement.hosts}, key=natural))
    return View(results, series, tables, lines_of(series), agree_without_late(series, tables), failures,
                _absent(tables, failures), hosts, clusters, expect, refused)


def _absent(tables: tuple[Table, ...], failures: tuple[Result, ...]) -> tuple[Absent, ...]:
    """What was not run: pairs that a test lacks although most pairs of its nodes have it. Failed is not absent."""
    tried: dict[tuple[Setting, str], set[Pair]] = {}
    for table in tables:
        if table.measure == "bandwidth":
            n = len(table.hosts)
            tried[table.setting, table.collective] = {
                (table.hosts[i], table.hosts[j]) for i in range(n) for j in range(i + 1, n)
                if table.values[i, j] == table.values[i, j]}
    for r in failures:
        if r.message and r.placement and len(r.placement.hosts) == 2:
            a, b = sorted(r.placement.hosts, key=natural)
            for (setting, collective), pairs in tried.items():
                if setting.gpus_per_node == r.placement.gpus_per_node and collective == r.message.collective:
                    pairs.add((a, b))
    hosts = sorted({host for pairs in tried.values() for pair in pairs for host in pair}, key=natural)
    every = set(combinations(hosts, 2))
    return tuple(Absent(setting, collective, tuple(sorted(every - pairs)))
                 for (setting, collective), pairs in tried.items() if every - pairs and len(pairs) >= len(every) / 2)
