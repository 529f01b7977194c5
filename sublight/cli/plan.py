"""`sublight plan`: which layout, engine and load to take for a model on given GPUs, with the launch command."""

from __future__ import annotations

import argparse
from typing import Any

FORMATS = ("table", "json", "md", "html")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "plan", help="rank valid layouts and engines for a model on given GPUs, with launch commands",
        description="Every valid layout, judged by what the answers must keep and ranked by tokens a second and GPU, "
                    "with what limits each; the Pareto front of throughput against speed per user; the launch "
                    "commands. With --train: layouts by the time of a step.",
    )
    command.add_argument("model", metavar="MODEL", help="name in the catalog, folder or config.json, hub id")
    command.add_argument("--gpus", required=True, metavar="CLUSTER", help="32xH200, 2x8xH100, 72xGB200")
    command.add_argument("--slo", default="", metavar="LIMITS", help="ttft=2s,tpot=30ms: means that must be kept")
    command.add_argument("--engines", metavar="A,B,…", help="vllm,sglang,trtllm; default: vllm")
    command.add_argument("--isl", type=int, metavar="N", help="tokens of a prompt")
    command.add_argument("--osl", type=int, metavar="N", help="tokens of an answer")
    command.add_argument("--users", type=int, metavar="N", help="how many GPUs do N requests at once need?")
    command.add_argument("--kv", choices=["bf16", "fp8"], help="number format of the cache")
    command.add_argument("--weights", metavar="FORMAT", help="of every product: bf16, fp8, fp8_block, nvfp4, …")
    command.add_argument("--train", action="store_true", help="training layouts, by the time of a step")
    command.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence")
    command.add_argument("--gbs", type=int, metavar="N", help="sequences of a step")
    command.add_argument("--precision", choices=["bf16", "fp8", "mxfp8", "nvfp4"], help="of products; default: bf16")
    command.add_argument("--top", type=int, default=10, metavar="N", help="rows that are shown (default 10)")
    command.add_argument("--tables", action="store_true",
                         help="use measured operator tables, if installed: slower; sublight predict does by itself")
    command.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there; default: standard output")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Search, rank, show."""
    from sublight.cli import output

    output.check_writable(options.output, options.format)
    _refuse(options)
    from sublight.show.plan import document, markdown, print_plan

    with output.working("planning"):
        found = _training(options) if options.train else _serving(options)
    if options.format == "table":
        output.write_table(lambda console: print_plan(found, console, options.top), options.output, width=None)
        return 0
    if options.format == "json":
        text = output.json_text(document(found))
    elif options.format == "html":
        from sublight.show.plan_html import html

        text = html(found, options.top)
    else:
        text = markdown(found, options.top)
    output.write_text(text, options.output)
    return 0


def _refuse(options: argparse.Namespace) -> None:
    """Raises InputError for options of the other kind, which would be ignored, and counts that count nothing."""
    from sublight.cli.predict import check_numbers
    from sublight.errors import InputError

    check_numbers(options)
    names = ("isl", "osl", "slo", "engines", "users", "kv") if options.train else ("seq", "gbs", "precision")
    wrong = [name for name in names if getattr(options, name)]
    if wrong:
        raise InputError(f"--{wrong[0]} does not belong to " + ("--train" if options.train else
                                                                "serving; say --train for a training step"))


def engines_of(text: str | None) -> list[str]:
    """Names of engines, each once. Raises InputError for one that is not known."""
    from sublight.cli.predict import ENGINES
    from sublight.errors import InputError

    names = list(dict.fromkeys(name for name in (text or "vllm").split(",") if name))
    if not names or set(names) - set(ENGINES):
        raise InputError(f"--engines expected some of {', '.join(ENGINES)}, got {text}")
    return names


def _serving(options: argparse.Namespace) -> Any:
    from sublight.cli.predict import recast_model
    from sublight.cluster import parse
    from sublight.errors import InputError
    from sublight.improve.search import candidates, slo
    from sublight.plan import Serving, Traffic
    from sublight.predict.machine import Machine
    from sublight.show.plan import ServingPlans

    if options.isl is None or options.osl is None:
        raise InputError("plan needs --isl and --osl (or --train with --seq and --gbs)")
    cluster, model, limits = parse(options.gpus), recast_model(options.model, options.weights), slo(options.slo)
    traffic = Traffic(options.isl, options.osl, concurrency=1)
    machines = [Machine(cluster, engine, tables=options.tables) for engine in engines_of(options.engines)]
    found = candidates(model, traffic, machines, limits, Serving(kv=options.kv))
    return ServingPlans(model, cluster, traffic, limits, tuple(found), options.users, options.weights)


def _training(options: argparse.Namespace) -> Any:
    from sublight.cli.predict import recast_model
    from sublight.cluster import parse
    from sublight.errors import InputError
    from sublight.improve.search import trainings
    from sublight.plan import Job, Training
    from sublight.predict.machine import Machine
    from sublight.show.plan import TrainingPlans

    if options.seq is None or options.gbs is None:
        raise InputError("plan --train needs --seq and --gbs")
    cluster, model = parse(options.gpus), recast_model(options.model, options.weights)
    job = Job(options.seq, options.gbs)
    where = Machine(cluster, "torch", tables=options.tables)
    found = trainings(model, job, where, Training(precision=options.precision or "bf16"))
    return TrainingPlans(model, cluster, job, tuple(found))
