"""`sublight calibrate`: what this machine's CPU can do, as a device for --device."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "calibrate", help="measure this machine's memory and matrix rates",
        description="Measure the memory rate and the matrix rate of this machine's CPU, in seconds, and write them as "
                    "a device file: sublight explain --device FILE.",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="write the device there (cpu.toml); default: print it")
    command.add_argument("--seconds", type=_positive, default=1.0, metavar="S",
                         help="for each of the rates, at most (default 1)")
    command.add_argument("--max-spread", type=_percent, default=0.30, metavar="PERCENT",
                         help="refuse if a median lies further below its best sample (default 30)")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, tell each rate as it comes, refuse noise, write."""
    from sublight.cli import output

    output.check_writable(options.output)
    if options.output and not options.output.lower().endswith(".toml"):
        from sublight.errors import InputError

        raise InputError(f"{options.output}: a device file ends in .toml, so that --device can tell it from a name")

    from sublight.observe.calibrate import Rate, calibrate, check_noise, toml

    def tell(rate: Rate) -> None:
        print(f"{rate.name:<25} {rate.best / 1e9:10,.1f} G{rate.unit}   n = {len(rate.samples):<3} "
              f"median {rate.spread:.1%} below", file=sys.stderr)

    measured = calibrate(seconds=options.seconds, progress=tell)
    check_noise(measured, options.max_spread)
    text = toml(measured)
    output.write_text(text, options.output)
    if options.output is not None:
        print(f"{measured.cpu.title}: written to {options.output}", file=sys.stderr)
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError(f"expected seconds above 0 and up to 60, got {text}")
    return value


def _percent(text: str) -> float:
    value = float(text.rstrip("% "))
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"expected a percentage above 0 and up to 100, got {text}")
    return value / 100
