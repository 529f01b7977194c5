"""This file knows about inputs: files, standard input and URLs, compressed or not, as a stream of bytes.

Compression is told by the first bytes, never by the file's name: servers and people rename things.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sublight.errors import InputError

if TYPE_CHECKING:
    from zipfile import ZipInfo

BLOCK_BYTES = 256 << 10
URLS = ("http://", "https://")
MAX_LAYERS = 3                      # a .zip of a .json.gz is real; a tower of archives is an attack

LONGEST_MAGIC = 16
ZSTD_PIECE_BYTES = 4 << 10
LOCAL_HEADER = struct.Struct("<4s5H3I2H")          # of a zip's member: the last two are lengths of name and extra
STORED, DEFLATED = 0, 8
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
OTHER_FORMATS = (
    (b"SQLite format 3\x00", "an SQLite file (Nsight Systems export?); such a file is read from disk only, unpacked"),
    (b"<", "a web page or XML, not a trace (a link to a page instead of to the raw file?)"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF"),
    (b"BZh", "a bzip2 file; unpack it first, or use .gz, .zst or .zip"),
    (b"\xfd7zXZ", "an xz file; unpack it first, or use .gz, .zst or .zip"),
    (b"\xff\xfe", "UTF-16 text; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text; save it as UTF-8"),
    (b"{\0", "UTF-16 text; save it as UTF-8"),
    (b"\0{", "UTF-16 text; save it as UTF-8"),
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
    if path.startswith(URLS):
        path = "/" + path.split("://", 1)[1].split("?", 1)[0].split("#", 1)[0].partition("/")[2]
    return Path(path).name or "input"


def open_bytes(path: str, damage: Damage) -> Iterator[bytes]:
    """Blocks of decompressed bytes of a file, of standard input (`-`) or of an http(s) URL.

    Raises InputError when it cannot be opened or is plainly something else.
    """
    raw = _open_raw(path)
    try:
        yield from _decompressed(_blocks(raw, label(path)), label(path), damage, MAX_LAYERS)
    finally:
        raw.close()


def _open_raw(path: str) -> IO[bytes]:
    if path == "-":
        return sys.stdin.buffer
    if path.startswith(URLS):
        from sublight.observe.url import open_url

        answer: IO[bytes] = open_url(path, label(path))  # type: ignore[assignment]   # it reads and closes
        return answer
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{label(path)} is a folder; name the trace files in it")
    try:
        return file.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (OSError, ValueError) as e:
        raise InputError(f"cannot open {label(path)}: {type(e).__name__}") from None


def _blocks(raw: IO[bytes], name: str) -> Iterator[bytes]:
    while True:
        try:
            block = raw.read(BLOCK_BYTES)
        except OSError as e:
            raise InputError(f"reading {name} stopped: {type(e).__name__}; try again with a whole copy") from None
        if not block:
            return
        yield block


def _decompressed(blocks: Iterator[bytes], name: str, damage: Damage, layers: int) -> Iterator[bytes]:
    head = next(blocks, b"")
    while 0 < len(head) < LONGEST_MAGIC and (more := next(blocks, b"")):
        head += more                                     # pipes hand over what they have
    if not head:
        what = "nothing can be unpacked from it" if damage.cut_short else "expected a PyTorch profiler trace"
        raise InputError(f"{name} is {'damaged' if damage.cut_short else 'empty'}: {what}")
    if layers == 0:
        raise InputError(f"{name} is an archive inside an archive inside an archive; unpack it first")
    for magic, format_name in OTHER_FORMATS:
        if head.lstrip(b" \t\r\n").startswith(magic) or head.startswith(magic):
            raise InputError(f"{name} is {format_name}")
    rest = chain([head], blocks)
    if head.startswith(GZIP):
        yield from _decompressed(_gunzip(rest, damage), name, damage, layers - 1)
    elif head.startswith(ZSTD):
        yield from _decompressed(_unzstd(rest, damage), name, damage, layers - 1)
    elif head.startswith(ZIP):
        yield from _unzip(rest, name, damage, layers - 1)
    else:
        for block in rest:
            damage.bytes_read += len(block)
            yield block


def _gunzip(blocks: Iterator[bytes], damage: Damage) -> Iterator[bytes]:
    yield from _members(blocks, damage, GZIP, lambda: zlib.decompressobj(wbits=31), _inflated)


def _unzstd(blocks: Iterator[bytes], damage: Damage) -> Iterator[bytes]:
    import zstandard

    def unpacked(unpack: Any, piece: bytes, damage: Damage) -> Iterator[bytes]:
        try:
            yield unpack.decompress(piece)
        except zstandard.ZstdError:
            damage.cut_short = True

    # In small pieces: a call that meets damage returns nothing of what it had made.
    pieces = (block[at : at + ZSTD_PIECE_BYTES] for block in blocks for at in range(0, len(block), ZSTD_PIECE_BYTES))
    yield from _members(pieces, damage, ZSTD, zstandard.ZstdDecompressor().decompressobj, unpacked)


def _members(blocks: Iterator[bytes], damage: Damage, magic: bytes, fresh: Any, unpacked: Any) -> Iterator[bytes]:
    """All members (gzip) or frames (zstd) of a stream. What can be had before a damaged place is kept."""
    stream, inside = fresh(), False
    for block in blocks:
        while block := block if inside else block.lstrip(b"\0"):     # tape padding between members is legal
            if not inside and not block.startswith(magic[: len(block)]):
                damage.cut_short = True
                return
            yield from (text for text in unpacked(stream, block, damage) if text)
            if damage.cut_short:
                return
            inside = not stream.eof
            block = b""
            if stream.eof:
                block, stream = stream.unused_data, fresh()
    if inside:
        damage.cut_short = True


def _inflated(inflate: Any, block: bytes, damage: Damage) -> Iterator[bytes]:
    """What one block unpacks to. zlib drops all that a call made before it met the damage, so that the call is
    repeated in smaller and smaller steps, down to the last sound byte."""
    step = BLOCK_BYTES
    while True:
        before = inflate.copy()
        try:
            text = inflate.decompress(block, step)
        except zlib.error:
            if step == 1:
                damage.cut_short = True
                return
            inflate, step = before, max(1, step // 64)
            continue
        if text:
            yield text
        block = inflate.unconsumed_tail
        if inflate.eof or not (block or len(text) == step):
            return


def _unzip(blocks: Iterator[bytes], name: str, damage: Damage, layers: int) -> Iterator[bytes]:
    """The one trace in a zip. A zip's index is at its end, so a stream is spooled to a temporary file first."""
    import tempfile
    import zipfile

    with tempfile.SpooledTemporaryFile(max_size=64 << 20) as spool:
        for block in blocks:
            spool.write(block)
        try:
            archive = zipfile.ZipFile(spool)  # a seekable binary file is enough
        except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError, struct.error):
            raise InputError(f"{name} is a damaged zip file (its index at the end cannot be read)") from None
        members = [m for m in archive.infolist() if not m.is_dir() and not Path(m.filename).name.startswith(".")
                   and "__MACOSX" not in m.filename]
        traces = [m for m in members if ".json" in m.filename.lower()] or members
        if len(traces) != 1:
            raise InputError(f"{name} holds {len(traces)} files; expected one trace: unpack it and name the files")
        if traces[0].flag_bits & 1 or traces[0].compress_type not in (STORED, DEFLATED):
            raise InputError(f"{name} is encrypted, or packed in another way than zip's usual one; unpack it first")
        yield from _decompressed(_member(spool, traces[0], damage), name, damage, layers)


def _member(spool: IO[bytes], member: ZipInfo, damage: Damage) -> Iterator[bytes]:
    """One file of a zip, up to where it is damaged (zipfile would drop the last block with the checksum)."""
    spool.seek(member.header_offset)
    header = spool.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or not header.startswith(ZIP):
        damage.cut_short = True
        return
    *_, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    spool.seek(name_bytes + extra_bytes, io.SEEK_CUR)
    left, checksum = member.compress_size, 0
    inflate: Any = zlib.decompressobj(wbits=-15)
    while left > 0 and not damage.cut_short and (block := spool.read(min(left, BLOCK_BYTES))):
        left -= len(block)
        for text in [block] if member.compress_type == STORED else _inflated(inflate, block, damage):
            checksum = zlib.crc32(text, checksum)
            yield text
    damage.cut_short |= left > 0 or checksum != member.CRC
