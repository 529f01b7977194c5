"""`sublight explain TRACE`: account for every nanosecond of a recorded run."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from sublight.cli import output, pasted
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.explain.model_setting import Asked


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "explain", help="account for every nanosecond of a recorded run",
        description="Read a PyTorch profiler trace and account for every nanosecond of it.",
        epilog="Several files are several ranks of one run; files that say the same rank are read as one.",
    )
    command.add_argument("trace", nargs="+", metavar="TRACE",
                         help="trace file (.json, .gz, .zst, .zip), a folder of ranks, - for standard input, or an "
                              "http(s) URL; or pasted text: a launch command, a log, a benchmark's summary, an issue")
    command.add_argument("--device", metavar="NAME",
                         help="take the devices for this one of the catalog (h100-sxm …), or for that of a file which "
                              "calibrate wrote (cpu.toml)")
    command.add_argument("--window", default="default", metavar="step|all|A:B",
                         help="steps, first to last activity, or an interval such as 10ms:25ms from the first "
                              "activity; default: steps where every step has its launches linked, else all")
    command.add_argument("--whatif", action="append", metavar="WHAT",
                         help="what the window would gain, by replay: gemm=2x, attention=bound, kernel:NAME=1.5x, "
                              "communication=hidden, launch=0; commas join several; may be given again")
    command.add_argument("--on", metavar="CLUSTER",
                         help="the cluster that communication is held against: 8x8xH800, 2x8xH100:nics=4x200; default: "
                              "the usual nodes of the trace's device")
    command.add_argument("--exchange", metavar="SIZES",
                         help="sizes of expert exchanges that the trace does not tell: tokens=4096,top_k=8,hidden=7168,"
                              "experts=256,group_limit=4,form=fp8")
    of_model = command.add_argument_group(
        "the model that the trace runs", "so that a file without shapes is held against the model's operators; what is "
        "not said here is inferred from the trace or assumed, and marked so")
    of_model.add_argument("--model", metavar="MODEL",
                          help="a config.json or its folder, a name of the catalog, or a name of the hub")
    of_model.add_argument("--phase", choices=("train", "prefill", "decode"), help="default: as the kernels tell")
    for name, what in (("tokens", "new tokens of this rank in one pass; of a decode: its sequences"),
                       ("layers", "layers that one pass in the window shows; default: as attention kernels tell"),
                       ("sequences", "sequences that share the tokens"),
                       ("context", "cached tokens of each sequence before the pass"),
                       ("ep", "ranks that share the experts"), ("tp", "ranks that share each layer")):
        of_model.add_argument(f"--{name}", type=int, metavar="N", help=what)
    pasted.add(command)
    command.add_argument("--format", choices=output.FORMATS, default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


RUN = ("tokens", "layers", "phase", "sequences", "context", "ep", "tp")


def _model(options: argparse.Namespace) -> Asked | None:
    """What the user says of the model that runs."""
    said = {name: getattr(options, name) for name in RUN}
    if options.model is None:
        if alone := [name for name, value in said.items() if value is not None]:
            raise InputError(f"--{alone[0]} is of a model's run; say --model too")
        return None
    from sublight.explain.model_setting import Asked
    from sublight.models import find

    return Asked(find(options.model), **said)


def run(options: argparse.Namespace) -> int:
    """Check the options before the long work, read, explain, show."""
    from sublight.cluster import parse as parse_cluster
    from sublight.device import named

    output.check_writable(options.output, options.format)
    text = pasted.text_of(options.trace)
    if text is not None:
        return pasted.run(text, options)
    pasted.refuse_of_text(options)
    device = named(options.device) if options.device else None
    cluster = parse_cluster(options.on) if options.on else None

    from sublight.explain import explain
    from sublight.explain.exchanges import parse_sizes
    from sublight.explain.whatif import parse
    from sublight.explain.window import Window
    from sublight.observe.kineto import no_garbage_collection
    from sublight.observe.read import read_all

    window = Window.parse(options.window)
    for text in options.whatif or ():
        parse(text)
    exchange = parse_sizes(options.exchange) if options.exchange else None
    model = _model(options)
    since = time.process_time()
    with output.progress() as report, no_garbage_collection():
        traces = read_all(options.trace, progress=report)
        explanation = explain(traces, window=window, device=device, what_ifs=options.whatif, cluster=cluster,
                              exchange=exchange, model=model)
    output.say_speed(sum(t.quality.events for t in traces), sum(t.quality.text_bytes for t in traces), since)
    output.write(explanation, options.format, options.output)
    return 0
