"""This file knows about the terminal view of a difference: what differs in the runs, where the difference went, what
changed. 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sublight.guard.attribute import Difference
from sublight.show import diff_rows

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80
MOST_MEMBERS = 16


def print_difference(d: Difference, console: Console) -> None:
    """The verdict, then the tables."""
    from rich.text import Text

    for name, run in (("A", d.a), ("B", d.b)):
        console.print(Text(diff_rows.run_line(name, run), style="dim"))
    console.print(Text(diff_rows.verdict(d), style="bold"))
    console.print(Text(diff_rows.judged(d), style="dim"))
    if line := diff_rows.collectives_line(d):
        console.print(Text(line))
    if rows := diff_rows.settings_rows(d):
        _print(console, diff_rows.SETTINGS_HEAD, rows)
    _print(console, diff_rows.parts_head(d), diff_rows.parts_rows(d), last_bold=True)
    _changes(d, console)
    if rows := diff_rows.member_rows(d):
        _print(console, diff_rows.MEMBERS_HEAD, rows[:MOST_MEMBERS])
        if len(rows) > MOST_MEMBERS:
            console.print(Text(f"and {len(rows) - MOST_MEMBERS} more", style="dim"))
    for line in diff_rows.notes(d):
        console.print(Text(f"{line}.", style="dim"))


def _changes(d: Difference, console: Console) -> None:
    """Two lines a change: how much, of which kind, of what; then the figures behind it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), title="what changed, by size", title_justify="left",
                  title_style="bold", header_style="dim", width=WIDTH)
    table.add_column("B − A", justify="right", no_wrap=True, min_width=11)
    table.add_column("change", no_wrap=True, min_width=12)
    table.add_column("what", ratio=1)
    for row in diff_rows.change_rows(d):
        style = "dim" if row.ns.startswith(("~", "0")) else "red" if row.ns.startswith("+") else "green"
        detail = f"\n{row.detail}" if row.detail else ""
        table.add_row(Text(row.ns, style=style), row.kind, Text.assemble(row.what, (detail, "dim")))
    console.print()
    console.print(table if d.changes else Text("Nothing changed.", style="dim"))


def _print(console: Console, head: tuple[str, ...], rows: list[diff_rows.Row], *, last_bold: bool = False) -> None:
    from rich.table import Table

    words = head == diff_rows.SETTINGS_HEAD
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", width=WIDTH)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if words or not i else "right", ratio=1 if words and i else None)
    for i, row in enumerate(rows):
        table.add_row(*row, style="bold" if last_bold and i == len(rows) - 1 else None)
    console.print()
    console.print(table)
