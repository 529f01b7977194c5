"""SL504: time lost to waiting for someone late, not to bandwidth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp
from statistics import median

from sublight.comm.doctor.findings.slow_node import by_node
from sublight.comm.doctor.lateness import by_size, is_late
from sublight.comm.doctor.ranks import Times, rank_times, standing_out
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
FEWEST_RANKS = 3
CLEARLY = 2.0                      # times the wait of the others


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
    jumping = tuple(_iterations(view))
    yield from jumping
    named = {rank for located in jumping for rank in located.ranks}
    yield from (located for located in _by_rank(view) if not named & set(located.ranks))
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
    """The few ranks whose own times jump while those of most do not, nor nearly."""
    late = tuple(rank for rank, times in s.by_rank.items() if rank is not None and _jumps(times))
    if not late or len(s.by_rank) < FEWEST_RANKS or len(late) > len(s.by_rank) / 4:
        return ()
    waits = {rank: mean / shortest - 1 for rank, (shortest, mean, _) in s.by_rank.items()}
    others = median(wait for rank, wait in waits.items() if rank not in late)
    return late if min(waits[rank] for rank in late) > CLEARLY * others else ()


def _early_ranks(s: Spread) -> tuple[int, ...]:
    """The few ranks that wait much less than the others, who wait for them."""
    means = {rank: times[1] for rank, times in s.by_rank.items() if rank is not None}
    found = standing_out([Times(s.what, None, "", means, {})])
    return tuple(rank for rank, factor in found.items() if factor < 1)


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


def _by_rank(view: View) -> Iterator[Located]:
    """Ranks of one communicator, processes of one test or ranks of DeepEP's, of which few are always done first, and so
    came last, or always last."""
    groups: dict[str, list[Times]] = defaultdict(list)
    for one in rank_times(view.results):
        groups[one.group].append(one)
    late: dict[tuple[int, bool], list[str]] = defaultdict(list)
    on: dict[int, str] = {}
    for times in groups.values():
        together = standing_out(times)
        for one in times:
            alone = {} if together or one.nbytes is None else standing_out([one])
            middle = median(one.by_rank.values())
            for rank, factor in (together or {r: f for r, f in alone.items() if not EARLY < f < LONGER}).items():
                size_of = f" of {size(one.nbytes)}" if one.nbytes is not None else ""
                late[rank, factor < 1].append(f"{name(one.what)}{size_of}: {time(one.by_rank[rank])} against "
                                              f"{time(middle)} of {count(len(one.by_rank), 'ranks')}")
                on |= {rank: one.hosts[rank]} if rank in one.hosts else {}
    for (rank, first), evidence in sorted(late.items()):
        yield _one_rank(rank, on.get(rank), first, evidence)


def _one_rank(rank: int, host: str | None, first: bool, evidence: list[str]) -> Located:
    """The finding about a rank that is done first, so that the others wait for it, or last, so that they do not."""
    at = f"rank {rank} on {host}" if host else f"rank {rank}"
    test = evidence[0].partition(":")[0].split(" of ")[0]
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
