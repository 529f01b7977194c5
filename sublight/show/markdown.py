"""This file knows about the markdown of an explanation: short enough to paste into an issue."""

from __future__ import annotations

from sublight.budget import Budget
from sublight.explain import Explained, Explanation
from sublight.explain.headline import headline
from sublight.explain.view import View
from sublight.explain.words import ms, percent
from sublight.show import model_rows
from sublight.show.rows import SMALL, BarRow, quality_line, title, waterfall

MOST_FINDINGS = 5
MOST_LINES = 25                  # of a device: what reads well in an issue
AROUND = 8                       # lines that are neither parts nor findings


def markdown(explanation: Explanation) -> str:
    """A block for each device: verdict, budget, findings, what cannot be told, quality."""
    return "\n\n".join(_device(explained, explanation) for explained in explanation.devices) + "\n"


def _device(explained: Explained, explanation: Explanation) -> str:
    view = explained.view
    lines = [f"**{_cell(title(explained, explanation))}**: {headline(view)}", "",
             f"| where {ms(view.budget.window_ns)} went ({view.window}: {view.window_reason}) | time | share |",
             "|:--|--:|--:|"]
    listed = min(len(explained.findings), MOST_FINDINGS + 1)
    lines += [f"| {row.label} | {ms(row.ns)} | {percent(view.share(row.ns))} |"
              for row in _rows(view.budget, MOST_LINES - AROUND - listed)]
    lines += _model(view)
    lines.append("")
    for f in explained.findings[:MOST_FINDINGS]:
        gain = f" (at most {ms(f.gain_ns_at_most)})" if f.gain_ns_at_most else ""
        lines.append(f"- **{f.code} {f.title}**{gain}: {_cell(f.claim)}. {f.action}.")
    if len(explained.findings) > MOST_FINDINGS:
        lines.append(f"- and {len(explained.findings) - MOST_FINDINGS} more")
    lines.append("")
    if view.refusals:
        lines.append(f"Cannot tell {'; '.join(refusal.what for refusal in view.refusals)}.")
    lines.append(f"Trace: {quality_line(view)}.")
    return "\n".join(lines)


def _model(view: View) -> list[str]:
    """Compute, memory and network for the model's operators, where one was given."""
    held = view.model
    if held is None:
        return []
    head = model_rows.TERMS_HEAD
    return ["", f"{_cell(held.verdict)}.", "", f"| {' | '.join(head)} |", "|:--|" + "--:|" * (len(head) - 1),
            *(f"| {' | '.join(cells)} |" for cells in model_rows.terms_rows(held)), "",
            *(f"- {_cell(line)}." for line in model_rows.lines(held))]


def _rows(budget: Budget, most: int) -> tuple[BarRow, ...]:
    """The waterfall in at most so many lines, where putting small parts together is enough for that."""
    rows = waterfall(budget, SMALL)
    for share in (0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05):
        if len(rows) > most:
            rows = waterfall(budget, share)
    return rows


def _cell(text: str) -> str:
    """Text that cannot break a table or start markup: kernel names hold pipes, stars and angle brackets."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, "\\" + sign)
    return text
