"""`sublight comm …`: what the fabric of a cluster allows, chooses, should take, and does."""

from __future__ import annotations

from typing import Any


def add(commands: Any) -> None:
    """Declare the command and those below it."""
    from sublight.cli.comm import doctor, expect, nccl, topology, tuner

    top = commands.add_parser("comm", help="collectives: topology, NCCL's choice, expected time, diagnosis, tuning")
    below = top.add_subparsers(dest="comm_command", metavar="COMMAND", required=True)
    for command in (topology, nccl, expect, doctor, tuner):
        command.add(below)
