"""`sublight kernel gate`: rules that compiled kernels must keep to, as a check in CI."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.cli.kernel.inspect import add_code, add_output, chosen, figures_of
from sublight.errors import InputError

if TYPE_CHECKING:
    from sublight.kernels.inspect.figures import Figures
    from sublight.kernels.inspect.gate import Failure, Rule

FORMATS = ("table", "json", "md", "html")
COUNTS = (("max-registers", "a thread"), ("max-stack", "bytes a thread"), ("min-blocks", "an SM"),
          ("max-shared", "bytes a block, static and dynamic"),
          ("max-spills", "loads and stores of local memory inside loops"))
SHARES = (("min-occupancy", "of the SM's warps"), ("min-tensor-limit", "of the tensor cores' rate, in the main loop"))


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "gate", help="fail where compiled kernels break a rule, or got worse than a baseline",
        description="Exit code 1 where a kernel breaks a rule, or got worse than a baseline. What cannot be checked "
                    "fails too.",
    )
    add_code(command)
    for name, words in COUNTS:
        command.add_argument(f"--{name}", type=int, metavar="N", help=words)
    for name, words in SHARES:
        command.add_argument(f"--{name}", type=float, metavar="PERCENT", help=words)
    command.add_argument("--require-tensor", metavar="KIND", help="of instruction: HMMA, HGMMA, QGMMA, UTCHMMA …")
    command.add_argument("--rules", metavar="FILE.toml", help="rules by kernel instead: [[rule]] kernels = \"attn*\" …")
    command.add_argument("--baseline", metavar="FILE|DIR|FILE.json",
                         help="of an earlier build, or what inspect --format json wrote of it; what got worse fails")
    add_output(command, FORMATS)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, and say what failed."""
    from sublight.kernels.inspect.gate import checked, renamed, worse
    from sublight.show.inspect_rows import short

    output.check_writable(options.output, options.format)
    rules = _rules(options)
    if not rules and not options.baseline:
        raise InputError("nothing to check; expected --max-registers N and the like, --rules FILE.toml or --baseline "
                         "FILE")
    if not options.baseline and not any(rule.needs_instructions for rule in rules):
        options.resources_only = True                # disassembly takes most of the time
    before = _compiled(kernels_of(options.baseline, options), "of the baseline ") if options.baseline else ()
    kernels = _compiled(figures_of(options.code, options)[0])
    for old, new in renamed(before, kernels):
        print(f"sublight: {short(new)} is held against the baseline's {short(old)}, the nearest name", file=sys.stderr)
    found = (*checked(kernels, rules, [short(kernel.name) for kernel in kernels]),
             *worse(before, kernels, instructions=not options.resources_only))
    _write(options, found, len(kernels))
    return 1 if found else 0


def _compiled(kernels: tuple[Figures, ...], whose: str = "") -> tuple[Figures, ...]:
    """Without PTX, which says nothing that a rule could ask of it; libraries carry it beside what is compiled of it."""
    kept = tuple(kernel for kernel in kernels if kernel.kind != "ptx")
    if not kept:
        raise InputError("PTX has no registers, spills or occupancy yet; expected what ptxas makes of it, a cubin")
    if len(kept) < len(kernels):
        print(f"sublight: not checked: PTX {whose}({len(kernels) - len(kept)} x)", file=sys.stderr)
    return kept


def _rules(options: argparse.Namespace) -> tuple[Rule, ...]:
    """Of the options, or of a file."""
    from sublight.kernels.inspect.gate import Rule, rules_of, share

    values: dict[str, Any] = {}
    for name, _ in (*COUNTS, *SHARES):
        field = name.replace("-", "_")
        value = getattr(options, field)
        if value is None:
            continue
        if value < 0:
            raise InputError(f"--{name} {value}: expected 0 or more")
        values[field] = share(value, f"--{name}") if (name, _) in SHARES else value
    if options.require_tensor is not None:
        values["require_tensor"] = options.require_tensor
    if options.rules is None:
        return (Rule(**values),) if values else ()
    if values:
        raise InputError(f"--rules {options.rules} and --{next(iter(values)).replace('_', '-')}: expected one of them")
    return rules_of(_text(options.rules), Path(options.rules).name)


def kernels_of(path: str, options: argparse.Namespace) -> tuple[Figures, ...]:
    """Kernels of code, or of a document that inspect wrote."""
    if not path.endswith(".json"):
        return figures_of(path, options)[0]
    return chosen(_document(path), options.kernel)


def _document(path: str) -> tuple[Figures, ...]:
    from sublight.kernels.inspect.figures import of_document

    try:
        document = json.loads(_text(path))
    except (ValueError, RecursionError):
        raise InputError(f"{Path(path).name} is no JSON; expected what sublight kernel inspect --format json writes"
                         ) from None
    return of_document(document, Path(path).name)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InputError(f"cannot read {Path(path).name}: {error.strerror}") from None


def _write(options: argparse.Namespace, found: tuple[Failure, ...], kernels: int) -> None:
    from dataclasses import asdict

    from sublight.show.inspect_rows import failures
    from sublight.show.inspected import one_table

    if options.format == "json":
        text = output.json_text({"passed": not found, "kernels": kernels, "failures": [asdict(one) for one in found]})
    else:
        text = one_table(failures(found, kernels), options.format, "sublight kernel gate")
    output.write_text(text, options.output)
