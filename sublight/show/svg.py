"""This file knows about the waterfall as an SVG picture: bars that sum to the window, with their table."""

from __future__ import annotations

from html import escape

from sublight.explain import Explanation
from sublight.explain.headline import headline
from sublight.explain.words import ms, percent
from sublight.show.rows import title, waterfall

COLOURS = {"compute": "#2e8b57", "communication": "#a347ba", "copies": "#c49000", "idle": "#c0392b"}
LINE, LABELS, NUMBERS, BARS, WIDTH = 24, 262, 180, 450, 900
BESIDE = "beside it: communication in flight"


def svg(explanation: Explanation) -> str:
    """The first device's waterfall (the longest window's, of several). Readable on light and dark grounds."""
    explained = max(explanation.devices, key=lambda d: d.view.budget.window_ns)
    view = explained.view
    words = _wrapped(headline(view), 98)
    top = 34 + 20 * len(words) + 14
    rows = waterfall(view.budget)
    communication = view.budget.communication
    height = top + LINE * (len(rows) + 1 + bool(communication.union_ns)) + 18
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" '
        'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="'
        f'{escape(headline(view), quote=True)}">',
        "<style>text{fill:#1b1f24}.dim{fill:#57606a}@media(prefers-color-scheme:dark){text{fill:#e6edf3}"
        ".dim{fill:#8d96a0}}</style>",
        f'<text x="8" y="24" class="dim">{escape(title(explained, explanation))}</text>',
    ]
    out += [f'<text x="8" y="{46 + 20 * i}" font-weight="600">{escape(line)}</text>'
            for i, line in enumerate(words)]
    window = max(view.budget.window_ns, 1)
    for i, row in enumerate(rows):
        y = top + LINE * i
        out.append(f'<text x="8" y="{y + 16}">{escape(row.label)}</text>')
        out.append(f'<text x="{LABELS + 90}" y="{y + 16}" text-anchor="end">{ms(row.ns)}</text>')
        out.append(f'<text x="{LABELS + NUMBERS - 14}" y="{y + 16}" text-anchor="end" class="dim">'
                   f"{percent(view.share(row.ns))}</text>")
        out.append(_bar(row.start_ns, row.ns, window, y, COLOURS[row.group]))
    y = top + LINE * len(rows)
    out.append(f'<text x="8" y="{y + 18}" font-weight="600">= window ({escape(view.window)}: '
               f"{escape(view.window_reason)})</text>")
    out.append(f'<text x="{WIDTH - 8}" y="{y + 18}" text-anchor="end" font-weight="600">{ms(window)}</text>')
    if communication.union_ns:
        # Hidden time lies under the compute that hides it, and exposed time under its own line.
        y += LINE
        compute = view.budget.group_ns("compute")
        start, colour = compute - communication.hidden_ns, COLOURS["communication"]
        out.append(f'<text x="8" y="{y + 18}" class="dim">{BESIDE}</text>')
        out.append(f'<text x="{LABELS + 90}" y="{y + 18}" text-anchor="end" class="dim">'
                   f"{ms(communication.union_ns)}</text>")
        out.append(f'<text x="{LABELS + NUMBERS - 14}" y="{y + 18}" text-anchor="end" class="dim">'
                   f"{percent(view.share(communication.union_ns))}</text>")
        if communication.hidden_ns:
            out.append(_bar(start, communication.hidden_ns, window, y + 2, colour, "0.35"))
        if communication.exposed_ns:
            out.append(_bar(compute, communication.exposed_ns, window, y + 2, colour))
    return "\n".join([*out, "</svg>"]) + "\n"


def _bar(start_ns: int, ns: int, window_ns: int, y: int, colour: str, opacity: str = "1") -> str:
    """A bar on the time axis; never invisible."""
    x, width = LABELS + NUMBERS + BARS * start_ns / window_ns, max(BARS * ns / window_ns, 1.5)
    faint = "" if opacity == "1" else f' fill-opacity="{opacity}"'
    return (f'<rect x="{x:.2f}" y="{y + 3}" width="{width:.2f}" height="{LINE - 7}" rx="2" '
            f'fill="{colour}"{faint}/>')


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width) or [""]
