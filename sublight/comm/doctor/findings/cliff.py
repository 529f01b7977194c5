"""SL505: bandwidth that falls as messages grow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from sublight.comm.doctor.findings.slow_pair import CODE as PAIR
from sublight.comm.doctor.series import Point, Series
from sublight.comm.doctor.tables import natural
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, rate, size
from sublight.finding import Finding

CODE, TITLE = "SL505", "protocol cliff"
MOST_RUNS = 0.8                    # of a test that fall: then it is the test, not some paths
FALL = 0.8                         # of the best so far
MOST_LISTED = 8


@dataclass(frozen=True, slots=True)
class Cliff:
    """Where a series falls most: sizes and rates before and after, and the last rate."""

    series: Series
    before: Point
    after: Point
    last: Point


Test = tuple[str, int, int]        # collective, nodes, GPUs a node
Fallen = dict[tuple[str, ...], Cliff]


def cliff(series: Series) -> Cliff | None:
    """The largest step down from one size to the next below FALL of the best so far; None where nothing falls so
    far."""
    points = [p for p in series.points if p.bus]
    best, found = None, None
    for before, after in pairwise(points):
        assert before.bus is not None
        assert after.bus is not None
        best = before if best is None or (best.bus or 0) < before.bus else best
        if after.bus < FALL * (best.bus or 0) and (found is None or after.bus / before.bus < (found.after.bus or 0) / (
                found.before.bus or 1)):
            found = Cliff(series, before, after, points[-1])
    return found


def find(view: View) -> Iterable[Located]:
    """One finding for each test (collective, nodes, GPUs a node) that falls in most runs, in every place that was
    measured;
    and one for all runs that fall though most of their test do not."""
    groups: dict[Test, dict[tuple[str, ...], list[Series]]] = defaultdict(lambda: defaultdict(list))
    for s in view.series:
        if s.placement:
            key = (s.collective, s.placement.nodes, s.placement.gpus_per_node)
            groups[key][tuple(sorted(s.placement.hosts, key=natural))].append(s)
    few: list[tuple[Test, Fallen, int]] = []
    for test, by_hosts in groups.items():
        fallen = {}
        for hosts, several in by_hosts.items():
            found = [c for s in several if (c := cliff(s)) is not None]
            if found and len(found) == len(several):
                fallen[hosts] = min(found, key=_fall)
        if len(fallen) >= MOST_RUNS * len(by_hosts):
            yield _of_all(test, fallen, len(by_hosts))
        elif fallen:
            few.append((test, fallen, len(by_hosts)))
    if few:
        yield _of_few(few)


def _fall(c: Cliff) -> float:
    return (c.after.bus or 0.0) / (c.before.bus or 1.0)


def _named(test: Test) -> str:
    return f"{name(test[0])} on {count(test[1], 'nodes')} of {count(test[2], 'GPUs')}"


def _lines(fallen: Fallen, most: int) -> list[str]:
    lines = [f"{listed(hosts, 4)}: {rate(c.before.bus or 0)} at {size(c.before.nbytes)}, {rate(c.after.bus or 0)} at "
             f"{size(c.after.nbytes)}" + (f", {rate(c.last.bus or 0)} "
                                          f"at {size(c.last.nbytes)}" if c.last is not c.after else "")
             for hosts, c in sorted(fallen.items(), key=lambda f: _fall(f[1]))[:most]]
    return lines + ([f"and {len(fallen) - most} more"] if len(fallen) > most else [])


def _of_all(test: Test, fallen: Fallen, of: int) -> Located:
    worst = min(fallen.values(), key=_fall)
    some = "" if of == 1 else f" in {len(fallen)} of {of} runs"
    at = size(int(median(c.after.nbytes for c in fallen.values())))
    return Located(Finding(
        CODE, TITLE, f"{_named(test)}: bandwidth falls as messages grow{some}; from {rate(worst.before.bus or 0)} at "
        f"{size(worst.before.nbytes)} to {rate(worst.after.bus or 0)} at "
        f"{size(worst.after.nbytes)}", tuple(_lines(fallen, MOST_LISTED)),
        f"Run once with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=TUNING around {at}: if algorithm or protocol change "
        "there, force the ones before (NCCL_ALGO, NCCL_PROTO) or write a tuner row; if not, look for pauses and "
        "discards on the NICs", "medium", None,
        ("logs of nccl-tests do not say which algorithm and protocol ran",)))


def _of_few(few: list[tuple[Test, Fallen, int]]) -> Located:
    test, fallen, _ = min(few, key=lambda f: min(_fall(c) for c in f[1].values()))
    worst = min(fallen.values(), key=_fall)
    hosts = tuple(dict.fromkeys(h for (_, nodes, _), runs, _ in few if nodes <= 2 for hs in runs for h in hs))
    return Located(Finding(
        CODE, TITLE, f"on some paths bandwidth falls as messages grow, in {sum(len(f) for _, f, _ in few)} of "
        f"{sum(of for *_, of in few)} runs; at worst from {rate(worst.before.bus or 0)} at {size(worst.before.nbytes)} "
        f"to {rate(worst.after.bus or 0)} at {size(worst.after.nbytes)} ({_named(test)})",
        (*(f"{_named(t)}: {len(f)} of {of} runs" for t, f, of in few), *_lines(fallen, 4),
         f"most runs of these tests do not fall, so that it is these paths and not NCCL's choice: see {PAIR}"),
        "Look at the switches and NICs of these paths while a large message runs: pauses (PFC), discards, ECN marks, "
        "congestion control (DCQCN), a link that retrains", "medium", None,
        ("a fall that grows with the length of the run is congestion or heat rather than the size",)), nodes=hosts)
