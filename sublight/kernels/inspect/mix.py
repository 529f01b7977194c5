"""This file knows about the instruction mix of a kernel: what its instructions occupy, and how it moves data.

Counts are of instructions as they stand in the listing, not as they run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sublight.kernels.inspect.code import Function, Instruction
from sublight.kernels.inspect.pipes import OTHER, pipe_of
from sublight.kernels.inspect.tensor import TensorKind, fallback, tensor_kinds

WIDTH = re.compile(r"^(?:[USB]?(8|16)|32|64|96|128|256)$")
GLOBAL = {"LDG": "load", "LD": "load", "STG": "store", "ST": "store", "LDGSTS": "copy to shared",
          "UTMALDG": "bulk copy to shared", "UTMASTG": "bulk copy from shared", "UBLKCP": "bulk copy",
          "UTMAREDG": "bulk reduction", "UBLKRED": "bulk reduction", "RED": "reduction", "REDG": "reduction",
          "ATOM": "atomic", "ATOMG": "atomic"}
FP8_TO_16 = re.compile(r"^F2FP\.(BF16|F16)\.(E4M3|E5M2)\.UNPACK")


@dataclass(frozen=True, slots=True)
class TensorUse:
    """One kind of tensor-core instruction: how many stand in the code, and whether the format deserves better."""

    kind: TensorKind
    count: int
    deserves: str | None                 # what to expect instead, and why; None: nothing better that we can know of


@dataclass(frozen=True, slots=True)
class Access:
    """Instructions that move data in one way."""

    opcode: str                          # "LDG.E.128", "UTMALDG.2D"
    kind: str                            # "load", "store", "copy to shared", "bulk copy to shared" …
    width_bits: int | None               # a lane; None: a descriptor or the hardware decides
    count: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Instructions of a piece of code."""

    count: int
    pipes: tuple[tuple[str, int], ...]   # by what they occupy, most first
    tensor: tuple[TensorUse, ...]
    loads: tuple[Access, ...]            # of global memory, bulk copies included
    shared: tuple[Access, ...]
    spill_loads: int                     # local memory at a fixed offset of the stack: a spill, or an array that is
    spill_stores: int                    # indexed by constants; which of them, SASS does not say
    array_loads: int                     # local memory at a computed address: an array on the stack
    array_stores: int
    unknown: tuple[str, ...]             # opcodes that we do not know


def mix_of(function: Function) -> Mix:
    """The mix of a whole function."""
    return mix_of_code(function.instructions, tensor_kinds(function), function.arch)


def mix_of_code(code: Iterable[Instruction], kinds: dict[int, TensorKind], arch: str) -> Mix:
    """The mix of some of a function's instructions. kinds: its tensor-core instructions, by address."""
    code = tuple(code)
    pipes = Counter(pipe_of(one.name) for one in code)
    local = Counter((one.name, _on_stack(one)) for one in code if one.name in ("LDL", "STL"))
    return Mix(
        count=len(code), pipes=tuple(sorted(pipes.items(), key=lambda pair: (-pair[1], pair[0]))),
        tensor=_tensor(code, kinds, arch), loads=_accesses(one for one in code if one.name in GLOBAL),
        shared=_accesses(one for one in code if pipe_of(one.name) == "shared"),
        spill_loads=local["LDL", True], spill_stores=local["STL", True],
        array_loads=local["LDL", False], array_stores=local["STL", False],
        unknown=tuple(sorted({one.name for one in code if pipe_of(one.name) == OTHER})),
    )


def _tensor(code: tuple[Instruction, ...], kinds: dict[int, TensorKind], arch: str) -> tuple[TensorUse, ...]:
    counts = Counter(kinds[one.address] for one in code if one.address in kinds)
    unpacks = sum(1 for one in code if FP8_TO_16.match(one.opcode))
    out = []
    for kind, count in counts.items():
        less = fallback(kind, arch)
        if unpacks and kind.a in ("fp16", "bf16"):       # mma.sync with fp8 inputs is this on sm_90 and sm_100
            better = fallback(kind, arch, "fp8")
            less = f"{better} ({unpacks} conversions from fp8 stand beside it)" if better else less
        out.append(TensorUse(kind, count, less))
    return tuple(sorted(out, key=lambda use: (-use.count, use.kind.title)))


def _accesses(code: Iterable[Instruction]) -> tuple[Access, ...]:
    counts = Counter((one.opcode, one.name) for one in code)
    rows = [Access(opcode, GLOBAL.get(name, name.lower()), width_bits(opcode), count)
            for (opcode, name), count in counts.items()]
    return tuple(sorted(rows, key=lambda row: (-row.count, row.opcode)))


def width_bits(opcode: str) -> int | None:
    """Bits that one lane moves.

    >>> width_bits("LDG.E.128"), width_bits("LDG.E.U8.CONSTANT"), width_bits("STS"), width_bits("LDSM.16.M88.4")
    (128, 8, 32, None)
    """
    name, *parts = opcode.split(".")
    if name in ("LDSM", "STSM") or name.startswith("U"):
        return None
    for part in parts:
        if found := WIDTH.match(part):
            return int(found[1] or part)
    return 32


def is_spill(one: Instruction) -> bool:
    """Whether an instruction loads or stores local memory at a fixed offset of the stack."""
    return one.name in ("LDL", "STL") and _on_stack(one)


def _on_stack(one: Instruction) -> bool:
    """Whether an address is the stack pointer and a constant: [R1], [R1+0x10]."""
    return any(re.match(r"^\[R1(\+-?0x[0-9a-f]+)?\]$", operand) for operand in one.operands)
