"""`sublight kernel choose OP`: the fastest kernel for each shape, how sure that is, and what another would cost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sublight.cli import output
from sublight.cli.kernel import asked, bench
from sublight.errors import InputError


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "choose", help="the fastest kernel for each shape, with confidence and regret",
        description="Time the kernels of an operator on the shapes of a trace, of a model or of your own, and say "
                    "which is the fastest for each, how sure that is and what another would cost. The table that "
                    "--table writes is what sublight.kernels.apply reads.",
        epilog="With --look-up TABLE nothing is measured: it says what the table has for a shape or the nearest.",
    )
    asked.add_kernels(command)
    asked.add_shapes(command)
    bench.add_pace(command)
    command.add_argument("--table", metavar="FILE.json", help="write the choice table there")
    command.add_argument("--look-up", metavar="FILE.json", help="say what this table holds for --shape")
    command.add_argument("--farthest", type=float, default=2.0, metavar="X",
                         help="a shape is taken for another one at most so many times off in a size (default 2)")
    asked.add_output(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time and choose, or look up."""
    from sublight.kernels.arena.choice import document, table
    from sublight.show import arena

    output.check_writable(options.output)
    output.check_writable(options.table)
    if options.look_up:
        return _look_up(options)
    runs, weighed = bench.timed(options)
    for note in arena.left_out(runs):
        print(f"sublight: {note}", file=sys.stderr)
    made = table(options.op, runs)
    if options.table:
        output.write_text(output.json_text(document(made)), options.table)
    if options.format == "json":
        output.write_text(output.json_text(document(made)), options.output)
    else:
        by_shape = {tuple(run.shape.items()): one for run, one in zip(runs, weighed, strict=True)}
        asked_for = [by_shape[tuple(choice.shape.items())] for choice in made.choices]
        output.write_text(arena.choice_text(
            made, options.format, [one.share for one in asked_for],
            [(one.calls, one.call_seconds) for one in asked_for if one.calls and one.call_seconds]), options.output)
    return 0


def _look_up(options: argparse.Namespace) -> int:
    from math import log2

    from sublight.kernels.arena.choice import load
    from sublight.kernels.arena.sizes import fields_of, parsed
    from sublight.show import arena

    if not options.shape or options.farthest < 1:
        raise InputError("--look-up: expected --shape NAME=VALUE,… and --farthest of 1 or more")
    made, contract = load(Path(options.look_up)), asked.contract_of(options)
    if made.op != contract.name:
        raise InputError(f"{Path(options.look_up).name} is a table of {made.op}, not of {contract.name}")
    found = [(text, made.nearest(fields_of(parsed(contract, text)), farthest=log2(options.farthest)))
             for text in options.shape]
    if options.format == "json":
        output.write_text(output.json_text(arena.nearest_document(found)), options.output)
    else:
        output.write_text(arena.nearest_text(found, options.format), options.output)
    return 0
