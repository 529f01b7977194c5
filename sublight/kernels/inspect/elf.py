"""This file knows about ELF: the sections and symbols of a 64-bit file, read without trusting any number in it."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from sublight.errors import InputError

Buffer: TypeAlias = bytes | mmap.mmap

MAGIC = b"\x7fELF"
HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
NOBITS = 8                       # a section that takes no room in the file
SYMTAB = 2
LONGEST_NAME = 1 << 16           # names of CUTLASS's kernels have some thousand characters
ALL_NAMES = 1 << 26              # of one file: a small file could name one long string a million times


@dataclass(frozen=True, slots=True)
class Section:
    """A section header. The bytes are asked of the file."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of the symbol table."""

    index: int
    name: str
    kind: int                    # 2: function
    other: int
    section: int


@dataclass(frozen=True)
class Elf:
    """A 64-bit little-endian ELF file. where: how errors name it."""

    data: Buffer
    where: str
    machine: int
    flags: int
    os_abi: int
    abi_version: int
    table: int                   # offset and length of the section headers, and which of them holds their names
    count: int
    names: int

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Every section, in order. Raises InputError where a name lies outside the file."""
        rows = [SECTION.unpack_from(self.data, self.table + k * SECTION.size) for k in range(self.count)]
        if not rows:
            return ()
        if self.names >= len(rows):
            raise broken(self.where, f"names of sections in section {self.names} of {len(rows)}")
        text = self._part(rows[self.names][4], rows[self.names][5], "names of sections")
        room = [ALL_NAMES]
        return tuple(Section(self._name(text, row[0], room), row[1], row[2], row[4], row[5], row[6], row[7])
                     for row in rows)

    def content(self, section: Section) -> Buffer:
        """The bytes of a section; none where it takes no room in the file."""
        if section.kind == NOBITS:
            return b""
        return self._part(section.offset, section.size, f"section {section.name[:40]!r}")

    def symbols(self, kind: int) -> Iterator[Symbol]:
        """Symbols of one kind, in order."""
        table = next((section for section in self.sections if section.kind == SYMTAB), None)
        if table is None:
            return
        if table.link >= len(self.sections):
            raise broken(self.where, f"names of symbols in section {table.link} of {len(self.sections)}")
        text = self.content(self.sections[table.link])
        rows = self.content(table)
        room = [ALL_NAMES]
        for index in range(len(rows) // SYMBOL.size):
            name, info, other, section, _, _ = SYMBOL.unpack_from(rows, index * SYMBOL.size)
            if info & 15 == kind:
                yield Symbol(index, self._name(text, name, room), kind, other, section)

    def _part(self, offset: int, size: int, what: str) -> Buffer:
        if offset + size > len(self.data):
            raise broken(self.where, f"{what} ends at byte {offset + size:,} of {len(self.data):,}")
        return self.data[offset:offset + size]

    def _name(self, text: Buffer, start: int, room: list[int]) -> str:
        """A string that ends with a zero byte. room: how much all names may take, less this one afterwards."""
        piece = bytes(text[start:start + LONGEST_NAME])
        end = piece.find(b"\0")
        if end < 0:
            raise broken(self.where, "a name without an end")
        room[0] -= end
        if room[0] < 0:
            raise broken(self.where, "more names than it has room for")
        return piece[:end].decode("utf-8", "replace")


def broken(where: str, how: str) -> InputError:
    """The one error of a damaged file."""
    return InputError(f"{where} is damaged or cut short: {how}; expected a whole ELF file")


def read_elf(data: Buffer, where: str) -> Elf:
    """The header of a file, checked. Raises InputError where it is no 64-bit little-endian ELF file, or damaged."""
    if bytes(data[:4]) != MAGIC:
        raise InputError(f"{where} is no ELF file: it begins with {bytes(data[:4])!r}")
    if len(data) < 64:
        raise broken(where, f"{len(data)} bytes, fewer than a header has")
    if bytes(data[4:6]) != b"\x02\x01":
        raise InputError(f"{where}: expected a 64-bit little-endian ELF file, which every cubin since CUDA 9 is")
    _, machine, _, _, _, table, flags, _, _, _, entry, count, names = HEADER.unpack_from(data)
    if table and entry != SECTION.size:
        raise broken(where, f"section headers of {entry} bytes")
    if table and table + SECTION.size > len(data):
        raise broken(where, f"section headers at byte {table:,} of {len(data):,}")
    if table and (count == 0 or names == 0xFFFF):            # too many for 16 bits: the first header holds both
        first = SECTION.unpack_from(data, table)
        count, names = count or first[5], first[6] if names == 0xFFFF else names
    if table and (not count or table + count * SECTION.size > len(data)):
        raise broken(where, f"{count:,} section headers at byte {table:,} of {len(data):,}")
    return Elf(data, where, machine, flags, data[7], data[8], table, count if table else 0, names)
