"""`sublight comm tuner`: what a better choice than NCCL's gains, the file that makes NCCL take it, and its lint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.cli.comm.nccl import add_job
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.comm.nccl.choice import Model
    from sublight.comm.tuner.regret import Run

FORCED = "ALGO/PROTO=LOG"
EXPECTED_SIZES = "512K:512M:x2"


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "tuner", help="the regret of NCCL's choice, and files for its tuner plugins",
        description="Compares NCCL's own choice with runs of forced algorithms and protocols, and writes the file that "
                    "makes a tuner plugin take the best; or checks such a file.",
    )
    add_job(command, optional=True)
    command.add_argument("--runs", action="append", default=[], metavar="FILE", help=(
        "a table of runs (collective,size_bytes,algorithm,protocol,channels,nodes,ranks,time_us), or nccl-tests output "
        f"as {FORCED}, such as Ring/Simple=ring.log, default=plain.log; may be given several times"))
    command.add_argument("--expected", action="store_true", help=(
        "instead of runs, what to expect on a CLUSTER: an all-reduce inside one NVLink domain, with NVLS and without"))
    command.add_argument("--bytes", default=EXPECTED_SIZES, metavar="SIZE,…", dest="sizes",
                         help=f"sizes for --expected, default {EXPECTED_SIZES}")
    command.add_argument("--emit", choices=("nccl", "ncclx"), help="write rows for NCCL's example tuner or for NCCLX; "
                                                                   "without --runs they fix the model's choice")
    command.add_argument("--least", type=float, default=2.0, metavar="PERCENT",
                         help="gains up to this are noise and keep NCCL's own choice (default 2)")
    command.add_argument("--channels", type=int, metavar="N",
                         help="channels of every row: 1 to 64, 0 for NCCL's own number")
    command.add_argument("--lint", metavar="FILE",
                         help="check a file for NCCL's example tuner; exit code 1 if a row is wrong")
    command.add_argument("--format", choices=("table", "json", "md"), default="table")
    command.add_argument("-o", "--output", metavar="FILE", help="write there instead of to standard output")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Lint, or regret, or rows."""
    output.check_writable(options.output, options.format)
    if options.lint:
        if options.runs or options.expected or options.emit:
            raise InputError("--lint checks a file by itself; expected no --runs, --expected or --emit beside it")
        return _lint(options)
    if options.emit and options.format != "table":
        raise InputError(f"--emit writes the plugin's own form; expected no --format {options.format} beside it")
    if not 0 <= options.least <= 1000:
        raise InputError(f"--least {options.least}: expected a percentage, 0 or more")
    if not options.runs and not (options.topology and (options.emit or options.expected)):
        raise InputError("nothing to compare; expected --runs FILE, or a topology with --emit or --expected, or "
                         "--lint FILE")
    if options.runs and options.expected:
        raise InputError("--runs and --expected: expected one of them")
    if options.channels is not None and not 0 <= options.channels <= 64:
        raise InputError(f"--channels {options.channels}: expected 1 to 64, or 0 for NCCL's own number")
    model, hosts = _model(options)
    if options.expected and model is not None:
        runs = _expected(options, model)
    else:
        runs = _as_nccl_counts(_runs(options.runs), model, hosts)
    text = _rows(options, model, runs) if options.emit else _regret(options, model, runs)
    output.write_text(text, options.output)
    return 0


def _model(options: argparse.Namespace) -> tuple[Model | None, int]:
    """The model of the named topology, if one is, and how many hosts its job has."""
    if not options.topology:
        return None, 0
    from sublight.cli.comm.nccl import job_of, model_of
    from sublight.comm.nccl.environment import assignments

    job = job_of(options.topology, options.nodes, options.gpus)
    return model_of(job, assignments(options.env)), job.hosts


def _as_nccl_counts(runs: tuple[Run, ...], model: Model | None, hosts: int) -> tuple[Run, ...]:
    """Runs of the model's job with its nodes: NVLink may join several hosts to one, NICs may split one into several."""
    from dataclasses import replace

    if model is None:
        return runs
    return tuple(replace(run, nodes=model.comm.nodes) if (run.nodes, run.ranks) == (hosts, model.comm.ranks) else run
                 for run in runs)


def _lint(options: argparse.Namespace) -> int:
    from sublight.comm.tuner.lint import lint
    from sublight.show.tuner import mistakes

    text = _text(options.lint)
    found = lint(text, _model(options)[0])
    rows = sum(1 for line in text.splitlines() if line.strip() and not line.startswith("#"))
    output.write_text(mistakes(found, rows, options.format), options.output)
    return 1 if any(mistake.wrong for mistake in found) else 0


def _text(path: str) -> str:
    from sublight.observe.source import label

    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InputError(f"cannot read {label(path)}: {error.strerror}") from None


def _runs(files: list[str]) -> tuple[Run, ...]:
    """Runs of tables, and of logs with what was forced in them."""
    from sublight.comm.tuner.regret import runs_of
    from sublight.observe import forced_runs
    from sublight.observe.source import label

    found: list[Run] = []
    for file in files:
        forced, equals, path = file.partition("=")
        if equals and not Path(file).exists():
            found += _log(forced, path)
            continue
        text = _text(file)
        if not forced_runs.looks_like(text):
            raise InputError(f"{label(file)} is no table of runs; expected a header with collective, size_bytes, "
                             f"algorithm …, or {FORCED} for output of nccl-tests")
        found += runs_of(forced_runs.read_table(text, label(file)))
    return _chosen(found)


def _chosen(found: list[Run]) -> tuple[Run, ...]:
    """The runs of collectives for which NCCL chooses."""
    from sublight.comm.nccl.choice import COLLECTIVES

    others = sorted({run.collective for run in found} - set(COLLECTIVES))
    if others:
        print(f"sublight: {', '.join(others)} left out: NCCL chooses no algorithm for them", file=sys.stderr)
    kept = tuple(run for run in found if run.collective in COLLECTIVES)
    if found and not kept:
        raise InputError(f"no run of a collective for which NCCL chooses; expected {', '.join(COLLECTIVES)}")
    return kept


def _expected(options: argparse.Namespace, model: Model) -> tuple[Run, ...]:
    from sublight.cli.comm.sizes import sizes
    from sublight.cli.comm.topology import is_file
    from sublight.cluster import parse
    from sublight.comm.tuner.expected import expected_runs

    if is_file(options.topology):
        raise InputError("--expected needs a CLUSTER such as 8xH100: a topology file does not say what was measured")
    return expected_runs(model, parse(options.topology), sizes(options.sizes))


def _log(forced: str, path: str) -> tuple[Run, ...]:
    """The runs of nccl-tests' output under what was forced: ALGO/PROTO, ALGO, or default."""
    from dataclasses import replace

    from sublight.comm.tuner.regret import runs_of
    from sublight.observe.forced_runs import forced_words
    from sublight.observe.measurements import read_measurements

    variant = forced_words(forced)
    results = [r for r in read_measurements([path]).results if r.name == "time" and "in-place" not in r.variant.split()]
    return runs_of(replace(result, variant=variant) for result in results)


def _regret(options: argparse.Namespace, model: Model | None, runs: tuple[Run, ...]) -> str:
    from sublight.comm.tuner.expected import BASIS
    from sublight.comm.tuner.regret import regrets
    from sublight.show.tuner import regret

    remark = BASIS if options.expected else ""
    return regret(regrets(runs, model, dtype=options.dtype, op=options.op), options.format, remark)


def _rows(options: argparse.Namespace, model: Model | None, runs: tuple[Run, ...]) -> str:
    from sublight.comm.tuner import grammar
    from sublight.comm.tuner.regret import pinned, regrets, rows, spare

    if runs:
        found = rows(regrets(runs, model, dtype=options.dtype, op=options.op), model, least=options.least / 100,
                     channels=options.channels, dtype=options.dtype, op=options.op)
        measured = {row.collective for row in found}
    else:
        found, measured = (), set()
    if model is not None:                            # what no row matches would run with one channel
        others = [name for name in grammar.COLLECTIVES if name not in measured]
        found += pinned(model, others, dtype=options.dtype, op=options.op, channels=options.channels)
    write = grammar.nccl if options.emit == "nccl" else grammar.ncclx
    for low, name in sorted((row.low, row.collective) for row in found):
        if low and not any(row.collective == name and row.high == low - 1 for row in found):
            print(f"sublight: {name} below {low} bytes was not measured and has no row: one channel under the example "
                  "plugin; name the topology to fill it with NCCL's own choice", file=sys.stderr)
    if options.emit == "nccl" and any(row.channels == grammar.ANY for row in found):
        print("sublight: channels -1 is NCCL's own number by the grammar, but the example plugin of NCCL 2.30.7 makes "
              "it 1 channel; --channels 0 means NCCL's own there", file=sys.stderr)
    comments = _comments(options, model, bool(runs))
    if options.emit == "nccl" and model is not None:
        last = spare(found, model, channels=options.channels)
        found += last
        if last:
            comments.append("rows that come last: for types and operations that NVLS and PAT do not reduce")
    return write(found, comments)


def _comments(options: argparse.Namespace, model: Model | None, measured: bool) -> list[str]:
    out = ["made by sublight comm tuner"]
    if measured:
        what = "expected time" if options.expected else "run"
        out.append(f"the best {what} where it gains more than {options.least:g} %, else NCCL's own choice; the largest "
                   "size stands for all above")
    if model is not None:
        out.append(f"collectives without runs: as NCCL {model.constants.version} takes them by itself")
    return out
