"""`sublight diff A B`: what changed between two runs, traces or results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.guard import Difference

FORMATS = ("table", "json", "md", "html")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "diff", help="what changed between two runs, to the nanosecond",
        description="Compare the typical step of two runs: which kernels, gaps and settings changed, and what each "
                    "change costs.",
        epilog="Steps that nobody marked are found. A folder is the ranks of one run.",
    )
    command.add_argument("a", metavar="A", help="the run before: a trace (.json, .gz, .zst, .zip, .sqlite), a folder "
                                                "of ranks, an http(s) URL, or results of a benchmark or a log")
    command.add_argument("b", metavar="B", help="the run after, of the same kind")
    command.add_argument("--device", metavar="NAME",
                         help="take the devices of both for this one of the catalog (h100-sxm …)")
    command.add_argument("--format", choices=FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read both, compare, show."""
    from sublight.device import named
    from sublight.guard import diff
    from sublight.observe.kineto import no_garbage_collection
    from sublight.observe.read import read_all

    device = named(options.device) if options.device else None
    output.check_writable(options.output, options.format)
    if options.a == options.b == "-":
        raise InputError("standard input can be read only once; expected two files")
    if (shown := _results(options)) is not None:
        output.write_text(shown, options.output)
        return 0
    with output.progress() as report, no_garbage_collection():
        a = read_all([options.a], progress=report)
        b = read_all([options.b], progress=report)
        found = diff(a, b, device=device)
    if options.format == "table":
        _print(found, options.output)
    else:
        output.write_text(_text(found, options.format), options.output)
    return 0


def _results(options: argparse.Namespace) -> str | None:
    """What to print where both are files of results; None where they are traces."""
    return None


def _print(found: Difference, path: str | None) -> None:
    from sublight.show.diff import print_difference

    if path is None:
        print_difference(found, output.console())
        return
    with output.replaced(path) as file:
        print_difference(found, output.console(file=file))


def _text(found: Difference, form: str) -> str:
    if form == "json":
        import json

        from sublight.show.diff_json import document

        return json.dumps(document(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if form == "html":
        from sublight.show.diff_html import html

        return html(found)
    from sublight.show.diff_markdown import markdown

    return markdown(found)
