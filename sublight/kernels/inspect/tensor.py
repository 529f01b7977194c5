"""This file knows about tensor-core instructions: shape, number formats and who issues one, from opcode or descriptor.

    HMMA.16816.F32.BF16           mma.sync       one warp           16x8x16, accumulates in fp32
    HGMMA.64x256x16.F32.BF16      wgmma          four warps, one each, together
    UTCHMMA … idesc[UR37]         tcgen05.mma    one thread of a block (.2CTA: of two blocks, on two SMs)

tcgen05's shape and formats stand in a 32-bit descriptor in a uniform register. Where every path sets it to one
constant, it is read; else the shape is unknown and says so.

Sources: PTX ISA 9.0: mma, wgmma.mma_async, tcgen05.mma; its tables "Instruction descriptor format" for .kind::f16 to
.kind::mxf4nvf4 (M and N stand at the same bits in all of them); opcodes as nvcc 13.0 compiles each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sublight.kernels.inspect.code import Function, Instruction
from sublight.kernels.inspect.flow import flow_of, predecessors, reverse_postorder
from sublight.kernels.inspect.pipes import deserved, pipe_of, plain

FORMATS = {"F16": "fp16", "BF16": "bf16", "TF32": "tf32", "F64": "fp64", "S8": "int8", "U8": "int8", "S4": "int4",
           "U4": "int4", "E4M3": "fp8", "E5M2": "fp8", "E2M3": "fp6", "E3M2": "fp6", "E2M1": "fp4"}
# Of UTCQMMA's operands: fp6 and fp4 fill a byte each, at fp8's rate. PTX ISA 9.0, tcgen05 data types.
CODES = {"UTCHMMA": {0: "fp16", 1: "bf16", 2: "tf32"}, "UTCIMMA": {0: "int8", 1: "int8"}, "UTCOMMA": {1: "fp4"},
         "UTCQMMA": {0: "fp8", 1: "fp8", 3: "fp6", 4: "fp6", 5: "fp4"}}
DEPTH = {"fp16": 16, "bf16": 16, "tf32": 8, "int8": 32}                # of tcgen05: 32 bytes of K
RATED = {"UTCQMMA": "fp8", "QMMA": "fp8", "QGMMA": "fp8", "UTCOMMA": "fp4", "OMMA": "fp4"}
SHAPE = re.compile(r"^(?:(\d+)x(\d+)x(\d+)|(16|8)8(\d{1,3}))$")        # 64x256x16, 16816, 884
ISSUED = {"HGMMA": "warpgroup", "IGMMA": "warpgroup", "QGMMA": "warpgroup", "BGMMA": "warpgroup"}
WIDTHS_OF = ("int4", "fp4", "fp6", "int8", "fp8", "fp16", "bf16", "tf32", "fp64")     # of a pair, the wider decides
ACCUMULATORS = {"F16", "F32", "F64", "S32"}


@dataclass(frozen=True, slots=True)
class TensorKind:
    """One kind of tensor-core instruction. None: unknown, and `unknown` says why."""

    name: str                            # "HGMMA"
    title: str                           # "HGMMA 64x256x16 bf16"
    shape: tuple[int, int, int] | None   # m, n, k
    a: str | None                        # number formats of the inputs
    b: str | None
    rate: str | None                     # the format whose rate it runs at
    issued_by: str                       # "warp", "warpgroup" (four warps, together), "thread" (of a block)
    blocks: int = 1                      # that share one: 2 for .2CTA
    sparse: bool = False
    unknown: str | None = None

    @property
    def flops(self) -> int | None:
        """2·m·n·k: of a warp's, a warpgroup's or a thread's one instruction. Of sparse ones as if dense."""
        return None if self.shape is None else 2 * self.shape[0] * self.shape[1] * self.shape[2]


def tensor_kinds(function: Function) -> dict[int, TensorKind]:
    """Of every tensor-core instruction of a function, by address."""
    found = [(at, one) for at, one in enumerate(function.instructions) if pipe_of(one.name) == "tensor"]
    if not any(one.name.startswith("UTC") for _, one in found):
        return {one.address: of_opcode(one.opcode) for _, one in found}
    constants = _Constants(function)
    return {one.address: _of_descriptor(one, constants.operand(at, one)) if one.name.startswith("UTC")
            else of_opcode(one.opcode) for at, one in found}


def of_opcode(opcode: str) -> TensorKind:
    """Of an instruction whose opcode says it all.

    >>> of_opcode("HGMMA.64x256x16.F32.BF16").title, of_opcode("IMMA.16832.S8.S8").flops
    ('HGMMA 64x256x16 bf16', 8192)
    """
    name, *parts = opcode.split(".")
    shapes = [m for part in parts if (m := SHAPE.match(part))]
    shape = _shape(shapes[0]) if shapes else None
    rest = [part for part in parts if part in FORMATS or part in ACCUMULATORS]
    if rest and name in ("HMMA", "HGMMA", "QMMA", "QGMMA", "OMMA"):
        rest = rest[1:]                                  # the first is the accumulator's
    forms = [FORMATS[part] for part in rest if part in FORMATS]
    if not forms and name in ("HMMA", "HGMMA"):
        forms = ["fp16"]                                 # not spelled
    if name == "DMMA":
        forms = ["fp64"]
    unknown = None if shape and forms else f"{opcode}: its shape or formats are not spelled as we know them"
    a, b = (forms[0], forms[-1]) if forms else (None, None)
    return TensorKind(name, _title(name, shape, a, b), shape, a, b, RATED.get(name, a), ISSUED.get(name, "warp"),
                      sparse="SP" in parts, unknown=unknown)


def _shape(found: re.Match[str]) -> tuple[int, int, int]:
    m, n, k, rows, depth = found.groups()
    return (int(m), int(n), int(k)) if m else (int(rows), 8, int(depth))


def _title(name: str, shape: tuple[int, int, int] | None, a: str | None, b: str | None) -> str:
    forms = "" if a is None else f" {a}" if a == b else f" {a} x {b}"
    return name + (" {}x{}x{}".format(*shape) if shape else "") + forms


def _of_descriptor(one: Instruction, value: int | None) -> TensorKind:
    """Of a tcgen05 instruction; `value`: its descriptor, where it is a constant."""
    blocks = 2 if "2CTA" in one.opcode.split(".") else 1
    if value is None:
        return TensorKind(one.name, one.name, None, None, None, RATED.get(one.name), "thread", blocks,
                          unknown=f"{one.name}: its descriptor is computed at run time, so its shape is unknown")
    codes = CODES.get(one.name, {})
    a, b = codes.get(value >> 7 & 0b111), codes.get(value >> 10 & 0b111)
    n, m = (value >> 17 & 0b111111) << 3, (value >> 24 & 0b11111) << 4
    k = (96 if value >> 31 else 64) if one.name == "UTCOMMA" else DEPTH.get(a or "", 32)
    if a is None or b is None or not m or not n:
        return TensorKind(one.name, one.name, None, None, None, RATED.get(one.name), "thread", blocks,
                          unknown=f"{one.name}: descriptor {value:#x} is none that PTX ISA 9.0 defines")
    shape = (m, n, k)
    return TensorKind(one.name, _title(one.name, shape, a, b), shape, a, b, RATED.get(one.name, a), "thread", blocks,
                      sparse=bool(value >> 2 & 1 and one.name != "UTCOMMA"))


UNIFORM = re.compile(r"^UR(\d+)$")
DESCRIPTOR = re.compile(r"^idesc\[UR(\d+)\]$")
PREDICATES = re.compile(r"^!?U?P(T|\d)$")
WIDTHS = {"64": 2, "WIDE": 2, "128": 4, "256": 8}


UNSET = object()                         # on no path so far


class _Constants:
    """Constants in uniform registers: what every path to an instruction has set one to."""

    def __init__(self, function: Function) -> None:
        self.code, self.flow = function.instructions, flow_of(function)
        self.before, self.order = predecessors(self.flow), reverse_postorder(self.flow)
        self.block_of = {at: b for b, block in enumerate(self.flow.blocks) for at in range(block.first, block.end)}
        self.writes = [(i, span) for i, one in enumerate(self.code) if (span := _written(one))]
        self.known: dict[int, tuple[dict[int, list[int]], dict[int, object]]] = {}

    def operand(self, at: int, one: Instruction) -> int | None:
        registers = [int(found[1]) for operand in one.operands if (found := DESCRIPTOR.match(operand))]
        return self.value(at, registers[0]) if len(registers) == 1 else None

    def value(self, at: int, register: int) -> int | None:
        """The one constant that the register holds before instruction `at`, whichever path came there."""
        if register not in self.known:
            set_by: dict[int, list[int]] = {}
            for i, span in self.writes:
                if register in span:
                    set_by.setdefault(self.block_of[i], []).append(i)
            self.known[register] = set_by, self._starts(set_by)
        set_by, starts = self.known[register]
        earlier = [i for i in set_by.get(self.block_of[at], ()) if i < at]
        value = _constant(self.code[earlier[-1]]) if earlier else starts.get(self.block_of[at])
        return value if isinstance(value, int) else None

    def _starts(self, set_by: dict[int, list[int]]) -> dict[int, object]:
        """What the register holds where each block starts: a constant, None (several, or not known) or UNSET."""
        ends = {block: _constant(self.code[at[-1]]) for block, at in set_by.items()}
        starts: dict[int, object] = dict.fromkeys(self.order, UNSET)
        changed = True
        while changed:
            changed = False
            for block in self.order:
                values = {ends[b] if b in ends else starts.get(b, UNSET) for b in self.before[block]} - {UNSET}
                if block in self.flow.entries:
                    values.add(None)                     # whatever the caller left
                new = values.pop() if len(values) == 1 else None if values else UNSET
                changed = changed or new != starts[block]
                starts[block] = new
        return starts


def _written(one: Instruction) -> range:
    """Uniform registers that an instruction may set: its first operand that is no predicate, and its neighbours."""
    first = next((operand for operand in one.operands if not PREDICATES.match(operand)), "")
    found = UNIFORM.match(first)
    if not found:
        return range(0)
    width = max((WIDTHS.get(part, 1) for part in one.opcode.split(".")[1:]), default=1)
    return range(int(found[1]), int(found[1]) + width)


def _constant(one: Instruction) -> int | None:
    if one.opcode != "UMOV" or one.predicate is not None or not re.fullmatch("0x[0-9a-f]{1,8}", one.operands[-1]):
        return None
    return int(one.operands[-1], 16)


def fallback(kind: TensorKind, arch: str, form: str | None = None) -> str | None:
    """Why an instruction kind is less than its number format deserves on an architecture; None: it is not, or we
    cannot know. `form`: the format that the data has, where the instruction does not say it.

    >>> fallback(of_opcode("HMMA.16816.F32.BF16"), "sm_90")
    'HMMA for bf16 on sm_90: HGMMA is what the format deserves'
    >>> fallback(of_opcode("HMMA.16816.F32.BF16"), "sm_80")
    """
    wanted = form or max((f for f in (kind.a, kind.b) if f), key=WIDTHS_OF.index, default=None)
    best = deserved(wanted, arch) if wanted else None
    if best is None or best == kind.name:
        return None
    return f"{kind.name} for {wanted} on {plain(arch)}: {best} is what the format deserves"
