"""This file knows about what a finding calls the things of a box: by bus id, and by nothing else that a file says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sublight.comm.topology.box import Gpu, Port, Switch

MOST_LINES = 8


def gpu_name(gpu: Gpu) -> str:
    """GPU 3 (0000:41:00.0)"""
    return f"GPU {gpu.slot.bus}" if gpu.dev is None else f"GPU {gpu.dev} ({gpu.slot.bus})"


def port_name(port: Port) -> str:
    """NIC mlx5_3 (0000:42:00.0)"""
    where = port.slot.bus or "without PCI"
    return f"NIC {where}" if port.name is None else f"NIC {port.name} ({where})"


def switch_name(switch: Switch) -> str:
    return f"bridge {switch.bus}"


def first_of(names: Sequence[str]) -> str:
    """The first of some, with how many more."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def lines(evidence: Iterable[str]) -> tuple[str, ...]:
    """Evidence, cut to a screen."""
    every = list(evidence)
    more = [f"and {len(every) - MOST_LINES + 1} more"] if len(every) > MOST_LINES else []
    return (*every[: MOST_LINES - len(more)], *more)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
