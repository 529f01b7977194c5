"""This file knows about PTX text: its target, its kernels, what they declare and which kinds of instructions they use.

PTX has virtual registers: how many a kernel declares says nothing of how many the assembler will give it. Source: PTX
ISA (module directives, performance-tuning directives, instruction names).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sublight.errors import InputError
from sublight.kernels.inspect.code import Function, Launch, Unit

ENTRY = re.compile(r"\.entry\s+([\w$%.]{1,20000})")
TARGET = re.compile(r"^\s*\.target\s+(sm_\d{2,3}[af]?)\b", re.M)
VERSION = re.compile(r"^\s*\.version\s+(\d{1,2}\.\d{1,2})", re.M)
FIRST = re.compile(rb"^[ \t]*\.version[ \t]+\d", re.M)
SIZES = re.compile(r"\.(reqntid|maxntid|reqnctapercluster|maxnreg|minnctapersm)\s+(\d{1,9}(?:\s*,\s*\d{1,9}){0,2})")
REGISTERS = re.compile(r"\.reg\s+\.(\w{1,10})\s+%?[\w$]+<(\d{1,7})>")
SHARED = re.compile(r"\.shared\s+(?:\.align\s+\d{1,6}\s+)?\.(\w{1,10})\s+[\w$%.]+\s*(?:\[(\d{1,10})\])?\s*;")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
WIDTHS = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
          "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}
KINDS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync", "wmma.mma", "cp.async.bulk.tensor", "cp.async.bulk", "cp.async",
         "tcgen05.ld", "tcgen05.st", "ldmatrix", "stmatrix", "setmaxnreg")
OPCODE = re.compile(r"(?:^|[;{}\s])(" + "|".join(re.escape(kind) for kind in KINDS) + r")[\w.:]{0,200}")
MMA_FORMATS = re.compile(r"\.(kind::\w{1,12}|f64|tf32|bf16|f16|e4m3|e5m2|e2m1|s8|u8|s4|u4|b1)\b")


@dataclass(frozen=True, slots=True)
class Declared:
    """What a kernel of PTX says of itself. Threads and blocks are products of the three sizes."""

    name: str
    required_threads: int | None
    max_threads: int | None
    cluster: int | None
    shared: int                              # bytes, static; of the module where a kernel declares none of its own
    virtual: tuple[tuple[str, int], ...]     # registers by type, as declared: not what the assembler gives
    kinds: tuple[tuple[str, int], ...]       # instructions of some kinds, in the text


def is_ptx(data: bytes) -> bool:
    """Whether it is text with a line of a version, as PTX has after its first comments."""
    return FIRST.search(data, 0, 1 << 16) is not None and b"\0" not in data.rstrip(b"\0")[:4096]


def read_ptx(data: bytes, where: str) -> Unit:
    """The kernels of PTX text. Raises InputError where it has no version, no target, or is no text."""
    text = data.rstrip(b"\0").decode("utf-8", "replace")
    bare = COMMENT.sub("", text)
    version, target = VERSION.search(bare), TARGET.search(bare)
    if version is None or target is None:
        raise InputError(f"{where} is no whole PTX: expected .version and .target lines, got "
                         f"{'no version' if version is None else 'no target'}")
    found = declared(text)
    functions = tuple(Function(kernel.name, target[1], None, missing="PTX: compile it to a cubin to see instructions")
                      for kernel in found)
    return Unit(target[1], "ptx", f"PTX {version[1]}", functions, Launch(), text, where)


def declared(text: str) -> tuple[Declared, ...]:
    """What each kernel of a module declares, by name."""
    bare = COMMENT.sub("", text)
    marks = list(ENTRY.finditer(bare))
    if not marks:
        return ()
    module = _shared(bare[:marks[0].start()])
    ends = [*(mark.start() for mark in marks[1:]), len(bare)]
    return tuple(sorted((_declared(mark[1], bare[mark.end():end], module)
                         for mark, end in zip(marks, ends, strict=True)), key=lambda kernel: kernel.name))


def _declared(name: str, body: str, module_shared: int) -> Declared:
    sizes: dict[str, int] = {}
    for found in SIZES.finditer(body.split("{", 1)[0]):
        sizes[found[1]] = math.prod(map(int, re.findall(r"\d+", found[2])))
    virtual: Counter[str] = Counter()
    for found in REGISTERS.finditer(body):
        virtual[found[1]] += int(found[2])
    return Declared(name, sizes.get("reqntid"), sizes.get("maxntid"), sizes.get("reqnctapercluster"),
                    _shared(body) or module_shared, tuple(sorted(virtual.items())),
                    tuple(sorted(Counter(_kinds(body)).items())))


def _shared(body: str) -> int:
    return sum(WIDTHS.get(found[1], 1) * int(found[2] or 1) for found in SHARED.finditer(body))


def _kinds(body: str) -> Iterator[str]:
    """"mma.sync bf16", "cp.async", … for each instruction of a known kind, with the first format that it names."""
    for found in OPCODE.finditer(body):
        whole = body[found.start(1):found.end()]
        formats = MMA_FORMATS.findall(whole) if "mma" in found[1] else []
        yield f"{found[1]} {formats[0]}" if formats else found[1]
