"""`sublight comm doctor LOG…`: which node, pair, rail or rank is slow, from measurements of communication."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.comm.doctor.diagnosis import Diagnosis

FORMATS = ("table", "json", "md", "html")
TIMES = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)?")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "doctor", help="which node, pair, rail or rank is slow, from logs of communication tests",
        description="Read measurements of communication and say what is slow, on what evidence, and what to do next.",
        epilog="Exit codes: 0 diagnosed, whatever the findings; 2 unreadable input.",
    )
    command.add_argument("log", nargs="*", metavar="LOG",
                         help="text or -J JSON of nccl-tests, NCCL Inspector JSON, output of DeepEP's tests, a CSV of "
                              "pairwise results; files, folders, .gz, .zst, .zip, - for standard input")
    command.add_argument("--times", action="append", metavar="MEAN,SHORTEST,LONGEST",
                         help="times of one operation as a report gives them, such as 83610us,924us,377962us (us if "
                              "no unit): a straggler or bandwidth?; may be given again")
    command.add_argument("--on", metavar="NODE",
                         help="the hardware, as a node of the catalog or a cluster (hgx-h100, 4x8xH100:nics=4x200); "
                              "default: by the device's name in the logs")
    command.add_argument("--format", choices=FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the options before the long work, read, diagnose, show."""
    from sublight.cli import output
    from sublight.cluster import parse

    if not options.log and not options.times:
        raise InputError("nothing to diagnose; expected log files or folders, or --times MEAN,SHORTEST,LONGEST")
    node = parse(options.on).node if options.on else None
    output.check_writable(options.output, options.format)
    given = [result for text in options.times or () for result in times(text)]

    from sublight.comm.doctor.diagnosis import diagnose

    results = list(given)
    if options.log:
        from sublight.observe.measurements import read_measurements

        read = read_measurements(options.log)
        results += read.results
        if read.not_read:
            print(f"sublight: {read.not_read} other file{'s' if read.not_read > 1 else ''} passed "
                  f"over", file=sys.stderr)
    with output.working("looking for faults"):
        diagnosis = diagnose(results, node=node)
    write(diagnosis, options.format, options.output)
    return 0


def times(text: str) -> list[Any]:
    """Results of --times. Raises InputError unless it is three times of which the second is the least."""
    from sublight.result import Result

    parts = [TIMES.fullmatch(part.strip()) for part in text.split(",")]
    seconds = [float(m.group(1)) * SECONDS[m.group(2) or "us"] for m in parts if m is not None]
    if len(parts) != 3 or len(seconds) != 3 or not 0 < seconds[1] <= seconds[0] <= seconds[2]:
        raise InputError(f"--times {text}: expected MEAN,SHORTEST,LONGEST with shortest <= mean <= longest, such as "
                         "83610us,924us,377962us")
    names = ("mean time", "shortest time", "longest time")
    return [Result(n, "s", (s,), variant="operation", source="--times") for n, s in zip(names, seconds, strict=True)]


def write(diagnosis: Diagnosis, form: str, path: str | None) -> None:
    """Show a diagnosis; to a file, nothing half-written is left behind."""
    from sublight.cli import output

    if form == "table":
        from sublight.show.doctor import print_diagnosis

        output.write_table(lambda console: print_diagnosis(diagnosis, console), path,
                           width=None if sys.stdout.isatty() else 80)
        return
    output.write_text(_text(diagnosis, form), path)


def _text(diagnosis: Diagnosis, form: str) -> str:
    if form == "html":
        from sublight.show.doctor_html import html

        return html(diagnosis)
    if form == "md":
        from sublight.show.doctor_markdown import markdown

        return markdown(diagnosis)
    from sublight.cli import output
    from sublight.show.doctor_json import document

    return output.json_text(document(diagnosis))
