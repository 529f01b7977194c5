"""`sublight record -- COMMAND`: record a PyTorch run so that it can be explained, then explain it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sublight.cli import output
from sublight.errors import InputError


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "record", help="record a PyTorch run, and explain it",
        description="Run a command and record a few steps of each of its PyTorch processes after warm-up, with shapes; "
                    "then explain what was recorded.",
        epilog="A step ends where an optimizer's step() ends; of a run without gradients, where the outermost module's "
               "forward() ends. The exit code is the command's; 2 where it ran and nothing could be recorded.",
    )
    command.add_argument("command_words", nargs=argparse.REMAINDER, metavar="-- COMMAND",
                         help="what to run: python train.py, torchrun …, a script of the shell")
    command.add_argument("-o", "--output", metavar="FOLDER", default="recorded",
                         help="a new or empty folder for rank0.json.gz … (default: recorded)")
    command.add_argument("--steps", type=int, default=4, metavar="N",
                         help="steps to record (4); 0 records everything from the import of torch on")
    command.add_argument("--warm-up", type=int, default=3, metavar="N", help="steps before them (3)")
    command.add_argument("--stacks", action="store_true", help="record Python stacks too, which slows the host down")
    command.add_argument("--no-shapes", action="store_true",
                         help="do not record shapes: the host is faster, and no operator has a bound")
    command.add_argument("--no-explain", action="store_true", help="only record")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run, record, explain."""
    words = options.command_words
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise InputError("no command given; expected: sublight record -- python train.py")
    for name, value in (("--steps", options.steps), ("--warm-up", options.warm_up)):
        if value < 0:
            raise InputError(f"{name} expected 0 or more, got {value}")
    from sublight.observe.record_command import record_command

    done = record_command(words, options.output, steps=options.steps, warm_up=options.warm_up,
                          shapes=not options.no_shapes, stacks=options.stacks)
    for line in done.notes:
        print(f"sublight: {line}", file=sys.stderr)
    if not done.files:
        return done.exit_code or 2
    print(f"sublight: recorded {done.said} in {options.output}", file=sys.stderr)
    if not options.no_explain:
        _explain(options.output)
    return done.exit_code


def _explain(folder: str) -> None:
    from sublight.explain import explain
    from sublight.observe.kineto import no_garbage_collection
    from sublight.observe.read import read_all

    with no_garbage_collection():
        explanation = explain(read_all([folder]))
    output.write(explanation, "table", None)
