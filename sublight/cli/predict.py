"""`sublight predict`: what a model should do on given GPUs, how sure that is, and what limits it."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublight.models import Model
    from sublight.plan import Plan, Serving, Workload
    from sublight.predict.answer import Answer
    from sublight.predict.machine import Machine

ENGINES = ("vllm", "sglang", "trtllm")
FORMATS = ("table", "json", "md", "html", "trace")
SERVING = ("isl", "osl", "concurrency", "rate", "requests", "shortest", "prefix_hit", "engine", "engine_version",
           "drafts", "acceptance", "token_budget", "max_sequences", "kv", "replicas")
TRAINING = ("seq", "gbs", "mbs", "cp", "vpp", "etp", "recompute", "schedule", "zero", "precision")
LEAST = {"drafts": 0} | dict.fromkeys(
    ("tp", "pp", "dp", "ep", "replicas", "cp", "vpp", "etp", "mbs", "isl", "osl", "concurrency", "requests",
     "token_budget", "max_sequences", "seq", "gbs", "users", "top", "jobs"), 1)


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "predict", help="predict serving or training of a model, with intervals and what limits it",
        description="What a model should do on given GPUs: latency and throughput of serving, or the time of a "
                    "training step; each with an 80 % interval, the memory, where the time goes, and what each rate "
                    "is worth.",
    )
    command.add_argument("model", metavar="MODEL|COMMAND",
                         help="name in the catalog, folder or config.json, hub id; or a launch command in quotes")
    command.add_argument("--gpus", metavar="CLUSTER", help="8xH200, 2x8xH100, 72xGB200")
    command.add_argument("--train", action="store_true", help="a training step, not serving")
    add_layout(command.add_argument_group("layout (default: the fewest ranks that hold the model, then replicas)"))
    add_traffic(command.add_argument_group("serving"))
    add_job(command.add_argument_group("training"))
    add_format(command.add_argument_group("number formats (default: the checkpoint's)"))
    command.add_argument("--whatif", default="", metavar="RATE=FACTORx,…",
                         help="hbm=2x, tensor=, vector=, nvlink=, nic=, fixed=: the same with other rates")
    command.add_argument("--no-tables", action="store_true", help="do not use measured operator tables, if installed")
    command.add_argument("--at", choices=["expected", "bound"], default="expected",
                         help="of the trace: a step as expected, or at the speed of light")
    command.add_argument("--step", choices=["prefill", "decode", "training"],
                         help="of the trace; default: decode, or training")
    command.add_argument("--format", choices=FORMATS, default="table",
                         help="default: table; trace: one step as a Kineto file, which explain and Perfetto open")
    command.add_argument("-o", "--output", metavar="FILE", help="write there; default: standard output")
    command.set_defaults(run=run)


def add_layout(group: Any) -> None:
    """Options of both kinds of plan."""
    for name, words in (("tp", "tensor parallel"), ("pp", "pipeline stages"), ("dp", "attention replicas that share "
                        "experts (serving), data parallel (training; default: what the GPUs allow)"),
                        ("ep", "expert parallel"), ("replicas", "instances behind a router"),
                        ("cp", "context parallel"),
                        ("vpp", "chunks of layers a stage"), ("etp", "ranks that share an expert")):
        group.add_argument(f"--{name}", type=int, metavar="N", help=words)


def add_traffic(group: Any) -> None:
    """What is asked of a serving engine, and its settings."""
    group.add_argument("--isl", type=int, metavar="N", help="tokens of a prompt")
    group.add_argument("--osl", type=int, metavar="N", help="tokens of an answer")
    group.add_argument("--concurrency", type=int, metavar="N", help="requests at once (closed loop)")
    group.add_argument("--rate", type=float, metavar="R", help="requests a second (Poisson)")
    group.add_argument("--requests", type=int, metavar="N", help="of the run; default: so many that ends do not show")
    group.add_argument("--shortest", type=float, metavar="X", help="lengths lie evenly in X to 1 of isl and osl")
    group.add_argument("--prefix-hit", type=float, metavar="X", help="share of prompt tokens that the cache holds")
    group.add_argument("--engine", choices=ENGINES, help="default: vllm")
    group.add_argument("--engine-version", metavar="V")
    group.add_argument("--token-budget", type=int, metavar="N", help="tokens of a step")
    group.add_argument("--max-sequences", type=int, metavar="N", help="sequences of a step")
    group.add_argument("--kv", choices=["bf16", "fp8"], help="number format of the cache")
    group.add_argument("--drafts", type=int, metavar="N", help="guessed tokens a step")
    group.add_argument("--acceptance", type=float, metavar="X", help="share of guesses that hold")


def add_job(group: Any) -> None:
    """What is asked of a training run, and its settings."""
    group.add_argument("--seq", type=int, metavar="N", help="tokens of a sequence")
    group.add_argument("--gbs", type=int, metavar="N", help="sequences of a step")
    group.add_argument("--mbs", type=int, metavar="N", help="sequences of a micro-batch; default 1")
    group.add_argument("--recompute", choices=["none", "selective", "full"])
    group.add_argument("--schedule", choices=["gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe"])
    group.add_argument("--zero", type=int, choices=[0, 1, 2, 3], help="what is split over dp: optimizer, gradients, "
                                                                     "parameters; default 1")
    group.add_argument("--precision", choices=["bf16", "fp8", "mxfp8", "nvfp4"], help="of products; default bf16")


def add_format(group: Any) -> None:
    """Recasts."""
    group.add_argument("--weights", metavar="FORMAT", help="of every product: bf16, fp8, fp8_block, nvfp4, mxfp4, …")


def run(options: argparse.Namespace) -> int:
    """Read what is asked, predict, show."""
    from sublight.cli import output

    output.check_writable(options.output, options.format)
    from sublight.predict.answer import answer
    from sublight.predict.machine import faster

    rates = faster(options.whatif)
    model, plan, workload, where, notes = asked(options)
    with output.working("predicting"):
        found = answer(model, plan, workload, where, faster=rates, notes=notes)
    if options.format == "table":
        from sublight.show.predict import print_answer

        output.write_table(partial(print_answer, found), options.output, width=None)
        return 0
    output.write_text(_text(found, options), options.output)
    if options.format == "trace" and options.output is not None:
        import sys

        print(f"one {_step_name(found, options.step)} step: written to {options.output}", file=sys.stderr)
    return 0


def _text(found: Answer, options: argparse.Namespace) -> str:
    if options.format == "json":
        from sublight.cli import output
        from sublight.show.predict import document

        return output.json_text(document(found))
    if options.format == "html":
        from sublight.show.predict_html import html

        return html(found)
    if options.format == "trace":
        return _trace(found, options.step, options.at)
    from sublight.show.predict import markdown

    return markdown(found)


def _trace(found: Answer, name: str | None, at: str) -> str:
    """One typical step as a Kineto file. Raises InputError for a step that this prediction does not have."""
    from sublight.errors import InputError
    from sublight.predict.trace import trace
    from sublight.show.kineto import kineto

    shown = _step_name(found, name)
    if shown not in found.steps:
        raise InputError(f"--step {shown}: this prediction has {', '.join(found.steps)}")
    return "".join(kineto(trace(found.steps[shown], found.where, at=at)))


def _step_name(found: Answer, name: str | None) -> str:
    return name or ("training" if "training" in found.steps else "decode")


def asked(options: argparse.Namespace) -> tuple[Model, Plan, Workload, Machine, tuple[str, ...]]:
    """Model, plan, workload and machine of the options, or of the launch command with the options over it."""
    from sublight.cli.launch import from_command, is_command
    from sublight.errors import InputError
    from sublight.predict.validity import problems, warnings

    check_numbers(options)
    read = from_command if is_command(options.model) else _from_options
    model, plan, workload, where, notes = read(options)
    wrong = problems(model, plan, where, workload)
    if wrong:
        raise InputError("; ".join(wrong))
    return model, plan, workload, where, (*notes, *warnings(model, plan, where, workload))


def _from_options(options: argparse.Namespace) -> tuple[Model, Plan, Workload, Machine, tuple[str, ...]]:
    from sublight.cluster import parse
    from sublight.errors import InputError
    from sublight.predict.machine import Machine

    refuse_other_kind(options, train=options.train)
    needed = ("seq", "gbs") if options.train else ("isl", "osl")
    missing = [f"--{name}" for name in needed if getattr(options, name) is None]
    if missing:
        raise InputError(f"predict needs {', '.join(missing)}" + (" with --train" if options.train else ""))
    if options.gpus is None:
        raise InputError("predict needs --gpus, as 8xH200 or 2x8xH100")
    cluster, model = parse(options.gpus), recast_model(options.model, options.weights)
    if options.train:
        where = Machine(cluster, "torch", tables=not options.no_tables)
        plan, job, notes = training_plan(options, where)
        return model, plan, job, where, notes
    where = Machine(cluster, options.engine or "vllm", options.engine_version, tables=not options.no_tables)
    serving, notes = serving_plan(options, model, where)
    return model, serving, traffic_of(options), where, notes


def check_numbers(options: argparse.Namespace) -> None:
    """Raises InputError for a count that counts nothing, and a version without a number."""
    from sublight.errors import InputError

    for name, least in LEAST.items():
        value = getattr(options, name, None)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} expected {least} or more, got {value}")
    version = getattr(options, "engine_version", None)
    if version is not None and not version.removeprefix("v")[:1].isdigit():
        raise InputError(f"--engine-version expected a number, as 0.11.0, got {version}")


def refuse_other_kind(options: argparse.Namespace, *, train: bool) -> None:
    """Options of the other kind would be ignored in silence."""
    from sublight.errors import InputError

    wrong = [name for name in (SERVING if train else TRAINING) if getattr(options, name) is not None]
    if wrong:
        kind = "--train" if train else "serving"
        raise InputError(f"--{wrong[0].replace('_', '-')} does not belong to {kind}"
                         + ("" if train else "; say --train for a training step"))


def recast_model(name: str, weights: str | None) -> Model:
    """The model of that name, with its products in another number format where one is given."""
    from sublight.models import find, recast

    model = find(name)
    return recast(model, attention=weights, mlp=weights, experts=weights) if weights else model


def traffic_of(options: argparse.Namespace) -> Any:
    """Raises InputError where neither concurrency nor rate is given."""
    from sublight.errors import InputError
    from sublight.plan import Traffic

    if options.concurrency is None and options.rate is None:
        raise InputError("predict needs --concurrency (requests at once) or --rate (requests a second)")
    if options.requests is not None and options.requests < (options.concurrency or 1):
        raise InputError(f"--requests {options.requests} is less than one for each of {options.concurrency} users")
    named = {"requests": options.requests, "shortest": options.shortest, "prefix_hit": options.prefix_hit}
    return Traffic(options.isl, options.osl, options.concurrency, options.rate,
                   **{name: value for name, value in named.items() if value is not None})


def serving_plan(options: argparse.Namespace, model: Model, where: Machine) -> tuple[Any, tuple[str, ...]]:
    """The layout that is named, or the usual one, with a note that says so."""
    from dataclasses import replace

    from sublight.improve.layouts import filled
    from sublight.plan import Serving
    from sublight.predict.layout import usual

    names = ("tp", "pp", "dp", "ep", "replicas", "token_budget", "max_sequences", "kv", "drafts", "acceptance")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    plan = Serving(engine=where.library, version=where.version, **given)
    notes: tuple[str, ...] = ()
    if options.tp is None:
        plan = usual(model, where, plan)
        if options.replicas is not None:
            plan = replace(plan, replicas=options.replicas)
        notes = (f"layout chosen, since no --tp was named: tp {plan.tp} x {plan.replicas} replicas, the fewest ranks "
                 "that hold the model; sublight plan ranks the others",)
    elif options.replicas is None and where.cluster.ranks % plan.gpus == 0:
        plan = replace(plan, replicas=where.cluster.ranks // plan.gpus)
    plan, more = with_acceptance(plan) if options.acceptance is None else (plan, ())
    return filled(plan, model, where), (*notes, *more)


def with_acceptance(plan: Serving) -> tuple[Serving, tuple[str, ...]]:
    """Guesses of which none holds are nobody's question: where no acceptance is given, the usual one, and a note."""
    from dataclasses import replace

    from sublight.predict.serving.recipes import acceptances

    usual = acceptances().get(plan.drafts)
    if not plan.drafts or plan.acceptance or usual is None:
        return plan, ()
    return replace(plan, acceptance=usual), (
        f"acceptance {usual:g} of {plan.drafts} drafts taken, as published for DeepSeek V3; --acceptance says "
        "otherwise",)


def training_plan(options: argparse.Namespace, where: Machine) -> tuple[Any, Any, tuple[str, ...]]:
    """dp: what the GPUs leave."""
    from sublight.errors import InputError
    from sublight.plan import Job, Training

    names = ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs", "recompute", "schedule", "zero", "precision")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if given.get("vpp", 1) > 1:
        given.setdefault("schedule", "interleaved")
    given["overlap_ep"] = given.get("schedule") == "dualpipe"        # what it is for: exchanges beside computation
    shared = given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)
    if where.cluster.ranks % shared:
        raise InputError(f"tp x pp x cp = {shared} does not divide {where.cluster.ranks} GPUs")
    plan = Training(dp=options.dp or where.cluster.ranks // shared, **given)
    if plan.gpus != where.cluster.ranks:
        raise InputError(f"tp x pp x cp x dp = {plan.gpus}, but --gpus has {where.cluster.ranks}")
    return plan, Job(options.seq, options.gbs), ()
