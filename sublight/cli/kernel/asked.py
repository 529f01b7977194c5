"""What the commands that run kernels are asked: which operator, kernels, shapes, device; and what is known of a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.cli.kernel.shapes import Weighed
    from sublight.device import Limits
    from sublight.kernels.arena.entry import Entry
    from sublight.kernels.arena.process import Arena
    from sublight.kernels.arena.results import Results
    from sublight.kernels.contract import Contract

FORMATS = ("table", "json", "md")
PHASES = ("prefill", "decode")


def add_kernels(command: Any) -> None:
    """Options that say which operator, which kernels, and where."""
    command.add_argument("op", metavar="OP", help="norm, swiglu, gemm, grouped_gemm, moe, attention, decode, …")
    command.add_argument("--kernel", action="append", default=[], metavar="NAME|FILE.py:NAME",
                         help="one of ours or torch's, or a Kernel or function of a file; several times; default: all "
                              "that there are")
    command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="of the CPU (default 1)")
    command.add_argument("--results", metavar="FILE",
                         help="keep every measurement there, and do not make again what it holds already")


def add_shapes(command: Any) -> None:
    """Options that say which shapes."""
    shapes = command.add_argument_group("shapes")
    shapes.add_argument("--shape", action="append", default=[], metavar="NAME=VALUE,…",
                        help="m=16,n=4096,k=4096,form=fp8; several times")
    shapes.add_argument("--from-trace", metavar="TRACE", help="those of a trace's operator calls, by their time")
    shapes.add_argument("--from-model", metavar="MODEL", help="those of a rank's operators in one step of a model")
    shapes.add_argument("--from-workloads", metavar="FILE.jsonl",
                        help="those of FlashInfer-Bench's or SOL-ExecBench's workloads, with --definition")
    shapes.add_argument("--definition", metavar="FILE.json", help="the definition that --from-workloads belongs to")
    shapes.add_argument("--phase", choices=PHASES, help="of the model's step (default decode)")
    shapes.add_argument("--tokens", type=int, metavar="N", help="new tokens of each sequence of the step")
    shapes.add_argument("--batch", type=int, default=1, metavar="N", help="sequences of the step (default 1)")
    shapes.add_argument("--context", type=int, default=0, metavar="N", help="cached tokens of each (default 0)")
    shapes.add_argument("--tp", type=int, default=1, metavar="N", help="ranks that share the model (default 1)")
    shapes.add_argument("--top", type=int, default=8, metavar="N", help="only the heaviest (default 8)")


def add_output(command: Any) -> None:
    command.add_argument("--format", choices=FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")


def contract_of(options: argparse.Namespace) -> Contract:
    """The operator's contract. Raises InputError for a name that has none, and for what cannot be run here."""
    from sublight.kernels.arena.ceilings import check_threads
    from sublight.kernels.listed import contract

    check_threads(options.threads)
    found = contract(options.op)
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("--device cuda: torch sees no GPU on this machine")
    return found


def entries_of(options: argparse.Namespace) -> tuple[Entry, ...]:
    """The kernels that are asked for. Raises InputError where there are none, or two have one name."""
    from sublight.kernels.arena.entry import entry, listed

    found = tuple(entry(options.op, text, where=options.device) for text in options.kernel) if options.kernel else \
        listed(options.op, where=options.device)
    if not found:
        raise InputError(f"no kernel is listed for {options.op} on {options.device}; expected --kernel FILE.py:NAME")
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--kernel: two kernels are named {twice}; rename the one in the file")
    return found


def shapes_of(options: argparse.Namespace, contract: Contract) -> tuple[Weighed, ...]:
    """The shapes that are asked for, the heaviest first; what is left out is said on standard error."""
    from sublight.cli.kernel import shapes

    return shapes.asked(options, contract)


def device_of(options: argparse.Namespace) -> str | None:
    return None if options.device == "cpu" else str(options.device)


def limits_of(options: argparse.Namespace) -> Limits | None:
    """Of the GPU, from the catalog; None for a CPU, whose ceilings are measured, and for a GPU that it lacks."""
    if options.device == "cpu":
        return None
    import torch

    from sublight.device import DeviceInfo, find

    seen = torch.cuda.get_device_properties(0)
    found = find(DeviceInfo(seen.name, seen.multi_processor_count, seen.total_memory, (seen.major, seen.minor)))
    return found.limits if found else None


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[tuple[Arena, Results | None]]:
    """An arena, and the file of results where one is named. A note on it goes to standard error."""
    import sys

    from sublight.kernels.arena.process import arena
    from sublight.kernels.arena.results import Results

    results = Results(Path(options.results)) if options.results else None
    try:
        if results is not None and results.note:
            print(f"sublight: {results.note}", file=sys.stderr)
        with output.working("starting the arena"):
            ring = arena(threads=options.threads)
            started = ring.__enter__()
        try:
            yield started, results
        finally:
            ring.__exit__(None, None, None)
    finally:
        if results is not None:
            results.close()
