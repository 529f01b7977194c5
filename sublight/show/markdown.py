"""This file knows about the markdown of an explanation: short enough to paste into an issue."""

from __future__ import annotations

from sublight.explain import Explained, Explanation
from sublight.explain.headline import headline
from sublight.explain.words import ms, percent
from sublight.show.rows import quality_line, title, waterfall

MOST_FINDINGS = 5


def markdown(explanation: Explanation) -> str:
    """A block for each device: verdict, budget, findings, quality."""
    return "\n\n".join(_device(explained, explanation) for explained in explanation.devices) + "\n"


def _device(explained: Explained, explanation: Explanation) -> str:
    view = explained.view
    lines = [f"**{_cell(title(explained, explanation))}**: {headline(view)}", "",
             f"| where {ms(view.budget.window_ns)} went ({view.window}: {view.window_reason}) | time | share |",
             "|:--|--:|--:|"]
    lines += [f"| {row.label} | {ms(row.ns)} | {percent(view.share(row.ns))} |" for row in waterfall(view.budget)]
    lines.append("")
    for f in explained.findings[:MOST_FINDINGS]:
        gain = f" (at most {ms(f.gain_ns_at_most)})" if f.gain_ns_at_most else ""
        lines.append(f"- **{f.code} {f.title}**{gain}: {_cell(f.claim)}. {f.action}.")
    if len(explained.findings) > MOST_FINDINGS:
        lines.append(f"- and {len(explained.findings) - MOST_FINDINGS} more")
    lines += ["", f"Trace: {quality_line(view)}."]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Text that cannot break a table or start markup: kernel names hold pipes, stars and angle brackets."""
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, "\\" + sign)
    return text
