"""This file knows about recording a command that knows nothing of it: it is `sitecustomize` of each Python that the
command starts, waits for torch, finds the run's steps, and records some.

    a step ends   where an optimizer's step() ends; of a run without gradients: where the outermost module's forward()
                  ends

It runs in interpreters that may have no sublight. What it is asked for stands in SUBLIGHT_RECORD; the folder of this
file holds a copy of recording.py. Nothing that goes wrong here may end the run.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

ASKED = "SUBLIGHT_RECORD"
SEEN = ".sublight-seen-"                 # begins the names of notes on what was seen, for the one who reads them


class Watch:
    """Finds steps of one process and records them."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.seen = {"optimizer_steps": 0, "forwards": 0, "forwards_with_gradients": 0, "error": ""}
        self.recording: Any = None
        self.done = False
        self.depth = self.optimizer = 0
        self.handles: list[Any] = []     # of the optimizers' hook
        self.modules: list[Any] = []     # of hooks of modules
        self.met: dict[int, int] = {}    # outermost modules, how often
        self.is_compiling: Any = None
        self.pid, self.thread = os.getpid(), 0

    def arm(self) -> None:
        """torch has been imported: listen."""
        with self.harmless():
            from torch.compiler import is_compiling
            from torch.nn.modules import module
            from torch.optim import optimizer

            warnings.filterwarnings("ignore", message=r"Using .torch\.compile\(module\). when there are global hooks")
            self.thread, self.is_compiling = threading.get_ident(), is_compiling
            atexit.register(self.close)
            self._close_with_children()
            os.register_at_fork(after_in_child=self._forked)
            if self.asked["steps"] == 0:
                self._start()
                return
            self.handles = [optimizer.register_optimizer_step_post_hook(self._optimizer_stepped)]
            self.modules = [module.register_module_forward_pre_hook(self._forward_begins),
                            module.register_module_forward_hook(self._forward_ended, always_call=True)]

    def _close_with_children(self) -> None:
        """Processes of multiprocessing end without atexit."""
        from multiprocessing import util

        util.Finalize(None, self.close, exitpriority=1_000)

    def _forked(self) -> None:
        """A child of a process that was not recording yet may be the one that trains."""
        if self.recording is None and not self.done:
            self.pid = os.getpid()

    @contextlib.contextmanager
    def harmless(self) -> Any:
        """What goes wrong is noted, and the recording given up."""
        try:
            yield
        except Exception as error:       # the run is not ours to end
            self.seen["error"] = f"{type(error).__name__}: {error}"[:300]
            self._finish()

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        if not self.done and self.optimizer in (0, id(optimizer)):          # of several that step in turn, the first
            if not self.optimizer:
                self._remove(self.modules)                      # they cost each module's call some microseconds
            self.optimizer = id(optimizer)
            self.seen["optimizer_steps"] += 1                   # type: ignore[operator]
            self._step("optimizer")

    def _forward_begins(self, *_: Any) -> None:
        if self.is_compiling():          # torch.compile traces hooks too: of this one nothing is left in the graph
            return
        if not self.done and threading.get_ident() == self.thread:
            self.depth += 1

    def _forward_ended(self, module: Any, *_: Any) -> None:
        if self.is_compiling():
            return
        if self.done or threading.get_ident() != self.thread:
            return
        self.depth = max(0, self.depth - 1)
        if self.depth:
            return
        if self._outermost():
            self.met[id(module)] = self.met.get(id(module), 0) + 1
            if self.met[id(module)] == 2 and not _compiled():   # this is the one: no other needs a hook
                self._remove(self.modules)
                self.modules.append(module.register_forward_hook(lambda *_: self._outermost() and None))

    def _outermost(self) -> bool:
        """An outermost forward() has ended: is it one of a run without gradients?"""
        import torch

        if self.done:
            return False
        if torch.is_grad_enabled():
            self.seen["forwards_with_gradients"] += 1           # type: ignore[operator]
            return False
        self.seen["forwards"] += 1                              # type: ignore[operator]
        if not self.seen["optimizer_steps"]:
            self._step("forward")
        return True

    def _step(self, kind: str) -> None:
        if self.done or os.getpid() != self.pid:
            return
        with self.harmless():
            if self.recording is not None and self.recording.kind != kind:
                if kind == "forward":                           # an evaluation between training steps is no step
                    return
                self._drop()                                    # it was an evaluation before training
            if self.recording is None:
                self._start(kind)                               # after a first step: it is warm-up of its own
                return
            self.recording.step()
            if not self.recording.running:
                self._finish()

    def _start(self, kind: str = "") -> None:
        from sublight_recording import record  # type: ignore[import-not-found]

        self.recording = record(self.asked["folder"], steps=self.asked["steps"], warm_up=self.asked["warm_up"],
                                shapes=self.asked["shapes"], stacks=self.asked["stacks"], quiet=True)
        self.recording.kind = kind
        self._close_with_children()      # again: what a parent registered is gone in a forked child
        self.recording.start()

    def _drop(self) -> None:
        dropped, self.recording = self.recording, None
        dropped.path = dropped.folder    # nothing is written of it
        dropped.stop()

    def _finish(self) -> None:
        self.done = True
        self._remove(self.handles)
        self._remove(self.modules)

    def _remove(self, handles: list[Any]) -> None:
        """Hooks go, but those of modules not where torch.compile has seen them: it would compile again."""
        if handles is self.modules and _compiled():
            return
        for handle in handles:
            handle.remove()
        handles.clear()

    def close(self) -> None:
        """The process ends: write what there is, and what was seen."""
        if os.getpid() != self.pid or "closed" in self.seen:
            return
        self.seen["closed"] = True
        with self.harmless():
            if self.recording is not None and not self.done:
                self.recording.stop()
        self._finish()
        if self.recording is not None:
            self.seen["steps"] = max(0, self.recording.taken - self.recording.warm_up)
            self.seen["taken"] = self.recording.taken
            self.seen["written"] = bool(self.recording.path)
        with contextlib.suppress(OSError):
            (Path(self.asked["folder"]) / f"{SEEN}{os.getpid()}").write_text(json.dumps(self.seen))


def _compiled() -> bool:
    """Has torch.compile been at work?"""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and any(utils.counters.values())    # which of them count depends on how it was called


class AfterTorch(importlib.abc.MetaPathFinder):
    """Calls `then` when torch has been imported, and changes nothing else."""

    def __init__(self, then: Any) -> None:
        self.then, self.asking = then, False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != "torch" or self.asking:
            return None
        self.asking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            self.then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def hidden_by_us(here: Path) -> None:
    """Run the sitecustomize that would have run, had ours not come first."""
    others = [p for p in sys.path if Path(p or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def main() -> None:
    here = Path(__file__).resolve().parent
    try:
        asked = json.loads(os.environ.get(ASKED, ""))
        if "torch" not in sys.modules:
            sys.meta_path.insert(0, AfterTorch(Watch(asked).arm))
    except (ValueError, TypeError):
        pass
    hidden_by_us(here)


if __name__ == "sitecustomize":
    main()
