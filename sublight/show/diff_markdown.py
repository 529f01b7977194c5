"""This file knows about the markdown of a difference: to paste into an issue."""

from __future__ import annotations

from collections.abc import Sequence

from sublight.guard.attribute import Difference
from sublight.show import diff_rows

SIGNS = "\\`*_|<>[]~"


def markdown(d: Difference) -> str:
    """The verdict, what differs, the parts, the changes, the notes."""
    lines = [f"**{_plain(diff_rows.verdict(d))}**", "", _plain(diff_rows.judged(d)), "",
             *([_plain(line), ""] if (line := diff_rows.collectives_line(d)) else []),
             *(f"- {_plain(diff_rows.run_line(name, run))}" for name, run in (("A", d.a), ("B", d.b))), ""]
    if rows := diff_rows.settings_rows(d):
        lines += [*_table(diff_rows.SETTINGS_HEAD, rows, figures=False), ""]
    lines += [*_table(diff_rows.parts_head(d), diff_rows.parts_rows(d)), ""]
    changes = [(row.ns, row.kind, row.what, row.detail) for row in diff_rows.change_rows(d)]
    lines += [*_table(("B − A", "change", "what", "figures"), changes, figures=False), ""]
    if rows := diff_rows.member_rows(d):
        lines += [*_table(diff_rows.MEMBERS_HEAD, rows), ""]
    lines += [f"{_plain(line)}." for line in diff_rows.notes(d)]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = True) -> list[str]:
    side = "--:|" if figures else ":--|"
    return [f"| {' | '.join(map(_plain, head))} |", f"|:--|{side * (len(head) - 1)}",
            *(f"| {' | '.join(map(_plain, row))} |" for row in rows)]


def _plain(text: str) -> str:
    for sign in SIGNS:
        text = text.replace(sign, "\\" + sign)
    return text
