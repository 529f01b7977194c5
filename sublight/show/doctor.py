"""This file knows about the terminal view of a diagnosis: verdict, findings with their next action, then tables and
text
heat maps. 80 columns, but for heat maps of many nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublight.comm.doctor.diagnosis import Diagnosis
from sublight.comm.doctor.wording import count
from sublight.show.doctor_rows import (
    against_rows,
    heat_maps,
    node_rows,
    summary,
    test_rows,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 80
MOST_FINDINGS, MOST_EVIDENCE, MOST_MAPS, MOST_MAP_NODES, MOST_NODES, MOST_AGAINST = 12, 6, 6, 60, 24, 12
SHADES = "█▓▒░·"                    # from as fast as healthy pairs down; blank: not measured
STEPS = (0.95, 0.8, 0.6, 0.4)


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """The first screen (verdict, findings), then what stands behind it."""
    from rich.text import Text

    console.print(Text(summary(diagnosis), style="dim"))
    console.print(Text(diagnosis.verdict, style="bold"))
    for located in diagnosis.findings[:MOST_FINDINGS]:
        f = located.finding
        console.print()
        console.print(Text(f"{f.code} {f.title}", style="bold"), Text(f"confidence {f.confidence}", style="dim"))
        console.print(_indented(f"{f.claim}."))
        for line in f.evidence[:MOST_EVIDENCE]:
            console.print(_indented(f"· {line}", "dim"))
        if len(f.evidence) > MOST_EVIDENCE:
            console.print(_indented(f"· and {count(len(f.evidence) - MOST_EVIDENCE, 'lines')} more (--format "
                                    f"md)", "dim"))
        console.print(_indented(f"→ {f.action}."))
        for line in f.caveats[:2]:
            console.print(_indented(f"But: {line}.", "dim"))
    if len(diagnosis.findings) > MOST_FINDINGS:
        console.print(f"and {count(len(diagnosis.findings) - MOST_FINDINGS, 'findings')} more (--format md)")
    _tables(diagnosis, console)


def _indented(text: str, style: str = "") -> object:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def _tables(diagnosis: Diagnosis, console: Console) -> None:
    rows = test_rows(diagnosis)
    if rows:
        table = _table("tests", "test", "where", "runs", "failed", "not run", "median", "lowest", "highest")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    if nodes := node_rows(diagnosis):
        tests = [label for label, _ in nodes[0][1]]
        for at in range(0, len(tests), 4):
            table = _table("median over a node's pairs, GB/s (failed)", "node", *tests[at: at + 4])
            for host, cells in nodes[:MOST_NODES]:
                table.add_row(host, *(cell for _, cell in cells[at: at + 4]))
            if len(nodes) > MOST_NODES:
                table.add_row(f"{len(nodes) - MOST_NODES} more")
            console.print()
            console.print(table)
    _against(diagnosis, console)
    maps = heat_maps(diagnosis)
    for heat in maps[:MOST_MAPS]:
        if len(heat.hosts) <= MOST_MAP_NODES:
            console.print()
            for line in text_map(heat.title, heat.hosts, heat.shares):
                console.print(line, soft_wrap=True, highlight=False, markup=False)
    if len(maps) > MOST_MAPS:
        console.print(f"and {len(maps) - MOST_MAPS} more maps (--format html)")


def _against(diagnosis: Diagnosis, console: Console) -> None:
    rows = against_rows(diagnosis)
    if not rows:
        return
    table = _table(f"measured against expected "
                   f"({diagnosis.node_from})", "test", "size", "measured", "bus GB/s", "expected",
                   "ratio")
    for row in rows[:MOST_AGAINST]:
        table.add_row(*row)
    if len(rows) > MOST_AGAINST:
        table.add_row(f"{len(rows) - MOST_AGAINST} more")
    console.print()
    console.print(table)


def text_map(title: str, hosts: tuple[str, ...], shares: list[list[float | None]]) -> list[str]:
    """A heat map in characters: a row a node, two columns a node. The name that all share is said once."""
    domain = _domain(hosts)
    hosts = tuple(host.removesuffix(domain) for host in hosts)
    common = _common(hosts)
    names = [host[len(common):] or host for host in hosts]
    width = max((len(n) for n in names), default=0)
    lines = [title, f"  {SHADES[0]} at least 95 % of healthy pairs, {SHADES[1]} 80, {SHADES[2]} 60, {SHADES[3]} "
                    f"40, {SHADES[4]} less"
             + (f"; names after {common}" if common else "") + (f"{',' if common else '; names'} before {domain}"
                                                               if domain else "")]
    depth = max((len(n) for n in names), default=0) if width <= 4 else 0
    lines += ["  " + " " * width + " " + "".join(f"{n.rjust(depth)[k]} " for n in names).rstrip() for k in range(depth)]
    return lines + [f"  {name.rjust(width)} " + "".join(f"{_shade(share)} " for share in row).rstrip()
                    for name, row in zip(names, shares, strict=True)]


def _domain(hosts: tuple[str, ...]) -> str:
    """What all names end in, from their first dot: ".eu-west.example"."""
    ends = {host[host.find("."):] if "." in host[1:] else "" for host in hosts}
    return ends.pop() if len(ends) == 1 and len(hosts) > 1 else ""


def _common(hosts: tuple[str, ...]) -> str:
    if len(hosts) < 2:
        return ""
    first, last = min(hosts), max(hosts)           # what these two share, all share
    alike = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:alike].rstrip("0123456789")


def _shade(share: float | None) -> str:
    if share is None:
        return " "
    return next((shade for shade, least in zip(SHADES, STEPS, strict=False) if share >= least), SHADES[-1])


def _table(caption: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), title=caption, title_justify="left", title_style="bold",
                  header_style="dim", width=WIDTH if "test" in columns else None)
    for name in columns:
        left = name in ("test", "where", "node")
        wide = 1 if name == "test" else None
        table.add_column(name, justify="left" if left else "right", no_wrap=left, ratio=wide)
    return table
