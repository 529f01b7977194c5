"""This file knows about compiled GPU code: a file's functions, their resources and their instructions.

A container (a cubin, a fatbin, an executable, a folder of Triton's cache) holds units of code; a unit is for one
architecture and holds functions. PTX is a unit too: it has no registers yet, and its functions say None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SASS instruction. text: without its address, predicate and comment."""

    address: int                         # bytes from the function's start
    predicate: str | None                # "@!P0", "@UP1"; None: always runs
    opcode: str                          # "HGMMA.64x256x16.F32.BF16", with its modifiers
    operands: tuple[str, ...]
    line: tuple[str, int] | None = None  # source file (its name alone) and line, where the unit carries line tables

    @property
    def name(self) -> str:
        """The opcode without modifiers: "HGMMA"."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch of a function needs. Bytes; a thread or a block, as said."""

    registers: int                       # a thread
    stack: int                           # a thread: local memory of the call stack, spills included
    shared: int                          # a block, static (dynamic shared memory is the launch's)
    constant: int                        # a block of threads, constant bank 0 (parameters)
    barriers: int | None = None          # named barriers; None: the container does not say
    max_threads: int | None = None       # a block may have at most (__launch_bounds__, .maxntid)
    required_threads: int | None = None  # a block must have (.reqntid): its warps are known
    reserved: int = 0                    # of `shared`: the system's own, which compilers count there since sm_90
    cluster: int | None = None           # blocks of a cluster (__cluster_dims__, .reqnctapercluster)
    uses_shared: bool = True             # False: the code has none, static or dynamic


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel of a unit. instructions: empty where nothing could disassemble it (`missing` says why)."""

    name: str                            # as the linker knows it
    arch: str                            # "sm_90a"
    resources: Resources | None          # None: PTX
    instructions: tuple[Instruction, ...] = ()
    labels: tuple[tuple[str, int], ...] = ()      # branch targets: name and address, in order
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched, as far as the container or the user says. None: unknown."""

    warps: int | None = None             # a block
    dynamic_shared: int | None = None    # bytes a block
    cluster: int | None = None           # blocks
    blocks: int | None = None
    tensor_columns: int | None = None    # of tensor memory, a block (sm_100)


@dataclass(frozen=True, slots=True)
class Unit:
    """Code of one architecture."""

    arch: str
    kind: str                            # "cubin" or "ptx"
    producer: str | None                 # "ptxas 12.9", "tileiras": what the container says of its compiler
    functions: tuple[Function, ...]
    launch: Launch = Launch()            # of Triton's cache, whose metadata says warps and shared memory
    text: str = ""                       # of PTX
    source: str = ""                     # the file it came from, and where inside: "lib.so, image 3"
