"""This file knows about a kernel's process from the outside: it starts it, tells it what to do, times it, ends it.

What the process says is checked against what the system says: the wall time of the exchange, and the time that all its
threads ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.kernels.arena import child, clock
from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.outcome import CHEATED, HUNG, MEMORY, Ended, Outcome, of_error, of_exit
from sublight.kernels.arena.region import Region, shared_memory

TIMEOUT = 60.0                           # seconds of a call
BUILD_TIMEOUT = 600.0                    # of importing and building: a cold compile of Inductor took 17 s
START_TIMEOUT = 120.0                    # until torch is imported
NULLS = 40                               # exchanges without a kernel, before its code is imported: caches are hot
GRACE = 0.5                              # seconds that a process which closed its channel has to end
RESTED = 0.05                            # seconds that it has to go back to waiting, on a busy machine
LAST = 300                               # characters of what it printed last
MOST_ANSWER = 1 << 20                    # bytes
OUT_OF_TURN = Outcome(CHEATED, ("answered out of turn",))


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel. ns is its process's word; all else was seen from here, and holds the exchange too. None
    where the system does not tell."""

    ns: int
    wall_ns: int
    cpu_ns: int | None                   # that all its threads ran
    waited_ns: int | None = None         # that its main thread was ready to run and had no CPU
    delayed_ns: int | None = None        # that we were ready to see the answer and had no CPU
    error: str | None = None

    @property
    def took_ns(self) -> int:
        """How long the call took, without the time that its thread waited for a CPU: other load is not the kernel's.

        What was waited before the call began is counted too, so no more is taken off than leaves the time that it ran.
        """
        if not self.waited_ns or self.cpu_ns is None:
            return self.ns
        return min(self.ns, max(self.ns - self.waited_ns, self.cpu_ns))

    @property
    def hidden_ns(self) -> int:
        """What the exchange took besides the call, as far as no wait for a CPU explains it."""
        return self.wall_ns - self.ns - (self.waited_ns or 0) - (self.delayed_ns or 0)


class Arena:
    """The server that processes are forked from, and the memory that they share with this one. Final."""

    def __init__(self, *, threads: int = 1, memory_bytes: int = 0) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                           OMP_WAIT_POLICY="PASSIVE", KMP_BLOCKTIME="0",      # idle threads do not spin
                           TORCHINDUCTOR_COMPILE_THREADS="1",                 # no pool of compiling processes
                           PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        self.threads, self.memory_bytes, self.memory = threads, memory_bytes, shared_memory()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "sublight.kernels.arena.server", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        theirs.close()
        self._pids: set[int] = set()
        self._channel, self._rest = ours, b""
        ours.settimeout(START_TIMEOUT)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def start(self, entry: Entry | None, *, timeout: float = TIMEOUT) -> KernelProcess:
        """A process with the kernel loaded; None: without one. Raises Ended where its code cannot be imported."""
        channel, other = socket.socketpair()
        errors = shared_memory()
        try:
            request = json.dumps({"do": "fork", "data_bytes": self.memory_bytes}).encode()
            socket.send_fds(self._channel, [request], [other.fileno(), self.memory, errors])
            pid = self._answer()["pid"]
        finally:
            other.close()
        self._pids.add(pid)
        process = KernelProcess(self, pid, channel, errors, timeout)
        try:
            if entry is not None:
                process.load(entry)
        except BaseException:
            process.close()
            raise
        return process

    def ask(self, do: str, pid: int) -> int | None:
        """Poll or reap a process: its exit status."""
        self._channel.sendall(json.dumps({"do": do, "pid": pid}).encode())
        status: int | None = self._answer()["status"]
        return status

    def strangers(self) -> int:
        """Processes that a kernel's process started and let go of: the server has them now."""
        return len(_children(self._server.pid) - self._pids)

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            part = self._channel.recv(4096)
            if not part:
                raise InputError("the arena's server ended before it answered; python -m "
                                 "sublight.kernels.arena.server 0 shows why")
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End every process, and give the memory back."""
        self._channel.close()
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


@contextmanager
def arena(*, threads: int = 1, memory_bytes: int = 0) -> Iterator[Arena]:
    """An arena that is closed at the end, however that comes. memory_bytes: what a kernel's process may allocate; 0:
    as much as there is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))       # the judge shares the machine with kernels' processes
    opened = None
    try:
        opened = Arena(threads=threads, memory_bytes=memory_bytes)
        yield opened
    finally:
        torch.set_num_threads(before)
        if opened:
            opened.close()


class KernelProcess:
    """One process with one kernel. Every method but close raises Ended where the process does. Final."""

    def __init__(self, arena: Arena, pid: int, channel: socket.socket, errors: int, timeout: float) -> None:
        self.pid, self.timeout, self.entry = pid, timeout, Entry("", "")
        self.described: Mapping[str, Any] = {}
        self.nulls: tuple[Call, ...] = ()
        self.readied_ns: list[int] = []          # how long its threads ran each time it made its caches ready
        self._arena, self._channel, self._errors = arena, channel, errors
        self._now, self._cpu = clock.wall(), clock.cpu_of(pid)
        self._waited, self._delayed = clock.Waited(pid), clock.Waited(threading.get_native_id())
        stat = Path(f"/proc/{pid}/stat")
        self._stat = os.open(stat, os.O_RDONLY | os.O_CLOEXEC) if stat.exists() else -1
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._idle_since: int | None = None      # its CPU time when it last said that it was done
        self._open = True

    def load(self, entry: Entry) -> None:
        """Time empty exchanges, then import the kernel's code."""
        self.entry = entry
        self.nulls = tuple(self.call() for _ in range(NULLS))
        self.described = self._ask(child.LOAD, entry.to_json(), timeout=BUILD_TIMEOUT)

    def shape(self, shape: Any, region: Region, *, device: str | None = None, evict_bytes: int = 0) -> str | None:
        """Tell it the shape and where the buffers lie; why the kernel refuses it, or None. device None: its tensors are
        the shared memory itself."""
        kind = type(shape)
        row = {"class": [kind.__module__, kind.__qualname__], "fields": _fields(shape), "nbytes": region.nbytes,
               "buffers": [buffer.to_json() for buffer in region.buffers], "threads": self._arena.threads,
               "device": device, "evict": evict_bytes}
        refused: str | None = self._ask(child.SHAPE, row)["refused"]
        return refused

    def build(self) -> None:
        """Let it compile and pack, once for the shape."""
        self._ask(child.BUILD, None, timeout=BUILD_TIMEOUT)

    def ready(self, cache: str | None) -> None:
        """Bring its caches to a state: "hot", "cold", or as they are."""
        before = self._cpu() if self._cpu else None
        self._ask(child.READY, cache)
        if self._cpu and before is not None:
            self.readied_ns.append(self._cpu() - before)

    def call(self) -> Call:
        """Run the kernel once."""
        cpu, now = self._cpu, self._now
        waits = self._waited(), self._delayed()
        before = cpu() if cpu else None
        start = now()
        self._send(child.HEAD.pack(child.GO, 0))
        code, ns = child.REPLY.unpack(self._exactly(child.REPLY.size, self.timeout))
        wall = now() - start
        if code not in (child.OK, child.RAISED):
            raise Ended(self._gone(OUT_OF_TURN))
        after = cpu() if cpu else None
        self._rested()
        waited, delayed = (_less(now, then) for now, then in zip((self._waited(), self._delayed()), waits, strict=True))
        error = self._ask(child.WHY, None) if code == child.RAISED else None
        return Call(ns, wall, _less(after, before), waited, delayed, error)

    def idle_ns(self) -> int | None:
        """How long its threads ran since it last said that it was done: near nothing, for one that waits."""
        return None if self._cpu is None or self._idle_since is None else self._cpu() - self._idle_since

    def _rested(self) -> None:
        """Wait until its main thread waits for us, then note how long its threads ran."""
        until = time.monotonic() + RESTED
        while self._running() and time.monotonic() < until:
            time.sleep(0.00002)
        self._idle_since = self._cpu() if self._cpu else None

    def _running(self) -> bool:
        try:
            state = os.pread(self._stat, 512, 0).rsplit(b")", 1)[-1].split()[:1] if self._stat >= 0 else []
        except OSError:
            return False
        return state == [b"R"]

    def others(self) -> int:
        """How many processes it has started and not ended, those that it let go of included."""
        return self._arena.strangers() + len(_children(self.pid))

    def fetch(self) -> tuple[str, ...]:
        """Let it bring outputs to the shared memory; those that are no plain tensors, in words."""
        return tuple(self._ask(child.FETCH, None)["unlike"])

    def _ask(self, what: bytes, message: object, *, timeout: float | None = None) -> Any:
        text = json.dumps(message).encode()
        self._send(child.HEAD.pack(what, len(text)) + text)
        code, size = child.REPLY.unpack(self._exactly(child.REPLY.size, timeout or self.timeout))
        if code not in (child.TEXT, child.ERROR) or not 0 <= size <= MOST_ANSWER:
            raise Ended(self._gone(OUT_OF_TURN))
        answer = self._exactly(size, self.timeout)
        self._rested()
        if code == child.ERROR:
            raise Ended(of_error(answer.decode("utf-8", "replace")))
        return json.loads(answer)

    def drop(self) -> None:
        """Let it give back what the last call made."""
        self._ask(child.DROP, None)

    def _send(self, request: bytes) -> None:
        try:
            self._channel.sendall(request)
        except OSError:
            raise Ended(self._gone(None)) from None

    def _exactly(self, size: int, timeout: float) -> bytes:
        out, until = b"", time.monotonic() + timeout
        while len(out) < size:
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise Ended(self._gone(Outcome(HUNG, (f"no answer within {timeout:g} s",))))
            try:
                part = self._channel.recv(size - len(out))
            except ConnectionError:
                part = b""
            if not part:
                raise Ended(self._gone(None))
            out += part
        return out

    def _gone(self, outcome: Outcome | None) -> Outcome:
        """End it. Outcome None: it closed its channel, and its exit status tells."""
        status, until = None, time.monotonic() + GRACE
        while outcome is None and status is None and time.monotonic() < until:
            status = self._arena.ask("poll", self.pid)
            time.sleep(0.002)
        printed = self._printed()
        if status is None:
            self.close()
        else:
            self._let_go()
        if status == -9 and outcome is None:
            return Outcome(MEMORY, ("the system ended it (SIGKILL), as it does where memory is short",))
        return outcome or of_exit(status, printed)

    def _printed(self) -> str:
        size = os.fstat(self._errors).st_size
        text = os.pread(self._errors, 4096, max(0, size - 4096)).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:LAST] if lines else ""

    def _let_go(self) -> None:
        if self._open:
            self._open = False
            self._channel.close()
            os.close(self._errors)
            if self._stat >= 0:
                os.close(self._stat)
            self._waited.close()
            self._delayed.close()

    def close(self) -> None:
        """End it, and whatever it started."""
        if self._open:
            self._let_go()
            with contextlib.suppress(OSError, InputError):
                self._arena.ask("reap", self.pid)

    @property
    def living(self) -> bool:
        return self._open


def _children(pid: int) -> set[int]:
    """Processes that any thread of a process started; none where the system does not say."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(child) for child in thread.read_text().split()}
    return found


def _less(now: int | None, then: int | None) -> int | None:
    return None if now is None or then is None else now - then


def _fields(shape: Any) -> dict[str, Any]:
    import dataclasses

    return {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
