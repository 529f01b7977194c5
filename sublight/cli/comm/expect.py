"""`sublight comm expect`: how long a collective or an expert exchange should take, and whether a time is right."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sublight.cluster import Cluster
    from sublight.show.expect import Answer

EXCHANGES = ("dispatch", "combine")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")
FORMATS = ("table", "json", "md")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "expect", help="expected time of a collective or an expert exchange, with an interval",
        description="How long a collective or a mixture-of-experts exchange should take on a cluster, with an 80 % "
                    "interval, what it is made of, and what the constants are from. With --measured: whether a time or "
                    "a bandwidth is right.",
    )
    command.add_argument("what", choices=[*COLLECTIVES, *EXCHANGES], metavar="WHAT",
                         help=f"{', '.join(COLLECTIVES)}, dispatch or combine")
    command.add_argument("--on", required=True, metavar="CLUSTER",
                         help="NODESxGPUSxNODE: 2x8xH100, 8xB200, 72xGB200, 8x8xH800:oversubscription=2")
    command.add_argument("--measured", metavar="VALUE",
                         help="is this right? A time (310us, 1.2ms); of a collective its bus bandwidth (44GB/s), of an "
                              "exchange the bandwidth that its test prints")
    command.add_argument("--sms", type=_count, metavar="N", help="SMs that it may hold")
    command.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there; default: standard output")
    _collective_options(command.add_argument_group("collectives"))
    _exchange_options(command.add_argument_group("dispatch and combine"))
    command.set_defaults(run=run)


def _collective_options(group: Any) -> None:
    group.add_argument("--bytes", metavar="SIZES", help="size as nccl-tests prints it: 64M, 1M,2M, or 1K:1G:x4")
    group.add_argument("--dtype", default=None, help="default bf16; decides whether switches reduce")
    group.add_argument("--group", type=_count, metavar="N", help="ranks, packed node by node; default: all")
    group.add_argument("--kind", default=None, choices=["nccl", "one-shot", "two-shot", "nvls"], help="default: nccl")
    launch = group.add_mutually_exclusive_group()
    launch.add_argument("--graph", action="store_true", help="custom kinds: launched by a CUDA graph (default)")
    launch.add_argument("--eager", action="store_true", help="custom kinds: launched from Python")


def _exchange_options(group: Any) -> None:
    group.add_argument("--tokens", metavar="N", help="of one rank: 4096, 128,4096, or 1:4096:x4")
    group.add_argument("--top-k", type=_count, metavar="N")
    group.add_argument("--hidden", type=_count, metavar="N")
    group.add_argument("--experts", type=_count, metavar="N")
    group.add_argument("--group-limit", type=_count, metavar="N", help="nodes that a token may go to; default: any")
    group.add_argument("--mode", default=None,
                       choices=["normal", "deepep-v2", "low-latency", "nccl-ep", "nvl72-alltoall"],
                       help="default: normal (DeepEP, its first version)")
    group.add_argument("--form", default=None, choices=["fp8", "bf16", "nvfp4"],
                       help="rows; default: fp8 to dispatch, bf16 to combine")
    group.add_argument("--power", type=float, default=None, metavar="A",
                       help="load of the i-th expert falls as i^-A; default 0, even")


def run(options: argparse.Namespace) -> int:
    """Ask for each size, judge, show."""
    from sublight.cli import output

    output.check_writable(options.output)
    from sublight.cluster import parse
    from sublight.show.expect import document, markdown, print_answers

    cluster = parse(options.on)
    _refuse_options(options)
    answers = _exchanges(options, cluster) if options.what in EXCHANGES else _collectives(options, cluster)
    if options.format == "table":
        output.write_table(lambda console: print_answers(answers, console), options.output, width=None)
        return 0
    text = output.json_text(document(answers)) if options.format == "json" else markdown(answers)
    output.write_text(text, options.output)
    return 0


def _refuse_options(options: argparse.Namespace) -> None:
    """Options of the other kind of question would be ignored in silence."""
    from sublight.errors import InputError

    exchange = ("tokens", "top_k", "hidden", "experts", "group_limit", "mode", "form", "power")
    collective = ("bytes", "dtype", "group", "kind")
    wrong = [name for name in (collective if options.what in EXCHANGES else exchange)
             if getattr(options, name) is not None]
    if options.what in EXCHANGES and (options.graph or options.eager):
        wrong.append("eager" if options.eager else "graph")
    if wrong:
        raise InputError(f"--{wrong[0].replace('_', '-')} does not belong to {options.what}")
    needed = ("tokens", "top_k", "hidden", "experts") if options.what in EXCHANGES else ("bytes",)
    missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(options, name) is None]
    if missing:
        raise InputError(f"{options.what} needs {', '.join(missing)}")
    if (options.graph or options.eager) and options.kind in (None, "nccl"):
        raise InputError("--graph and --eager tell custom kinds apart; NCCL's constants do not: say --kind one-shot, "
                         "two-shot or nvls")


def _collectives(options: argparse.Namespace, cluster: Cluster) -> list[Answer]:
    from sublight.cli.comm.sizes import sizes
    from sublight.comm.bus import bus_bytes
    from sublight.comm.expect import expect
    from sublight.comm.expect.verdict import judged, link_of
    from sublight.show.expect import Answer
    from sublight.work import Message

    group, dtype, found = options.group or cluster.ranks, options.dtype or "bf16", []
    where = f"{options.on}, {group} ranks, {dtype}" + (f", {options.kind}" if options.kind else "")
    for nbytes in sizes(options.bytes):
        message = Message(options.what, group, nbytes)
        expected = expect(message, cluster, dtype=dtype, kind=options.kind or "nccl", graph=not options.eager,
                          sms=options.sms)
        found.append(Answer(options.what, where, f"{nbytes}", nbytes, expected, nbytes, bus_bytes(message), "bus",
                            link_of(message, cluster), None))
    return _with_verdicts(found, options.measured, judged)


def _exchanges(options: argparse.Namespace, cluster: Cluster) -> list[Answer]:
    from sublight.cli.comm.sizes import sizes
    from sublight.comm.expect import Exchange, Routing, expected_exchange
    from sublight.comm.expect.experts import printed_bytes
    from sublight.comm.expect.verdict import judged, link_of_exchange
    from sublight.show.expect import Answer

    found = []
    for tokens in sizes(options.tokens):
        exchange = Exchange(
            options.what, tokens, options.top_k, options.hidden, options.experts, cluster.ranks, cluster.domain,
            group_limit=options.group_limit, form=options.form, mode=options.mode or "normal", sms=options.sms,
            routing=Routing(power=options.power or 0.0),
        )
        expected = expected_exchange(exchange, cluster)
        name, moved = printed_bytes(exchange)
        where = (f"{options.on}, top-k {options.top_k} of {options.experts} experts, hidden {options.hidden}, "
                 f"{exchange.mode}")
        found.append(Answer(options.what, where, f"{tokens} tokens", tokens, expected, None, moved, name,
                            link_of_exchange(exchange, cluster), None))
    return _with_verdicts(found, options.measured, judged)


def _with_verdicts(answers: list[Answer], measured: str | None, judged: Any) -> list[Answer]:
    """The verdict on the one size that was asked for."""
    from dataclasses import replace

    from sublight.errors import InputError

    if measured is None:
        return answers
    if len(answers) != 1:
        raise InputError(f"--measured is one value, but {len(answers)} sizes were asked for; say one size")
    answer = answers[0]
    value, unit = quantity(measured)
    if unit == "B/s":
        if not answer.moved_bytes:
            raise InputError(f"{answer.what} has no bus bandwidth; say the time that was measured")
        value = answer.moved_bytes / value
    return [replace(answer, judged=judged(answer.expected, value))]


QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(us|µs|ms|s|GB/s|MB/s|TB/s)")


def quantity(text: str) -> tuple[float, str]:
    """(seconds, "s") or (bytes a second, "B/s") of a value with its unit."""
    from sublight.errors import InputError

    found = QUANTITY.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(f"--measured: '{text}' is no time and no bandwidth; expected such as 310us, 1.2ms or 44GB/s")
    scale, unit = {"us": (1e-6, "s"), "µs": (1e-6, "s"), "ms": (1e-3, "s"), "s": (1.0, "s"), "MB/s": (1e6, "B/s"),
                   "GB/s": (1e9, "B/s"), "TB/s": (1e12, "B/s")}[found[2]]
    return float(found[1]) * scale, unit


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value
