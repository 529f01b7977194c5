"""This file knows about the page of a diagnosis: one HTML file that loads nothing and runs nothing.

Every text is escaped; the policy allows one style by its hash and no script. Each heat map is an SVG with its table
behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from sublight.comm.doctor.diagnosis import Diagnosis
from sublight.comm.doctor.view import Located
from sublight.show.doctor_rows import HeatMap, against_rows, heat_maps, node_rows, summary, test_rows
from sublight.show.page import page
from sublight.show.page import table as _table
from sublight.show.page import text as _text

STEPS = (0.95, 0.8, 0.6, 0.4)
WORDS = ("at least 95 %", "80 to 95 %", "60 to 80 %", "40 to 60 %", "below 40 %")
CELL, MOST_MAP_NODES, MOST_TABLE_NODES = 18, 256, 64

CELLS = """
.heat{margin:6px 0}
.heat svg{display:block;max-width:none}
.heat text{fill:var(--text);font:10px system-ui,sans-serif}
.heat .none{fill:var(--bar)}
.h0{fill:#8c1d40;background:#8c1d40}.h1{fill:#c8442f;background:#c8442f}.h2{fill:#e38b35;background:#e38b35}
.h3{fill:#e6cf69;background:#e6cf69}.h4{fill:#3f8fa6;background:#3f8fa6}
.legend{font-size:12px;color:var(--dim)}
.legend .swatch{margin-left:10px}
"""


def html(diagnosis: Diagnosis) -> str:
    """The whole page, in ASCII."""
    body = [f'<p class="verdict">{_text(diagnosis.verdict)}</p>', f"<p class=dim>{_text(summary(diagnosis))}</p>",
            *_findings(diagnosis.findings), *_maps(diagnosis), *_tables(diagnosis)]
    return page("sublight comm doctor", body, style=CELLS, footer=" Codes: docs/findings.")


def _findings(findings: Sequence[Located]) -> list[str]:
    if not findings:
        return ["<h3>Findings</h3>", "<p class=dim>None.</p>"]
    out = ["<h3>Findings</h3>", '<ul class="findings">']
    for located in findings:
        f = located.finding
        evidence = "".join(f"<li>{_text(line)}</li>" for line in f.evidence)
        caveats = "".join(f"<p class=dim>But: {_text(line)}.</p>" for line in f.caveats)
        out.append(f"<li><b>{_text(f.code)} {_text(f.title)}</b> <span "
                   "class=dim>confidence "
                   f"{_text(f.confidence)}</span><p>{_text(f.claim)}.</p><ul>{evidence}</ul><p>\u2192 "
                   f"{_text(f.action)}.</p>{caveats}</li>")
    return [*out, "</ul>"]


def _maps(diagnosis: Diagnosis) -> list[str]:
    maps = heat_maps(diagnosis)
    if not maps:
        return []
    legend = "".join(f'<span class="swatch h{4 - k}"></span>{word}' for k, word in enumerate(WORDS))
    out = ["<h3>Pairs <small>share of what healthy pairs reach (90th percentile); hover for the rate</small></h3>",
           f'<p class="legend">{legend}; grey: not measured</p>']
    for heat in maps:
        out.append(f"<h3>{_text(heat.title)}</h3>")
        if len(heat.hosts) > MOST_MAP_NODES:
            out.append(f"<p class=dim>{len(heat.hosts):,} nodes: too many to draw; --format json has the table.</p>")
            continue
        out += ['<div class="heat scroll">', _svg(heat), "</div>"]
        if len(heat.hosts) <= MOST_TABLE_NODES:
            rows = [(host, *("\u2013" if v is None else f"{v / 1e9:.2f}" for v in row))
                    for host, row in zip(heat.hosts, heat.levels, strict=True)]
            out += ["<details><summary class=dim>As a table, GB/s</summary>",
                    *_table(("node", *heat.hosts), rows, heat.title), "</details>"]
        else:
            out.append("<p class=dim>As a table: --format json.</p>")
    return out


def _svg(heat: HeatMap) -> str:
    left = top = 6 * max(len(host) for host in heat.hosts) + 10
    n = len(heat.hosts)
    cells = [f'<text transform="translate({left + CELL * j + 12} {top - 6}) rotate(-90)">{_text(host)}</text>'
             for j, host in enumerate(heat.hosts)]
    for i, (a, row) in enumerate(zip(heat.hosts, heat.shares, strict=True)):
        y = top + CELL * i
        cells.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{_text(a)}</text>')
        for j, (b, share) in enumerate(zip(heat.hosts, row, strict=True)):
            if i == j:
                continue
            said = "not measured" if share is None else f"{(heat.levels[i][j] or 0) / 1e9:.2f} GB/s, {share:.0%}"
            css = "none" if share is None else f"h{_step(share)}"
            cells.append(f'<rect class="{css}" x="{left + CELL * j}" y="{y}" width="{CELL - 1}" height="{CELL - 1}">'
                         f"<title>{_text(a)} \u2013 {_text(b)}: {said}</title></rect>")
    width, height = left + CELL * n, top + CELL * n
    return (f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="'
            f'{_text(heat.title)}">{"".join(cells)}</svg>')


def _step(share: float) -> int:
    return next((4 - k for k, least in enumerate(STEPS) if share >= least), 0)


def _tables(diagnosis: Diagnosis) -> list[str]:
    out: list[str] = []
    if rows := test_rows(diagnosis):
        out += ["<h3>Tests <small>GB/s of bus bandwidth</small></h3>",
                *_table(("test", "nodes x "
                                 "GPUs", "runs", "failed", "not run", "median", "lowest", "highest"), rows, "Tests")]
    if nodes := node_rows(diagnosis):
        out += ["<h3>Nodes <small>median over a node's pairs, GB/s (failed)</small></h3>",
                *_table(("node", *(label for label, _ in nodes[0][1])),
                        [(host, *(cell for _, cell in cells)) for host, cells in nodes], "Nodes")]
    if against := against_rows(diagnosis):
        out += [f"<h3>Measured against expected <small>{_text(diagnosis.node_from)}</small></h3>",
                *_table(("test", "size", "measured", "bus GB/s", "expected", "ratio"), against, "Measured against "
                    "expected")]
    return out
