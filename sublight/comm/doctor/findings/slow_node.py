"""SL501: a node that is slow with (almost) everyone, or by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import log

import numpy as np

from sublight.comm.doctor.agreed import Agreed, NodeIn
from sublight.comm.doctor.faults import LEAST_GROUP, LEAST_SLOW
from sublight.comm.doctor.lateness import is_late
from sublight.comm.doctor.runs import Shared, nodes_in_runs
from sublight.comm.doctor.tables import Line, Table
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import command, count, name, rate, slower, where
from sublight.finding import Finding

CODE, TITLE = "SL501", "slow node"
ALIKE = 0.07                       # deficits of nodes that look like one cause, in logarithms
SHARE_ALIKE = 0.15
FEW_RAILS = 0.5                    # a node that is slow on at most this share of the rails has a slow rail, not more
SPREADS = 4.0


def find(view: View) -> Iterable[Located]:
    """Fires where a table calls the node (faults.locate) and large messages are as slow as small ones, where the node
    alone is slower than the others alone, or where all runs of three or more nodes with it are slow and those without
    it are not."""
    alone = {host: (line, level, healthy) for line in view.lines for host, level, healthy in slow_alone(line)}
    called = by_node(view)
    together: dict[str, list[Shared]] = {}
    for shared in nodes_in_runs(view.series, view.results):
        if len(shared.hosts) == 1:
            together.setdefault(shared.hosts[0], []).append(shared)
    for host in dict.fromkeys([*called, *alone, *together]):
        seen = called.get(host, [])
        evidence = [said for agreed, ins in seen for said in _evidence(agreed, ins)]
        if host in alone:
            line, level, healthy = alone[host]
            evidence.append(f"by itself, {name(line.collective)} on {count(line.setting.gpus_per_node, 'GPUs')}: "
                            f"{rate(level)} against {rate(healthy)} of the others")
        evidence += [_in_runs(shared) for shared in together.get(host, ())]
        if lost := _failures(view, host):
            evidence.append(lost)
        worst = max((n for _, ins in seen for n in ins if n.pairs), key=lambda n: n.healthy / n.level, default=None)
        if worst is not None:
            claim = (f"{host} is slow with {worst.slow_pairs} of {worst.pairs} healthy nodes: {rate(worst.level)} "
                     f"against {rate(worst.healthy)} ({name(worst.table.collective)} {where(worst.table.setting)})")
        elif host in together:
            one = together[host][0]
            claim = (f"{host} is slow: runs of {one.setting.nodes} nodes reach {rate(one.level)} with it against "
                     f"{rate(one.healthy)} without it ({name(one.collective)} {where(one.setting)})")
        else:
            _, level, healthy = alone[host]
            claim = f"{host} is slow by itself: {rate(level)} against {rate(healthy)}, {slower(level, healthy)}"
        slow = set(called) | set(alone) | set(together)
        action = _action(host, worst.table if worst else together[host][0] if host in together else None, view, slow)
        yield Located(Finding(CODE, TITLE, claim, tuple(evidence), action, "high",
                              None, _caveats(seen, host in alone)), nodes=(host,))


def by_node(view: View) -> dict[str, list[tuple[Agreed, tuple[NodeIn, ...]]]]:
    """The slow nodes with where they were seen: without those of one group, of few rails, and without late ones."""
    out: dict[str, list[tuple[Agreed, tuple[NodeIn, ...]]]] = {}
    rails = {a.setting.rail for a in view.agreed if a.setting.rail}
    for agreed in view.agreed:
        together = alike(agreed)
        for host, ins in agreed.nodes.items():
            if agreed.measure == "bandwidth" and host not in together and not is_late(view.series, agreed, host):
                out.setdefault(host, []).append((agreed, ins))
    return {host: seen for host, seen in out.items()
            if len(rails) < 2 or len({a.setting.rail for a, _ in seen} - {""}) > FEW_RAILS * len(rails)
            or any(not a.setting.rail for a, _ in seen)}


def deficit(ins: tuple[NodeIn, ...]) -> float:
    """Of a node over its tables, in logarithms."""
    return max((log(n.healthy / n.level) for n in ins if n.pairs), default=0.0)


def alike(agreed: Agreed) -> tuple[str, ...]:
    """The slow nodes of a setting that are so many and so alike that they share a cause; () where they are not."""
    if len(agreed.nodes) < max(LEAST_GROUP, SHARE_ALIKE * len(agreed.hosts)):
        return ()
    size = {host: deficit(ins) for host, ins in agreed.nodes.items()}
    middle = float(np.median(list(size.values())))
    same = tuple(host for host, value in size.items() if abs(value - middle) <= ALIKE)
    return same if len(same) >= max(LEAST_GROUP, SHARE_ALIKE * len(agreed.hosts)) else ()


def slow_alone(line: Line) -> Iterator[tuple[str, float, float]]:
    """(host, level, level of the others) of nodes that are slow in tests on one node."""
    if len(line.hosts) < 4:
        return
    logs = np.log(line.values)
    middle = float(np.median(logs))
    spread = max(0.01, 1.4826 * float(np.median(np.abs(logs - middle))))
    for host, value in zip(line.hosts, logs.tolist(), strict=True):
        if middle - value > max(LEAST_SLOW, SPREADS * spread):
            yield host, float(np.exp(value)), float(np.exp(middle))


def _evidence(agreed: Agreed, ins: tuple[NodeIn, ...]) -> Iterator[str]:
    for n in ins:
        if n.pairs:
            yield (f"{name(n.table.collective)} {where(agreed.setting)}: {n.slow_pairs} of {n.pairs} pairs with "
                   f"healthy nodes are slow, median {rate(n.level)} against {rate(n.healthy)}, "
                   f"{slower(n.level, n.healthy)}")


def _failures(view: View, host: str) -> str | None:
    own = sum(1 for r in view.failures if r.placement and host in r.placement.hosts)
    return f"it took part in {own} of the {len(view.failures)} failed measurements" if own else None


def _in_runs(shared: Shared) -> str:
    return (f"{name(shared.collective)} on {shared.setting.nodes} nodes {where(shared.setting)}: all "
            f"{count(shared.slow_runs, 'runs')} with it are slow, all {count(shared.runs - shared.slow_runs, 'runs')} "
            f"without it are not: {rate(shared.level)} against {rate(shared.healthy)}, "
            f"{slower(shared.level, shared.healthy)}").replace("all 1 run with it are slow", "the one run with it is "
            "slow").replace("all 1 run without it are not", "the one run without it is not")


def _action(host: str, test: Table | Shared | None, view: View, slow: set[str]) -> str:
    if test is None:
        return (f"On {host} check the GPUs first: nvidia-smi -q -d CLOCK,PERFORMANCE (clocks, throttling), nvidia-smi "
                "nvlink -s (links down), the PCIe width; then take it out of the pool")
    partner = next((h for h in view.hosts if h not in slow), "OTHER")
    again = command((host, partner), test.setting.gpus_per_node, test.collective)
    return (f"Take {host} out of the pool; check its ports and cables (ibstat or rdma link: rate and width; perfquery "
            "or ethtool -S: symbol errors, discards, pauses), the PCIe width of its NICs (lspci -vv, LnkSta) and "
            f"IOMMU/ACS; after each step: {again}")


def _caveats(seen: list[tuple[Agreed, tuple[NodeIn, ...]]], alone: bool) -> tuple[str, ...]:
    quiet = [where(a.setting) + ": " + name(n.table.collective) for a, ins in seen for n in ins if not n.called]
    out = [f"{text} alone would not call it" for text in quiet]
    if not alone:
        out.append("pairs do not tell a node from its leaf port: swap the cable to another port to see which it "
                   "follows")
    return tuple(out)
