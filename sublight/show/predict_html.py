"""This file knows about the page of a prediction: results, waterfalls, elasticities and memory, as bars and tables."""

from __future__ import annotations

from sublight.predict.answer import Answer
from sublight.show.page import page, table, text
from sublight.show.predict import tables
from sublight.show.predict_rows import Table, said, title

BARS = """
.bars svg{display:block;max-width:100%}
.bars text{fill:var(--text);font:12px system-ui,sans-serif}
.bars .figure{fill:var(--dim)}
.bars .bar{fill:#3f8fa6}
"""
LINE, LEFT, WIDTH, MOST = 18, 190, 560, 30


def html(answer: Answer) -> str:
    """The whole page, in ASCII."""
    body = [f'<p class="verdict">{text(title(answer))}</p>']
    for shown in tables(answer):
        body += section(shown)
    lines = (f"<li>{text(line.removeprefix('- '))}</li>" for line in said(answer))
    body += ["<h3>What it rests on</h3>", "<ul>", *lines, "</ul>"]
    return page("sublight predict", body, style=BARS)


def section(shown: Table) -> list[str]:
    """A caption, bars where there are shares, and the table."""
    bars = ['<div class="bars scroll">', _svg(shown), "</div>"] if shown.shares else []
    return [f"<h3>{text(shown.caption)}</h3>", *bars, *table(shown.head, (*shown.rows, *shown.foot), shown.caption)]


def _svg(shown: Table) -> str:
    longest = max(shown.shares) or 1.0
    parts = []
    for index, (row, share) in enumerate(zip(shown.rows[:MOST], shown.shares, strict=False)):
        y, length = LINE * index, max(1.0, WIDTH * share / longest)
        label = row[0] if not row[0].rstrip("≈").isdigit() else row[1][:28]
        parts.append(f'<text x="{LEFT - 6}" y="{y + 13}" text-anchor="end">{text(label)}</text>'
                     f'<rect class="bar" x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{LINE - 5}">'
                     f"<title>{text(' · '.join(filter(None, row)))}</title></rect>")
    width, height = LEFT + WIDTH + 10, LINE * min(len(shown.rows), MOST)
    return (f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
            f'aria-label="{text(shown.caption)}">{"".join(parts)}</svg>')
