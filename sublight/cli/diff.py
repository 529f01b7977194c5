"""`sublight diff A B`: what changed between two runs, traces or results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.device import Device
    from sublight.guard import Difference
    from sublight.result import Result

FORMATS = ("table", "json", "md", "html")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "diff", help="what changed between two runs, to the nanosecond",
        usage="sublight diff [options] A B\n       sublight diff [options] A1 A2 … --against B1 B2 … [--paired]",
        description="Compare the typical step of two runs: which kernels, gaps and settings changed, and what each "
                    "change costs. Results of benchmarks and logs are compared quantity by quantity.",
        epilog="Steps that nobody marked are found. A folder is the ranks of one run.",
    )
    command.add_argument("runs", metavar="RUN", nargs="+",
                         help="the run before, then the run after: traces (.json, .gz, .zst, .zip, .sqlite), folders "
                              "of ranks, http(s) URLs, or results of a benchmark or a log; with --against, one or "
                              "more runs before")
    command.add_argument("--against", metavar="RUN", nargs="+", help="one or more runs after: several recordings of "
                                                                    "each side tell what would come again")
    command.add_argument("--paired", action="store_true", help="run i after was made beside run i before (in turns)")
    command.add_argument("--device", metavar="NAME",
                         help="take the devices of both for this one of the catalog (h100-sxm …)")
    command.add_argument("--format", choices=FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read both, compare, show."""
    from sublight.device import named

    a, b = _sides(options)
    device = named(options.device) if options.device else None
    output.check_writable(options.output, options.format)
    if (*a, *b).count("-") > 1:
        raise InputError("standard input can be read only once; expected two files")
    if _of_results(a, b):
        _show_results(a, b, options)
        return 0
    found = _difference(a, b, device, options.paired)
    if options.format == "table":
        from sublight.show.diff import print_difference

        output.write_table(lambda console: print_difference(found, console), options.output)
    else:
        output.write_text(_text(found, options.format), options.output)
    return 0


def _sides(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The runs of A and of B."""
    if options.against is None:
        if len(options.runs) != 2:
            raise InputError(f"expected two runs, got {len(options.runs)}; several of a side: sublight diff A1 A2 … "
                             "--against B1 B2 …")
        return options.runs[:1], options.runs[1:]
    return options.runs, options.against


def _difference(a: list[str], b: list[str], device: Device | None, paired: bool) -> Difference:
    """Of traces: each run is read, and let go, before the next."""
    if paired and len(a) != len(b):
        raise InputError(f"pairs expected, got {len(a)} runs before and {len(b)} after")
    from sublight.guard.attribute import difference
    from sublight.guard.typical import pooled, typical
    from sublight.observe.kineto import no_garbage_collection
    from sublight.observe.read import read_all

    with output.progress() as report, no_garbage_collection():
        sides = [pooled([typical(read_all([path], progress=report), device=device, title=_title(path))
                         for path in side]) for side in (a, b)]
        return difference(*sides, paired=paired)


def _title(path: str) -> str:
    """A folder by its own name, never those around it; a file says its name itself."""
    from pathlib import Path

    from sublight.observe.source import label

    return f"{label(str(Path(path).resolve()))}/" if Path(path).is_dir() else ""


def _of_results(a: list[str], b: list[str]) -> bool:
    """Are both sides results, not traces? Raises InputError where one is neither."""
    from sublight.observe.read import holds_traces

    traces = [{holds_traces(path) for path in side} for side in (a, b)]
    for name, held in zip("AB", traces, strict=True):
        if len(held) > 1:
            raise InputError(f"{name} holds traces and results; expected runs of one kind")
    if traces[0] != traces[1]:
        piped = " (standard input and URLs count as traces)" if {"-"} & {*a, *b} else ""
        raise InputError(f"{'B' if traces[0] == {True} else 'A'} is no trace, the other one is{piped}; expected two "
                         "traces or two sides of results")
    return traces[0] == {False}


def _show_results(a: list[str], b: list[str], options: argparse.Namespace) -> None:
    """Compare and show files of results."""
    from sublight.guard import kernel_counts
    from sublight.guard.config import settings_of_results
    from sublight.guard.results import compare
    from sublight.show import diff_results as show

    (of_a, notes_a), (of_b, notes_b) = _read_results(a), _read_results(b)
    notes = (*kernel_counts.words(of_a, of_b),
             *(f"{side}: {note}" for side, several in (("A", notes_a), ("B", notes_b)) for note in several))
    told = show.Told(compare(of_a, of_b, paired=options.paired), settings_of_results(of_a, of_b), notes)
    if options.format == "table":
        output.write_table(lambda console: show.print_verdicts(told, console), options.output)
    elif options.format == "json":
        output.write_text(output.json_text(show.document(told)), options.output)
    else:
        write = show.html if options.format == "html" else show.markdown
        output.write_text(write(told), options.output)


def _read_results(paths: list[str]) -> tuple[list[Result], list[str]]:
    """The results of files, or of all files of folders, in their order."""
    from pathlib import Path

    from sublight.observe.results import read

    files: list[str] = []
    for path in paths:
        folder = Path(path)
        files += sorted(str(f) for f in folder.iterdir() if f.is_file()) if folder.is_dir() else [path]
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
