"""This file knows about the page of an explanation: one HTML file that needs no network.

What it must not do: run anything that a trace brought along. Every text is escaped, the data for the script is JSON
that cannot end its element, and the page's policy allows one script and one style, by their hashes. The file is ASCII,
so that no pipe can spoil it.
"""

from __future__ import annotations

import base64
import hashlib
import html as markup
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any

from sublight.budget import GROUPS, PARTS
from sublight.explain import Explained, Explanation
from sublight.explain.headline import headline
from sublight.explain.view import View
from sublight.explain.words import cut, ms, percent
from sublight.finding import Finding
from sublight.show import model_rows
from sublight.show.lanes import HIDDEN, KEYS, stretches
from sublight.show.page_data import MOST_LABEL, MOST_ROWS, MOST_STEPS, inert_json, page_data, printable, shown_name
from sublight.show.rows import FABRIC_HEAD, BarRow, fabric_lines, fabric_rows, quality_line, title, waterfall
from sublight.trace import Quality

MOST_DEVICES = 16                   # shown in full: those with the longest windows
FIRST_NAME = 160                    # characters of a kernel's name where scripts are off
LONGEST = 40                        # stretches without compute that the table under the timeline lists
FIRST_ROWS = 25                     # of the kernel table, where scripts are off

COLOURS = {
    "gemm": "#2e8b57", "grouped gemm": "#5aa96c", "attention": "#2f7fc1", "convolution": "#4a9bd4",
    "recurrent": "#6fb0dd", "routing": "#129a9a", "normalisation": "#5ab8a8", "position": "#8cc7b7",
    "kv cache": "#3f8f8f", "activation": "#8fbf4d", "softmax/loss": "#b3c24a", "optimizer": "#6b8e23",
    "embedding": "#9aa83a", "sampling": "#7a9a5b", "quantise": "#3d62b4", "copy": "#7a8fc9", "reduction": "#5f7bd0",
    "elementwise": "#7fa8d1", "scan/sort": "#9db7dd", "random": "#b5c7e0", "memory": "#8aa0b8",
    "framework": "#98a2ad", "unclassified": "#8b8b8b",
    "exposed communication: transfer": "#a347ba", "exposed communication": "#b562cb",
    "exposed communication: waiting": "#d08fde", "exposed copies": "#c49000",
    "idle: blocked": "#a93226", "idle: launch-starved": "#d9534f", "idle: dependency": "#e08a6d",
    "idle: outside a step": "#b3a095", "idle: profiler overhead": "#9c7b6e", "idle: unexplained": "#80706c",
    "idle: outside operators": "#c0796b",
    "idle: other threads run operators": "#cda08f", "hidden communication": "#c5a8ce",
}
GROUP_COLOURS = {"compute": "#6f9f86", "communication": "#b562cb", "copies": "#c49000", "idle": "#b8776c"}
# Attributes of an explained device or of an explanation that become tables, field by field.
ADDITIONS = (("replay", "Replay of the dependencies"), ("what_ifs", "What if"), ("ranks", "Ranks"))


def html(explanation: Explanation) -> str:
    """The whole page."""
    devices = _in_full(explanation)
    style, script = _piece("page.css") + _key_colours(), _piece("page.js")
    data = page_data([d.view for d in devices]) | {"colours": [_colour(key) for key in KEYS], "keys": KEYS}
    policy = (f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
              "form-action 'none'")
    page = "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{_text(_page_title(explanation))}</title>", f"<style>{style}</style>", "</head>", "<body>",
        "<header><h1>sublight explain</h1>",
        '<button type="button" id="theme" hidden>theme: auto</button></header>', "<main>",
        *_overview(explanation, devices), *_additions(explanation),
        *(line for i, d in enumerate(devices) for line in _device(d, explanation, i, devices)),
        *_notes(explanation, devices), "</main>", *_footer(),
        f'<script type="application/json" id="data">{inert_json(data)}</script>', f"<script>{script}</script>",
        "</body>", "</html>", "",
    ])
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


# ---------------------------------------------------------------- safety


def _text(value: object) -> str:
    """Text that is only text: escaped, without what steers a page or a terminal."""
    return markup.escape(printable(str(value)), quote=True)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _piece(name: str) -> str:
    return resources.files("sublight.show").joinpath(name).read_text("ascii")


def _key_colours() -> str:
    rules = [f".k{i}{{fill:{_colour(key)};background:{_colour(key)}}}" for i, key in enumerate(KEYS)]
    rules += [f".g-{group}{{fill:{colour};background:{colour}}}" for group, colour in GROUP_COLOURS.items()]
    return "".join(rules) + "\n"


def _colour(key: str) -> str:
    return COLOURS.get(key) or GROUP_COLOURS[GROUPS[key]]


# ---------------------------------------------------------------- which devices, how much of each


def _in_full(explanation: Explanation) -> list[Explained]:
    """The devices that get a section of their own, in the explanation's order."""
    by_length = sorted(explanation.devices, key=lambda d: -d.view.budget.window_ns)[:MOST_DEVICES]
    chosen = {id(d) for d in by_length}
    return [d for d in explanation.devices if id(d) in chosen]


# ---------------------------------------------------------------- sections


def _page_title(explanation: Explanation) -> str:
    devices = explanation.devices
    first = title(devices[0], explanation)
    return first if len(devices) == 1 else f"{len(devices)} devices: {first} \u2026"


def _table(
    head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[object]], *, caption: str, css: str = ""
) -> list[str]:
    """A table whose columns are (heading, is it a number). Cells that are Raw stand as they are."""
    cells = "".join(f'<th scope="col"{" class=n" if number else ""}>{_text(label)}</th>' for label, number in head)
    out = [f'<div class="scroll"><table aria-label="{_text(caption)}"{css}><thead><tr>{cells}</tr></thead><tbody>']
    out += ["<tr>" + "".join(
        f"<td class={'n' if number else 'w'}>{value if isinstance(value, _Raw) else _text(value)}</td>"
        for value, (_, number) in zip(row, head, strict=True)) + "</tr>" for row in rows]
    return [*out, "</tbody></table></div>"]


class _Raw(str):
    """Markup of our own making."""


def _device(explained: Explained, explanation: Explanation, index: int, shown: Sequence[Explained]) -> list[str]:
    """One device's section; of several, the one with the longest window is open."""
    view, devices = explained.view, len(shown)
    name = f"<h2>{_text(title(explained, explanation))}</h2>"
    longest = max(shown, key=lambda d: d.view.budget.window_ns) is explained
    frame = ((f'<details class="device" id="d{index}"{" open" if longest else ""}><summary>{name}</summary>',
              "</details>") if devices > 1 else (f'<section class="device" id="d{index}">{name}', "</section>"))
    return [
        frame[0], f'<p class="verdict">{_text(headline(view))}</p>',
        *_model(view), *_waterfall(view), *_timeline_section(view, index), *_findings(explained.findings),
        *_refusals(view), *_additions(explained), *_fabric(view), *_kernels(view, index, devices), *_steps(view),
        *_quality(view), frame[1],
    ]


def _waterfall(view: View) -> list[str]:
    window = max(view.budget.window_ns, 1)
    rows = waterfall(view.budget)
    out = [f"<h3>Where {_text(ms(view.budget.window_ns))} went <small>{_text(view.window)}: "
           f"{_text(view.window_reason)}</small></h3>",
           '<table class="fall" aria-label="Where the window went"><colgroup><col class="label"><col class="time">'
           '<col class="share"><col></colgroup><tbody>']
    out += [_bar_row(row, view, window) for row in rows]
    out.append(f'</tbody><tfoot><tr title="{view.budget.window_ns:,} ns"><th scope="row">= window</th>'
               f"<td class=n>{_text(ms(view.budget.window_ns))}</td><td class=n>100 %</td><td></td></tr>")
    c = view.budget.communication
    if c.union_ns:
        compute = view.budget.group_ns("compute")
        rects = (_rect(compute - c.hidden_ns, c.hidden_ns, window, f"k{HIDDEN}", "hidden")
                 + _rect(compute, c.exposed_ns, window, "g-communication", "exposed"))
        out.append(f'<tr class="beside" title="{c.hidden_ns:,} ns hidden + {c.exposed_ns:,} ns exposed">'
                   '<th scope="row"><span class="swatch k'
                   f'{HIDDEN}"></span>beside it: communication in flight</th><td class=n>{_text(ms(c.union_ns))}</td>'
                   f"<td class=n>{_text(percent(view.share(c.union_ns)))}</td><td>{_svg(rects)}</td></tr>")
    return [*out, "</tfoot></table>"]


def _bar_row(row: BarRow, view: View, window: int) -> str:
    css = f"k{PARTS.index(row.label)}" if row.label in PARTS else f"g-{row.group}"
    bar = _svg(_rect(row.start_ns, row.ns, window, css, row.label))
    return (f'<tr title="{_text(row.label)}: {row.ns:,} ns"><th scope="row"><span class="swatch {css}"></span>'
            f"{_text(row.label)}</th><td class=n>{_text(ms(row.ns))}</td>"
            f"<td class=n>{_text(percent(view.share(row.ns)))}</td><td>{bar}</td></tr>")


def _svg(rects: str) -> str:
    return f'<svg viewBox="0 0 10000 10" preserveAspectRatio="none" aria-hidden="true">{rects}</svg>'


def _rect(start_ns: int, ns: int, window_ns: int, css: str, label: str) -> str:
    """A bar on the window's axis, never invisible. Its exact time is in data-ns."""
    if not ns:
        return ""
    x, width = 10_000 * start_ns / window_ns, max(10_000 * ns / window_ns, 20)
    return (f'<rect class="{css}" x="{min(x, 9_980):.1f}" y="0" width="{width:.1f}" height="10" data-ns="{ns}">'
            f"<title>{_text(label)}: {ns:,} ns</title></rect>")


def _timeline_section(view: View, index: int) -> list[str]:
    if not view.windows:
        return []
    low = view.windows[0][0]
    start, end, owner, _ = stretches(view)
    costs = [i for i in range(len(owner)) if GROUPS[PARTS[int(owner[i])]] != "compute"]
    costs.sort(key=lambda i: (int(start[i] - end[i]), int(start[i])))
    rows = []
    for i in costs[:LONGEST]:
        key, at, length = int(owner[i]), int(start[i] - low), int(end[i] - start[i])
        rows.append((
            _Raw(f'<span class="swatch k{key}"></span>{_text(PARTS[key])}'), ms(at), f"{length:,}",
            percent(view.share(length)),
            _Raw(f'<button type="button" class="goto" hidden data-device="{index}" data-at="{at}" '
                 f'data-for="{length}">show</button>'),
        ))
    table = _table((("what", False), ("begins at", True), ("ns", True), ("share", True), ("", False)), rows,
                   caption="Longest stretches without compute")
    said = (f"the {len(rows)} longest of {len(costs):,} stretches" if len(costs) > len(rows) else
            f"all {len(rows)} stretches")
    return [
        "<h3>Timeline of the window</h3>",
        f'<div class="lanes" id="lanes{index}" hidden></div>',
        f"<details><summary class=dim>As a table: {said} in which nothing computes</summary>", *table, "</details>",
    ]


def _findings(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["<h3>Findings</h3>", "<p class=dim>None.</p>"]
    out = ["<h3>Findings <small>\u2264 is an upper limit; limits overlap and do not add up</small></h3>",
           '<ul class="findings">']
    for f in findings:
        gain = "" if not f.gain_ns_at_most else (
            f' <span class="gain" title="{f.gain_ns_at_most:,} ns at most">'
            f"\u2264 {_text(ms(f.gain_ns_at_most))}</span>")
        evidence = "".join(f"<li>{_text(line)}</li>" for line in f.evidence)
        caveats = "".join(f"<p class=dim>But: {_text(line)}.</p>" for line in f.caveats)
        out.append(f"<li><b>{_text(f.code)} {_text(f.title)}</b>{gain} <span class=dim>confidence "
                   f"{_text(f.confidence)}</span><p>{_text(f.claim)}.</p><ul>{evidence}</ul>"
                   f"<p>\u2192 {_text(f.action)}.</p>{caveats}</li>")
    return [*out, "</ul>"]


def _refusals(view: View) -> list[str]:
    if not view.refusals:
        return []
    rows = [(r.what, r.why, r.capture) for r in view.refusals]
    return ["<h3>What this file cannot tell</h3>",
            *_table((("what", False), ("why", False), ("capture instead", False)), rows, caption="Refused verdicts")]


def _fabric(view: View) -> list[str]:
    held = view.fabric
    if held is None:
        return []
    head = [(name, name in ("runs", "transfer", "bus GB/s")) for name in FABRIC_HEAD]
    table = _table(head, fabric_rows(held), caption="Communication against the fabric") if held.rows else []
    return [f"<h3>Communication against the fabric <small>{_text(held.title)}</small></h3>", *table,
            *(f"<p class=dim>{_text(line)}.</p>" for line in fabric_lines(held))]


def _model(view: View) -> list[str]:
    """Against the model: compute, memory and network side by side, then categories and operators."""
    held = view.model
    if held is None:
        return []
    tables = ((model_rows.TERMS_HEAD, model_rows.terms_rows(held), "Compute, memory and network"),
              (model_rows.PARTS_HEAD, model_rows.parts_rows(held), "Categories against the model's operators"),
              (model_rows.OPS_HEAD, model_rows.ops_rows(held), "Operators of the model"))
    terms, parts, operators = (
        _table([(name, i > 0) for i, name in enumerate(head)], rows, caption=caption) for head, rows, caption in tables)
    return [f'<p class="verdict">{_text(held.verdict)}.</p>', f"<h3>{_text(model_rows.caption(held))}</h3>",
            *terms, *(f"<p class=dim>{_text(line)}.</p>" for line in model_rows.lines(held)),
            "<details><summary>Categories and operators</summary>", *parts, *operators, "</details>"]


def _kernels(view: View, index: int, devices: int) -> list[str]:
    what = "Operators, self time" if view.cpu_only else "Kernels and copies"
    rows = view.kernels
    listed = rows[: MOST_ROWS // devices]
    rest = rows[len(listed):]
    more = (f"<p class=dim>{len(rest):,} more names with {_text(ms(sum(r.ns for r in rest)))} together are left out."
            "</p>") if rest else ""
    first = [(cut(shown_name(r.short, FIRST_NAME), FIRST_NAME), r.category, f"{r.count:,}", ms(r.ns))
             for r in listed[:FIRST_ROWS]]
    static = _table((("name", False), ("category", False), ("runs", True), ("time", True)), first, caption=what)
    left_out = (f"<p class=dim>The first {len(first)} of {len(listed):,}; with scripts on, all of them, to sort and "
                "filter.</p>") if len(listed) > len(first) else ""
    return [f"<h3>{what} <small>summed inside the window; shares are of {_text(ms(view.kernel_ns))} "
            f"{'of operators' if view.cpu_only else 'of kernel time'}</small></h3>",
            f'<div class="kernels" id="kernels{index}">', *static, left_out, "</div>", more]


def _steps(view: View) -> list[str]:
    if not view.step_rows:
        return []
    rows: list[tuple[object, ...]] = []
    for s in view.step_rows[:MOST_STEPS]:
        if s.window_ns is None:
            rows.append((cut(s.label, MOST_LABEL), "not in the file", "", "", "", ""))
            continue
        rows.append((cut(s.label, MOST_LABEL), ms(s.window_ns), ms(s.busy_ns or 0), ms(s.exposed_communication_ns or 0),
                     ms(s.idle_ns or 0), f"{s.activities:,}"))
    more = len(view.step_rows) - MOST_STEPS
    table = _table((("step", False), ("window", True), ("busy", True), ("exposed comm.", True), ("idle", True),
                    ("activities" if not view.cpu_only else "stretches", True)), rows, caption="Steps")
    body = [*table, f"<p class=dim>and {more:,} more</p>" if more > 0 else ""]
    if len(view.step_rows) > 12:
        body = [f"<details><summary class=dim>{len(view.step_rows):,} steps</summary>", *body, "</details>"]
    return ["<h3>Steps <small>each accounted on its own</small></h3>", *body]


def _quality(view: View) -> list[str]:
    q: Quality = view.trace.quality
    said = [f"{quality_line(view)}."]
    for label, counts in (("kept", q.kept), ("ignored", q.ignored), ("not timed", q.untimed), ("repaired", q.repaired)):
        if counts:
            # Categories are the file's own words: only those that look like one are shown.
            words = [(key if re.fullmatch(r"[\w ,:'/-]{1,60}", key) else "other", n) for key, n in counts.items()]
            said.append(f"{label}: " + ", ".join(f"{key} {n:,}" for key, n in words))
    said += list(q.notes)
    return ["<h3>The trace itself</h3>", '<div class="quality">', *(f"<p>{_text(line)}</p>" for line in said), "</div>"]


# ---------------------------------------------------------------- several devices


MOST_NUMBERED = 40
STRIP = ("compute", "exposed communication", "idle")


def _shares(view: View) -> tuple[float, float, float]:
    b = view.budget
    return (view.share(b.group_ns("compute")), view.share(b.communication.exposed_ns), view.share(b.idle_ns))


def _overview(explanation: Explanation, shown: Sequence[Explained]) -> list[str]:
    """Every device in a line, and a strip that shows where ranks differ."""
    devices = explanation.devices
    if len(devices) < 2:
        return []
    place = {id(d): i for i, d in enumerate(shown)}
    rows = []
    for d in devices:
        view = d.view
        first = f"{d.findings[0].code} {d.findings[0].title}" if d.findings else "\u2013"
        rank = "\u2013" if view.trace.rank is None else str(view.trace.rank)
        link = f'<a href="#d{place[id(d)]}">{_text(rank)}</a>' if id(d) in place else _text(rank)
        rows.append((_Raw(link), view.device, ms(view.budget.window_ns), *(percent(x) for x in _shares(view)), first))
    table = _table((("rank", True), ("device", True), ("window", True), ("compute", True), ("exposed", True),
                    ("idle", True), ("first finding", False)), rows, caption="All devices")
    return [f"<h3>{len(devices)} devices <small>clocks of ranks are not aligned here</small></h3>",
            *_strip(devices, place), *table]


def _strip(devices: Sequence[Explained], place: dict[int, int]) -> list[str]:
    """Measure by rank: the darker, the nearer to the row's largest. Smallest, largest and spread beside it."""
    out = ['<div class="strip"><table aria-label="Shares of the window by rank"><tbody>']
    shares = [_shares(d.view) for d in devices]
    for i, (measure, group) in enumerate(zip(STRIP, ("compute", "communication", "idle"), strict=True)):
        row = [s[i] for s in shares]
        largest = max(row) or 1.0
        cells = []
        for d, share in zip(devices, row, strict=True):
            who = f"rank {d.view.trace.rank}, device {d.view.device}: {percent(share)} {measure}"
            rect = (f'<rect class="g-{group}" width="26" height="20" fill-opacity="{share / largest:.3f}">'
                    f"<title>{_text(who)}</title></rect>")
            inside = f'<a href="#d{place[id(d)]}">{rect}</a>' if id(d) in place else rect
            cells.append('<td class="cell"><svg viewBox="0 0 26 20" preserveAspectRatio="none" role="img" '
                         f'aria-label="{_text(who)}">{inside}</svg></td>')
        out.append(f'<tr><th scope="row">{measure}</th>{"".join(cells)}<td class=n>&ensp;{_text(percent(min(row)))} to '
                   f"{_text(percent(max(row)))}</td></tr>")
    if len(devices) <= MOST_NUMBERED:
        ranks = "".join(f'<th class="cell" scope="col">{"" if d.view.trace.rank is None else d.view.trace.rank}</th>'
                        for d in devices)
        out.append(f"<tr><th>rank</th>{ranks}<td></td></tr>")
    return [*out, "</tbody></table></div>"]


def _notes(explanation: Explanation, shown: Sequence[Explained]) -> list[str]:
    left_out = len(explanation.devices) - len(shown)
    if not left_out:
        return []
    return [f"<p class=dim>{left_out} devices are in the table above only: those with the longest windows are shown in "
            "full. Name fewer files to see the others.</p>"]


# ---------------------------------------------------------------- replay, what-ifs, ranks


def _additions(of: object) -> list[str]:
    """Tables of the attributes in ADDITIONS: one row a value, a column a plain field."""
    out: list[str] = []
    for attribute, heading in ADDITIONS:
        value = getattr(of, attribute, None)
        values = [value] if is_dataclass(value) else list(value) if isinstance(value, tuple | list) else []
        if not values or not all(is_dataclass(v) and type(v) is type(values[0]) for v in values):
            continue
        names = [f.name for f in fields(values[0]) if _plain(getattr(values[0], f.name))]
        head = [(name.removesuffix("_ns").replace("_", " "), _is_number(getattr(values[0], name))) for name in names]
        rows = [[_unit(name, getattr(v, name)) for name in names] for v in values]
        out += [f"<h3>{_text(heading)}</h3>", *_table(head, rows, caption=heading)]
    return out


def _plain(value: object) -> bool:
    return value is None or isinstance(value, int | float | str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unit(name: str, value: Any) -> str:
    """A field in the unit that its name ends with."""
    if value is None:
        return "\u2013"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_ns"):
            return ms(value)
        if name.endswith(("share", "error")):
            return percent(value) if value >= 0 else f"-{percent(-value)}"
        return f"{value:,}"
    return str(value)


def _footer() -> list[str]:
    from sublight import __version__

    return [f"<footer>sublight {__version__}. Made offline; this page loads nothing. Each nanosecond of a window has "
            "one owner: compute before communication before copies before idle.</footer>"]
