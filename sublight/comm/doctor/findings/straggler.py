"""SL504: time lost to waiting for someone late, not to bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp
from statistics import median

from sublight.comm.doctor.findings.slow_node import by_node
from sublight.comm.doctor.lateness import by_size, is_late
from sublight.comm.doctor.series import Series, words
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, size, time, where
from sublight.finding import Finding

CODE, TITLE = "SL504", "straggler, not bandwidth"
MEAN_OVER_SHORTEST, LONGEST_OVER_MEAN = 1.5, 1.25      # waiting in most iterations
SOME_MEAN, SOME_LONGEST, ONE_SIDED = 1.1, 1.3, 1.5     # waiting in some: longest lies further off than shortest
ITERATIONS_MEAN = 2.0              # of nccl-tests' iterations, where small messages jump by nature
LONGER = 1.5                       # median time of one rank over that of all, who do not wait for it
EARLY = 0.7                        # median time of the last to arrive over that of all: it waits for no one
FEWEST_RANKS, FEWEST_SAMPLES = 3, 3


Kind = tuple[str, int, str, str]         # collective, bytes, communicator or file, place


@dataclass(frozen=True, slots=True)
class Spread:
    """Shortest, mean and longest time of one kind of operation, in seconds, by rank where known."""

    what: str
    by_rank: dict[int | None, tuple[float, float, float]]
    iterations: bool = False           # of nccl-tests


def find(view: View) -> Iterable[Located]:
    """Fires where iterations of one operation differ so much that the shortest shows the wire to be fast, where one
    rank
    is done in much less time than all that wait for it, and where a node adds a time to its pairs rather than a
    share."""
    yield from _iterations(view)
    yield from _first_done(view)
    yield from _late_nodes(view)


def spreads(view: View) -> Iterator[Spread]:
    """From avg, min and max as DeepEP prints them, and from iterations of nccl-tests (-I 1)."""
    kinds: dict[str, dict[int | None, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list)))
    for r in view.results:
        said = words(r)
        if r.message is None and r.name in ("shortest time", "mean time", "longest time") and r.samples:
            rank = int(said["rank"]) if said.get("rank", "").isdigit() else None
            kinds[said.get("what", "operation")][rank][r.name].append(r.samples[0])
    for what, by_rank in kinds.items():
        whole = {rank: (min(t["shortest time"]), median(t["mean time"]), max(t["longest time"]))
                 for rank, t in by_rank.items() if t["shortest time"] and t["mean time"] and t["longest time"]}
        if whole:
            yield Spread(what, whole)
    for s in view.series:
        yield from _of_series(s)


def _of_series(s: Series) -> Iterator[Spread]:
    for p in s.points:
        later = p.samples[1:]          # the first iteration may carry the cost of starting
        shortest = min(later) if later else p.shortest
        longest = max(later) if later else p.longest
        mean = sum(later) / len(later) if later else p.seconds
        if shortest and longest:
            hosts = f" on {listed(s.placement.hosts, 4)}" if s.placement and s.placement.hosts else ""
            what = f"{name(s.collective)} of {size(p.nbytes)}{hosts}, {s.place}"
            yield Spread(what, {None: (shortest, mean, longest)}, iterations=True)


def _iterations(view: View) -> Iterator[Located]:
    found = [s for s in spreads(view) if _is_late(s)]
    if not found:
        return
    worst = max(found, key=lambda s: _typical(s)[1] / _typical(s)[0])
    shortest, mean, longest = _typical(worst)
    alone, early = _late_ranks(worst), _early_ranks(worst)
    evidence = [_said(s) for s in sorted(found, key=lambda s: -_typical(s)[1] / _typical(s)[0])[:6]]
    if len(found) > 6:
        evidence.append(f"and {len(found) - 6} more")
    ranks = alone or early
    who = "of a late rank"
    if alone:
        who = f"on {_ranks(alone)} alone, {count(len(worst.by_rank) - len(alone), 'others')} do not wait"
    elif early:
        who = f"for {_ranks(early)}, who waits least"
        means = {rank: t[1] for rank, t in worst.by_rank.items()}
        evidence.append(f"{_ranks(early)}: {time(min(means[r] for r in early))} on average against "
                        f"{time(median(means.values()))} of all: the others wait for it")
    else:
        who = "for a late rank"
    claim = (f"{worst.what}: {time(mean)} on average, but {time(shortest)} at best and {time(longest)} at worst: "
             f"{1 - shortest / mean:.0%} of the mean is waiting {who}, not the wire".replace("%", " %"))
    yield Located(
        Finding(CODE, TITLE, claim, tuple(evidence),
                "Find who is late rather than tune the network: CPU pinning, a GPU that throttles (nvidia-smi -q -d "
                "PERFORMANCE), another process on the node, uneven work before the call; put a barrier before the "
                "timed region and measure again", "high" if mean > 2 * shortest else "medium", None,
                ("shortest, mean and longest do not tell a late rank from a network that stalls now and then: times of "
                 "every rank and iteration do",)), ranks=ranks)


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed([str(r) for r in ranks])}"


def _late_ranks(s: Spread) -> tuple[int, ...]:
    """The few ranks whose own times jump while those of most do not."""
    late = tuple(rank for rank, times in s.by_rank.items() if rank is not None and _jumps(times))
    return late if len(s.by_rank) >= FEWEST_RANKS and len(late) <= len(s.by_rank) / 4 else ()


def _early_ranks(s: Spread) -> tuple[int, ...]:
    """The few ranks that wait much less than the others, who wait for them."""
    means = {rank: times[1] for rank, times in s.by_rank.items() if rank is not None}
    if len(means) < FEWEST_RANKS:
        return ()
    early = tuple(rank for rank, mean in means.items() if mean < EARLY * median(means.values()))
    return early if len(early) <= len(means) / 4 else ()


def _typical(s: Spread) -> tuple[float, float, float]:
    """Of the ranks that jump alone, where some do, else of all."""
    alone = _late_ranks(s)
    values = [s.by_rank[rank] for rank in alone] or list(s.by_rank.values())
    return median(v[0] for v in values), median(v[1] for v in values), max(v[2] for v in values)


def _is_late(s: Spread) -> bool:
    shortest, mean, longest = _typical(s)
    return _jumps((shortest, mean, longest)) and (not s.iterations or mean > ITERATIONS_MEAN * shortest)


def _jumps(times: tuple[float, float, float]) -> bool:
    shortest, mean, longest = times
    if mean > MEAN_OVER_SHORTEST * shortest:
        return longest > LONGEST_OVER_MEAN * mean
    one_sided = longest - mean > ONE_SIDED * (mean - shortest)
    return mean > SOME_MEAN * shortest and longest > SOME_LONGEST * mean and one_sided


def _said(s: Spread) -> str:
    shortest, mean, longest = _typical(s)
    return (f"{s.what}: shortest {time(shortest)}, mean {time(mean)}, longest {time(longest)}"
            + (f" over {count(len(s.by_rank), 'ranks')}" if len(s.by_rank) > 1 else ""))


def _first_done(view: View) -> Iterator[Located]:
    """Ranks of one communicator, or processes of one test, of which one is always done first: it came last."""
    groups: dict[Kind, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    hosts: dict[Kind, dict[int, str]] = defaultdict(dict)
    for r in view.results:
        said = words(r)
        who = said.get("process", said.get("rank", ""))
        if r.message is None or r.name != "time" or not r.samples or not who.isdigit():
            continue
        key = (r.message.collective, r.message.nbytes, said.get("comm") or r.source, said.get("place", ""))
        groups[key][int(who)].extend(r.samples)
        if r.placement and len(r.placement.hosts) == 1:
            hosts[key][int(who)] = r.placement.hosts[0]
    late: dict[tuple[int, bool], list[str]] = defaultdict(list)
    on: dict[int, str] = {}
    for key, by_rank in groups.items():
        collective, nbytes, *_ = key
        middles = {rank: median(v) for rank, v in by_rank.items() if len(v) >= FEWEST_SAMPLES}
        if len(middles) < FEWEST_RANKS:
            continue
        all_of_them = median(middles.values())
        early = {rank: middle for rank, middle in middles.items() if middle < EARLY * all_of_them}
        longer = {rank: middle for rank, middle in middles.items() if middle > LONGER * all_of_them}
        found = early or longer
        for rank, middle in found.items() if len(found) <= len(middles) / 4 else ():
            late[rank, found is early].append(f"{name(collective)} of {size(nbytes)}: {time(middle)} against "
                                              f"{time(all_of_them)} of {count(len(middles), 'ranks')}")
            if rank in hosts[key]:
                on[rank] = hosts[key][rank]
    for (rank, first), evidence in sorted(late.items()):
        yield _one_rank(rank, on.get(rank), first, evidence)


def _one_rank(rank: int, host: str | None, first: bool, evidence: list[str]) -> Located:
    """The finding about a rank that is done first, so that the others wait for it, or last, so that they do not."""
    at = f"rank {rank} on {host}" if host else f"rank {rank}"
    test = evidence[0].split(" of ")[0]
    claim = (f"{at} is done first in {test}: it arrives last, and the others wait for it" if first else
             f"{at} takes longer than the others in {test}, who do not wait for it: the rank is slow or early, not the "
             "fabric")
    return Located(
        Finding(CODE, TITLE, claim, tuple(evidence[:6]),
                f"Look at {at} before the call: its GPU's clocks, its CPU cores, its share of the work",
                "high" if first else "medium"), nodes=(host,) if host else (), ranks=(rank,))


def _late_nodes(view: View) -> Iterator[Located]:
    """Nodes whose small messages are slow while their large ones are not."""
    slow = by_node(view)
    seen: dict[str, list[str]] = {}
    for agreed in view.agreed:
        for host, ins in agreed.nodes.items():
            sizes = by_size(view.series, agreed, host)
            if host in slow or not sizes or (agreed.measure == "bandwidth" and not is_late(view.series, agreed, host)):
                continue
            if agreed.measure == "latency" and (sizes[-1][1] > 0.5 * sizes[0][1] or sizes[-1][1] > 0.08):
                continue
            pairs = max(n.pairs for n in ins)
            seen.setdefault(host, []).append(
                f"{where(agreed.setting)}: with {count(pairs, 'nodes')}, {size(sizes[0][0])} takes "
                f"{exp(sizes[0][1]):.1f} times as long as on other pairs, {size(sizes[-1][0])} {exp(sizes[-1][1]):.2f} "
                "times")
    for host, evidence in seen.items():
        yield Located(
            Finding(CODE, TITLE, f"{host} is late, not slow: it adds a time to every call, which shows in small "
                                 f"messages and "
                    "vanishes in large ones", tuple(dict.fromkeys(evidence)),
                    f"On {host} look at the host, not the network: CPU governor and pinning, interrupts, another "
                    "process, IOMMU, GPU clocks", "medium"), nodes=(host,))
