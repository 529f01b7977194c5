"""This file knows about recording a PyTorch run: a few steps after warm-up, with shapes, one file a rank.

    with record("baseline") as run:          # baseline/rank0.json.gz
        for batch in batches:
            train(batch)
            run.step()

It is also copied beside the hook of `sublight record -- COMMAND`, for interpreters that may have no sublight: it
imports the standard library alone, and torch when a recording begins.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

STEPS, WARM_UP = 4, 3
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
PART = ".sublight-part-"                 # begins the names of files that are not whole yet


class Recording:
    """A run that is being recorded. `path` is the file, once it is written; None before, and where nothing was."""

    def __init__(self, folder: Path, steps: int, warm_up: int, shapes: bool, stacks: bool, quiet: bool) -> None:
        self.folder, self.steps, self.warm_up = folder, steps, warm_up
        self.shapes, self.stacks, self.quiet = shapes, stacks, quiet
        self.taken = 0                   # steps that have ended
        self.path: Path | None = None
        self._profiler: Any = None
        self._rank = 0
        self._owner = os.getpid()

    @property
    def running(self) -> bool:
        return self._profiler is not None

    def start(self) -> None:
        """Begin: the warm-up is profiled too, and thrown away. Raises RuntimeError where another profiler is at
        work."""
        import torch.profiler as profiling

        active = [profiling.ProfilerActivity.CPU]
        if _gpu():
            active.append(profiling.ProfilerActivity.CUDA)
        whole = self.steps == 0
        self._profiler = profiling.profile(
            activities=active, record_shapes=self.shapes, with_stack=self.stacks, on_trace_ready=self._write,
            schedule=None if whole else profiling.schedule(wait=0, warmup=self.warm_up, active=self.steps, repeat=1),
        )
        self._rank = rank()
        if whole or not self.warm_up:
            _synchronize()               # work launched before is no part of it
        self._profiler.start()

    def step(self) -> None:
        """A step of the run has ended."""
        if self._profiler is None:
            return
        self.taken += 1
        if self.steps == 0:
            return
        if self.taken in (self.warm_up, self.warm_up + self.steps):
            _synchronize()               # what was launched in a step is done in it, at both ends of the recording
        self._profiler.step()
        if self.taken >= self.warm_up + self.steps:
            self.stop()

    def stop(self) -> None:
        """End; what was recorded so far is written. In a process that was forked off, nothing happens."""
        profiler, self._profiler = self._profiler, None
        if profiler is None or os.getpid() != self._owner:
            return
        if self.steps and self.taken < self.warm_up:
            with contextlib.suppress(RuntimeError):   # it has nothing to hand out, and says so
                profiler.stop()
            return
        _synchronize()
        profiler.stop()

    def _write(self, profiler: Any) -> None:
        """The whole file or none: written beside its place, then moved there."""
        recorded = self.taken - self.warm_up if self.steps else 1
        if self.path is not None or recorded < 1:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"rank{rank() or self._rank}.json.gz"      # a group that is gone has no rank
        handle, part = tempfile.mkstemp(prefix=PART, suffix=".json.gz", dir=self.folder)
        os.close(handle)
        try:
            profiler.export_chrome_trace(part)
            Path(part).chmod(0o644)
            os.replace(part, path)       # noqa: PTH105
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
        self.path = path

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:            # the run's own error is the one to see
                raise
        if not self.quiet and error is None:
            print(f"sublight: {self.words()}", file=sys.stderr)

    def words(self) -> str:
        """What became of it."""
        if self.path is None:
            return (f"nothing was recorded: {self.taken} calls of step(), the first {self.warm_up} are warm-up "
                    f"(warm_up=…); steps=0 records all between the beginning and the end")
        what = f"{self.taken - self.warm_up} of {self.steps} steps" if self.steps else "the whole run"
        return f"recorded {what} in {self.path}; sublight explain {self.folder}"


def record(
    name: str | Path, *, steps: int = STEPS, warm_up: int = WARM_UP, shapes: bool = True, stacks: bool = False,
    quiet: bool = False,
) -> Recording:
    """Record a PyTorch run into the folder `name`, one file `rank<R>.json.gz` a rank; call `step()` after each step.

    steps: recorded, after `warm_up` of them; 0 records everything up to the end, without steps. A file of the same
    rank is replaced. Raises ValueError for steps that are fewer than none, RuntimeError where torch is profiling.
    """
    if steps < 0 or warm_up < 0:
        raise ValueError(f"expected 0 steps or more and 0 steps of warm-up or more, got {steps} and {warm_up}")
    return Recording(Path(name), steps, warm_up if steps else 0, shapes, stacks, quiet)


def rank() -> int:
    """Of this process: as torch.distributed says, else as its launcher does, else 0."""
    import torch.distributed

    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def _gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _synchronize() -> None:
    import torch

    cuda: Any = torch.cuda                                               # in part not typed
    if cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()
