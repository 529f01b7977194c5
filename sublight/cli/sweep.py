"""`sublight sweep`: the best plan of many models, GPUs and workloads, resumable, on all cores or on Ray."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "sweep", help="the best plan of many models, GPUs and workloads; resumable; local or on Ray",
        description="Ask sublight plan for every combination of models, GPUs and traffic, and write one CSV row each. "
                    "A sweep that was cut goes on where it was.",
    )
    command.add_argument("--models", required=True, metavar="A,B,…|FILE", help="names, or a file with one a line")
    command.add_argument("--gpus", required=True, metavar="A,B,…", help="8xH100,8xH200,8xB200")
    command.add_argument("--traffic", required=True, metavar="ISL/OSL,…", help="1024/1024,8192/1024")
    command.add_argument("--engines", default="vllm", metavar="A,B,…", help="default: vllm")
    command.add_argument("--slo", default="", metavar="LIMITS", help="ttft=2s,tpot=30ms")
    command.add_argument("--on", choices=["local", "ray"], default="local", help="default: local")
    command.add_argument("--jobs", type=int, metavar="N", help="processes; default: all cores")
    command.add_argument("--tables", action="store_true", help="use measured operator tables, if installed: slower")
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="a CSV file")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Every combination, with progress on a terminal."""
    from pathlib import Path

    from sublight.cli import output
    from sublight.improve.sweep import sweep

    output.check_writable(options.output)
    cases = cases_of(options)
    with output.counting("planning") as report:
        known = sweep(cases, Path(options.output), on=options.on, jobs=options.jobs, progress=report)
    resumed = f", {known} of them from an earlier run that was cut" if known else ""
    print(f"{len(cases):,} cases{resumed}: written to {options.output}", file=sys.stderr)
    return 0


def cases_of(options: argparse.Namespace) -> list[Any]:
    """Every combination, in the order of the options. Raises InputError where one names nothing that is known."""
    from sublight.cli.plan import engines_of
    from sublight.cli.predict import check_numbers
    from sublight.cluster import parse
    from sublight.errors import InputError
    from sublight.improve.search import slo
    from sublight.improve.sweep import Case

    check_numbers(options)
    limits, gpus, models, engines = (slo(options.slo), _list(options.gpus), _models(options.models),
                                     engines_of(options.engines))
    if not gpus or not models or not _list(options.traffic):
        raise InputError("sweep needs one model, one cluster and one traffic at least")
    for cluster in gpus:
        parse(cluster)
    traffic = []
    for text in _list(options.traffic):
        isl, _, osl = text.partition("/")
        if not isl.isdigit() or not osl.isdigit() or int(isl) < 1 or int(osl) < 1:
            raise InputError(f"--traffic {text}: expected ISL/OSL, as 1024/1024")
        traffic.append((int(isl), int(osl)))
    return [Case(model, cluster, isl, osl, engine, limits.ttft, limits.tpot, options.tables)
            for model in models for cluster in gpus for isl, osl in traffic
            for engine in engines]


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _models(text: str) -> list[str]:
    from pathlib import Path

    if Path(text).is_file():
        return [line.strip() for line in Path(text).read_text("utf-8").splitlines() if line.strip()]
    return _list(text)
