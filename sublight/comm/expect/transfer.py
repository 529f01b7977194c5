"""This file knows about expected times where nothing was measured: other numbers of ranks, other devices.

    ranks between     straight between the curves beside them, over log2(ranks)
    ranks above       the largest curve: its start-up grows on as it did, its rest as bus bytes do
    another device    the nearest measured one, at the size that keeps its link busy for as long
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sublight.comm.bus import bus_bytes
from sublight.comm.expect.fit import complete
from sublight.comm.expect.intervals import COVERED, scales, widths
from sublight.comm.expect.measured import COLLECTIVES, F64, FORMS, Box, Table
from sublight.comm.expect.surface import Surface, System, at, curve_of, system_of
from sublight.work import Message

# what each doubling of ranks above the largest curve adds to half an interval: a judgement; 72 ranks of a GB200 NVL72,
# 3.2 doublings, were 0.15 off at most (all-reduce, coreweave/nccl-tests README at cb865533)
ABOVE = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """log microseconds and half the width of the 80 % interval, with what was assumed."""

    log_us: float
    width: float
    notes: tuple[str, ...] = ()


def link_of(box: Box) -> str:
    return "NVLink" if box.nvlink else "PCIe"


def reading(surface: Surface, system: System, collective: str, form: str, ranks: int, nbytes: float) -> Reading:
    """A curve of a measured system at any number of ranks."""
    known = system.ranks
    if ranks in known:
        log_us, width = at(surface, system, curve_of(collective, form, ranks), nbytes)
        notes = () if ranks in system.measured else (f"{ranks} ranks were not measured on {system.key}: completed "
                                                     "from systems like it",)
        return Reading(log_us, width, notes)
    if ranks > known[-1]:
        return _above(surface, system, collective, form, ranks, nbytes)
    after = next(n for n in known if n > ranks)
    before = known[known.index(after) - 1]
    share = math.log(ranks / before) / math.log(after / before)
    low, high = (reading(surface, system, collective, form, n, nbytes) for n in (before, after))
    width = (1 - share) * low.width + share * high.width
    extra = surface.between[link_of(Box.of(system.key))] * 4 * share * (1 - share)
    return Reading((1 - share) * low.log_us + share * high.log_us, math.hypot(width, extra),
                   (f"{ranks} ranks lie between {before} and {after}, for which there are curves",))


def _above(surface: Surface, system: System, collective: str, form: str, ranks: int, nbytes: float) -> Reading:
    most, before = system.ranks[-1], system.ranks[-2]
    top = reading(surface, system, collective, form, most, nbytes)
    small = surface.knots[0]
    start = reading(surface, system, collective, form, most, small).log_us
    growth = (start - reading(surface, system, collective, form, before, small).log_us) / math.log2(most / before)
    doublings = math.log2(ranks / most)
    waiting = math.exp(min(start, top.log_us)) * math.exp(growth * doublings)
    moving = math.exp(top.log_us) - math.exp(min(start, top.log_us))
    more, least = (bus_bytes(Message(collective, n, 1 << 20)) or 1.0 for n in (ranks, most))
    return Reading(math.log(waiting + moving * more / least), math.hypot(top.width, ABOVE * doublings),
                   (*top.notes, f"{ranks} ranks: continued from {most}, the most with a curve"))


# ---- another device


def nearest(surface: Surface, box: Box) -> System | None:
    """The measured system to take a device's times from: the same kind of link, if possible the same generation, then
    the nearest link rate. None where no system has its kind of link."""
    known = [(Box.of(key), system) for key, system in surface.systems.items()]
    able = [(other, system) for other, system in known if other.nvlink == box.nvlink]
    able.sort(key=lambda pair: (pair[0].family != box.family,
                                abs(math.log(pair[0].link_bytes_per_second / box.link_bytes_per_second))))
    return able[0][1] if able else None


def moved(box: Box, system: System, nbytes: float) -> float:
    """The bytes that keep the measured system's link busy for as long as nbytes the device's."""
    return nbytes * Box.of(system.key).link_bytes_per_second / box.link_bytes_per_second


# ---- what the fit learns for the above


def fitted(table: Table, source: str) -> Surface:
    """The constants of a table of measurements: everything that `in_domain` reads."""
    found = complete(table)
    systems = {}
    for index, key in enumerate(table.systems):
        width = widths(table, index, found.deviation[index], scales(table, index))
        systems[key] = system_of(table, index, found.log_us[index], width)
    bare = Surface(source, table.sizes, systems, {}, {}, {})
    return Surface(source, table.sizes, systems, _by_link(_between(table)), _by_link(_between_devices(bare, kin=True)),
                   _by_link(_between_devices(bare, kin=False)))


def _by_link(errors: Iterator[tuple[str, F64]]) -> dict[str, float]:
    lists: dict[str, list[F64]] = {}
    for link, error in errors:
        lists.setdefault(link, []).append(error.ravel())
    return {link: float(np.quantile(np.concatenate(found), COVERED)) for link, found in lists.items()}


def _between(table: Table) -> Iterator[tuple[str, F64]]:
    """Errors of measured curves against the line between the ones beside them."""
    x = np.log2(table.ranks)
    for system, key in enumerate(table.systems):
        for r in range(1, len(x) - 1):
            share = (x[r] - x[r - 1]) / (x[r + 1] - x[r - 1])
            low, middle, high = (table.log_us[system, :, :, i] for i in (r - 1, r, r + 1))
            error = np.abs((1 - share) * low + share * high - middle)
            if not np.isnan(error).any():
                yield link_of(Box.of(key)), error


def _between_devices(surface: Surface, *, kin: bool) -> Iterator[tuple[str, F64]]:
    """Errors of each system when it is taken from the nearest other, of its generation (kin) or of others."""
    for key, system in surface.systems.items():
        box = Box.of(key)
        others = {k: s for k, s in surface.systems.items() if k != key and (Box.of(k).family == box.family) == kin}
        other = nearest(Surface(surface.source, surface.knots, others, {}, {}, {}), box)
        if other is not None:
            yield link_of(box), np.array([
                abs(at(surface, other, curve_of(name, form, n), moved(box, other, size))[0]
                    - at(surface, system, curve_of(name, form, n), size)[0])
                for name in COLLECTIVES for form in FORMS for n in system.measured if n in other.measured
                for size in surface.knots])
