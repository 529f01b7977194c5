"""`sublight kernel …`: is a kernel right, how far is it from the limit and why, which one is best for a shape."""

from __future__ import annotations

from typing import Any


def add(commands: Any) -> None:
    """Declare the command and those below it."""
    top = commands.add_parser("kernel", help="kernels: check, time and choose them; inspect compiled code without a GPU")
    below = top.add_subparsers(dest="kernel_command", metavar="COMMAND", required=True)
    parts: tuple[Any, ...] = ()
    for command in parts:
        command.add(below)
