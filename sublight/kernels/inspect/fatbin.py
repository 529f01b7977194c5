"""This file knows about fatbins: containers of cubins and PTX, as files and inside programs and libraries.

No document of NVIDIA describes the format. A container: magic, version, length of its header, length of what follows.
An entry in it: kind, length of its header, of its bytes with padding, of its packed bytes; architecture, flags, length
unpacked. As nvcc 13.0 writes it in each --compress-mode, and as cuobjdump reads it (tests/test_fatbin.py).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sublight.errors import InputError
from sublight.kernels.inspect import lz4
from sublight.kernels.inspect.elf import Buffer, read_elf

MAGIC = b"\x50\xed\x55\xba"
CONTAINER = struct.Struct("<4sHHQ")
ENTRY = struct.Struct("<HHIQIIHHI8xQ8xQ")
PTX, CUBIN = 1, 2
OTHERS = {4: "an object of an old NVVM", 8: "intermediate code (NVVM)", 16: "a cubin of another kind",
          32: "an index", 64: "a tile IR module"}
ACCELERATED, LZ4, ZSTD = 0x100000, 0x2000, 0x8000
LINKED, UNLINKED, AMD = ".nv_fatbin", "__nv_relfatbin", ".hip_fatbin"
LARGEST = 1 << 30                # bytes of one entry, unpacked; the largest of cuBLAS have some tens of millions


@dataclass(frozen=True, slots=True)
class Entry:
    """One cubin or PTX. data: None where it could not be had; `missing` says why."""

    kind: str                    # "cubin", "ptx" or "other"
    arch: str
    data: bytes | None
    missing: str = ""


def is_fatbin(data: Buffer) -> bool:
    """Whether it begins as one."""
    return bytes(data[:4]) == MAGIC


def entries(data: Buffer, where: str) -> Iterator[Entry]:
    """Each entry of all containers that follow each other in `data`. Raises InputError where a container is damaged."""
    at = 0
    while at + CONTAINER.size <= len(data):
        if bytes(data[at:at + 4]) != MAGIC:          # containers of several source files are padded
            at += 8
            continue
        _, version, header, size = CONTAINER.unpack_from(data, at)
        if version != 1 or header < CONTAINER.size:
            raise _broken(where, f"a container of version {version} with a header of {header} bytes")
        if at + header + size > len(data):
            raise _broken(where, f"a container ends at byte {at + header + size:,} of {len(data):,}")
        yield from _container(data[at + header:at + header + size], where)
        at += -(-(header + size) // 8) * 8


def _container(data: Buffer, where: str) -> Iterator[Entry]:
    at = 0
    while at + ENTRY.size <= len(data):
        kind, _, header, size, packed, _, _, _, sm, flags, unpacked = ENTRY.unpack_from(data, at)
        if header < ENTRY.size or at + header + size > len(data):
            raise _broken(where, f"an entry ends at byte {at + header + size:,} of {len(data):,} of its container")
        if packed > size:
            raise _broken(where, f"an entry of {size:,} bytes holds {packed:,}")
        body = bytes(data[at + header:at + header + (packed or size)])
        yield _entry(kind, f"sm_{sm}{'a' if flags & ACCELERATED else ''}", body, flags, unpacked)
        at += header + size


def _entry(kind: int, arch: str, body: bytes, flags: int, size: int) -> Entry:
    if kind not in (PTX, CUBIN):
        return Entry("other", arch, None, OTHERS.get(kind, f"an entry of kind {kind}"))
    name = "ptx" if kind == PTX else "cubin"
    if not flags & (LZ4 | ZSTD):
        return Entry(name, arch, body)
    if size > LARGEST:
        return Entry(name, arch, None, f"says that it has {size:,} bytes unpacked")
    try:
        return Entry(name, arch, _zstd(body, size) if flags & ZSTD else lz4.unpacked(body, size))
    except lz4.DamagedError as error:
        return Entry(name, arch, None, f"damaged where it is packed ({error})")


def _zstd(body: bytes, size: int) -> bytes:
    """Unpacked, in pieces: a damaged header must not ask for memory that the text does not fill."""
    import zstandard

    out = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(io.BytesIO(body)) as stream:
            while len(out) <= size and (piece := stream.read(min(1 << 20, size + 1 - len(out)))):
                out += piece
    except (zstandard.ZstdError, MemoryError):
        raise lz4.DamagedError("zstd cannot read it") from None
    if len(out) != size:
        raise lz4.DamagedError(f"{len(out):,} bytes, expected {size:,}")
    return bytes(out)


def inside(data: Buffer, where: str) -> Iterator[Entry]:
    """The entries in the fatbin sections of a program, a library or an object file of the host."""
    elf = read_elf(data, where)
    names = {section.name for section in elf.sections}
    if not names & {LINKED, UNLINKED}:
        raise InputError(f"{where} holds code for AMD GPUs; expected code of CUDA" if AMD in names else
                         f"{where} is an ELF file without code of CUDA: no section {LINKED}")
    # what was linked lies there a second time, unlinked, where a program was built with -rdc=true; that never runs
    wanted = LINKED if LINKED in names else UNLINKED
    for section in (section for section in elf.sections if section.name == wanted):
        yield from entries(elf.content(section), where)


def _broken(where: str, how: str) -> InputError:
    return InputError(f"{where} is damaged or cut short: {how}; expected a whole fatbin")
