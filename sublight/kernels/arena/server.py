"""This file knows about the process that kernels' processes are forked from: it has torch, and never a kernel.

Over a socket: "fork" with three descriptors gives a process id; "poll" its exit status once it ended; "reap" ends it,
and whatever it started, and gives the status. When the other end closes, all end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

SUBREAPER = 36                           # prctl's PR_SET_CHILD_SUBREAPER: orphans become ours


def main(channel: socket.socket) -> None:
    """Serve until the other end closes."""
    import torch  # noqa: F401

    from sublight.kernels.arena import child  # noqa: F401

    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
    channel.sendall(b"{}\n")
    living: set[int] = set()
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, 4096, 3)
        if not text:
            break
        request = json.loads(text)
        if request["do"] == "fork":
            pid = _forked(channel, descriptors, request["data_bytes"])
            living.add(pid)
            answer: dict[str, int | None] = {"pid": pid}
        else:
            answer = {"status": _ended(request["pid"], living, kill=request["do"] == "reap")}
        channel.sendall(json.dumps(answer).encode() + b"\n")
    for pid in list(living):
        _ended(pid, living, kill=True)


def _forked(channel: socket.socket, descriptors: list[int], data_bytes: int) -> int:
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    code = 1
    try:
        from sublight.kernels.arena import child

        channel.close()
        own, memory, errors = descriptors
        child.serve(own, memory, errors, data_bytes)
        code = 0
    finally:
        os._exit(code)


def _ended(pid: int, living: set[int], *, kill: bool) -> int | None:
    """The exit status of a process, as of os.waitstatus_to_exitcode; None: it runs."""
    if pid not in living:
        return None
    if kill:
        _signal(os.kill, pid)
    left = os.WEXITED | os.WNOWAIT       # it stays, and keeps its number, until its whole group has been told to end
    if os.waitid(os.P_PID, pid, left if kill else left | os.WNOHANG) is None:
        return None
    _signal(os.killpg, pid)
    _, status = os.waitpid(pid, 0)
    living.discard(pid)
    _end_orphans(living)
    return os.waitstatus_to_exitcode(status)


def _signal(send: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(pid, signal.SIGKILL)


def _end_orphans(living: set[int]) -> None:
    """End what a kernel's process started and left behind."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    for _ in range(100):
        try:
            orphans = {int(pid) for pid in children.read_text().split()} - living
        except OSError:
            return
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        time.sleep(0.001)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):     # who asked is no more
        main(socket.socket(fileno=int(sys.argv[1])))
