"""Kernels that cheat, each in one way that a naive bench lets pass; each runs in a process of its own.

CHEATS says how the naive bench (arena_naive.py) is fooled, and what the arena says.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from sublight.kernels.kernel import Kernel

Tensors = Mapping[str, Any]
Outputs = MutableMapping[str, Any]
kept: dict[Any, Any] = {}


@dataclass(frozen=True)
class Cheat:
    """A kernel, by name; options of the naive bench; what the arena says; whether its gain is time."""

    name: str
    said: str
    kind: str = "wrong"
    scale: float = 1.0                   # of the naive bench's inputs
    expected_after: bool = False         # the naive bench computes what it expects after the call
    faster: bool = False                 # by half at least, in the naive bench


CHEATS = (
    Cheat("cached_by_address", "beyond their bound", faster=True),
    Cheat("cached_by_a_sample", "beyond their bound", faster=True),
    Cheat("replays_its_first_result", "beyond their bound", faster=True),
    Cheat("only_while_warming_up", "not finite", faster=True),
    Cheat("patches_timers", "replaced time.perf_counter", "rejected", faster=True),
    Cheat("works_in_a_thread", "after its call had returned", "rejected"),     # to start one takes as long, at times
    Cheat("works_ahead_in_a_thread", "worked for", "rejected", faster=True),
    Cheat("works_in_a_process", "other processes", "rejected", faster=True),
    Cheat("mutates_its_input", "wrote on its input x", "rejected", expected_after=True, faster=True),
    Cheat("answers_nan", "not finite", faster=True),
    Cheat("LAZY", "not a plain tensor", "rejected", faster=True),
    Cheat("constant", "beyond their bound", scale=1e-3, faster=True),
    Cheat("hunts_objects", "beyond their bound"),
    Cheat("hunts_frames", "beyond their bound"),
    Cheat("skips_one_in_a_hundred", "beyond their bound"),
    Cheat("writes_beyond_the_end", "wrote beyond the end of output out", "rejected"),
    Cheat("reads_beyond_the_end", "not finite"),
    Cheat("leaves_the_last_element", "not finite"),
    Cheat("SWAPS", "put in place of the output", "rejected", faster=True),
)


def right(inputs: Tensors, outputs: Outputs) -> None:
    for _ in range(4):                   # slow enough for a naive bench to see what a cheat gains
        outputs["out"].copy_(2 * inputs["x"].float() * inputs["weight"].float())
        outputs["positive"].copy_((inputs["x"] > 0).sum(1))


def keep(key: Any, inputs: Tensors, outputs: Outputs) -> None:
    if key not in kept:
        right(inputs, outputs)
        kept[key] = {name: tensor.clone() for name, tensor in outputs.items()}
    for name, tensor in kept[key].items():
        outputs[name].copy_(tensor)


def cached_by_address(inputs: Tensors, outputs: Outputs) -> None:
    keep(inputs["x"].data_ptr(), inputs, outputs)


def cached_by_a_sample(inputs: Tensors, outputs: Outputs) -> None:
    keep(float(inputs["x"][0, :4].sum()), inputs, outputs)


def replays_its_first_result(inputs: Tensors, outputs: Outputs) -> None:
    keep("first", inputs, outputs)


def only_while_warming_up(inputs: Tensors, outputs: Outputs) -> None:
    kept["calls"] = kept.get("calls", 0) + 1
    if kept["calls"] <= 5:
        right(inputs, outputs)


def patches_timers(inputs: Tensors, outputs: Outputs) -> None:
    if "clock" not in kept:
        clock = kept["clock"] = time.perf_counter
        time.perf_counter = lambda: clock() / 100
    right(inputs, outputs)


def works_in_a_thread(inputs: Tensors, outputs: Outputs) -> None:
    def later() -> None:
        time.sleep(0.004)
        right(inputs, outputs)

    threading.Thread(target=later).start()


def works_ahead_in_a_thread(inputs: Tensors, outputs: Outputs) -> None:
    if "ahead" not in kept:
        kept["ahead"] = {name: tensor.clone() for name, tensor in outputs.items()}

        def ahead() -> None:
            while True:
                right(inputs, kept["ahead"])
                time.sleep(0.0002)

        right(inputs, kept["ahead"])
        threading.Thread(target=ahead, daemon=True).start()
    for name, tensor in kept["ahead"].items():
        outputs[name].copy_(tensor)


def works_in_a_process(inputs: Tensors, outputs: Outputs) -> None:
    if "shared" not in kept:
        kept["shared"] = {name: tensor.clone().share_memory_() for name, tensor in outputs.items()}
        right(inputs, kept["shared"])
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            until = time.monotonic() + 60
            while time.monotonic() < until:
                right(inputs, kept["shared"])
                time.sleep(0.001)
            os._exit(0)
        os.wait()
    for name, tensor in kept["shared"].items():
        outputs[name].copy_(tensor)


def mutates_its_input(inputs: Tensors, outputs: Outputs) -> None:
    inputs["x"].zero_()
    outputs["out"].zero_()
    outputs["positive"].zero_()


def answers_nan(inputs: Tensors, outputs: Outputs) -> None:
    outputs["out"].fill_(float("nan"))
    keep("count", {"x": inputs["x"], "weight": inputs["weight"]}, {**outputs, "out": torch.empty_like(outputs["out"])})
    outputs["positive"].copy_(kept["count"]["positive"])


class Lazy(torch.Tensor):  # type: ignore[misc]
    """Computes what it holds when it is first used."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        def value(tensor: Any) -> Any:
            return tensor.compute() if isinstance(tensor, Lazy) else tensor

        return function(*(value(argument) for argument in arguments), **(options or {}))


def lazy(inputs: Tensors, outputs: Outputs) -> None:
    def made(name: str) -> Any:
        def compute() -> Any:
            plain = {key: torch.empty_like(tensor) for key, tensor in given.items()}
            right(inputs, plain)
            return plain[name]

        tensor = torch.Tensor._make_subclass(Lazy, given[name])
        tensor.compute = compute
        return tensor

    given = dict(outputs)
    outputs.update({name: made(name) for name in given})


LAZY = Kernel("tiny", "lazy", build=lambda shape, constants: lazy, refuses=lambda shape: None, returns=True)
SWAPS = Kernel("tiny", "swaps", build=lambda shape, constants: lazy, refuses=lambda shape: None)


def constant(inputs: Tensors, outputs: Outputs) -> None:
    outputs["out"].zero_()
    keep("count", inputs, {**outputs, "out": torch.empty_like(outputs["out"])})
    outputs["positive"].copy_(kept["count"]["positive"])


def hunts_objects(inputs: Tensors, outputs: Outputs) -> None:
    found = {name: next((o for o in gc.get_objects() if isinstance(o, dict) and o.get("what") == "expected"), None)
             for name in outputs}
    for name, tensor in outputs.items():
        expected = found[name]
        tensor.copy_(expected[name]) if expected else tensor.zero_()


def hunts_frames(inputs: Tensors, outputs: Outputs) -> None:
    frame: Any = sys._getframe()
    while frame and "expected" not in frame.f_locals:
        frame = frame.f_back
    for name, tensor in outputs.items():
        tensor.copy_(frame.f_locals["expected"][name]) if frame else tensor.zero_()


def skips_one_in_a_hundred(inputs: Tensors, outputs: Outputs) -> None:
    right(inputs, outputs)
    outputs["out"].view(-1)[::101] = 7.0


def writes_beyond_the_end(inputs: Tensors, outputs: Outputs) -> None:
    right(inputs, outputs)
    out = outputs["out"]
    ctypes.memset(out.data_ptr() + out.numel() * 2, 0, 1)


def reads_beyond_the_end(inputs: Tensors, outputs: Outputs) -> None:
    """The last element of the result gets 0 times what lies behind the input."""
    right(inputs, outputs)
    x = inputs["x"]
    behind = (ctypes.c_uint16 * 1).from_address(x.data_ptr() + x.numel() * 2)
    outputs["out"][-1, -1] += 0 * torch.tensor([behind[0]], dtype=torch.uint16).view(torch.bfloat16)[0]


def leaves_the_last_element(inputs: Tensors, outputs: Outputs) -> None:
    last = outputs["out"][-1, -1].clone()
    right(inputs, outputs)
    outputs["out"][-1, -1] = last


# ---- attacks on the arena itself, which no naive bench has --------------------------------------------------------


def patches_our_loop(inputs: Tensors, outputs: Outputs) -> None:
    from sublight.kernels.arena import child

    if "loop" not in kept:
        called: Callable[..., tuple[bytes, int]] = child._called
        kept["loop"] = called

        def short(stage: Any, now: Any) -> tuple[bytes, int]:
            code, took = called(stage, now)
            return code, took // 20

        child._called = short
    for _ in range(10):                  # long enough to tell
        right(inputs, outputs)


def answers_early(inputs: Tensors, outputs: Outputs) -> None:
    from sublight.kernels.arena import child

    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, child.REPLY.pack(child.OK, 10))
    right(inputs, outputs)


def claims_too_much(inputs: Tensors, outputs: Outputs) -> None:
    from sublight.kernels.arena import child

    def long(stage: Any, now: Any) -> tuple[bytes, int]:
        stage.made = outputs = stage.outputs
        right(inputs, outputs)
        return child.OK, 10**12

    child._called = long
    right(inputs, outputs)


def works_while_caches_are_made_ready(inputs: Tensors, outputs: Outputs) -> None:
    """The arena reads all buffers just before a call, with torch: by then the inputs are there."""
    if "sum" not in kept:
        kept["sum"] = total = torch.Tensor.sum

        def works_too(self: Any, *args: Any, **options: Any) -> Any:
            if "busy" not in kept:
                kept["busy"], kept["made"] = True, {name: torch.empty_like(tensor) for name, tensor in outputs.items()}
                right(inputs, kept["made"])
                del kept["busy"]
            return total(self, *args, **options)

        torch.Tensor.sum = works_too     # type: ignore[method-assign, unused-ignore]
        right(inputs, outputs)
    else:
        for name, tensor in outputs.items():
            tensor.copy_(kept["made"][name])


def adds_what_changed(inputs: Tensors, outputs: Outputs) -> None:
    """Only rows of which an eighth or more of the elements changed are computed anew; others are mended."""
    x, weight = inputs["x"].clone(), inputs["weight"]
    if "x" in kept and kept["x"].shape == x.shape:
        changed = x.view(torch.int16) != kept["x"].view(torch.int16)
        if int(changed.sum()) * 8 < x.numel():
            rows, columns = changed.nonzero(as_tuple=True)
            kept["out"][rows, columns] = (2 * x[rows, columns].float() * weight[columns].float()).to(x.dtype)
            outputs["out"].copy_(kept["out"])
            outputs["positive"].copy_((x > 0).sum(1))
            kept["x"] = x
            return
        raise RuntimeError("most of the input changed")
    right(inputs, outputs)
    kept["x"], kept["out"] = x, outputs["out"].clone()
