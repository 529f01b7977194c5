"""Kernels of the tiny operator that keep its contract, and some that plainly fail; each runs in its own process."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from sublight.kernels.kernel import Kernel

Tensors = Mapping[str, Any]
Outputs = MutableMapping[str, Any]


def honest(inputs: Tensors, outputs: Outputs) -> None:
    outputs["out"].copy_(2 * inputs["x"].float() * inputs["weight"].float())
    outputs["positive"].copy_((inputs["x"] > 0).sum(1))


def twice_as_long(inputs: Tensors, outputs: Outputs) -> None:
    honest(inputs, outputs)
    honest(inputs, outputs)


def own_outputs(inputs: Tensors, outputs: Outputs) -> None:
    outputs["out"] = (2 * inputs["x"].float() * inputs["weight"].float()).bfloat16()
    outputs["positive"] = (inputs["x"] > 0).sum(1).int()


RETURNS = Kernel("tiny", "returns", build=lambda shape, constants: own_outputs, refuses=lambda shape: None,
                 returns=True, provider="torch", key=lambda: {"layout": "plain"})
REFUSES = Kernel("tiny", "refuses", build=lambda shape, constants: honest,
                 refuses=lambda shape: "odd widths are not for it" if shape.width % 2 else None)


def raises(inputs: Tensors, outputs: Outputs) -> None:
    raise ValueError("this is what it said")


def crashes(inputs: Tensors, outputs: Outputs) -> None:
    ctypes.string_at(0)


def illegal(inputs: Tensors, outputs: Outputs) -> None:
    os.kill(os.getpid(), signal.SIGILL)


def hangs(inputs: Tensors, outputs: Outputs) -> None:
    while True:
        time.sleep(1)


def exits(inputs: Tensors, outputs: Outputs) -> None:
    os._exit(0)


def exits_by_exception(inputs: Tensors, outputs: Outputs) -> None:
    raise SystemExit(3)


def eats_memory(inputs: Tensors, outputs: Outputs) -> None:
    held = []
    while True:
        held.append(bytearray(64 << 20))


def leaves_a_child(inputs: Tensors, outputs: Outputs) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    honest(inputs, outputs)
