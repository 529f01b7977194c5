"""`sublight kernel compare`: what a compiler's version or a change of the source did to compiled kernels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.cli.kernel.gate import kernels_of
from sublight.cli.kernel.inspect import add_code, add_output

if TYPE_CHECKING:
    from sublight.kernels.inspect.compare import Comparison

FORMATS = ("table", "json", "md", "html")


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "compare", help="what a compiler version or a source change did to kernels",
        description="Two builds of the same kernels: registers, stack, shared memory, occupancy, spills, tensor-core "
                    "instructions, limits of loops; what matters most first. Either side may also be a document that "
                    "sublight kernel inspect --format json wrote.",
    )
    add_code(command, ("before", "after"))
    add_output(command, FORMATS)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Compare, and say."""
    from sublight.kernels.inspect.compare import compare
    from sublight.show.inspect_rows import comparison
    from sublight.show.inspected import one_table

    output.check_writable(options.output, options.format)
    found = compare(kernels_of(options.before, options), kernels_of(options.after, options))
    if options.format == "json":
        output.write_text(output.json_text(_document(found)), options.output)
    else:
        output.write_text(one_table(comparison(found), options.format, "sublight kernel compare"), options.output)
    return 0


def _document(found: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    pairs = [{"before": pair.before.name, "after": pair.after.name, "arch": pair.after.arch,
              "changes": [asdict(change) for change in pair.changes]} for pair in found.pairs]
    return {"pairs": pairs, "gone": [one.name for one in found.gone], "new": [one.name for one in found.new]}
