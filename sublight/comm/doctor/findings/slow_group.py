"""SL503: groups of nodes, or a rail, that are slow together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from sublight.comm.doctor.agreed import Agreed, Groups
from sublight.comm.doctor.faults import LEAST_SLOW, SMALLEST_SPREAD
from sublight.comm.doctor.findings.slow_node import FEW_RAILS, alike, by_node
from sublight.comm.doctor.lateness import is_late
from sublight.comm.doctor.runs import Shared, nodes_in_runs, rails_in_runs
from sublight.comm.doctor.tables import Table
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, rate, slower, where
from sublight.finding import Finding

CODE, TITLE = "SL503", "slow group or rail"
SPREADS = 4.0
FEW_NAMED = 4                      # nodes of a group that its claim lists
FIRST_FALL = 1.1                   # between medians of nodes in order: from here the evidence lists them


def find(view: View) -> Iterable[Located]:
    """Fires where two groups of nodes explain a table (faults.locate), where three or more slow nodes are alike, where
    one rail is slower than the others on the same pairs, and where a node is slow on few of its rails."""
    for agreed in view.agreed:
        if agreed.measure != "bandwidth":
            continue
        if agreed.groups is not None and agreed.groups.levels:
            yield _two_groups(agreed, agreed.groups)
        together = [host for host in alike(agreed) if not is_late(view.series, agreed, host)]
        if together:
            yield _alike(agreed, together)
    yield from _always_together(view)
    yield from _rails(view)
    yield from _rails_of_nodes(view)


def _two_groups(agreed: Agreed, groups: Groups) -> Located:
    table, one, between, two = max(groups.levels, key=lambda g: max(g[1:]) / min(g[1:]))
    sizes = f"{count(len(groups.first), 'nodes')} and {len(groups.second)}"
    few = f" ({listed(groups.second)})" if len(groups.second) <= FEW_NAMED else ""
    tests = name(table.collective)
    if groups.kind == "between":
        claim = (f"two groups of nodes ({sizes}) {where(agreed.setting)}: {rate(one)} and {rate(two)} inside, "
                 f"{rate(between)} between them, {slower(between, min(one, two))} ({tests})")
        action = ("What lies between the groups is narrower than the leaves: count the uplinks that are up and their "
                  "rate on each leaf and spine, look for oversubscription, ECMP collisions or adaptive routing that "
                  "is off; until then place jobs inside one group")
    elif groups.kind == "group":
        claim = (f"a group of {count(len(groups.second), 'nodes')}{few} is slow with everyone {where(agreed.setting)}: "
                 f"{rate(max(between, two))} against {rate(one)}, {slower(max(between, two), one)} ({tests})")
        action = _shared()
    else:
        claim = (f"a group of {count(len(groups.second), 'nodes')}{few} is slow within "
                 f"itself {where(agreed.setting)}: {rate(two)} against {rate(between)} with others ({tests})")
        action = _shared()
    evidence = [f"group 1: {listed(groups.first, 40)}", f"group 2: {listed(groups.second, 40)}"]
    evidence += [f"{name(t.collective)}: {rate(a)} inside group 1, {rate(c)} inside group 2, {rate(b)} between"
                 for t, a, b, c in groups.levels]
    evidence += [said for t, *_ in groups.levels if (said := _medians(t))]
    named = groups.second if groups.kind != "between" else (*groups.first, *groups.second)
    sure = "high" if len(groups.levels) > 1 else "medium"
    return Located(Finding(CODE, TITLE, claim, tuple(evidence), action, sure, None,
                           ("names of leaves and spines are not in these files: compare the groups with the cabling "
                            "plan",)),
                   nodes=named)


def _medians(table: Table) -> str | None:
    """What medians over each node's pairs look like: they depend on which pairs were run."""
    measured = [k for k in range(len(table.hosts)) if np.isfinite(table.values[k]).any()]
    hosts, middle = [table.hosts[k] for k in measured], np.nanmedian(table.values[measured], axis=1)
    order = np.argsort(-middle)
    falls = middle[order][:-1] / middle[order][1:]
    wide = np.flatnonzero(falls > FIRST_FALL)
    if len(wide) == 0:
        return None
    at = int(wide[0]) + 1
    low, next_one, high = (rate(float(middle[order][k])) for k in (-1, at, at - 1))
    rest = f"about {low}" if low == next_one else f"{low} to {next_one}"
    return (f"medians over each node's pairs ({name(table.collective)}): about {high} for "
            f"{listed([hosts[k] for k in sorted(order[:at])], 20)}; {rest} for the others: which side of the gap "
            "a node falls on depends on which of its pairs were measured")


def _alike(agreed: Agreed, hosts: list[str]) -> Located:
    most = max((n for host in hosts for n in agreed.nodes[host] if n.pairs), key=lambda n: n.healthy / n.level)
    ins = [n for host in hosts for n in agreed.nodes[host] if n.table is most.table]
    level, healthy = float(np.median([n.level for n in ins])), float(np.median([n.healthy for n in ins]))
    return Located(
        Finding(CODE, TITLE, f"{count(len(hosts), 'nodes')} are slow with everyone and alike {where(agreed.setting)}: "
                f"{listed(hosts)}, {rate(level)} against {rate(healthy)}, {slower(level, healthy)} "
                f"({name(most.table.collective)})",
                tuple(f"{host}: " + "; ".join(f"{name(n.table.collective)} {rate(n.level)} of {rate(n.healthy)}, "
                                              f"{n.slow_pairs} of {n.pairs} "
                                              "pairs" for n in agreed.nodes[host] if n.pairs)
                      for host in hosts[:20]), _shared(), "medium", None,
                ("that they share a cause is concluded from equal levels",)), nodes=tuple(hosts))


def _shared() -> str:
    return ("Look for what these nodes share: leaf switch, rack, power cap, NIC firmware, BIOS or driver version; "
            "compare one of them with a healthy node (ibstat, lspci -vv LnkSta, nvidia-smi -q, uname -r)")


def _always_together(view: View) -> Iterator[Located]:
    """Nodes of which all runs are slow, and which always took part together."""
    seen: dict[tuple[str, ...], list[Shared]] = {}
    for shared in nodes_in_runs(view.series, view.results):
        if len(shared.hosts) > 1 and not set(shared.hosts) & set(by_node(view)):
            seen.setdefault(shared.hosts, []).append(shared)
    for hosts, found in seen.items():
        first = found[0]
        evidence = [f"{name(one.collective)} on {one.setting.nodes} nodes {where(one.setting)}: {rate(one.level)} in "
                    f"{count(one.slow_runs, 'runs')} with them, {rate(one.healthy)} in the other "
                    f"{one.runs - one.slow_runs}" for one in found]
        yield Located(
            Finding(CODE, TITLE, f"one of {count(len(hosts), 'nodes')}, or what they share, is slow: runs with "
                                 f"{listed(hosts, 6)} reach {rate(first.level)} against {rate(first.healthy)} "
                                 f"({name(first.collective)})", tuple(evidence),
                    "Run them apart, each with nodes of fast runs, to tell which it is; if all are slow, look at their "
                    "leaf switch", "medium", None, ("these nodes always took part together",)), nodes=hosts)


def _rails(view: View) -> Iterator[Located]:
    """A rail that is slower than the others on the same pairs."""
    groups: dict[tuple[int, str], list[Table]] = {}
    for table in view.tables:
        if table.setting.rail and table.measure == "bandwidth":
            groups.setdefault((table.setting.gpus_per_node, table.collective), []).append(table)
    found: dict[str, list[str]] = {}
    for (gpus, collective), tables in groups.items():
        for rail, level, others in slow_rails(tables):
            found.setdefault(rail, []).append(f"{name(collective)} at {count(gpus, 'GPUs')} a node: {rate(level)} "
                                              f"against {rate(others)} on the other rails, {slower(level, others)}")
    by_pairs = set(found)
    for shared in rails_in_runs(view.series, view.results):
        many = count(shared.setting.gpus_per_node, "GPUs")
        found.setdefault(shared.setting.rail, []).append(
            f"{name(shared.collective)} on {shared.setting.nodes} nodes at {many} a node: "
            f"{rate(shared.level)} against {rate(shared.healthy)} on the other {shared.runs - 1} rails, "
            f"{slower(shared.level, shared.healthy)}")
    for rail, evidence in found.items():
        more = () if rail in by_pairs else ("such runs do not tell a rail from one node's NIC on it: measure pairs of "
                                            "nodes on this rail",)
        yield Located(
            Finding(CODE, TITLE, f"rail {rail} is slow: {evidence[0]}", tuple(evidence[1:]) or (evidence[0],),
                    "Check the leaf switch of this rail and its uplinks, then the NIC of this rail on every node: "
                    "rate and width (ibstat), PCIe LnkSta, cable; with NCCL_IB_HCA set to it alone the test "
                    "repeats", "high", None,
                    (*more, *(("a rail is told from the place of the GPU that took part, device@bus",)
                              if "@" in rail else ()))), rails=(rail,))


def slow_rails(tables: list[Table]) -> Iterator[tuple[str, float, float]]:
    """(rail, its level, the others'). Levels are medians over pairs, each against the same pair on other rails."""
    if len(tables) < 2:
        return
    hosts = sorted({host for table in tables for host in table.hosts})
    stack = np.full((len(tables), len(hosts), len(hosts)), np.nan)
    for k, table in enumerate(tables):
        at = [hosts.index(host) for host in table.hosts]
        stack[k][np.ix_(at, at)] = np.log(table.values)
    i, j = np.triu_indices(len(hosts), 1)
    y = stack[:, i, j]
    for k, table in enumerate(tables):
        known = np.isfinite(y[k]) & (np.isfinite(np.delete(y, k, 0)).any(0))
        if known.sum() < 2:
            continue
        others = np.array([np.nanmedian(np.delete(y, k, 0)[:, c]) for c in np.flatnonzero(known)])
        rest = y[k][known] - others
        middle = float(np.median(rest))
        error = 1.8 * max(SMALLEST_SPREAD, float(np.median(np.abs(rest - middle)))) / np.sqrt(known.sum())
        if -middle > max(LEAST_SLOW, SPREADS * error) and (rest < -LEAST_SLOW / 2).mean() > 2 / 3:
            yield table.setting.rail, float(np.exp(np.median(y[k][known]))), float(np.exp(np.median(others)))


def _rails_of_nodes(view: View) -> Iterator[Located]:
    """A node that is slow on few of the rails."""
    rails = {a.setting.rail for a in view.agreed if a.setting.rail}
    seen: dict[str, list[Agreed]] = {}
    whole = by_node(view)
    for agreed in view.agreed:
        for host in agreed.nodes:
            one_rail = agreed.setting.rail and agreed.measure == "bandwidth"
            if one_rail and host not in whole and host not in alike(agreed):
                seen.setdefault(host, []).append(agreed)
    for host, where_seen in seen.items():
        own = sorted({a.setting.rail for a in where_seen})
        if len(own) > FEW_RAILS * len(rails):
            continue
        evidence = [f"rail {a.setting.rail}, {name(n.table.collective)}: {n.slow_pairs} of {n.pairs} pairs slow, "
                    f"{rate(n.level)} against {rate(n.healthy)}" for a in where_seen for n in a.nodes[host] if n.pairs]
        yield Located(
            Finding(CODE, TITLE, f"{host} is slow on rail {listed(own)} only, of {len(rails)} rails", tuple(evidence),
                    f"On {host} check that one NIC: cable, ibstat rate and width, PCIe LnkSta, symbol errors; swap its "
                    "cable with the next rail's to see which it follows", "high"), nodes=(host,), rails=tuple(own))
