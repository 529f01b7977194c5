"""This file knows about series: one test of one group of ranks over its message sizes, as Results give it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sublight.comm.bus import bus_bytes
from sublight.result import Placement, Result
from sublight.work import Message


@dataclass(frozen=True, slots=True)
class Point:
    nbytes: int
    seconds: float
    bus: float | None              # bytes per second
    shortest: float | None = None
    longest: float | None = None
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Points by size, ascending."""

    collective: str
    ranks: int
    placement: Placement | None
    place: str                     # "out-of-place", "in-place" or ""
    rail: str                      # "3@5d", or "" where all or none are meant
    source: str
    points: tuple[Point, ...]


@dataclass(slots=True)
class _Building:
    seconds: dict[int, Result] = field(default_factory=dict)
    bus: dict[int, float] = field(default_factory=dict)
    shortest: dict[int, float] = field(default_factory=dict)
    longest: dict[int, float] = field(default_factory=dict)


def words(result: Result) -> dict[str, str]:
    """What a variant says: {"place": "in-place", "rail": "3@5d", "rank": "7", "process": "2", "comm": "0x…"}."""
    out: dict[str, str] = {}
    for word in result.variant.split(", "):
        kind, _, value = word.partition(" ")
        if word in ("out-of-place", "in-place"):
            out["place"] = word
        elif value and kind in ("rail", "rank", "process", "comm"):
            out[kind] = value
        elif word:
            out["what"] = f"{out['what']}, {word}" if "what" in out else word
    return out


def series_of(results: Iterable[Result]) -> tuple[Series, ...]:
    """The series of nccl-tests' results: those that belong to no single rank or process."""
    built: dict[tuple[str, int, Placement | None, str, str, str], _Building] = {}
    for r in results:
        said = words(r)
        if r.message is None or not r.samples or "rank" in said or "process" in said or "what" in said:
            continue
        place, rail = said.get("place", ""), said.get("rail", "")
        key = (r.message.collective, r.message.group, r.placement, place, rail, r.source)
        one = built.setdefault(key, _Building())
        if r.name == "time":
            one.seconds[r.message.nbytes] = r
        elif r.name == "bus bandwidth":
            one.bus[r.message.nbytes] = r.samples[0]
        elif r.name == "shortest time":
            one.shortest[r.message.nbytes] = r.samples[0]
        elif r.name == "longest time":
            one.longest[r.message.nbytes] = r.samples[0]
    return tuple(Series(*key, _points(one, key[0], key[1])) for key, one in built.items() if one.seconds)


def _points(one: _Building, collective: str, ranks: int) -> tuple[Point, ...]:
    out = []
    for nbytes, result in sorted(one.seconds.items()):
        seconds = sum(result.samples) / len(result.samples)
        moved = bus_bytes(Message(collective, ranks, nbytes))
        bus = one.bus.get(nbytes) or (moved / seconds if moved else None)
        several = result.samples if len(result.samples) > 1 else ()
        out.append(Point(nbytes, seconds, bus, one.shortest.get(nbytes), one.longest.get(nbytes), several))
    return tuple(out)
