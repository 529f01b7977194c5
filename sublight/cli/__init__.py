"""The command line: one thin file per command. Data on standard output, the rest on standard error."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from sublight import __version__
from sublight.errors import InputError

EXIT_USAGE = 2


def parser() -> argparse.ArgumentParser:
    """The whole command line. Building it imports no numpy and no rich."""
    from sublight.cli import calibrate, comm, demo, diff, doctor, explain, kernel, plan, predict, record, sweep

    top = argparse.ArgumentParser(
        prog="sublight", description="Where a large language model's run spends its time, and why.",
        epilog="Exit codes: 0 fine, 1 a gate failed, 2 usage or unreadable input.",
    )
    top.add_argument("--version", action="version", version=f"sublight {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (explain, diff, predict, plan, sweep, record, doctor, kernel, comm, calibrate, demo):
        command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show µ gets a question mark
            stream.reconfigure(errors="replace")
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except InputError as error:
        print(f"sublight: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:                       # `sublight explain … | head` closed the pipe: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("sublight: interrupted", file=sys.stderr)
        return 130
    return code
