"""This file knows about the page of a plan: the Pareto front as a scatter, the ranking, the launch commands."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from sublight.improve.search import Candidate, front
from sublight.show.page import page, text
from sublight.show.plan import Plans, ServingPlans, said, shown, title
from sublight.show.predict_html import BARS, section
from sublight.show.predict_rows import plan_words

POINTS = """
.front svg{display:block;max-width:100%}
.front text{fill:var(--dim);font:11px system-ui,sans-serif}
.front .grid{stroke:var(--line)}
.front .line{fill:none;stroke:#c8442f;stroke-width:1.5}
.front circle{fill-opacity:.75}
.e0{fill:#3f8fa6}.e1{fill:#e38b35}.e2{fill:#8c1d40}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--panel);padding:6px 8px}
"""
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 380, 70, 40
TICKS = 5


def html(plans: Plans, top: int) -> str:
    """The whole page, in ASCII."""
    body = [f'<p class="verdict">{text(title(plans))}</p>']
    if isinstance(plans, ServingPlans) and plans.found:
        body += ["<h3>Throughput against the speed of a user <small>every plan and load; the line is the Pareto front; "
                 "hover for the plan</small></h3>", '<div class="front scroll">', _scatter(plans.found), "</div>"]
    for table in shown(plans, top):
        body += section(table)
    body += ["<h3>What to run</h3>", *(f"<pre>{text(line)}</pre>" for line in said(plans))]
    return page("sublight plan", body, style=BARS + POINTS)


def _scatter(found: Sequence[Candidate]) -> str:
    engines = list(dict.fromkeys(c.where.library for c in found))
    far, high = max(c.per_user for c in found) or 1.0, max(c.per_gpu for c in found)

    def at(c: Candidate) -> tuple[float, float]:
        return (LEFT + (WIDTH - LEFT - 20) * c.per_user / far, 10 + (HEIGHT - BOTTOM - 10) * (1 - c.per_gpu / high))

    parts = [*_axes(far, high)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, front(found)))
    parts.append(f'<polyline class="line" points="{line}"/>')
    for c in found:
        x, y = at(c)
        parts.append(f'<circle class="e{engines.index(c.where.library) % 3}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>'
                     f"{text(plan_words(c.plan))}, {c.concurrency} at once: {c.per_gpu:,.0f} tokens/s/GPU, "
                     f"{c.per_user:.1f} tokens/s/user</title></circle>")
    for index, engine in enumerate(engines):
        parts.append(f'<circle class="e{index % 3}" cx="{WIDTH - 90}" cy="{20 + 16 * index}" r="4"/>'
                     f'<text x="{WIDTH - 80}" y="{24 + 16 * index}">{text(engine)}</text>')
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="Throughput '
            f'against the speed of a user">{"".join(parts)}</svg>')


def _axes(far: float, high: float) -> list[str]:
    out = [f'<text x="{(LEFT + WIDTH) // 2}" y="{HEIGHT - 4}" text-anchor="middle">tokens/s per user</text>',
           f'<text transform="translate(12 {HEIGHT // 2}) rotate(-90)" text-anchor="middle">tokens/s per GPU</text>']
    for value in _ticks(far):
        x = LEFT + (WIDTH - LEFT - 20) * value / far
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(high):
        y = 10 + (HEIGHT - BOTTOM - 10) * (1 - value / high)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    return out


def _ticks(most: float) -> list[float]:
    """About TICKS round values from 0 to most.

    >>> _ticks(430.0)
    [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    rough = most / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    return [step * k for k in range(int(most / step) + 1)]
