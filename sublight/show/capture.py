"""This file knows about showing what a recording lacks: as text of 80 columns, markdown or JSON."""

from __future__ import annotations

import json
import textwrap

from sublight.improve.capture import Checkup

WIDTH = 80
SCHEMA = "sublight.capture/1"


def text(checkup: Checkup) -> str:
    """What is there, what is not and what that is for, and the command that lacks nothing, on a line of its own."""
    serious = sum(not lack.minor for lack in checkup.lacks)
    said = "lacks nothing that findings need" if not serious else f"lacks {serious} thing{'s' if serious > 1 else ''}"
    lines = textwrap.wrap(f"{checkup.subject}: {said}.", WIDTH)
    if checkup.has:
        lines += textwrap.wrap(f"Has: {', '.join(checkup.has)}.", WIDTH, subsequent_indent="  ")
    for lack in sorted(checkup.lacks, key=lambda row: row.minor):
        mark = "·" if lack.minor else "✗"
        lines += ["", *textwrap.wrap(f"{mark} {lack.what}", WIDTH, subsequent_indent="  "),
                  *textwrap.wrap(f"for: {lack.serves}", WIDTH, initial_indent="  ", subsequent_indent="  "),
                  *textwrap.wrap(f"→ {lack.do}", WIDTH, initial_indent="  ", subsequent_indent="    ",
                                 break_long_words=False, break_on_hyphens=False)]
    if checkup.command is not None:
        lines += ["", "The command that lacks nothing of that:", "", checkup.command]
    if checkup.then:
        lines += ["", "Then:", *(f"  {step}" for step in checkup.then)]
    return "\n".join(lines) + "\n"


def markdown(checkup: Checkup) -> str:
    """To paste into an issue."""
    rows = [f"| {'optional: ' if lack.minor else ''}{_cell(lack.what)} | {_cell(lack.serves)} | {_cell(lack.do)} |"
            for lack in sorted(checkup.lacks, key=lambda row: row.minor)]
    lines = [f"**{checkup.subject}**", ""]
    lines += [f"Has: {', '.join(checkup.has)}", ""] if checkup.has else []
    lines += ["| lacks | for | next time |", "|:--|:--|:--|", *rows, ""] if rows else ["Lacks nothing.", ""]
    lines += ["```sh", checkup.command, "```", ""] if checkup.command is not None else []
    return "\n".join([*lines, *(f"- {step}" for step in checkup.then)]).rstrip() + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def document(checkup: Checkup) -> str:
    """As JSON."""
    return json.dumps({
        "schema": SCHEMA, "subject": checkup.subject, "has": list(checkup.has),
        "lacks": [{"what": x.what, "serves": x.serves, "do": x.do, "minor": x.minor} for x in checkup.lacks],
        "command": checkup.command, "then": list(checkup.then),
    }, indent=1, ensure_ascii=False) + "\n"
