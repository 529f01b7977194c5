"""This file knows about inputs: files, standard input and URLs, compressed or not, as a stream of bytes.

Compression is told by the first bytes, never by the file's name: servers and people rename things.
"""

from __future__ import annotations

import io
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sublight.errors import InputError

BLOCK_BYTES = 256 << 10
HTTP_TIMEOUT_S = 60
MAX_LAYERS = 3                      # a .zip of a .json.gz is real; a tower of archives is an attack

GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
OTHER_FORMATS = (
    (b"SQLite format 3\x00", "an SQLite file (Nsight Systems export?); this version reads PyTorch profiler JSON"),
    (b"<", "a web page or XML, not a trace (a link to a page instead of to the raw file?)"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF"),
    (b"BZh", "a bzip2 file; unpack it first, or use .gz, .zst or .zip"),
    (b"\xfd7zXZ", "an xz file; unpack it first, or use .gz, .zst or .zip"),
    (b"\n\x8b", "a protobuf file (Perfetto?); this version reads PyTorch profiler JSON"),
)


@dataclass(slots=True)
class Damage:
    """What a stream lost on its way in. Filled while it is read."""

    cut_short: bool = False          # the compressed stream ended early, or its checksum is wrong
    bytes_read: int = 0              # text bytes after decompression


def label(path: str) -> str:
    """How an input is named in output: the last part of its path or URL, never the folders, hosts or queries
    around it."""
    if path == "-":
        return "standard input"
    return Path(path.split("?", 1)[0].split("#", 1)[0]).name or "input"


def open_bytes(path: str, damage: Damage) -> Iterator[bytes]:
    """Blocks of decompressed bytes of a file, of standard input (`-`) or of an http(s) URL.

    Raises InputError when it cannot be opened or is plainly something else.
    """
    raw = _open_raw(path)
    try:
        yield from _decompressed(raw, label(path), damage, MAX_LAYERS)
    finally:
        raw.close()


def _open_raw(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    if path.startswith(("http://", "https://")):
        try:
            response: IO[bytes] = urllib.request.urlopen(path, timeout=HTTP_TIMEOUT_S)
        except urllib.error.HTTPError as e:
            raise InputError(f"cannot fetch {label(path)}: the server answered {e.code}") from None
        except (OSError, ValueError) as e:
            reason = getattr(e, "reason", e)
            raise InputError(f"cannot fetch {label(path)}: {type(reason).__name__}") from None
        return response
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{label(path)} is a folder; name the trace files in it")
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError) as e:
        raise InputError(f"cannot open {label(path)}: {type(e).__name__}") from None


def _blocks(raw: IO[bytes]) -> Iterator[bytes]:
    while block := raw.read(BLOCK_BYTES):
        yield block


def _decompressed(raw: IO[bytes], name: str, damage: Damage, layers: int) -> Iterator[bytes]:
    head = raw.read(BLOCK_BYTES)
    if not head:
        raise InputError(f"{name} is empty; expected a PyTorch profiler trace")
    if layers == 0:
        raise InputError(f"{name} is an archive inside an archive inside an archive; unpack it first")
    for magic, what in OTHER_FORMATS:
        if head.lstrip(b" \t\r\n").startswith(magic) or head.startswith(magic):
            raise InputError(f"{name} is {what}")
    rest = _Rejoined(head, raw)
    if head.startswith(GZIP):
        yield from _decompressed(_Stream(_gunzip(rest, damage)), name, damage, layers - 1)
    elif head.startswith(ZSTD):
        yield from _decompressed(_Stream(_unzstd(rest, damage)), name, damage, layers - 1)
    elif head.startswith(ZIP):
        yield from _unzip(rest, name, damage, layers - 1)
    else:
        for block in _blocks(rest):
            damage.bytes_read += len(block)
            yield block


class _Rejoined(io.RawIOBase):
    """A stream whose first block was already looked at."""

    def __init__(self, head: bytes, raw: IO[bytes]) -> None:
        self._head, self._raw = head, raw

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        try:
            return self._raw.read(size)
        except OSError as e:
            raise InputError(f"reading stopped: {type(e).__name__}") from None


class _Stream(io.RawIOBase):
    """An iterator of blocks as something to read from."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._next = blocks

    def read(self, size: int = -1) -> bytes:
        return next((block for block in self._next if block), b"")


def _gunzip(raw: IO[bytes], damage: Damage) -> Iterator[bytes]:
    """All members of a gzip stream. What can be had before a damaged place is kept."""
    inflate, started = zlib.decompressobj(wbits=31), False
    for block in _blocks(raw):
        while block:
            try:
                text = inflate.decompress(block, BLOCK_BYTES)
            except zlib.error:
                damage.cut_short = True
                return
            if text:
                yield text
            block = inflate.unconsumed_tail
            if inflate.eof:
                block = inflate.unused_data.lstrip(b"\0")     # tape padding between members is legal
                if block and not block.startswith(GZIP[: len(block)]):
                    damage.cut_short = True
                    return
                inflate = zlib.decompressobj(wbits=31)
                started = bool(block)
            else:
                started = True
    if started:
        damage.cut_short = True


def _unzstd(raw: IO[bytes], damage: Damage) -> Iterator[bytes]:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(
            raw, read_size=BLOCK_BYTES, read_across_frames=True
        ) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield block
    except zstandard.ZstdError:
        damage.cut_short = True


def _unzip(raw: IO[bytes], name: str, damage: Damage, layers: int) -> Iterator[bytes]:
    """The one trace in a zip. A zip's index is at its end, so a stream is spooled to a temporary file first."""
    with tempfile.SpooledTemporaryFile(max_size=64 << 20) as spool:
        for block in _blocks(raw):
            spool.write(block)
        try:
            archive = zipfile.ZipFile(spool)  # type: ignore[arg-type]   # a seekable binary file is enough
        except zipfile.BadZipFile:
            raise InputError(f"{name} is a damaged zip file (its index at the end is missing)") from None
        members = [m for m in archive.infolist() if not m.is_dir() and not Path(m.filename).name.startswith(".")
                   and "__MACOSX" not in m.filename]
        traces = [m for m in members if ".json" in m.filename.lower()] or members
        if len(traces) != 1:
            raise InputError(f"{name} holds {len(traces)} files; expected one trace: unpack it and name the files")
        try:
            with archive.open(traces[0]) as member:
                yield from _decompressed(_Stream(_until_damaged(member, damage)), name, damage, layers)
        except (RuntimeError, NotImplementedError):
            raise InputError(f"{name} is encrypted or packed in a way that zipfile cannot read") from None


def _until_damaged(member: IO[bytes], damage: Damage) -> Iterator[bytes]:
    try:
        yield from _blocks(member)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        damage.cut_short = True
