"""This file knows about cubins: which architecture one is for, its kernels, and the resources that they need.

Read from the ELF file itself, without a tool of CUDA. NVIDIA does not document the format: what stands here agrees with
`cuobjdump -res-usage` and `cuobjdump -elf` of CUDA 13.1 (tests/test_cubin.py), and the flags with LLVM's
BinaryFormat/ELF.h (EF_CUDA_…).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from sublight.errors import InputError
from sublight.kernels.inspect.code import Function, Resources, Unit
from sublight.kernels.inspect.elf import MAGIC, Buffer, Elf, Section, broken, read_elf

EM_CUDA = 190
EM_AMDGPU = 224
FUNCTION = 2                     # kind of a symbol
ENTRY = 0x10                     # of a symbol's `other`: a kernel, not a device function (STO_CUDA_ENTRY)
ACCELERATED = {7: 0x800, 8: 0x8}  # "sm_90a", in the flags by ABI version; CUDA 13 says it in .nv.compat instead
CONSTANT_BANK = ".nv.constant0."

# attributes of .nv.info (EIATTR_…): a byte of format, a byte of attribute, then by format
NO_VALUE, BYTE, HALF, SIZED = 1, 2, 3, 4
MAX_THREADS, REQUIRED_THREADS, FRAME_SIZE, LEAST_STACK = 0x05, 0x10, 0x11, 0x12
REGISTERS, CLUSTER, BARRIERS = 0x2F, 0x3D, 0x4C
TARGET_IS_ACCELERATED = 0x09     # of .nv.compat

Attribute = tuple[int, int, bytes]


@dataclass(slots=True)
class _Tables:
    """What .nv.info says by symbol, and sections by name."""

    registers: dict[int, int] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)         # of a function alone
    stacks: dict[int, int] = field(default_factory=dict)         # with what it calls; in linked code only
    sections: dict[str, Section] = field(default_factory=dict)


def is_cubin(data: Buffer) -> bool:
    """Whether it begins as one."""
    return bytes(data[:4]) == MAGIC and len(data) >= 20 and int.from_bytes(data[18:20], "little") == EM_CUDA


def read_cubin(data: Buffer, where: str) -> Unit:
    """The kernels of a cubin, by name, with their resources; no instructions yet.

    Raises InputError where it is no cubin, is damaged, or is of a layout that is not known here."""
    elf = read_elf(data, where)
    if elf.machine == EM_AMDGPU:
        raise InputError(f"{where} is code for an AMD GPU; expected a cubin, PTX, a fatbin or a program with them")
    if elf.machine != EM_CUDA:
        raise InputError(f"{where} is an ELF file for machine {elf.machine}; expected a cubin (machine {EM_CUDA})")
    tables = _tables(elf)
    arch = _arch(elf, tables)
    functions = tuple(sorted((Function(symbol.name, arch, _resources(elf, tables, symbol.index, symbol.name))
                              for symbol in elf.symbols(FUNCTION) if symbol.other & ENTRY),
                             key=lambda function: function.name))
    return Unit(arch, "cubin", _producer(elf, tables), functions, source=where)


def code_bytes(data: Buffer) -> dict[str, int]:
    """How many bytes of code each function has."""
    return {section.name[6:]: section.size for section in read_elf(data, "a cubin").sections
            if section.name.startswith(".text.")}


def _tables(elf: Elf) -> _Tables:
    tables = _Tables(sections={section.name: section for section in elf.sections})
    by_symbol = {REGISTERS: tables.registers, FRAME_SIZE: tables.frames, LEAST_STACK: tables.stacks}
    whole = tables.sections.get(".nv.info")
    for kind, attribute, value in _attributes(elf, whole) if whole else ():
        if kind == SIZED and attribute in by_symbol and len(value) >= 8:
            symbol, number = struct.unpack_from("<II", value)
            by_symbol[attribute][symbol] = number
    return tables


def _attributes(elf: Elf, section: Section) -> Iterator[Attribute]:
    """Each attribute of a .nv.info or .nv.compat section."""
    data, at = bytes(elf.content(section)), 0
    while at + 4 <= len(data):
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind not in (NO_VALUE, BYTE, HALF, SIZED):
            raise broken(elf.where, f"an attribute of format {kind} in section {section.name[:40]!r}")
        if kind != SIZED:
            yield kind, attribute, data[at - 2:at]
            continue
        if at + size > len(data):
            raise broken(elf.where, f"an attribute of {size} bytes at the end of section {section.name[:40]!r}")
        yield kind, attribute, data[at:at + size]
        at += size


def _resources(elf: Elf, tables: _Tables, symbol: int, name: str) -> Resources:
    code = tables.sections.get(f".text.{name}")
    shared = tables.sections.get(f".nv.shared.{name}")
    constant = tables.sections.get(CONSTANT_BANK + name)
    own = tables.sections.get(f".nv.info.{name}")
    said = {attribute: value for _, attribute, value in _attributes(elf, own)} if own else {}
    registers = tables.registers.get(symbol)
    if registers is None:                            # CUDA 11 and before said it in the code section's header alone
        registers = code.info >> 24 if code else 0
    size = shared.size if shared else 0
    return Resources(
        registers=registers, stack=tables.stacks.get(symbol, tables.frames.get(symbol, 0)), shared=size,
        constant=constant.size if constant else 0, barriers=_barriers(said.get(BARRIERS), code),
        max_threads=_product(said.get(MAX_THREADS)), required_threads=_product(said.get(REQUIRED_THREADS)),
        reserved=min(size, _RESERVED) if _sm(elf) >= 90 else 0, cluster=_product(said.get(CLUSTER)),
        uses_shared=shared is not None)              # extern __shared__ makes a section too, an empty one before sm_90


_RESERVED = 1024                 # ptxas -v says "400 bytes smem" where the section has 1424, sm_90 and later alone


def _barriers(said: bytes | None, code: Section | None) -> int | None:
    """Barriers of a block: an attribute since CUDA 12.6 or so, before that bits 20 to 26 of the code's flags."""
    if said is not None:
        return said[0]
    return (code.flags >> 20) & 0x7F if code else None


def _product(sizes: bytes | None) -> int | None:
    """x * y * z."""
    if sizes is None or len(sizes) < 12:
        return None
    x, y, z = struct.unpack_from("<III", sizes)
    return int(x * y * z)


def _sm(elf: Elf) -> int:
    """The number of the architecture: the low byte of the flags, or the second one in ABI version 8 (CUDA 13; CUDA 12
    for sm_100 and later)."""
    if elf.abi_version not in (7, 8):
        raise InputError(f"{elf.where}: a cubin of ABI version {elf.abi_version}; expected 7 (CUDA 9 to 12) or 8 "
                         "(CUDA 13)")
    sm = (elf.flags >> 8 if elf.abi_version == 8 else elf.flags) & 0xFF
    if not 50 <= sm <= 150:
        raise broken(elf.where, f"architecture number {sm}")
    return sm


def _arch(elf: Elf, tables: _Tables) -> str:
    """"sm_90a". Code for sm_100f is not told from code for sm_100: both say the same."""
    sm = _sm(elf)
    accelerated = bool(elf.flags & ACCELERATED[elf.abi_version])
    compat = tables.sections.get(".nv.compat")
    for kind, attribute, value in _attributes(elf, compat) if compat else ():
        accelerated |= kind == BYTE and attribute == TARGET_IS_ACCELERATED and value[0] == 1
    return f"sm_{sm}{'a' if accelerated else ''}"


def _producer(elf: Elf, tables: _Tables) -> str | None:
    """"ptxas 13.0.88". The note also holds the compiler's command line, which is left alone: it has paths in it."""
    note = tables.sections.get(".note.nv.tkinfo")
    if note is None:
        return None
    words = [word.decode("ascii", "replace") for word in bytes(elf.content(note))[36:].split(b"\0")]
    tool = next((word for word in words if re.fullmatch(r"[A-Za-z][\w-]{2,31}", word)), None)
    found = (re.search(r"\bV(\d{1,3}\.\d{1,3}\.\d{1,4})\b", word) for word in words)
    version = next((match[1] for match in found if match), None)
    return " ".join(part for part in (tool, version) if part) or None
