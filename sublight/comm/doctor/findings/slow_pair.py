"""SL502: pairs that are slow although both of their nodes are healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from sublight.comm.doctor.agreed import Agreed, PairIn
from sublight.comm.doctor.findings.slow_node import by_node
from sublight.comm.doctor.tables import Pair
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import command, count, listed, name, rate, slower, where
from sublight.finding import Finding

CODE, TITLE = "SL502", "slow pair"
MOST_LISTED = 12


def find(view: View) -> Iterable[Located]:
    """One finding for each setting, with every pair that its tables or their mean call, worst first."""
    slow = set(by_node(view))
    for agreed in view.agreed:
        met = _met(agreed)               # the only pair of a node that other settings call is the node's
        pairs = {pair: ins for pair, ins in agreed.pairs.items() if not any(met[h] == 1 and h in slow for h in pair)}
        if agreed.measure != "bandwidth" or not pairs:
            continue
        ranked = sorted(pairs.items(), key=lambda p: min(i.level / i.healthy for i in p[1]))
        names = [f"{a}–{b}" for (a, b), _ in ranked]
        both = [pair for pair, ins in ranked if len(ins) > 1 and all(_slow(i) for i in ins)]
        tests = [name(t.collective) for t in agreed.tables]
        are = "is" if len(names) == 1 else "are"
        said = f"{count(len(names), 'pairs')} of healthy nodes {are} slow {where(agreed.setting)}"
        if len(tests) > 1:
            some = "all" if len(both) == len(names) else f"{len(both) or 'none'} of them"
            agree = f"{some} in {listed(tests)}"
            said += f", {agree}" if len(names) > 1 else f" in {listed(tests)}" if both else ""
        yield Located(
            Finding(CODE, TITLE, f"{said}: {listed(names, MOST_LISTED)}", tuple(_evidence(view, agreed, ranked)),
                    _action(ranked[0], agreed), "high" if both or len(tests) == 1 else "medium", None,
                    _caveats(ranked, agreed)),
            pairs=tuple(pair for pair, _ in ranked))


def _slow(one: PairIn) -> bool:
    return one.level < 0.92 * one.healthy


def _evidence(view: View, agreed: Agreed, ranked: list[tuple[Pair, tuple[PairIn, ...]]]) -> Iterable[str]:
    for (a, b), ins in ranked[:MOST_LISTED]:
        yield f"{a}–{b}: " + "; ".join(
            f"{name(i.table.collective)} {rate(i.level)} of {rate(i.healthy)}, "
            f"{slower(i.level, i.healthy)}" for i in ins)
    if len(ranked) > MOST_LISTED:
        yield f"and {len(ranked) - MOST_LISTED} more (--format json lists all)"
    ends = Counter(host for pair, _ in ranked for host in pair)
    if len(ranked) > 2:
        most = ", ".join(f"{host} in {n}" for host, n in ends.most_common(4) if n > 1)
        yield (f"they join {len(ends)} nodes" + (f"; {most}" if most else "") +
               ": no node is slow with two thirds of the others, so that paths are to blame rather than nodes")
    if crossed := _crossed(view, agreed, {pair for pair, _ in ranked}):
        yield crossed


def _crossed(view: View, agreed: Agreed, slow: set[Pair]) -> str | None:
    """Whether slow pairs are those whose GPUs sit at different places of their nodes."""
    counts = {(crossing, bad): 0 for crossing in (False, True) for bad in (False, True)}
    seen: set[Pair] = set()
    for s in view.series:
        p = s.placement
        if p is None or len(p.hosts) != 2 or p.gpus_per_node != agreed.setting.gpus_per_node or not s.rail:
            continue
        a, b = sorted(p.hosts)
        if (a, b) not in seen:
            seen.add((a, b))
            counts["-" in s.rail, (a, b) in slow or (b, a) in slow] += 1
    straight, crossing = counts[False, False] + counts[False, True], counts[True, True] + counts[True, False]
    if not counts[True, True] or counts[False, True] or straight < 5 or crossing < 5:
        return None
    return (f"all {counts[True, True]} join GPUs at different places (PCI addresses) of their nodes, which {crossing} "
            f"pairs do; none of the {straight} pairs with GPUs at the same place is slow: the path between rails is to "
            "blame")


def _action(first: tuple[Pair, tuple[PairIn, ...]], agreed: Agreed) -> str:
    pair, ins = first
    test = ins[0].table.collective if ins else "send_recv"
    return ("Trace the path of each pair (ibtracert, or the switches' ECMP hash): look for a shared link that is down "
            "to a lower rate, has symbol errors, or carries several of these flows; try adaptive routing or "
            f"NCCL_IB_QPS_PER_CONNECTION; run again alone: {command(pair, agreed.setting.gpus_per_node, test)}")


def _met(agreed: Agreed) -> Counter[str]:
    """With how many others each host was measured, in the test that has most."""
    found: Counter[str] = Counter()
    for table in agreed.tables:
        found |= Counter(dict(zip(table.hosts, np.isfinite(table.values).sum(1).tolist(), strict=True)))
    return found


def _caveats(ranked: list[tuple[Pair, tuple[PairIn, ...]]], agreed: Agreed) -> tuple[str, ...]:
    once = sum(1 for _, ins in ranked if len(ins) < len(agreed.tables) or not all(_slow(i) for i in ins))
    out = []
    met = _met(agreed)
    single = dict.fromkeys(host for pair, _ in ranked for host in pair if met[host] == 1)
    if single:
        was = "was" if len(single) == 1 else "were"
        out.append(f"{listed(tuple(single), 4)} {was} measured with one other node only: the node or the pair")
    if len(agreed.tables) == 1:
        out.append("one test only: a second one (sendrecv_perf) tells a path from a passing disturbance")
    elif once:
        out.append(f"{count(once, 'pairs')} slow in one test only: other traffic at that time, or a path of the day")
    return tuple(out)
