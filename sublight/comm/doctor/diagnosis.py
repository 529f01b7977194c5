"""This file knows about a diagnosis: Results in, findings with their places out, and one sentence that says it
first."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sublight.cluster import Node, catalog
from sublight.comm.doctor.findings import DIAGNOSES
from sublight.comm.doctor.view import Expect, Located, View, view_of
from sublight.comm.doctor.wording import count, listed, name, rate
from sublight.result import Result

FEWEST_HOSTS = 4                   # from here a slow node can be told from slow pairs
LEAST_SPAN, WIDE_SPAN = 0.15, 0.3  # of a table's fastest pair: what its slowest may be short of it unmentioned


@dataclass(frozen=True, slots=True)
class Diagnosis:
    view: View
    findings: tuple[Located, ...]
    verdict: str
    node: Node | None
    node_from: str                 # how the hardware is known


def diagnose(results: Iterable[Result], *, node: Node | None = None) -> Diagnosis:
    """What these Results say. node: the hardware; without it, that of the device's name in the files, if the catalog
    has
    one node for it."""
    held = tuple(results)
    found, how = (node, "as given") if node is not None else _node_of(held)
    expect = _expect()
    view = view_of(held, node=found, expect=expect)
    findings = tuple(located for module in DIAGNOSES for located in module.find(view))
    return Diagnosis(view, findings, _verdict(view, findings), found, how)


def _expect() -> Expect | None:
    """The model of expected times; None in a version that has none."""
    try:
        return getattr(importlib.import_module("sublight.comm.expect"), "expect", None)
    except ImportError:
        return None


def _node_of(results: tuple[Result, ...]) -> tuple[Node | None, str]:
    """The node whose device's name the files have, where all have the same and the catalog knows one such node."""
    from sublight.device import DeviceInfo, find

    names = {r.placement.device for r in results if r.placement and r.placement.device}
    if len(names) != 1:
        return None, "the files name several devices" if names else "the files name no device"
    device = find(DeviceInfo(name=next(iter(names))))
    nodes = [n for n in catalog() if device is not None and n.device.key == device.key]
    if not nodes:
        return None, "the device in the files is not in the catalog"
    return nodes[0], f"taken for {nodes[0].title}, by the device's name"


def _verdict(view: View, findings: tuple[Located, ...]) -> str:
    nodes = [n for f in findings if f.finding.code == "SL501" for n in f.nodes]
    pairs = sum(len(f.pairs) for f in findings if f.finding.code == "SL502")
    groups = [f for f in findings if f.finding.code == "SL503"]
    said = []
    if nodes:
        said.append(f"{listed(nodes, 6)} {'is' if len(nodes) == 1 else 'are'} slow")
    said += [f.finding.claim.split(": ")[0] for f in groups[:2]]
    if len(groups) > 2:
        said.append(f"{len(groups) - 2} more groups or rails")
    if pairs:
        said.append(f"{count(pairs, 'slow pairs')} of nodes that are healthy there")
    said += [_short(f) for f in findings if f.finding.code in ("SL504", "SL508")][:2]
    failed = next((f for f in findings if f.finding.code == "SL506"), None)
    if failed is not None and view.failures:
        said.append(failed.finding.claim.partition(" failed")[0] + " failed")
    if not said:
        return _nothing(view)
    return f"{'; '.join(said)}."


def _nothing(view: View) -> str:
    """That nothing is slow, where enough was measured to say so."""
    tables = [table for table in view.tables if table.measure == "bandwidth"]
    for table in tables:
        low, high = float(np.nanmin(table.values)), float(np.nanmax(table.values))
        few = len(table.hosts) < FEWEST_HOSTS
        if low < (1 - (LEAST_SPAN if few else WIDE_SPAN)) * high:
            why = ("with so few nodes, a slow node and slow pairs look the same" if few else
                   "no node, pair or group stands out of the spread")
            return f"No fault named, but {name(table.collective)} spans {rate(low)} to {rate(high)}: {why}."
    if tables or view.lines:
        return f"Nothing is slow among {count(len(view.hosts), 'nodes')}."
    return "No fault found; pairs of nodes were not measured, so that a node could not be singled out."


def _short(f: Located) -> str:
    if f.finding.code == "SL504" and (f.nodes or f.ranks):
        return f"{listed(f.nodes) or 'rank ' + listed([str(r) for r in f.ranks])} is late, not the network slow"
    return f.finding.claim.split(",")[0] if f.finding.code == "SL508" else "a straggler costs the time, not bandwidth"
