"""This file knows about launch commands of engines: `parse` reads one into a plan, `emit` writes one from a plan."""

from sublight.engines.flags import ENGINES
from sublight.engines.launch import Launch
from sublight.engines.own_defaults import default, defaults
from sublight.engines.read_command import parse, parse_all
from sublight.engines.write_command import emit, settled

__all__ = ["ENGINES", "Launch", "default", "defaults", "emit", "parse", "parse_all", "settled"]
