"""This file knows about the terminal: the first screen of an explanation, and the tables behind it.

80 columns, so that it can be pasted and read over a shoulder. Colours only where the terminal has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sublight.explain import Explained, Explanation
from sublight.explain.bounds import Bounds
from sublight.explain.fabric import Fabric
from sublight.explain.headline import headline
from sublight.explain.model_terms import AgainstModel
from sublight.explain.ranks import Ranks
from sublight.explain.steps import REPETITION
from sublight.explain.view import View
from sublight.explain.words import cut, ms, number, percent, recording_caveats
from sublight.finding import Finding
from sublight.show import model_rows
from sublight.show.rows import (
    FABRIC_HEAD,
    SMALL,
    fabric_lines,
    fabric_rows,
    families,
    quality_line,
    replay_lines,
    title,
    waterfall,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 80
BAR = 25
COARSE = 0.02
BRIEF_FINDINGS = 4
STYLES = {"compute": "green", "communication": "magenta", "copies": "yellow", "idle": "red"}
MOST_FINDINGS, MOST_KERNELS, MOST_FAMILIES, MOST_STEPS, MOST_CALLS = 6, 12, 12, 12, 8
DETAILED = 2                      # devices shown in full; more get one line each, and the longest is shown in full
EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_explanation(explanation: Explanation, console: Console, *, behind: bool = True) -> None:
    """The first screen of each device, then (`behind`) its kernels and steps."""
    devices = explanation.devices
    if len(devices) > DETAILED:
        console.print(_overview(explanation))
        longest = max(devices, key=lambda d: d.view.budget.window_ns)
        console.print(f"In full below: rank {longest.view.trace.rank}, {longest.view.device_label}, whose window is "
                      "the longest. All of them: --format json.", style="dim")
        devices = (longest,)
    if explanation.ranks is not None:
        _ranks(explanation, explanation.ranks, console)
    for i, explained in enumerate(devices):
        if i:
            console.rule(style="dim")
        first_screen(explained, explanation, console)
        if behind:
            _behind(explained, console)


def _ranks(explanation: Explanation, ranks: Ranks, console: Console) -> None:
    """What the ranks tell together: the strip with waiting, and the findings across them."""
    console.print()
    if ranks.refused:
        console.print(_indented(f"Cannot tell waiting across ranks: {ranks.refused}.", "dim", 0))
    elif ranks.residual is not None:
        table = _table(f"waiting and transfer, from {number(ranks.counted, 'matched collective')} (clocks aligned; "
                       f"their ends agree within {ms(ranks.residual.max_ns)})",
                       "rank", "waiting", "transfer", "came last", "cost the others")
        for s in sorted(ranks.stragglers, key=lambda s: s.member):
            table.add_row(ranks.labels[s.member], ms(s.waiting_ns), ms(s.transfer_ns),
                          f"{s.last_in} of {s.collectives}", ms(s.late_ns))
        console.print(table)
    for finding in explanation.rank_findings:
        _finding(finding, console)
    console.print()


def first_screen(
    explained: Explained, explanation: Explanation, console: Console, *, brief: bool = False
) -> None:
    """Verdict, waterfall, findings with evidence and next action, what cannot be told, quality. `brief`: only the
    verdict, a coarser waterfall, the findings' titles and the first one's claim."""
    view = explained.view
    console.print(Text(title(explained, explanation), style="bold"))
    console.print(Text(headline(view)))
    if (across := _across_ranks(view, explanation)) is not None:
        console.print(Text(across))
    if view.model is not None:
        console.print(Text(f"{view.model.verdict}."))
    console.print()
    console.print(_waterfall(view, coarse=brief))
    console.print()
    if view.model is not None and not brief:
        _against_model(view.model, console)
    shown = explained.findings[: BRIEF_FINDINGS if brief else MOST_FINDINGS]
    for finding in shown:
        _finding(finding, console, claim=not brief or finding is shown[0], rest=not brief)
    hidden = len(explained.findings) - len(shown)
    if hidden > 0:
        console.print(Text(f"and {hidden} more", style="dim"))
    if brief:
        return
    if explained.findings:
        console.print(Text("≤ is an upper limit; limits overlap and do not add up. Codes: docs/findings.", style="dim"))
    for line in replay_lines(explained):
        console.print(_indented(line, "", 0))
    for caveat in recording_caveats(view):
        console.print(_indented(f"! {caveat[0].upper()}{caveat[1:]}.", "yellow", 0))
    for refusal in view.refusals:
        console.print(_indented(f"Cannot tell {refusal.what}: {refusal.why}. Capture {refusal.capture}.", "dim", 0))
    console.print(_indented(f"Trace: {quality_line(view)}.", "dim", 0))


def _finding(finding: Finding, console: Console, *, claim: bool = True, rest: bool = True) -> None:
    """Its title and gain, its claim, and the rest: evidence and what to do."""
    gain = f"  ≤ {ms(finding.gain_ns_at_most)}" if finding.gain_ns_at_most else ""
    console.print(Text.assemble((f"{finding.code} {finding.title}", "bold"), (gain, "cyan")))
    if claim:
        console.print(_indented(f"{finding.claim}."))
    if rest:
        for line in finding.evidence[:2]:
            console.print(_indented(f"· {line}", "dim"))
        console.print(_indented(f"→ {finding.action}."))


def _across_ranks(view: View, explanation: Explanation) -> str | None:
    """How much of a rank's time in collectives is waiting, where several ranks tell it."""
    ranks = explanation.ranks
    if ranks is None or ranks.refused:
        return None
    member = next((i for i, other in enumerate(ranks.views) if other is view), None)
    own = next((s for s in ranks.stragglers if s.member == member), None)
    if own is None:
        return None
    return (f"Across ranks: of its time in matched collectives {ms(own.waiting_ns)} is waiting for others, "
            f"{ms(own.transfer_ns)} transfer.")


def _indented(text: str, style: str = "", by: int = 2) -> RenderableType:
    from rich.padding import Padding

    return Padding(Text(text, style=style), (0, 0, 0, by))


def _waterfall(view: View, *, coarse: bool = False) -> Table:
    """One line a part, its bar beginning where the one before it ended."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False, width=WIDTH)
    table.add_column(width=32, no_wrap=True)
    table.add_column(width=11, justify="right", no_wrap=True)
    table.add_column(width=8, justify="right", no_wrap=True)
    table.add_column(width=BAR, no_wrap=True, overflow="crop")
    window = view.budget.window_ns
    for row in waterfall(view.budget, COARSE if coarse else SMALL):
        bar = _bar(row.start_ns, row.ns, window)
        table.add_row(row.label, ms(row.ns), percent(view.share(row.ns)), Text(bar, style=STYLES[row.group]))
    table.add_row(Text(f"= window: {view.window}", style="bold"), Text(ms(window), style="bold"), "100 %",
                  Text(view.window_reason if len(view.window_reason) <= BAR else "", style="dim"))
    hidden = view.budget.communication.hidden_ns
    if hidden:
        table.add_row(Text("beside it: hidden communication", style="dim"), Text(ms(hidden), style="dim"),
                      Text(percent(view.share(hidden)), style="dim"), "")
    if len(view.window_reason) > BAR and not coarse:
        table.caption, table.caption_justify, table.caption_style = f"  {view.window_reason}", "left", "dim"
    return table


def _bar(start: int, length: int, window: int) -> str:
    """A bar on a line of BAR characters, to an eighth of a character; never invisible."""
    first, last = start * BAR * 8 // max(window, 1), (start + length) * BAR * 8 // max(window, 1)
    pad, eighths = first // 8, max(1, last - first // 8 * 8)
    pad = min(pad, BAR - 1)
    return " " * pad + ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip())[: BAR - pad]


def _overview(explanation: Explanation) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", width=WIDTH)
    for name, width in (("rank", 4), ("device", 9), ("window", 11), ("compute", 7), ("exposed", 7), ("idle", 7)):
        table.add_column(name, justify="right", no_wrap=True, width=width)
    table.add_column("first finding", no_wrap=True)
    for explained in explanation.devices:
        view, budget = explained.view, explained.view.budget
        first = explained.findings[0] if explained.findings else None
        table.add_row(
            "–" if view.trace.rank is None else str(view.trace.rank), view.device_label.removeprefix("cpu "),
            ms(budget.window_ns),
            percent(view.share(budget.group_ns("compute"))), percent(view.share(budget.communication.exposed_ns)),
            percent(view.share(budget.idle_ns)), f"{first.code} {first.title}" if first else "–",
        )
    return table


def _behind(explained: Explained, console: Console) -> None:
    view = explained.view
    console.print()
    total = view.kernel_ns or 1
    what = "operators (self time)" if view.cpu_only else "kernels"
    kernels = tuple(r for r in view.kernels if r.kind in ("kernel", "operator"))
    table = _table(f"{what} by category and family", "category", "library · family", "runs", "time", "share")
    grouped = families(kernels, total)
    for category, origin, runs, ns in grouped[:MOST_FAMILIES]:
        table.add_row(category, cut(origin, 30), f"{runs:,}", ms(ns), percent(ns / total))
    if len(grouped) > MOST_FAMILIES:
        rest = grouped[MOST_FAMILIES:]
        table.add_row("others", f"{len(rest)} families", f"{sum(r[2] for r in rest):,}", ms(sum(r[3] for r in rest)),
                      percent(sum(r[3] for r in rest) / total))
    console.print(table)
    if view.bounds is not None:
        _against_bounds(view, view.bounds, console)
    if view.fabric is not None:
        _against_fabric(view.fabric, console)
    if view.model is not None:
        _model_behind(view.model, console)
    console.print()
    table = _table(f"{what} by name", "name", "runs", "time", "share", "grid")
    for row in kernels[:MOST_KERNELS]:
        table.add_row(cut(row.short, 42), f"{row.count:,}", ms(row.ns), percent(row.ns / total),
                      f"{row.grid_blocks:,}" if row.grid_blocks else "–")
    if len(kernels) > MOST_KERNELS:
        more = kernels[MOST_KERNELS:]
        table.add_row(f"{len(more)} more", f"{sum(r.count for r in more):,}", ms(sum(r.ns for r in more)),
                      percent(sum(r.ns for r in more) / total), "")
    console.print(table)
    if len(view.step_rows) > 1:
        console.print()
        what = "repetitions (found, not marked)" if view.step_kind == REPETITION else "steps"
        table = _table(f"{what}, each accounted on its own", "step", "window", "busy", "exposed comm.", "idle")
        for step in view.step_rows[:MOST_STEPS]:
            if step.window_ns is None:
                table.add_row(step.label, "not in the file", "", "", "")
            else:
                table.add_row(step.label, ms(step.window_ns), ms(step.busy_ns or 0),
                              ms(step.exposed_communication_ns or 0), ms(step.idle_ns or 0))
        if len(view.step_rows) > MOST_STEPS:
            table.add_row(f"{len(view.step_rows) - MOST_STEPS} more", "", "", "", "")
        console.print(table)


def _against_bounds(view: View, bounds: Bounds, console: Console) -> None:
    console.print()
    table = _table(f"compute against the limits of {bounds.device_key} (known for {percent(bounds.known_share)} of "
                   f"kernel time, inferred included {percent(bounds.inferred_share)})",
                   "category", "time", "at bound", "above", "bound unknown")
    for p in sorted(bounds.parts, key=lambda p: -(p.at_bound_ns + p.above_ns + p.unknown_ns))[:MOST_FAMILIES]:
        table.add_row(p.name, ms(p.at_bound_ns + p.above_ns + p.unknown_ns), ms(p.at_bound_ns), ms(p.above_ns),
                      ms(p.unknown_ns))
    console.print(table)
    if not bounds.calls:
        return
    console.print()
    table = _table("operators by time above their bound", "name", "runs", "time", "bound", "streamed", "limiter")
    for row in bounds.calls[:MOST_CALLS]:
        mark = "~" if row.inferred else ""
        table.add_row(cut(f"{row.name.removeprefix('aten::')} {row.ops}", 34), f"{row.count:,}", ms(row.owned_ns),
                      mark + ms(row.bound_ns), ms(row.streamed_ns), row.limiter)
    console.print(table)


def _against_fabric(held: Fabric, console: Console) -> None:
    console.print()
    if held.rows:
        table = _table(f"communication against the fabric of {held.title}", "name", *FABRIC_HEAD[1:])
        rows = fabric_rows(held)
        table.columns[0].no_wrap = False
        for cells in rows[:MOST_CALLS]:
            table.add_row(*cells)
        console.print(table)
        if len(rows) > MOST_CALLS:
            console.print(Text(f"and {len(rows) - MOST_CALLS} more", style="dim"))
    for line in fabric_lines(held):
        console.print(_indented(f"{line}.", "dim", 0))


def _against_model(held: AgainstModel, console: Console) -> None:
    """Compute, memory and network side by side, and what they rest on."""
    table = _table(model_rows.caption(held), *model_rows.TERMS_HEAD)
    for cells in model_rows.terms_rows(held):
        table.add_row(*cells)
    console.print(table)
    for line in model_rows.lines(held):
        console.print(_indented(f"{line}.", "dim", 0))
    console.print()


def _model_behind(held: AgainstModel, console: Console) -> None:
    """Each category, and the operators that need most."""
    for caption, head, rows in (("categories against the model's operators", model_rows.PARTS_HEAD,
                                 model_rows.parts_rows(held)),
                                ("operators of the model by their largest term", model_rows.OPS_HEAD,
                                 model_rows.ops_rows(held))):
        console.print()
        table = _table(caption, *("name" if name in ("category", "operator") else name for name in head))
        for name, *cells in rows[:MOST_FAMILIES]:
            table.add_row(cut(name, 30), *cells)
        console.print(table)


def _table(caption: str, *columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), title=caption, title_justify="left", title_style="bold",
                  header_style="dim", width=WIDTH)
    for name in columns:
        left = name in ("rank", "category", "family", "library · family", "name", "step")
        table.add_column(name, justify="left" if left else "right", no_wrap=True,
                         ratio=1 if name in ("name", "library · family") else None)
    return table
