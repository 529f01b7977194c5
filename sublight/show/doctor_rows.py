"""This file knows about the rows that every view of a diagnosis shares: tests, nodes, measured against expected,
maps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sublight.comm.doctor.against import against_expected
from sublight.comm.doctor.agreed import Groups
from sublight.comm.doctor.diagnosis import Diagnosis
from sublight.comm.doctor.tables import Setting, Table
from sublight.comm.doctor.wording import count, name, size, time, where


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One table as shares of what healthy pairs reach; None where nothing was measured. levels: bytes per second."""

    title: str
    table: Table
    healthy: float
    hosts: tuple[str, ...]
    shares: list[list[float | None]]
    levels: list[list[float | None]]


def summary(diagnosis: Diagnosis) -> str:
    """What was read: nodes, measurements, files' hardware."""
    view = diagnosis.view
    said = [count(len(view.hosts), "nodes") if view.hosts else "nodes not named", count(len(view.results), "results")]
    if view.failures:
        said.append(f"{len(view.failures)} failed")
    if missing := sum(len(a.pairs) for a in view.absent):
        said.append(f"{missing} not run")
    said.append(f"hardware {diagnosis.node.title} ({diagnosis.node_from})" if diagnosis.node else
                f"hardware not known ({diagnosis.node_from}; name it with --on)")
    return " · ".join(said)


def heat_maps(diagnosis: Diagnosis) -> list[HeatMap]:
    """The bandwidth tables, those with faults first."""
    out: list[tuple[bool, HeatMap]] = []
    whole = {(t.setting, t.collective): t for t in diagnosis.view.tables if t.measure == "bandwidth"}
    for agreed in diagnosis.view.agreed:
        if agreed.measure != "bandwidth":
            continue
        quiet = not (agreed.nodes or agreed.pairs or agreed.groups)
        tables = [whole[agreed.setting, t.collective] for t in agreed.tables]     # with late nodes
        out += [(quiet, _map(table, agreed.groups)) for table in tables if len(table.hosts) > 2]
    return [heat for _, heat in sorted(out, key=lambda o: o[0])]


def _map(table: Table, groups: Groups | None) -> HeatMap:
    known = table.values[np.isfinite(table.values)]
    healthy = float(np.quantile(known, 0.9))
    order = _order(table, groups)
    values = table.values[np.ix_(order, order)]
    levels = [[None if not np.isfinite(v) else float(v) for v in row] for row in values]
    return HeatMap(
        f"{name(table.collective)} {where(table.setting)}: share of {healthy / 1e9:.1f} GB/s", table, healthy,
        tuple(table.hosts[k] for k in order), [[None if v is None else v / healthy for v in row] for row in levels],
        levels)


def _order(table: Table, groups: Groups | None) -> list[int]:
    """Hosts in their own order; in two groups where the table has two."""
    grouped = () if groups is None else (*groups.first, *groups.second)
    hosts = (*grouped, *(host for host in table.hosts if host not in grouped))
    return [table.hosts.index(host) for host in hosts if host in table.hosts]


def test_rows(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """(test, where, runs, failed, not run, median, lowest, highest) of every pairwise and single-node test, GB/s."""
    view = diagnosis.view
    failed = Counter((r.message.collective, r.placement.gpus_per_node, r.placement.nodes) for r in view.failures
                     if r.message and r.placement)
    absent: Counter[tuple[Setting, str]] = Counter()
    for a in view.absent:
        absent[a.setting, a.collective] += len(a.pairs)
    out = []
    for table in view.tables:
        if table.measure != "bandwidth":
            continue
        known = table.values[np.triu_indices(len(table.hosts), 1)]
        known = known[np.isfinite(known)] / 1e9
        out.append(_test_row(table.setting, table.collective, known, failed, absent))
    out += [_test_row(line.setting, line.collective, line.values / 1e9, failed, absent) for line in view.lines]
    return out


def _test_row(
    setting: Setting, collective: str, gb: NDArray[np.float64], failed: Counter[tuple[str, int, int]],
    absent: Counter[tuple[Setting, str]],
) -> tuple[str, ...]:
    place = f"{setting.nodes} x {setting.gpus_per_node}" + (f", rail {setting.rail}" if setting.rail else "")
    return (name(collective), place, str(len(gb)), str(failed[collective, setting.gpus_per_node, setting.nodes] or "–"),
            str(absent[setting, collective] or "–"), f"{np.median(gb):.1f}", f"{gb.min():.1f}", f"{gb.max():.1f}")


def node_rows(diagnosis: Diagnosis) -> list[tuple[str, list[tuple[str, str]]]]:
    """(host, [(test, "median (failed)")]) over the pairwise tests."""
    view = diagnosis.view
    tables = [t for t in view.tables if t.measure == "bandwidth"]
    failed = Counter((r.message.collective, r.placement.gpus_per_node, host) for r in view.failures
                     if r.message and r.placement for host in r.placement.hosts)
    out = []
    for host in view.hosts:
        cells = []
        for t in tables:
            if host not in t.hosts:
                cells.append((_label(t), "–"))
                continue
            row = t.values[t.hosts.index(host)]
            row = row[np.isfinite(row)]
            lost = failed[t.collective, t.setting.gpus_per_node, host]
            level = f"{np.median(row) / 1e9:.1f}" if len(row) else "–"
            cells.append((_label(t), level + (f" ({lost})" if lost else "")))
        out.append((host, cells))
    return out if tables else []


def _label(table: Table) -> str:
    return f"{name(table.collective)} x{table.setting.gpus_per_node}" + (
        f" {table.setting.rail}" if table.setting.rail else "")


def against_rows(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """(test, size, measured, bus GB/s, expected interval, measured over expected), the worst tests first."""
    tests = sorted(against_expected(diagnosis.view),
                   key=lambda t: -max(r.median_seconds / r.expected.seconds for r in t.rows))
    return [(f"{name(t.collective)} {t.nodes} x {t.gpus_per_node}", size(r.nbytes), time(r.median_seconds),
             "–" if r.median_bus is None else f"{r.median_bus / 1e9:.1f}", f"{time(r.expected.low)} "
             f"to {time(r.expected.high)}",
             f"{r.median_seconds / r.expected.seconds:.2f}") for t in tests for r in t.rows]
