"""This file knows about the page of a difference: a waterfall from A's step to B's by part, and the tables."""

from __future__ import annotations

from sublight.explain.words import ms
from sublight.guard.attribute import Difference
from sublight.show import diff_rows
from sublight.show.page import page, table, text

STYLE = """
.fall svg{display:block;max-width:100%}
.fall text{fill:var(--text);font:12px system-ui,sans-serif}
.fall .more{fill:#c0392b}
.fall .less{fill:#2e8b57}
.fall .whole{fill:#3f8fa6}
.fall .from{stroke:var(--dim);stroke-dasharray:2 3}
"""
LINE, LEFT, WIDTH, RIGHT = 22, 230, 520, 110
SMALL = 0.01                             # of the sum of all changes: such parts are one bar
MARGIN = 0.15                            # of what is drawn, on either side


def html(d: Difference) -> str:
    """The whole page, in ASCII."""
    body = [f'<p class="verdict">{text(diff_rows.verdict(d))}</p>', f"<p>{text(diff_rows.judged(d))}</p>",
            *([f"<p>{text(line)}</p>"] if (line := diff_rows.collectives_line(d)) else []), "<ul>",
            *(f"<li>{text(diff_rows.run_line(name, run))}</li>" for name, run in (("A", d.a), ("B", d.b))), "</ul>"]
    if rows := diff_rows.settings_rows(d):
        body += ["<h3>What differs in the runs</h3>", *table(diff_rows.SETTINGS_HEAD, rows, "settings that differ")]
    body += ["<h3>From A's step to B's</h3>", '<div class="fall scroll">', waterfall(d), "</div>",
             "<p>The axis does not begin at zero: it shows the stretch in which something changes.</p>",
             *table(diff_rows.parts_head(d), diff_rows.parts_rows(d), "parts of both steps"), "<h3>What changed</h3>"]
    body += table(("B − A", "change", "what", "figures"),
                  [(row.ns, row.kind, row.what, row.detail) for row in diff_rows.change_rows(d, None)], "changes")
    if rows := diff_rows.member_rows(d):
        body += ["<h3>Each device</h3>", *table(diff_rows.MEMBERS_HEAD, rows, "step of each device")]
    body += ["<ul>", *(f"<li>{text(line)}.</li>" for line in diff_rows.notes(d, None)), "</ul>"]
    return page("sublight diff", body, style=STYLE)


def waterfall(d: Difference) -> str:
    """Bars from A's step to B's: what became longer, largest first, then what became shorter. The axis does not begin
    at zero: it shows the stretch in which something changes."""
    bars = _bars(d)
    ends = [d.a.step_ns, d.b.step_ns, *(end for _, _, end in bars)]
    low, high = min(ends), max(ends)
    margin = max(1.0, MARGIN * (high - low))
    low, high = max(0, round(low - margin)), round(high + margin)

    def x(ns: int) -> float:
        return LEFT + WIDTH * (ns - low) / (high - low)

    parts = [_whole("A", d.a.step_ns, x, 0)]
    for i, (label, start, end) in enumerate(bars, 1):
        parts.append(_bar(label, start, end, x, LINE * i))
    parts.append(_whole("B", d.b.step_ns, x, LINE * (len(bars) + 1)))
    foot = LINE * (len(bars) + 2)
    parts.append(f'<text x="{LEFT}" y="{foot + 14}">{text(ms(low))}</text>'
                 f'<text x="{LEFT + WIDTH}" y="{foot + 14}" text-anchor="end">{text(ms(high))}</text>')
    size = f'viewBox="0 0 {LEFT + WIDTH + RIGHT} {foot + LINE}" width="{LEFT + WIDTH + RIGHT}" height="{foot + LINE}"'
    label = text(f"{diff_rows.verdict(d)} The axis begins at {ms(low)}.")
    return f'<svg {size} role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _bars(d: Difference) -> list[tuple[str, int, int]]:
    """(part, from, to) in ns; small parts together. They lead from A's step to B's."""
    size = sum(abs(part.ns) for part in d.parts)
    shown = sorted((p for p in d.parts if p.ns and abs(p.ns) >= SMALL * size), key=lambda p: (-p.ns, p.name))
    rest = d.ns - sum(part.ns for part in shown)
    at, out = d.a.step_ns, list[tuple[str, int, int]]()
    for label, ns in [*((part.name, part.ns) for part in shown), *([("all others", rest)] if rest else [])]:
        out.append((label, at, at + ns))
        at += ns
    assert at == d.b.step_ns, "the waterfall does not lead to B's step"
    return out


def _whole(label: str, ns: int, x: object, y: int) -> str:
    assert callable(x)
    return (f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{label}\'s step</text>'
            f'<rect class="whole" x="{LEFT}" y="{y + 3}" width="{max(1.0, x(ns) - LEFT):.1f}" height="{LINE - 6}"/>'
            f'<text x="{x(ns) + 6:.1f}" y="{y + 15}">{text(ms(ns))}</text>')


def _bar(label: str, start: int, end: int, x: object, y: int) -> str:
    assert callable(x)
    low, high = sorted((x(start), x(end)))
    kind = "more" if end > start else "less"
    said = text(diff_rows.signed(end - start))
    return (f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{text(label)}</text>'
            f'<line class="from" x1="{x(start):.1f}" x2="{x(start):.1f}" y1="{y - 3}" y2="{y + 3}"/>'
            f'<rect class="{kind}" x="{low:.1f}" y="{y + 3}" width="{max(1.0, high - low):.1f}" height="{LINE - 6}">'
            f"<title>{text(label)}: {said}</title></rect>"
            f'<text x="{high + 6:.1f}" y="{y + 15}">{said}</text>')
