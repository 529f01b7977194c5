"""`sublight kernel …`: is a kernel right, how far is it from the limit and why, which one is best for a shape."""

from __future__ import annotations

from typing import Any


def add(commands: Any) -> None:
    """Declare the command and those below it."""
    from sublight.cli.kernel import bench, check, choose, compare, gate, inspect

    top = commands.add_parser("kernel", help="kernels: checked, timed, chosen; compiled code inspected without a GPU")
    below = top.add_subparsers(dest="kernel_command", metavar="COMMAND", required=True)
    for command in (check, bench, choose, inspect, gate, compare):
        command.add(below)
