"""This file knows about ranks that stand out: times of every rank of the same operations, of which few differ from all.

In a collective the last to arrive is done first: it waits for no one. Times are compared in logarithms, a mean over
operations and sizes; a rank stands out by Student's t against the spread of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev

from sublight.comm.doctor.faults import FALSE_ALARM, LEAST_SLOW, student
from sublight.comm.doctor.series import words
from sublight.result import Result

FEWEST_RANKS, FEWEST_SAMPLES = 4, 3
LEAST_SPREAD = 0.005                     # in logarithms: printed times have three or four digits
MOST_OUT = 0.25                          # of the ranks: more are no exception


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of one operation by rank, in seconds. what: the collective or DeepEP's name of it; nbytes where known."""

    what: str
    nbytes: int | None
    group: str                           # the communicator or file; its operations are looked at together
    by_rank: Mapping[int, float]
    hosts: Mapping[int, str]


def rank_times(results: Iterable[Result]) -> tuple[Times, ...]:
    """From times of every rank (NCCL Inspector), of every process (nccl-tests JSON), and from the means that each rank
    of DeepEP's tests prints."""
    samples: dict[tuple[str, int | None, str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    hosts: dict[tuple[str, int | None, str, str], dict[int, str]] = defaultdict(dict)
    means = set()
    for r in results:
        said = words(r)
        who = said.get("process", said.get("rank", ""))
        if not r.samples or not who.isdigit() or r.name != ("time" if r.message else "mean time"):
            continue
        group = said.get("comm") or (r.source if r.message else "")        # DeepEP's ranks may have a file each
        key = (r.message.collective if r.message else said.get("what", "operation"),
               r.message.nbytes if r.message else None, group, said.get("place", ""))
        samples[key][int(who)].extend(r.samples)
        means |= set() if r.message else {key}
        if r.placement and len(r.placement.hosts) == 1:
            hosts[key][int(who)] = r.placement.hosts[0]
    out = []
    for key, by_rank in samples.items():
        enough = {rank: median(v) for rank, v in by_rank.items() if key in means or len(v) >= FEWEST_SAMPLES}
        if len(enough) >= FEWEST_RANKS:
            out.append(Times(key[0], key[1], key[2], enough, hosts[key]))
    return tuple(out)


def standing_out(times: Sequence[Times]) -> dict[int, float]:
    """Ranks whose times over these operations are unlike the others', with the factor: 0.8 for one that takes 20 %
    less. Those that take less go first: where there are some, the others wait for them."""
    off: dict[int, list[float]] = defaultdict(list)
    for one in times:
        middle = median(one.by_rank.values() or [1.0])
        for rank, seconds in one.by_rank.items():
            off[rank].append(log(seconds / middle))
    everywhere = {rank: fmean(values) for rank, values in off.items() if len(values) == len(times)}
    for sign in (-1.0, 1.0):
        found = _beyond({rank: sign * value for rank, value in everywhere.items()})
        if found:
            return {rank: exp(everywhere[rank]) for rank in found}
    return {}


def _beyond(values: Mapping[int, float]) -> tuple[int, ...]:
    """The ranks whose value lies above all others', by more than these spread."""
    n = len(values)
    if n < FEWEST_RANKS:
        return ()
    ranked = sorted(values, key=lambda rank: -values[rank])
    for out in range(max(1, int(n * MOST_OUT)), 0, -1):
        rest = [values[rank] for rank in ranked[out:]]
        spread = max(LEAST_SPREAD, stdev(rest))
        least = student(FALSE_ALARM / (2 * n), len(rest) - 1) * spread * sqrt(1 + 1 / len(rest))
        gap = values[ranked[out - 1]] - fmean(rest)
        if gap > max(LEAST_SLOW, least) and values[ranked[out - 1]] - rest[0] > gap / 3:
            return tuple(sorted(ranked[:out]))
    return ()
