"""SL506: measurements that failed, and those that were never run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import command, count, listed, name, where
from sublight.finding import Finding
from sublight.result import Result

CODE, TITLE = "SL506", "failed measurements"
LEAST_SHARE = 0.34                 # of the failures that one node must be part of to be named
MOST_LISTED = 8


def find(view: View) -> Iterable[Located]:
    """Fires for every measurement without a value, and says which combinations are absent though others have them."""
    missing = sum(len(a.pairs) for a in view.absent)
    if not view.failures and not missing:
        return
    tried = len({_key(r) for r in view.results if r.message and r.placement})
    failed = {_key(r): r for r in view.failures}
    pairs = {tuple(r.placement.hosts) for r in failed.values() if r.placement and len(r.placement.hosts) == 2}
    said = f"{count(len(failed), 'measurements')} of {tried:,} failed" if failed else ""
    if pairs:
        said += f", on {count(len(pairs), 'pairs')} of nodes"
    if missing:
        said += f"{'; ' if said else ''}{count(missing, 'combinations')} {'was' if missing == 1 else 'were'} not run"
    nodes, evidence = _nodes(list(failed.values())), list(_evidence(list(failed.values())))
    evidence += [f"not run: {name(a.collective)} {where(a.setting)}: "
                 f"" + listed([f"{x}–{y}" for x, y in a.pairs], MOST_LISTED)
                 for a in view.absent]
    yield Located(Finding(CODE, TITLE, said, tuple(evidence), _action(list(failed.values()), nodes), "high", None,
                          ("a failed run says nothing about bandwidth: its pairs count as not measured above",)
                          if failed else ()),
                  nodes=tuple(nodes), pairs=tuple(sorted((a, b) for a, b in pairs)))


def _key(r: Result) -> tuple[object, ...]:
    """What counts as one measurement: a test on some nodes."""
    return (r.message.collective if r.message else r.name, r.placement.gpus_per_node if r.placement else 0,
            r.placement.hosts if r.placement else (), r.variant.rpartition("rail ")[2] if "rail " in r.variant else "",
            "" if r.placement else r.source)


def _evidence(failed: list[Result]) -> Iterable[str]:
    for failure, number in Counter(r.failure for r in failed).most_common():
        yield f"{failure}: {count(number, 'measurements')}"
    tests = Counter((r.message.collective, r.placement.gpus_per_node) for r in failed if r.message and r.placement)
    if len(tests) > 1:
        yield "by test: " + "; ".join(f"{name(c)} at {count(g, 'GPUs')} a "
                                      f"node {n}" for (c, g), n in sorted(tests.items()))
    ends = Counter(h for r in failed if r.placement for h in r.placement.hosts)
    if len(ends) > 2:
        yield "by node: " + ", ".join(f"{host} {n}" for host, n in ends.most_common(MOST_LISTED))
    pairs = Counter("–".join(r.placement.hosts) for r in failed if r.placement and len(r.placement.hosts) == 2)
    if pairs:
        yield "by pair: " + listed([f"{pair} {n}" for pair, n in pairs.most_common()], 2 * MOST_LISTED)


def _nodes(failed: list[Result]) -> list[str]:
    """Nodes that are part of a third of the failures or more, where failures are several."""
    ends = Counter(h for r in failed if r.placement and len(r.placement.hosts) == 2 for h in r.placement.hosts)
    return [host for host, n in ends.most_common() if n >= 3 and n >= LEAST_SHARE * len(failed)]


def _action(failed: list[Result], nodes: list[str]) -> str:
    if not failed:
        return "Run the absent combinations: a fault that only they show is not seen"
    first = next((r for r in failed if r.placement and len(r.placement.hosts) == 2 and r.message), None)
    again = ""
    if first is not None and first.placement is not None and first.message is not None:
        at = first.placement
        run = command(at.hosts, at.gpus_per_node, first.message.collective)
        again = f": {run.replace('mpirun', 'mpirun -x NCCL_DEBUG=WARN', 1)}"
    most = f", {listed(nodes)} first" if nodes else ""
    return (f"Run these alone with NCCL_DEBUG=WARN{most}; on a lost peer look at the kernel log of both ends (dmesg: "
            f"mlx5, NVRM Xid), GID index and PFC{again}")
