"""This file knows about what our Triton kernels become on each architecture: supported or why not, read off their code.

A row is a kernel in a number format on a typical shape; a cell is that row on a target. What is read is the compiled
code: registers, spills, tensor-core instructions, the width of accesses to global memory. Times are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sublight.kernels.inspect.binding import LoopVerdict, loops_of
from sublight.kernels.inspect.code import Launch
from sublight.kernels.inspect.mix import Mix, mix_of
from sublight.kernels.inspect.read import units
from sublight.kernels.launch.ahead import Compiled, compiled_for
from sublight.kernels.launch.targets import TARGETS, Target

GLOBAL = ("load", "store")


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel in a number format. sizes: fields of the operator's Shape. tensor: the format that tensor cores
    multiply; None: the kernel is bound by memory, and its accesses are to have 128 bits."""

    title: str
    op: str
    format: str
    sizes: Mapping[str, Any]
    tensor: str | None = None

    def shape(self) -> Any:
        return import_module(f"sublight.kernels.{self.op}.shape").Shape(**self.sizes)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the code of one cell says."""

    registers: int                       # a thread
    stack: int                           # bytes a thread
    shared: int                          # bytes a block
    warps: int
    spills: int                          # instructions to and from local memory, wherever they stand
    spills_in_loops: int                 # of those, in loops that do not only wait
    tensor: tuple[str, ...]              # names of the tensor-core instructions in loops, "HGMMA"
    limit: float | None                  # share of the tensor cores' peak that its best loop allows at most
    binds: str | None                    # the pipe that sets it
    wide: float                          # share of the bits of global accesses that are moved 128 at a time: in its
                                         # loops, or in the whole kernel where it has none


@dataclass(frozen=True, slots=True)
class Cell:
    """A row on a target: facts, or why there is no code."""

    row: Row
    target: Target
    facts: Facts | None
    why: str | None


_ROWS = {"rows": 4096, "width": 4096}
_HEADS = {"batch": 1, "q_length": 4096, "kv_length": 4096, "heads": 32, "kv_heads": 8}
_CACHE = {"tokens": 4096, "heads": 32, "kv_heads": 8, "dim": 128, "pages": 512}
_SQUARE = {"m": 4096, "n": 4096, "k": 4096}

ROWS = (
    Row("RMSNorm", "norm", "bf16", _ROWS),
    Row("add + RMSNorm", "norm", "bf16", {**_ROWS, "residual": True}),
    Row("add + RMSNorm", "norm", "bf16 to fp8", {"rows": 4096, "width": 7168, "residual": True, "quant": "fp8"}),
    Row("add + RMSNorm", "norm", "bf16 to int8", {**_ROWS, "residual": True, "quant": "int8"}),
    Row("LayerNorm", "norm", "fp16", {**_ROWS, "kind": "layer", "form": "fp16"}),
    Row("SwiGLU", "swiglu", "bf16", {"rows": 4096, "width": 14336}),
    Row("SwiGLU", "swiglu", "bf16 to fp8", {"rows": 4096, "width": 2048, "quant": "fp8"}),
    Row("RoPE + KV write", "rope", "bf16", _CACHE),
    Row("RoPE + KV write, pairs of neighbours", "rope", "bf16", {**_CACHE, "neox": False}),
    Row("routing, 256 experts, top 8", "routing", "fp32", {"tokens": 4096, "experts": 256, "top_k": 8}),
    Row("cross entropy", "cross_entropy", "bf16", {"rows": 4096, "classes": 151936}),
    Row("cross entropy", "cross_entropy", "fp32", {"rows": 4096, "classes": 32000, "form": "fp32"}),
    Row("attention, causal, 64 columns", "attention", "fp16", {**_HEADS, "dim": 64, "form": "fp16"}, "fp16"),
    Row("attention, causal, 128 columns", "attention", "bf16", {**_HEADS, "dim": 128}, "bf16"),
    Row("attention, window, 128 columns", "attention", "bf16", {**_HEADS, "dim": 128, "window": 1024}, "bf16"),
    Row("attention, causal, 256 columns", "attention", "bf16", {**_HEADS, "dim": 256}, "bf16"),
    Row("GEMM", "gemm", "bf16", _SQUARE, "bf16"),
    Row("GEMM", "gemm", "fp16", {**_SQUARE, "form": "fp16", "out": "fp16"}, "fp16"),
    Row("GEMM, m = 16", "gemm", "bf16", {**_SQUARE, "m": 16}, "bf16"),
    Row("GEMM, k = 4100: pointers", "gemm", "bf16", {**_SQUARE, "k": 4100}, "bf16"),
    Row("GEMM, one scale", "gemm", "fp8", {**_SQUARE, "form": "fp8"}, "fp8"),
    Row("GEMM, scales of 128 x 128", "gemm", "fp8", {**_SQUARE, "form": "fp8_block"}, "fp8"),
    Row("GEMM, scales of 128 x 128, k = 4100: pointers", "gemm", "fp8", {**_SQUARE, "k": 4100, "form": "fp8_block"},
        "fp8"),
    Row("GEMM, scales of rows", "gemm", "int8", {**_SQUARE, "form": "int8"}, "int8"),
)


def cell(row: Row, target: Target) -> Cell:
    """Compiles a row for a target and reads the code."""
    shape = row.shape()
    why = import_module(f"sublight.kernels.{row.op}.triton_form").unsupported(shape, target)
    if why:
        return Cell(row, target, None, why)
    (code,) = compiled_for(row.op, shape, target)
    return Cell(row, target, facts_of(code), None)


def cells(rows: Iterable[Row] = ROWS, targets: Iterable[Target] = TARGETS, *, processes: int = 2) -> tuple[Cell, ...]:
    """Every row on every target, rows first; compiled in so many processes."""
    wanted = [(row, target) for row in rows for target in targets]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return tuple(pool.map(cell, *zip(*wanted, strict=True)))


def facts_of(code: Compiled) -> Facts:
    """What a cubin says of itself. Needs nvdisasm, which Triton brings."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{code.name}.cubin"
        path.write_bytes(code.cubin)
        function = units(path)[0].functions[0]
    resources = function.resources
    assert resources is not None
    assert function.missing is None, function.missing
    loops = [loop for loop in loops_of(function, Launch(warps=code.warps)) if loop.hot]
    whole = mix_of(function)
    best = max(loops, key=lambda loop: loop.tensor_limit or 0.0, default=None)
    return Facts(resources.registers, resources.stack, code.shared, code.warps, _spills(whole),
                 sum(_spills(loop.mix) for loop in loops), _tensor(loops),
                 best.tensor_limit if best else None, best.binds if best else None, _wide(whole, loops))


def _spills(mix: Mix) -> int:
    return mix.spill_loads + mix.spill_stores + mix.array_loads + mix.array_stores


def _tensor(loops: list[LoopVerdict]) -> tuple[str, ...]:
    return tuple(sorted({use.kind.name for loop in loops for use in loop.mix.tensor}))


def _wide(whole: Mix, loops: list[LoopVerdict]) -> float:
    mixes = [loop.mix for loop in loops if any(one.kind in GLOBAL for one in loop.mix.loads)] or [whole]
    bits = [(one.width_bits or 128, one.count) for mix in mixes for one in mix.loads if one.kind in GLOBAL]
    moved = sum(width * count for width, count in bits)
    return sum(width * count for width, count in bits if width >= 128) / moved if moved else 1.0
