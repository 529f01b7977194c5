"""This file knows about clocks that a kernel's Python code cannot patch: the system's own, through private handles.

A kernel shares its process with our loop, and could still overwrite it; so the process that judges keeps its own time
of every exchange, and reads from the system how long the kernel's process had a CPU.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wall() -> Callable[[], int]:
    """A function that says nanoseconds of the system's monotonic clock. It holds a library handle of its own, so that
    what others do to `time` or to ctypes' loaded libraries does not reach it."""
    read = ctypes.PyDLL(None).clock_gettime          # PyDLL: the interpreter's lock is kept, no switch of threads
    which, at = ctypes.c_int(getattr(time, "CLOCK_MONOTONIC", 1)), _Time()
    where = ctypes.byref(at)

    def now() -> int:
        read(which, where)
        return int(at.seconds * 1_000_000_000 + at.nanoseconds)

    return now


def cpu_of(pid: int) -> Callable[[], int] | None:
    """A function that says nanoseconds that all threads of another process ran; None where the system has no such clock
    (anything but Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    library, which = ctypes.PyDLL(None), ctypes.c_int()
    if library.clock_getcpuclockid(ctypes.c_int(pid), ctypes.byref(which)):
        return None
    at = _Time()
    where = ctypes.byref(at)

    def now() -> int:
        library.clock_gettime(which, where)          # of a process that has ended: at stays as it was
        return int(at.seconds * 1_000_000_000 + at.nanoseconds)

    return now


class Waited:
    """How long a thread was ready to run and had no CPU, in nanoseconds, by the system's count (Linux: the second
    number of /proc/PID/schedstat). Calling it gives None where the system does not count. Final."""

    def __init__(self, pid: int) -> None:
        path = Path(f"/proc/{pid}/schedstat")
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.exists() else -1

    def __call__(self) -> int | None:
        try:
            return int(os.pread(self._descriptor, 100, 0).split()[1]) if self._descriptor >= 0 else None
        except (OSError, IndexError):
            return None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
