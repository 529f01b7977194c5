"""`sublight diff A B`: what changed between two runs, traces or results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:

    from sublight.guard import Difference
    from sublight.result import Result

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
    if _results(options):
        return 0
    with output.progress() as report, no_garbage_collection():
        a = read_all([options.a], progress=report)
        b = read_all([options.b], progress=report)
        found = diff(a, b, device=device)
    if options.format == "table":
        from sublight.show.diff import print_difference

        output.write_table(lambda console: print_difference(found, console), options.output)
    else:
        output.write_text(_text(found, options.format), options.output)
    return 0


def _results(options: argparse.Namespace) -> bool:
    """Compare and show files of results; False where both sides are traces."""
    from sublight.observe.read import holds_traces

    traces = [holds_traces(path) for path in (options.a, options.b)]
    if all(traces):
        return False
    if any(traces):
        of_results = "B" if traces[0] else "A"
        raise InputError(f"{of_results} is no trace, the other one is; expected two traces or two sides of results")
    from sublight.guard.config import settings_of_results
    from sublight.guard.results import compare
    from sublight.show import diff_results as show

    (a, notes_a), (b, notes_b) = _read_results(options.a), _read_results(options.b)
    notes = tuple(f"{side}: {note}" for side, several in (("A", notes_a), ("B", notes_b)) for note in several)
    told = show.Told(compare(a, b), settings_of_results(a, b), notes)
    if options.format == "table":
        output.write_table(lambda console: show.print_verdicts(told, console), options.output)
    elif options.format == "json":
        output.write_text(output.json_text(show.document(told)), options.output)
    else:
        write = show.html if options.format == "html" else show.markdown
        output.write_text(write(told), options.output)
    return True


def _read_results(path: str) -> tuple[list[Result], list[str]]:
    """The results of a file, or of all files of a folder."""
    from pathlib import Path

    from sublight.observe.results import read

    folder = Path(path)
    files = sorted(str(f) for f in folder.iterdir() if f.is_file()) if folder.is_dir() else [path]
    readings = [read(file) for file in files]
    return [r for one in readings for r in one.results], [note for one in readings for note in one.notes]


def _text(found: Difference, form: str) -> str:
    if form == "json":
        from sublight.show.diff_json import document

        return output.json_text(document(found))
    if form == "html":
        from sublight.show.diff_html import html

        return html(found)
    from sublight.show.diff_markdown import markdown

    return markdown(found)
