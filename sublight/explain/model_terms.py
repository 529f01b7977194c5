"""This file knows about a window against the model that it runs: what compute, memory and network need for the model's
operators, side by side; which of the three is the largest; and each part of the window against its operators' bounds.

    compute   operations at the dense peaks that the device's sheet states (docs/devices.md), each operator's unit alone
    memory    compulsory bytes at the memory's rate
    network   collectives and exchanges at their expected time on the cluster (docs/fabric.md)
    least     an operator's bound (docs/bounds.md): at the maximum clock, with the L2 taken off; nothing is faster

The three overlap at best, so the window takes the largest of them at least, as far as the rates are those stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sublight.budget import COMPUTE
from sublight.device import Device
from sublight.explain.bounds import said
from sublight.explain.fabric import Fabric
from sublight.explain.model_costs import Cost, Network, cost_of
from sublight.explain.model_match import COMMUNICATION, Matched, kernels_by_category, match
from sublight.explain.model_ops import APART, FAMILIES, Item, family, items, variants
from sublight.explain.model_setting import INFERRED, Asked, Fact, Setting, setting
from sublight.explain.view import View
from sublight.explain.words import ms, number
from sublight.models.backward import WEIGHT
from sublight.ops import Experts, GroupedGemm
from sublight.ops.op import Op
from sublight.trace import I64

TERMS = ("compute", "memory", "network")


@dataclass(frozen=True, slots=True)
class OpRow:
    """All of one operator in the window. measured_ns: of the kernels that carry it out; None where they were not told
    apart from others of their category."""

    label: str
    ops: str
    category: str
    count: int
    compute_ns: int
    memory_ns: int
    network_ns: int
    least_ns: int | None
    limiter: str
    measured_ns: int | None


@dataclass(frozen=True, slots=True)
class PartRow:
    """A category of the window against its operators. kernels: in the window; operators: of the run. least_ns None: the
    run has none of it, or one without a bound. matched: each kernel is one operator. above_ns: where there are as many
    kernels as operators."""

    name: str
    family: str
    kernels: int
    operators: int
    measured_ns: int
    least_ns: int | None
    matched: bool
    why_not: str

    @property
    def above_ns(self) -> int | None:
        alike = self.matched or self.kernels == self.operators
        return self.measured_ns - self.least_ns if alike and self.least_ns is not None else None


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family of categories (model_ops.FAMILIES): what it needs of each resource, and takes in the window."""

    name: str
    compute_ns: int
    memory_ns: int
    network_ns: int
    least_ns: int | None
    measured_ns: int


@dataclass(frozen=True, slots=True)
class AgainstModel:
    """A window against the model that it runs."""

    model: str
    device_key: str
    run: Setting
    terms_ns: Mapping[str, int]          # of TERMS
    network_interval_ns: tuple[int, int]
    products_ns: int                     # compute of matrix products and attention, at the stated dense peaks
    products_least_ns: int               # the same at the maximum clock
    peaks: tuple[str, ...]               # "fp8 1,979 TFLOP/s"
    formats: tuple[str, str]             # of products, and of attention: "bf16, fp8", "bf16"
    families: tuple[FamilyRow, ...]
    parts: tuple[PartRow, ...]           # by measured time, longest first
    rows: tuple[OpRow, ...]              # by the largest of their terms
    window_ns: int
    network_told_by: str
    network_notes: tuple[str, ...]       # what expected times rest on
    notes: tuple[str, ...]
    refused: tuple[str, ...]             # operators without a time, by why

    @property
    def limiter(self) -> str:
        return max(TERMS, key=lambda name: self.terms_ns[name])

    @property
    def facts(self) -> tuple[Fact, ...]:
        return self.run.facts

    @property
    def contradiction(self) -> str | None:
        """Why this cannot be the run: its products alone would be faster than light."""
        measured = sum(row.measured_ns for row in self.families[:3])
        if self.products_least_ns <= measured:
            return None
        return (f"its matrix products and attention need {ms(self.products_least_ns)} at least, but the window "
                f"computes for {ms(measured)}: another model, fewer layers or tokens, or a narrower number format")

    @property
    def verdict(self) -> str:
        """One sentence: the largest term, the others, and how far the window is from it; or why there is none."""
        if self.contradiction:
            return f"No verdict against {self.model}: {self.contradiction}"
        largest = self.terms_ns[self.limiter]
        low, high = self.network_interval_ns
        words = {"compute": f"compute {ms(self.terms_ns['compute'])} at dense peaks",
                 "memory": f"memory {ms(self.terms_ns['memory'])}",
                 "network": f"network {ms(self.terms_ns['network'])} expected ({ms(low)} to {ms(high)})"
                 if self.terms_ns["network"] else "network nothing"}
        others = sorted((name for name in TERMS if name != self.limiter), key=lambda name: -self.terms_ns[name])
        if not largest:
            return f"Against {self.model}: its operators need nothing that is known"
        ratio = self.window_ns / largest
        beside = "" if ratio >= 1 else (" (faster than one may expect of the network)" if self.limiter == "network"
                                        else " (clocks above the sheet's, and data in the L2, can do that)")
        return (f"Against {self.model}: {words[self.limiter]} is the largest term, before {words[others[0]]} and "
                f"{words[others[1]]}; the window takes {ratio:.2f} times as long{beside}")


def against(asked: Asked, view: View, held: Fabric | None) -> AgainstModel:
    """What the model's operators need of a window's device, against what the window takes. `held` is the window's
    communication against its cluster. Raises InputError where the run is not known, or an operator's work."""
    run = setting(asked, view)
    device = view.catalogued
    assert device is not None, "setting refuses devices that are not in the catalog"
    first = _held(run, items(run), view, held)
    others = [(words, _held(run, made, view, held)) for words, made in variants(run)]
    words, best = max([("", first), *others], key=lambda way: way[1].matched)        # of equals the first
    if words:
        run = replace(run, facts=(*run.facts, Fact("layout", words, INFERRED, "most kernels are told apart so")))
    found, by_item, least, network = best.found, best.costs, best.least, best.network
    counted = [item for m in found for item in m.items]
    families = tuple(_family(name, counted, by_item, view) for name in FAMILIES)
    sums = {name: sum(getattr(row, f"{name}_ns") for row in families) for name in TERMS}
    interval = tuple(round(1e9 * sum(getattr(by_item[id(i)], f"network_{end}") for i in counted))
                     for end in ("low", "high"))
    return AgainstModel(
        model=asked.model.name, device_key=device.key, run=run, terms_ns=sums,
        network_interval_ns=(interval[0], interval[1]),
        products_ns=sum(row.compute_ns for row in families[:2]), products_least_ns=_at_clock(counted, device),
        peaks=_peaks(counted, device), formats=(_formats(counted, FAMILIES[0]), _formats(counted, FAMILIES[1])),
        families=families,
        parts=tuple(sorted((_part(m, least, view) for m in found), key=lambda p: (-p.measured_ns, p.name))),
        rows=_rows(found, by_item, least, view), window_ns=view.budget.window_ns, network_told_by=network.told_by,
        network_notes=tuple(network.notes), notes=(*_other_format(counted, view), *_notes(found)),
        refused=tuple(network.refused),
    )


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """One way to lay the run out, against the window."""

    found: tuple[Matched, ...]
    costs: Mapping[int, Cost]
    least: Mapping[int, int]
    network: Network

    @property
    def matched(self) -> int:
        """Kernels that were told apart."""
        return sum(len(m.rows) for m in self.found if m.matched)


def _held(run: Setting, every: Sequence[Item], view: View, held: Fabric | None) -> _Held:
    device = view.catalogued
    assert device is not None, "setting refuses devices that are not in the catalog"
    network = Network(run, view, held, {})
    costs: dict[Op, Cost] = {}
    by_item = {id(item): cost_of(item, device, network, costs, network.refused) for item in every}
    least = {key: math.floor(cost.least * 1e9) for key, cost in by_item.items() if cost.least is not None}
    return _Held(match(view, every, least), by_item, least, network)


# ---- what they come to --------------------------------------------------------------------------------------------


def _ns(seconds: Iterable[float]) -> int:
    return round(1e9 * sum(seconds))


def _family(name: str, counted: Sequence[Item], costs: Mapping[int, Cost], view: View) -> FamilyRow:
    mine = [costs[id(item)] for item in counted if item.family == name]
    least = [cost.least for cost in mine if cost.least is not None]
    if name == FAMILIES[3]:
        moving = [rows for category, rows in kernels_by_category(view).items() if category == COMMUNICATION]
        measured = sum(int(view.trace.activities.dur_ns[rows].sum()) for rows in moving)
    else:
        measured = sum(part.ns for part in view.budget.parts if part.name in COMPUTE and family(part.name) == name)
    return FamilyRow(name, _ns(c.compute for c in mine), _ns(c.memory for c in mine), _ns(c.network for c in mine),
                     _ns(least) if len(least) == len(mine) else None, measured)


def _at_clock(counted: Sequence[Item], device: Device) -> int:
    """Compute of products and attention at the maximum clock."""
    total = 0.0
    for item in counted:
        if item.family in FAMILIES[:2]:
            rates = ((flops, device.limits.flops_per_second(unit, form))
                     for (unit, form), flops in item.op.work().flops.items())
            total += max((flops / rate for flops, rate in rates if rate), default=0.0)
    return round(1e9 * total)


def _peaks(counted: Sequence[Item], device: Device) -> tuple[str, ...]:
    units = dict.fromkeys(unit for item in counted if item.family in FAMILIES[:2] for unit in item.op.work().flops
                          if unit[0] == "tensor")
    rates = {form: device.stated_flops_per_second(unit, form) for unit, form in units}
    return tuple(f"{form} {rate / 1e12:,.0f} TFLOP/s" for form, rate in sorted(rates.items()) if rate)


def _formats(counted: Sequence[Item], name: str) -> str:
    return ", ".join(sorted({form for item in counted if item.family == name
                             for unit, form in item.op.work().flops if unit == "tensor"}))


def _other_format(counted: Sequence[Item], view: View) -> tuple[str, ...]:
    """Where kernels' names say that products are multiplied in formats which are none of the config's."""
    seen = {(row.number_format or "").split(" ")[0] for row in view.kernels if row.category in ("gemm", "grouped gemm")}
    told, wanted = sorted(seen - {""}), _formats(counted, FAMILIES[0])
    if not told or not wanted or set(told) & set(wanted.split(", ")):
        return ()
    return (f"products in {wanted}, as the config says, though kernels' names say {', '.join(told)}",)


def _measured(m: Matched, view: View) -> I64:
    """Of each activity: what it owns of the window; of communication, how long it takes."""
    if m.category == COMMUNICATION or view.bounds is None:
        return view.trace.activities.dur_ns
    return view.bounds.owned_ns


def _part(m: Matched, least: Mapping[int, int], view: View) -> PartRow:
    known = [least[id(item)] for item in m.items if id(item) in least]
    whole = bool(m.items) and len(known) == len(m.items)
    return PartRow(m.category, family(m.category), len(m.rows), len(m.items), int(_measured(m, view)[m.rows].sum()),
                   sum(known) if whole else None, m.matched, m.why_not)


def _rows(
    found: Sequence[Matched], costs: Mapping[int, Cost], least: Mapping[int, int], view: View,
) -> tuple[OpRow, ...]:
    grouped: dict[tuple[str, Op, str], list[tuple[Item, int | None]]] = {}
    for m in found:
        spent = _measured(m, view)
        measured = [int(spent[list(rows)].sum()) for rows in m.of_item] if m.matched else [None] * len(m.items)
        for item, ns in zip(m.items, measured, strict=True):
            grouped.setdefault((item.label, item.op, m.category), []).append((item, ns))
    out = [_row(label, op, category, members, costs, least) for (label, op, category), members in grouped.items()]
    return tuple(sorted(out, key=lambda r: (-max(r.compute_ns, r.memory_ns, r.network_ns), r.label, r.ops)))


def _row(
    label: str, op: Op, category: str, members: Sequence[tuple[Item, int | None]], costs: Mapping[int, Cost],
    least: Mapping[int, int],
) -> OpRow:
    one, count = costs[id(members[0][0])], len(members)
    known = [ns for _, ns in members if ns is not None]
    floor = least.get(id(members[0][0]))
    return OpRow(label, said(op), category, count, round(1e9 * one.compute * count), round(1e9 * one.memory * count),
                 round(1e9 * one.network * count), None if floor is None else floor * count, one.limiter,
                 sum(known) if len(known) == count else None)


def _notes(found: Sequence[Matched]) -> tuple[str, ...]:
    out = []
    together = [f"{m.category} ({m.why_not})" for m in found if m.why_not]
    if together:
        out.append(f"held against the sum of a category's operators, not one by one: {', '.join(together)}")
    apart = [m for m in found if len(m.rows) and not m.items and m.category in COMPUTE]
    if apart:
        out.append("not among the model's operators: " + ", ".join(
            f"{m.category} ({number(len(m.rows), 'kernel')})" for m in apart))
    every = [item for m in found for item in m.items]
    if any(item.label.endswith(WEIGHT) for item in every):
        out.append("weights' gradients are added in fp32 to those that are there")
    if any(item.when == APART for item in every):
        out.append("experts' products and activation apart, and one copy of rows to experts and back")
    if any(isinstance(item.op, Experts | GroupedGemm) for item in every):
        out.append("tokens fall on experts alike")
    return tuple(out)
