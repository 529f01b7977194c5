"""`sublight kernel check OP`: is a kernel right, on every case of its contract or on the shapes asked for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sublight.cli import output
from sublight.cli.kernel import asked

if TYPE_CHECKING:
    from sublight.kernels.contract import Case, Contract


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "check", help="is a kernel right: every case of an operator, against float64",
        description="Run kernels of an operator on every case of its contract, ordinary and adversarial ones, each in "
                    "a process of its own with guarded buffers, and judge every output against float64.",
        epilog="Exit code 1 where a kernel is wrong, crashes, hangs or breaks a rule; a shape that it refuses is no "
               "fault.",
    )
    asked.add_kernels(command)
    asked.add_shapes(command)
    command.add_argument("--seed", type=int, default=0, metavar="N", help="other values of the same kinds (default 0)")
    asked.add_output(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, and say."""
    from sublight.kernels.arena.session import checks
    from sublight.show import arena

    output.check_writable(options.output)
    contract = asked.contract_of(options)
    entries, cases = asked.entries_of(options), _cases(options, contract)
    with asked.opened(options) as (ring, results), output.counting("cases") as done:
        trials = tuple(checks(ring, contract, entries, cases, results=results, device=asked.device_of(options),
                              done=done))
    if options.format == "json":
        output.write_text(output.json_text(arena.check_document(contract.name, trials)), options.output)
    else:
        output.write_text(arena.check_text(contract.name, trials, options.format), options.output)
    return 0 if all(trial.outcome.ok for trial in trials) else 1


def _cases(options: argparse.Namespace, contract: Contract) -> tuple[Case, ...]:
    """The contract's own, or the shapes that are asked for with every kind of values."""
    from sublight.kernels.arena.trial import reseeded
    from sublight.kernels.contract import Case

    if any(getattr(options, name) for name in ("shape", "from_trace", "from_model", "from_workloads")):
        cases = tuple(Case(weighed.shape, values) for weighed in asked.shapes_of(options, contract)
                      for values in contract.values)
    else:
        cases = contract.cases()
    return tuple(reseeded(case, options.seed) for case in cases)
