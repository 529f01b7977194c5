"""This file knows about the rows and lines that every view shows of a window against the model that it runs."""

from __future__ import annotations

from sublight.explain.model_setting import ASSUMED, GIVEN, INFERRED
from sublight.explain.model_terms import AgainstModel
from sublight.explain.words import ms

TERMS_HEAD = ("family", "compute", "memory", "network", "at least", "in the window")
PARTS_HEAD = ("category", "operators", "kernels", "at least", "in the window", "above")
OPS_HEAD = ("operator", "runs", "compute", "memory", "network", "at least", "in the window")
NOTHING = "–"


def _ms(ns: int | None) -> str:
    return ms(ns) if ns else NOTHING


def caption(held: AgainstModel) -> str:
    layers = "" if held.run.whole else f", {len(held.run.layers)} of {len(held.run.model.layers)} layers"
    return f"against {held.model}{layers}, {held.run.phase}, on {held.device_key}"


def terms_rows(held: AgainstModel) -> list[tuple[str, ...]]:
    """A line of TERMS_HEAD for each family, and their sum."""
    rows = [(f.name, _ms(f.compute_ns), _ms(f.memory_ns), _ms(f.network_ns), _ms(f.least_ns), _ms(f.measured_ns))
            for f in held.families]
    terms = held.terms_ns
    return [*rows, ("sum", *(_ms(terms[name]) for name in ("compute", "memory", "network")), "", "")]


def parts_rows(held: AgainstModel) -> list[tuple[str, ...]]:
    """A line of PARTS_HEAD for each category; above where each kernel is one operator."""
    return [(p.name, f"{p.operators:,}" if p.operators else NOTHING, f"{p.kernels:,}" if p.kernels else NOTHING,
             NOTHING if p.least_ns is None else ms(p.least_ns), ms(p.measured_ns),
             NOTHING if p.above_ns is None else ms(p.above_ns)) for p in held.parts]


def ops_rows(held: AgainstModel) -> list[tuple[str, ...]]:
    """A line of OPS_HEAD for each operator; in the window where its kernels were told apart."""
    return [(f"{row.label} {row.ops}", f"{row.count:,}", _ms(row.compute_ns), _ms(row.memory_ns), _ms(row.network_ns),
             NOTHING if row.least_ns is None else ms(row.least_ns),
             NOTHING if row.measured_ns is None else ms(row.measured_ns)) for row in held.rows]


def lines(held: AgainstModel) -> list[str]:
    """What stands beside the table: the peaks, what was given, inferred and assumed, what is refused."""
    peaks = f"{ms(held.products_ns)} at the sheet's dense peaks ({', '.join(held.peaks)})" if held.peaks else \
        ms(held.products_ns)
    products, attention = (f" in {forms}" if forms else "" for forms in held.formats)
    out = [f"Matrix products{products} and causal attention{attention}: {peaks}, {ms(held.products_least_ns)} at the "
           "maximum clock"]
    for how, word in ((GIVEN, "Given"), (INFERRED, "Inferred"), (ASSUMED, "Assumed")):
        facts = [f"{f.name} {f.value}" + (f" ({f.why})" if f.why and how != GIVEN else "")
                 for f in held.facts if f.how == how]
        if facts:
            out.append(f"{word}: {'; '.join(facts)}")
    if held.terms_ns["network"]:
        out.append(f"Network: {'; '.join((held.network_told_by, *held.network_notes))}")
    if held.notes:
        out.append(f"Taken as: {'; '.join(held.notes)}")
    return out + [f"Without a time: {why}" for why in held.refused]
