"""SL507: a first size or first iterations that carry the cost of starting."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sublight.comm.doctor.series import Series
from sublight.comm.doctor.view import Located, View
from sublight.comm.doctor.wording import count, listed, name, size, time
from sublight.finding import Finding

CODE, TITLE = "SL507", "warm-up artefact"
FIRST_OVER_OTHERS = 1.3            # out-of-place over in-place at the first size, and over the same at others
FIRST_OVER_NEXT = 1.25             # the first size takes longer than the next, larger one
FIRST_ITERATION = 2.0              # over the median iteration


def find(view: View) -> Iterable[Located]:
    """Fires where the first size is slow in the first place only, or slower than the next size, or the first iteration
    of
    a size takes twice the median one."""
    places: dict[tuple[object, ...], dict[str, Series]] = {}
    for s in view.series:
        places.setdefault((s.collective, s.placement, s.rail, s.source), {})[s.place] = s
    found = [said for both in places.values() if (said := _first_size(both)) is not None]
    found += [said for s in view.series if (said := _first_iteration(s)) is not None]
    if found:
        yield Located(Finding(
            CODE, TITLE, f"{count(len(found), 'series')} begin slowly: {found[0]}".replace("1 serie begin", "1 series "
                "begins"),
            tuple(found[:6]) + ((f"and {len(found) - 6} more",) if len(found) > 6 else ()),
            "Leave the first size out when you compare; run with more warm-up (-w 20) or begin one size lower "
            "(-b)", "medium", None,
            ("connections, registrations and clocks that rise are paid at first use; that is real in a job's first "
             "step",)))


def _first_size(both: dict[str, Series]) -> str | None:
    out, inside = both.get("out-of-place"), both.get("in-place")
    first = out or inside
    if first is None or len(first.points) < 3:
        return None
    p, following = first.points[0], first.points[1]
    said = f"{name(first.collective)}{_on(first)} at {size(p.nbytes)}"
    if out and inside and len(inside.points) == len(out.points):
        ratios = [a.seconds / b.seconds for a, b in zip(out.points, inside.points, strict=True)]
        if ratios[0] > FIRST_OVER_OTHERS and ratios[0] > FIRST_OVER_OTHERS * median(ratios[1:]):
            return f"{said}: {time(p.seconds)} out of place, then {time(inside.points[0].seconds)} in place"
    if p.nbytes and p.seconds > FIRST_OVER_NEXT * following.seconds:
        return f"{said}: {time(p.seconds)}, more than the {time(following.seconds)} of {size(following.nbytes)}"
    return None


def _first_iteration(s: Series) -> str | None:
    for p in s.points:
        if len(p.samples) >= 5 and p.samples[0] > FIRST_ITERATION * median(p.samples[1:]):
            return (f"{name(s.collective)}{_on(s)} at {size(p.nbytes)}: first iteration {time(p.samples[0])}, median "
                    f"of the others {time(median(p.samples[1:]))}")
    return None


def _on(s: Series) -> str:
    return f" on {listed(s.placement.hosts, 3)}" if s.placement and s.placement.hosts else ""
