"""This file knows about the rows that every view of a budget shares: which parts get a line, and where bars begin."""

from __future__ import annotations

from dataclasses import dataclass

from sublight.budget import Budget
from sublight.comm.expected import Expected
from sublight.explain import Explained, Explanation
from sublight.explain.fabric import AT_RATE, Fabric, FabricRow
from sublight.explain.steps import REPETITION
from sublight.explain.view import KernelRow, View
from sublight.explain.words import ms, percent, units
from sublight.trace import Quality

SMALL = 0.005


@dataclass(frozen=True, slots=True)
class BarRow:
    """A line of the waterfall: a part, or several small ones together. start_ns is where its bar begins."""

    label: str
    group: str
    start_ns: int
    ns: int


def waterfall(budget: Budget, small_share: float = SMALL) -> tuple[BarRow, ...]:
    """Lines that sum to the window, largest first inside each group; small parts of a group share one line."""
    out: list[BarRow] = []
    at = 0
    for group in ("compute", "communication", "copies", "idle"):
        parts = sorted((p for p in budget.parts if p.group == group), key=lambda p: -p.ns)
        small = [p for p in parts if p.ns < small_share * budget.window_ns]
        if len(small) < 2:
            small = []
        for part in parts:
            if part not in small:
                out.append(BarRow(part.name, group, at, part.ns))
                at += part.ns
        if small:
            together = sum(p.ns for p in small)
            out.append(BarRow(f"other {group} ({len(small)} parts)", group, at, together))
            at += together
    assert at == budget.window_ns, "the waterfall does not sum to the window"
    return tuple(out)


def title(explained: Explained, explanation: Explanation) -> str:
    """Which file, rank and device."""
    view = explained.view
    trace = view.trace
    files = trace.quality.files[0] if len(trace.quality.files) == 1 else f"{len(trace.quality.files)} files"
    rank = "" if trace.rank is None else f" · rank {trace.rank}"
    if trace.rank is not None and trace.world_size:
        rank += f" of {trace.world_size}"
    sms = f" · {view.sms} {units(view)}" if view.sms and not view.cpu_only else ""
    return f"{files}{rank} · {view.title}{sms}"


def quality_line(view: View) -> str:
    """One line of trace quality."""
    q: Quality = view.trace.quality
    size = f"{q.text_bytes / 1e6:,.1f} MB" if q.text_bytes >= 1e5 else f"{q.text_bytes / 1e3:,.1f} kB"
    said = [f"{q.events:,} events in {size}"]
    repaired = sum(q.repaired.values())
    said.append(f"{q.lost:,} lost, {repaired:,} repaired" if q.lost or repaired else "none lost or repaired")
    if q.cut_short:
        said.append("the file ends early")
    links = view.links
    if links is not None and links.activities:
        said.append(f"launches linked {percent(links.linked / links.activities)}")
        if links.launches_without_activity:
            said.append(f"{links.launches_without_activity:,} launches without kernel")
        joined = float((view.bounds.joined.of_activity >= 0).mean()) if view.bounds is not None else 0.0
        said.append(f"operators linked {percent(max(joined, links.linked_to_op / links.activities))}")
        if links.graph_ns:
            said.append(f"{percent(links.graph_ns / links.kernel_ns)} of kernel time in CUDA graphs")
        if links.before_launch:
            said.append(f"{links.before_launch:,} start before their launch (by up to {ms(links.largest_lead_ns)})")
    lost = sum(step.lost_launches > 0 or step.window is None for step in view.steps)
    if view.step_kind == REPETITION:
        said.append(f"{len(view.steps)} repetitions found, no step marked")
    elif view.steps:
        said.append(f"{len(view.steps) - lost} of {len(view.steps)} steps complete")
    if view.bounds is not None and view.bounds.faster_than_bound:
        said.append(f"{len(view.bounds.faster_than_bound)} calls faster than their bound (our error)")
    said.append(f"unclassified {percent(view.unclassified_share)}")
    said.append(f"clock {ms(q.clock_ns)}")
    return "; ".join(said)


def replay_lines(explained: Explained) -> list[str]:
    """What the replay says: its error, and the answer to each what-if."""
    played = explained.replay
    if played is None:
        return []
    said = (f"Replay: error {percent(played.error)}, delays without a cause {percent(played.unexplained_share)} of the "
            "window")
    if played.refused:
        return [f"{said}; gains are refused: {played.refused}."]
    out = [f"{said}."]
    for answer in explained.what_ifs:
        if answer.refused or answer.gain_ns_low is None or answer.gain_ns_high is None:
            out.append(f"What if {answer.text}: refused, {answer.refused}.")
        else:
            low, high = ms(answer.gain_ns_low), ms(answer.gain_ns_high)
            saved = "nothing" if not answer.gain_ns_high else low if low == high else f"{low} to {high}"
            asked = "communication" in answer.text
            caveat = next((f" ({c})" for c in answer.caveats if asked and "peers" in c), "")
            out.append(f"What if {answer.text}: saves {saved}{caveat}; then the limit is {answer.next_limit}.")
    return out


FABRIC_HEAD = ("call", "runs", "transfer", "expected", "GB/s", "verdict")


def fabric_rows(held: Fabric) -> list[tuple[str, str, str, str, str, str]]:
    """One line of FABRIC_HEAD for each kind of call."""
    return [
        (f"{row.what} {row.sizes}, {row.ranks} ranks", f"{row.count:,}", ms(row.transfer_ns), _interval(row.expected),
         f"{row.bus_bandwidth / 1e9:.1f}", _rate(row))
        for row in held.rows
    ]


def _interval(expected: Expected) -> str:
    """"1.82–2.41 ms": an interval in the unit of its upper end."""
    value, unit = ms(expected.high * 1e9).split(" ")
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}[unit]
    digits = 2 if float(value.replace(",", "")) < 100 else 0
    return f"{expected.low * scale:.{digits}f}–{expected.high * scale:.{digits}f} {unit}"


def _rate(row: FabricRow) -> str:
    return "as expected" if row.verdict == AT_RATE else f"{row.transfer_ns / 1e9 / row.expected.seconds:.1f}x the time"


def fabric_lines(held: Fabric) -> list[str]:
    """What all calls together took and should take, on what assumptions, and what is refused."""
    out = []
    if held.rows:
        measured, low, most, high = held.total_ns()
        rest = ("the rest is waiting, contention, or a slower network" if measured >= low else
                "more than they took, so sizes or cluster are not what they are taken for")
        out.append(f"Of {ms(measured)} in these calls the fabric needs {ms(most)} ({ms(low)} to {ms(high)}); {rest}")
        out.append(f"Cluster: {held.told_by}")
        basis = dict.fromkeys(row.expected.basis for row in held.rows)
        out += [f"Expected from: {text}" for text in basis]
    if held.assumptions:
        out.append(f"Taken as: {'; '.join(held.assumptions)}")
    out += [f"No expected time for {ms(ns)}: {why}" for why, ns in held.refused.items()]
    return out


def families(rows: tuple[KernelRow, ...], kernel_ns: int) -> list[tuple[str, str, int, int]]:
    """(category, library and family, runs, ns), largest first."""
    grouped: dict[tuple[str, str], list[KernelRow]] = {}
    for row in rows:
        grouped.setdefault((row.category, row.origin or "–"), []).append(row)
    return sorted(
        ((category, origin, sum(r.count for r in members), sum(r.ns for r in members))
         for (category, origin), members in grouped.items()),
        key=lambda entry: -entry[3],
    )
