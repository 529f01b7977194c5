"""`sublight comm tuner`."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command."""
    command = commands.add_parser("tuner", help="being built")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    raise NotImplementedError
