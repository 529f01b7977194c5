"""This file knows about which kernels of a window carry out which operators of a model's run: by category and order.

    gemm of the model    qkv   out   up   down    qkv   out   …        as many, in the order of the run
    gemm kernels          │     │    │     │       │     │
                         the i-th is the i-th, if none is faster than light by it

Where a category has another number of kernels, or one would beat its bound, its kernels are held against the sum of
its operators only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublight.explain.exchanges import kernel
from sublight.explain.model_ops import FUSED, Item, communicates, minimal, separate
from sublight.explain.model_seen import BACKWARD, HELPING
from sublight.explain.view import View
from sublight.observe.kernel_name import classify
from sublight.trace import I64, KERNEL

COMMUNICATION = "communication"
MOVING = ("communication", "communication: transfer")
# Which collectives a communication kernel's name allows.
KINDS = ((re.compile(r"all_?reduce|cross_device_reduce|multimem", re.IGNORECASE), {"all_reduce"}),
         (re.compile(r"all_?gather", re.IGNORECASE), {"all_gather"}),
         (re.compile(r"reduce_?scatter", re.IGNORECASE), {"reduce_scatter"}),
         (re.compile(r"send_?recv|all_?to_?all", re.IGNORECASE), {"send_recv", "all_to_all"}),
         (re.compile(r"dispatch|combine"), {"all_to_all"}), (re.compile(r"broadcast", re.IGNORECASE), {"broadcast"}))


@dataclass(frozen=True, eq=False, slots=True)
class Matched:
    """A category's operators and kernels, rows of Trace.activities. of_item: the kernels of each operator; empty where
    they were not told apart."""

    category: str
    items: tuple[Item, ...]
    rows: I64
    of_item: tuple[tuple[int, ...], ...]
    why_not: str                         # "" where matched, or where there are no kernels

    @property
    def matched(self) -> bool:
        return bool(self.of_item)


def match(view: View, all_: Sequence[Item], least_ns: dict[int, int]) -> tuple[Matched, ...]:
    """Every category that the run or the window has. least_ns: of an item, by its id, where it has a bound."""
    kernels = kernels_by_category(view)
    names = dict.fromkeys([*(item.category for item in all_), *kernels])

    def by(*ways: list[Item]) -> tuple[Matched, ...]:
        found = (_of(view, name, [[i for i in way if i.category == name] for way in ways],
                     kernels.get(name, np.zeros(0, np.int64)), least_ns) for name in names)
        return tuple(m for m in found if m.items or len(m.rows))

    apart, fused = separate(all_), minimal(all_)
    found = by(apart, fused)
    as_fused = any(m.matched and any(item.when == FUSED for item in m.items) for m in found)
    return by(fused, apart) if as_fused else found       # one way to carry out experts decides for other categories


def kernels_by_category(view: View) -> dict[str, I64]:
    """Rows of Trace.activities, in the order of their starts. All kernels that move data are one category; those that
    only wait are none."""
    a = view.trace.activities
    rows = view.rows[a.kind[view.rows] == KERNEL]
    out: dict[str, list[int]] = {}
    for row, name in zip(rows.tolist(), a.name[rows].tolist(), strict=True):
        category = classify(view.trace.names[name]).category
        if category != "communication: wait":
            out.setdefault(COMMUNICATION if category in MOVING else category, []).append(row)
    return {category: np.array(members, np.int64) for category, members in out.items()}


def _of(view: View, name: str, ways: list[list[Item]], rows: I64, least_ns: dict[int, int]) -> Matched:
    """The first way with as many operators as there are kernels; else all operators apart, against all kernels."""
    why = ""
    for way in ways:
        if way and len(way) == len(rows):
            why = _contradiction(view, way, rows, least_ns)
            if not why:
                return Matched(name, tuple(way), rows, tuple((row,) for row in rows.tolist()), "")
    if name == "attention" and ways[0] and (told := _by_direction(view, ways[0], rows, least_ns)):
        return Matched(name, tuple(ways[0]), rows, told, "")
    if not why and len(rows) and ways[0]:
        why = f"{len(rows):,} kernels, {len(ways[0]):,} operators"
    return Matched(name, tuple(ways[0]), rows, (), why)


def _by_direction(
    view: View, way: list[Item], rows: I64, least_ns: dict[int, int],
) -> tuple[tuple[int, ...], ...] | None:
    """Attention whose forward and backward passes overlap, with kernels before and behind the main ones: the i-th
    kernel of each name is of the i-th operator of its direction. None where numbers differ."""
    names = [view.trace.names[i] for i in view.trace.activities.name[rows].tolist()]
    out: dict[int, list[int]] = {}
    for backward in (False, True):
        mine = [i for i, item in enumerate(way) if getattr(item.op, "backward", False) == backward]
        by_name: dict[str, list[int]] = {}
        for row, name in zip(rows.tolist(), names, strict=True):
            if bool(BACKWARD.search(name)) == backward:
                by_name.setdefault(name, []).append(row)
        main = [name for name in by_name if not HELPING.search(name)]
        if len(main) != bool(mine) or any(len(found) != len(mine) for found in by_name.values()):
            return None
        if main and _contradiction(view, [way[i] for i in mine], np.array(by_name[main[0]]), least_ns):
            return None
        for found in by_name.values():
            for i, row in zip(mine, found, strict=True):
                out.setdefault(i, []).append(row)
    return tuple(tuple(sorted(out[i])) for i in range(len(way)))


def _contradiction(view: View, way: list[Item], rows: I64, least_ns: dict[int, int]) -> str:
    """Why the i-th kernel cannot be the i-th operator: another collective, or faster than light; "" where it can."""
    a, clock = view.trace.activities, view.trace.quality.clock_ns
    for item, row, ns in zip(way, rows.tolist(), a.dur_ns[rows].tolist(), strict=True):
        if communicates(item) and not _allows(view.trace.names[int(a.name[row])], item):
            return "collectives in another order"
        if ns + clock < least_ns.get(id(item), 0):
            return f"by order, {item.label} would be faster than light"
    if (view.inside_ns[np.searchsorted(view.rows, rows)] < a.dur_ns[rows]).any():
        return "the window cuts kernels"
    return ""


def _allows(name: str, item: Item) -> bool:
    """Whether a kernel of that name may carry out that collective. Dispatches and combines are told apart: a gradient's
    dispatch is a combine, and back."""
    exchange = kernel(name)
    if exchange is not None and item.label.split(".")[1:2] in (["dispatch"], ["combine"]):
        turned, what = item.label.endswith(".grad"), item.label.split(".")[1]
        return exchange.what == ({"dispatch": "combine", "combine": "dispatch"}[what] if turned else what)
    short = classify(name).short
    allowed = next((kinds for pattern, kinds in KINDS if pattern.search(short)), None)
    return allowed is None or getattr(item.op, "collective", None) in allowed
