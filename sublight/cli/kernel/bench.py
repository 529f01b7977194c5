"""`sublight kernel bench OP`: kernels timed against each other and the limit, in interleaved calls of one run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.cli.kernel import asked
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.cli.kernel.shapes import Weighed
    from sublight.kernels.arena.session import Run


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "bench", help="time kernels against each other and against the limit",
        description="Time kernels of an operator in interleaved calls of one run: medians with intervals, ratios "
                    "within rounds, ties said to be ties, and the share of the bound whose ceilings were measured in "
                    "the same run. Outputs of timed calls, drawn at random, are judged.",
        epilog="Exit code 1 where a kernel is wrong, crashes, hangs or breaks a rule.",
    )
    asked.add_kernels(command)
    asked.add_shapes(command)
    add_pace(command)
    command.add_argument("--traces", metavar="FOLDER", help="write definitions, workloads and traces there, as files "
                                                            "of --schema")
    command.add_argument("--schema", choices=["flashinfer-bench", "sol-execbench"], default="flashinfer-bench")
    asked.add_output(command)
    command.set_defaults(run=run)


def add_pace(command: Any) -> None:
    """Options of how it is measured."""
    command.add_argument("--cache", choices=["hot", "cold"], default="hot",
                         help="hot (default): all buffers are read just before each call; cold: the caches are emptied")
    command.add_argument("--seconds", type=float, default=1.0, metavar="S",
                         help="for each kernel and shape, about (default 1)")


def run(options: argparse.Namespace) -> int:
    """Time, and say."""
    from sublight.show import arena

    output.check_writable(options.output)
    if options.traces and Path(options.traces).exists() and not Path(options.traces).is_dir():
        raise InputError(f"--traces {options.traces}: expected a folder")
    runs, weighed = timed(options)
    if options.traces:
        _write_traces(options, runs)
    if options.format == "json":
        output.write_text(output.json_text(arena.bench_document(runs)), options.output)
    else:
        output.write_text(arena.bench_text(runs, options.format, [one.share for one in weighed]), options.output)
    return 0 if all(kernel.outcome.ok for run in runs for kernel in run.kernels) else 1


def timed(options: argparse.Namespace) -> tuple[tuple[Run, ...], tuple[Weighed, ...]]:
    """A run on each shape that is asked for, and what each shape stands for."""
    from sublight.kernels.arena.bench import Pace
    from sublight.kernels.arena.session import runs

    if not 0 <= options.seconds <= 3600:
        raise InputError(f"--seconds {options.seconds}: expected 0 to 3600")
    contract = asked.contract_of(options)
    entries, shapes = asked.entries_of(options), asked.shapes_of(options, contract)
    with asked.opened(options) as (ring, results), output.counting("shapes") as done:
        made = tuple(runs(ring, contract, [weighed.shape for weighed in shapes], entries, cache=options.cache,
                          pace=Pace(seconds=options.seconds), results=results, device=asked.device_of(options),
                          limits=asked.limits_of(options), done=done))
    return made, shapes


def _write_traces(options: argparse.Namespace, runs: tuple[Run, ...]) -> None:
    from sublight.kernels.arena.exchange import write_traces
    from sublight.kernels.listed import contract

    write_traces(Path(options.traces), contract(options.op), runs, schema=options.schema)
