"""This file knows about guarded buffers: one piece of shared memory that holds inputs and outputs of a kernel.

    | guard | input a | guard | guard | input b | guard | … | guard | output | guard |

The guards of inputs, and outputs that are to be filled, hold the byte 0xff: NaN in every floating-point format here, -1
in an integer. So what reads beyond an input's end poisons its result, and what was not written is not finite. Integer
outputs hold 0xa5. The guards of outputs hold random bytes, new for every region, that only the judging process keeps.
The memory has no name in any file system: nothing is left behind, however a process ends.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sublight.kernels.contract import Spec, Tensor
from sublight.work import BYTES

GUARD = 4096                             # bytes before and after each buffer
ALIGNED = 64                             # a line of the cache, a vector of AVX-512
POISON, PATTERN = 0xFF, 0xA5
INPUT, CONSTANT, OUTPUT = "input", "constant", "output"
INTEGERS = ("int8", "int32", "int64")
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where one tensor lies in the region."""

    name: str
    role: str                            # INPUT, CONSTANT or OUTPUT
    form: str
    sizes: tuple[int, ...]
    offset: int
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Buffer:
        return cls(row["name"], row["role"], row["form"], tuple(row["sizes"]), row["offset"], row["nbytes"])


def laid_out(tensors: Iterable[tuple[str, str, Spec]]) -> tuple[tuple[Buffer, ...], int]:
    """Buffers for (name, role, what it holds), and the bytes of the whole region."""
    buffers, at = [], 0
    for name, role, spec in tensors:
        at = ceil((at + GUARD) / ALIGNED) * ALIGNED
        nbytes = int(prod(spec.sizes) * BYTES[spec.form])
        buffers.append(Buffer(name, role, spec.form, tuple(spec.sizes), at, nbytes))
        at += nbytes + GUARD
    return tuple(buffers), max(at, GUARD)


def shared_memory() -> int:
    """A descriptor of shared memory of no size yet, that nobody can make smaller once it has one."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sublight-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:           # unlinked already
        return os.dup(file.fileno())


def grown(descriptor: int, nbytes: int) -> None:
    """Make the memory at least so large, and keep a kernel from making it smaller under the judge's hands."""
    if os.fstat(descriptor).st_size < nbytes:
        os.ftruncate(descriptor, nbytes)
    if sys.platform.startswith("linux"):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def views(memory: mmap.mmap, buffers: Iterable[Buffer]) -> dict[tuple[str, str], Tensor]:
    """Tensors on the memory, by (role, name)."""
    import torch

    from sublight.kernels.rounding import DTYPES

    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return {(b.role, b.name): whole[b.offset:b.offset + b.nbytes].view(DTYPES[b.form]).view(b.sizes) for b in buffers}


class Region:
    """The judging process's side of a region: it writes inputs, poisons outputs and finds what was touched. Final."""

    def __init__(self, descriptor: int, buffers: tuple[Buffer, ...], nbytes: int) -> None:
        grown(descriptor, nbytes)
        self.buffers, self.nbytes = buffers, nbytes
        self._memory = mmap.mmap(descriptor, nbytes)
        self._bytes: Bytes = np.frombuffer(self._memory, dtype=np.uint8)
        self._views = views(self._memory, buffers)
        self._guards = np.frombuffer(secrets.token_bytes(2 * GUARD), dtype=np.uint8)
        self._set_guards()

    @property
    def working_set(self) -> int:
        """Bytes of all buffers, without guards."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def of(self, *roles: str) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self.buffers if buffer.role in roles)

    def tensor(self, buffer: Buffer) -> Tensor:
        """The tensor itself, not a copy."""
        return self._views[buffer.role, buffer.name]

    def write(self, buffer: Buffer, tensor: Tensor) -> None:
        if buffer.nbytes:
            self.tensor(buffer).copy_(tensor)

    def copies(self, *roles: str) -> dict[str, Tensor]:
        """Copies of all tensors of these roles, by name."""
        return {buffer.name: self.tensor(buffer).clone() for buffer in self.of(*roles)}

    def poison(self, in_place: Mapping[str, Tensor]) -> None:
        """Fill the outputs with what no result is; those that are written in place, with their input."""
        for buffer in self.of(OUTPUT):
            if buffer.name in in_place:
                self.write(buffer, in_place[buffer.name])
            else:
                self._part(buffer)[:] = PATTERN if buffer.form in INTEGERS else POISON

    def fingerprint(self, buffer: Buffer) -> bytes:
        return hashlib.blake2b(self._part(buffer).data, digest_size=16).digest()

    def raw(self, buffer: Buffer) -> bytes:
        """The bytes as they are now."""
        return self._part(buffer).tobytes()

    def touched_guards(self) -> tuple[str, ...]:
        """Which guards are no longer as they were set, in words. They are set again."""
        out = []
        for buffer in self.buffers:
            before, after = self._around(buffer)
            if not np.array_equal(self._bytes[before], self._guard(buffer)[:GUARD]):
                out.append(f"wrote before the start of {buffer.role} {buffer.name}")
            if not np.array_equal(self._bytes[after], self._guard(buffer)[GUARD:]):
                out.append(f"wrote beyond the end of {buffer.role} {buffer.name}")
        if out:
            self._set_guards()
        return tuple(out)

    def _set_guards(self) -> None:
        for buffer in self.buffers:
            before, after = self._around(buffer)
            self._bytes[before], self._bytes[after] = self._guard(buffer)[:GUARD], self._guard(buffer)[GUARD:]

    def _guard(self, buffer: Buffer) -> Bytes:
        return self._guards if buffer.role == OUTPUT else _NAN_GUARDS

    def _part(self, buffer: Buffer) -> Bytes:
        return self._bytes[buffer.offset:buffer.offset + buffer.nbytes]

    def _around(self, buffer: Buffer) -> tuple[slice, slice]:
        end = buffer.offset + buffer.nbytes
        return slice(buffer.offset - GUARD, buffer.offset), slice(end, end + GUARD)


_NAN_GUARDS: Bytes = np.full(2 * GUARD, POISON, dtype=np.uint8)
