"""This file knows about the process that a kernel runs in: it maps the buffers, calls the kernel when told, says when.

It knows neither the contract nor a reference, nor which calls are looked at: all calls are alike to it. Requests are a
byte each, some with a JSON text behind; see `process`, which is the other end and trusts nothing that is said here.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from sublight.kernels.arena import clock
from sublight.kernels.arena.entry import Entry
from sublight.kernels.arena.region import CONSTANT, OUTPUT, Buffer, views

HEAD = struct.Struct("<cI")              # request, bytes of its text
REPLY = struct.Struct("<cq")             # OK or RAISED and nanoseconds; TEXT or ERROR and bytes of the text
OK, RAISED, TEXT, ERROR = b"o", b"r", b"t", b"e"
LOAD, SHAPE, BUILD, READY, GO, FETCH, DROP, WHY = b"L", b"S", b"B", b"P", b"G", b"A", b"D", b"W"
PARENT_DIES = 1                          # prctl's PR_SET_PDEATHSIG
SAID = 500                               # characters of an error


CLOCKS = tuple(name + unit for name in ("time", "perf_counter", "monotonic", "process_time") for unit in ("", "_ns"))


class Stage:
    """What the process holds between requests. Final."""

    def __init__(self, memory: int) -> None:
        self.descriptor = memory
        self.entry: Entry | None = None
        self.kernel: Any = None
        self.run: Callable[[Any, Any], None] = _nothing
        self.shape: Any = None
        self.map: mmap.mmap | None = None
        self.buffers: tuple[Buffer, ...] = ()
        self.views: dict[tuple[str, str], Any] = {}
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.shared: Any = None          # the region as bytes
        self.staged: Any = None          # its copy on the device, where that is not the CPU
        self.evict: Any = None
        self.made: Mapping[str, Any] = {}  # outputs of the last call
        self.clocks = _clocks()
        self.synchronise: Callable[[], None] = _no_wait
        self.error = ""


def _nothing(inputs: Any, outputs: Any) -> None:
    """What runs before a kernel is loaded: the exchange alone is timed."""


def serve(channel: int, memory: int, errors: int, data_bytes: int) -> None:
    """Answer requests until the other end closes."""
    _confine(errors, data_bytes)
    import torch

    stage, now, read, write = Stage(memory), clock.wall(), os.read, os.write
    head, reply = HEAD, REPLY
    slow: dict[bytes, Callable[[Stage, Any], Any]] = {
        LOAD: _load, SHAPE: _shape, BUILD: _build, READY: _ready, FETCH: _fetch, DROP: _drop, WHY: _why}
    with torch.no_grad():
        while request := _exactly(read, channel, head.size):
            what, size = head.unpack(request)
            if what == GO:
                write(channel, reply.pack(*_called(stage, now)))
                continue
            text = _exactly(read, channel, size)
            try:
                answer = json.dumps(slow[what](stage, json.loads(text or b"null"))).encode()
                code = TEXT
            except Exception as error:
                code, answer = ERROR, _said(error).encode()
            write(channel, reply.pack(code, len(answer)) + answer)


def _called(stage: Stage, now: Callable[[], int]) -> tuple[bytes, int]:
    """Call the kernel once: OK or RAISED, and nanoseconds."""
    run, inputs, outputs, synchronise = stage.run, stage.inputs, dict(stage.outputs), stage.synchronise
    stage.made, code = outputs, OK
    start = now()
    try:
        run(inputs, outputs)
        synchronise()
    except (Exception, SystemExit, KeyboardInterrupt) as error:      # sys.exit() ends the call, not the process
        code, stage.error = RAISED, _said(error)
    return code, now() - start


def _exactly(read: Callable[[int, int], bytes], channel: int, size: int) -> bytes:
    out = b""
    while len(out) < size:
        part = read(channel, size - len(out))
        if not part:
            return b""
        out += part
    return out


def _confine(errors: int, data_bytes: int) -> None:
    """Die with the server, keep to the memory, write no core file; what is printed goes to `errors`."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PARENT_DIES, 9)
    os.setsid()
    for stream in (1, 2):
        os.dup2(errors, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if data_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:SAID]


def _load(stage: Stage, row: Mapping[str, Any]) -> dict[str, Any]:
    stage.entry = Entry(**row)
    stage.kernel = kernel = stage.entry.load()
    return {"where": kernel.where, "returns": bool(kernel.returns), "provider": str(kernel.provider),
            "key": {str(name): str(value) for name, value in kernel.key().items()}}


def _shape(stage: Stage, row: Mapping[str, Any]) -> dict[str, Any]:
    """Map the buffers of a shape, and say whether the kernel refuses it."""
    import torch

    module, name = row["class"]
    stage.shape = getattr(import_module(module), name)(**row["fields"])
    torch.set_num_threads(row["threads"])
    refused = stage.kernel.refuses(stage.shape) if stage.kernel else None      # None: a process without a kernel
    if refused:
        return {"refused": str(refused)[:SAID]}
    stage.run, stage.inputs, stage.outputs, stage.views, stage.staged = _nothing, {}, {}, {}, None
    stage.map = mmap.mmap(stage.descriptor, row["nbytes"])
    stage.shared = torch.frombuffer(stage.map, dtype=torch.uint8)
    stage.buffers = tuple(Buffer.from_json(b) for b in row["buffers"])
    stage.evict = torch.zeros(row["evict"] // 8, dtype=torch.int64) if row["evict"] else None
    stage.views = _on_device(stage, row["device"])
    stage.inputs = {b.name: stage.views[b.role, b.name] for b in stage.buffers if b.role != OUTPUT}
    stage.outputs = {b.name: stage.views[b.role, b.name] for b in stage.buffers if b.role == OUTPUT}
    return {"refused": None}


def _on_device(stage: Stage, device: str | None) -> dict[tuple[str, str], Any]:
    """Tensors on the shared memory, or on a copy of all of it (guards too) on a device."""
    import torch

    from sublight.kernels.rounding import DTYPES

    if device is None:
        assert stage.map is not None
        return views(stage.map, stage.buffers)
    stage.staged = torch.empty(len(stage.shared), dtype=torch.uint8, device=device)
    if stage.staged.is_cuda:
        stage.synchronise = torch.cuda.synchronize                # waits for all streams of the device
    return {(b.role, b.name): stage.staged[b.offset:b.offset + b.nbytes].view(DTYPES[b.form]).view(b.sizes)
            for b in stage.buffers}


def _build(stage: Stage, _: object) -> dict[str, Any]:
    if stage.staged is not None:
        stage.staged.copy_(stage.shared)
    constants = {b.name: stage.views[b.role, b.name] for b in stage.buffers if b.role == CONSTANT}
    stage.run = stage.kernel.build(stage.shape, constants)
    gc.collect()
    gc.freeze()                          # a collection during a call is not the kernel's time
    gc.disable()
    return {}


def _ready(stage: Stage, how: str) -> dict[str, Any]:
    """Bring the inputs to where the kernel reads them, and the caches to the state that is asked for."""
    import torch

    if stage.staged is not None:
        stage.staged.copy_(stage.shared)
        stage.synchronise()
    if how == "hot" and stage.shared is not None:
        whole = stage.shared if stage.staged is None else stage.staged
        whole[: len(whole) // 8 * 8].view(torch.int64).sum()
    if how == "cold" and stage.evict is not None:
        stage.evict.sum()
    return {}


def _no_wait() -> None:
    pass


def _fetch(stage: Stage, _: object) -> dict[str, Any]:
    """Bring the outputs of the last call to the shared memory; says which of them are no plain dense tensors."""
    made = stage.made
    unlike = []
    for buffer in (b for b in stage.buffers if b.role == OUTPUT):
        given, value = stage.outputs[buffer.name], made.get(buffer.name)
        if value is given:
            continue
        if not stage.kernel.returns:
            unlike.append(f"{buffer.name}: put in place of the output that was to be filled")
        elif why := _not_plain(value, given):
            unlike.append(f"{buffer.name}: {why}")
        else:
            given.copy_(value)
    if stage.staged is not None:
        stage.shared.copy_(stage.staged)
    unlike += [f"replaced {name}" for name, was in stage.clocks.items() if _clocks()[name] is not was]
    return {"unlike": unlike}


def _drop(stage: Stage, _: object) -> None:
    """Give tensors back that the last call made: to unmap a MiB takes 0.1 ms, which is no part of the next call."""
    stage.made = {}


def _clocks() -> dict[str, Any]:
    """What others time kernels with. We do not; but who replaces it is after something."""
    import torch

    return {**{f"time.{name}": getattr(time, name) for name in CLOCKS},
            "torch.cuda.synchronize": torch.cuda.synchronize, "torch.cuda.Event": torch.cuda.Event}


def _not_plain(value: Any, like: Any) -> str | None:
    """Why a value is no plain dense tensor of the sizes and number format of another; None where it is."""
    import torch

    if type(value) is not torch.Tensor:
        return f"a {type(value).__name__}, not a plain tensor"
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        return "not a dense tensor"
    if torch._is_functional_tensor(value) or value.is_meta or value.requires_grad:
        return "not a tensor that holds its values"
    if not value.is_contiguous():
        return "not contiguous"
    if value.device != like.device:
        return f"on {value.device}, not on {like.device}"
    if tuple(value.shape) != tuple(like.shape) or value.dtype != like.dtype:
        return f"{value.dtype} {tuple(value.shape)}, not {like.dtype} {tuple(like.shape)}"
    return None


def _why(stage: Stage, _: object) -> str:
    return stage.error

