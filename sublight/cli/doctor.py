"""`sublight doctor FILE|COMMAND`: what a recording lacks, or what the one that a command makes will lack."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.improve.capture import Checkup

FORMATS = ("table", "md", "json")
SHELL = (".sh", ".bash", ".sbatch", ".slurm")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "doctor", help="what a recording lacks for which finding, and the command that records it",
        description="Say what a trace, an Nsight Systems export or results lack, for which findings; or what the "
                    "recording of a command will lack, with the corrected command. Nothing is run.",
        epilog="The fabric and its measurements have a doctor of their own: sublight comm doctor.",
    )
    command.add_argument("--format", choices=FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.add_argument("what", nargs=argparse.REMAINDER, metavar="FILE|COMMAND",
                         help='a file or folder, or a command: "vllm serve …", or -- nsys profile …')
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look at it, and say."""
    from sublight.show import capture

    output.check_writable(options.output)
    found = _checkup(options.what[1:] if options.what[:1] == ["--"] else options.what)
    shown = {"table": capture.text, "md": capture.markdown, "json": capture.document}[options.format]
    output.write_text(shown(found), options.output)
    return 0


def _checkup(words: list[str]) -> Checkup:
    if not words:
        raise InputError('expected a file or a command: sublight doctor trace.json.gz, sublight doctor "vllm serve …"')
    if len(words) == 1 and (words[0].startswith(("http://", "https://")) or Path(words[0]).exists()):
        return _of_file(words[0])
    from sublight.engines.shell import quoted
    from sublight.improve.capture_command import of_command

    if len(words) == 1 and " " not in words[0].strip():
        raise InputError(f"no such file: {words[0]}; expected a trace, an export, results, or a command of several "
                         "words")
    return of_command(words[0] if len(words) == 1 else " ".join(map(quoted, words)))


def _of_file(path: str) -> Checkup:
    from sublight.improve import capture, capture_command
    from sublight.observe.read import holds_traces, read_all

    if path.endswith(".py"):
        return capture_command.of_program_file(Path(path))
    if path.endswith(SHELL):
        return capture_command.of_command(Path(path).read_text("utf-8", errors="replace"))
    if holds_traces(path):
        from sublight.observe.kineto import no_garbage_collection

        with output.progress() as report, no_garbage_collection():
            return capture.of_traces(read_all([path], progress=report))
    from sublight.observe.results import read_results

    return capture.of_results(read_results(path), Path(path).name)
