"""This file knows about the figures of one kernel: what a report shows, a gate checks and a comparison compares.

They come from compiled code, or from a document that `sublight kernel inspect --format json` wrote.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any

from sublight.errors import InputError
from sublight.kernels.inspect.occupancy import Cliff, Occupancy

SCHEMA = "sublight.kernels/1"


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """A loop. share: of the tensor cores' rate, at most; None: no tensor instructions, or it cannot be told."""

    start: int                           # address of its first instruction, and of the branch back
    end: int
    depth: int                           # 1: outermost
    instructions: int                    # that every iteration of a warp runs, inner loops left out
    hot: bool                            # not a wait for a barrier
    binds: str | None                    # the pipe that is busy longest; None: unknown
    tensor_limit: float | None
    clocks: tuple[tuple[str, float], ...]            # of one iteration of one block's warps, by pipe
    tensor: tuple[str, ...] = ()         # kinds of its tensor-core instructions
    spill_loads: int = 0                 # of local memory, as are stores
    spill_stores: int = 0
    line: str | None = None              # "attention.py:41-52", most of its instructions
    sometimes: int = 0                   # instructions behind a condition, which clocks leave out
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """A kernel. None: not known from this input."""

    name: str
    arch: str
    kind: str                            # "cubin" or "ptx"
    source: str
    producer: str | None
    registers: int | None = None         # a thread
    stack: int | None = None             # bytes a thread
    shared: int | None = None            # bytes a block: static, as cuobjdump -res-usage counts
    reserved: int = 0                    # of `shared`: the system's own
    dynamic_shared: int | None = None    # bytes a block
    constant: int | None = None
    barriers: int | None = None
    warps: int | None = None             # a block
    cluster: int | None = None           # blocks
    occupancy: Occupancy | None = None
    instructions: int | None = None
    mix: tuple[tuple[str, int], ...] = ()            # instructions by pipe
    tensor: tuple[tuple[str, int], ...] = ()         # tensor-core instructions by kind
    fallbacks: tuple[str, ...] = ()      # "HGMMA on e4m3: QGMMA is what the format deserves"
    loads: tuple[tuple[str, int], ...] = ()          # of global memory, by kind and width
    spill_loads: int | None = None       # in the whole kernel
    spill_stores: int | None = None
    unplaced: str | None = None          # why some of these may be in loops that are not listed; None: none is
    loops: tuple[LoopFigures, ...] = ()
    notes: tuple[str, ...] = ()          # what this input cannot tell

    @property
    def hot_spills(self) -> int | None:
        """Loads and stores of local memory inside loops; None without instructions, or where loops may be missing."""
        if self.instructions is None or self.unplaced is not None:
            return None
        return sum(loop.spill_loads + loop.spill_stores for loop in self.loops if loop.hot)

    @property
    def at_most(self) -> bool:
        """Whether the occupancy is an upper limit: blocks may have dynamic shared memory that nobody told."""
        return self.occupancy is not None and self.dynamic_shared is None

    @property
    def main_loop(self) -> LoopFigures | None:
        """The hot loop with the most tensor clocks (of equal ones the one with the highest limit: which of them runs
        longest is not in the code), else the one with the most instructions of those with a verdict (loops around
        others have none); None where there is no loop."""
        hot = [loop for loop in self.loops if loop.hot]
        return max(hot, default=None, key=lambda loop: (
            dict(loop.clocks).get("tensor", 0.0), loop.binds is not None, loop.tensor_limit or 0.0, loop.instructions))

    @property
    def tensor_limit(self) -> float | None:
        """Of the main loop."""
        return self.main_loop.tensor_limit if self.main_loop else None


def percent(share: float) -> str:
    """In words.

    >>> percent(0.125), percent(1)
    ('12.5 %', '100 %')
    """
    return f"{100 * share:.3g} %"


def kind_of(title: str) -> str:
    """Of a kind of tensor-core instruction as figures have it.

    >>> kind_of("HGMMA 64x256x16 bf16")
    'HGMMA'
    """
    return title.replace(".", " ").split(" ", 1)[0]


def as_document(kernels: tuple[Figures, ...], skipped: tuple[tuple[str, int], ...] = ()) -> dict[str, Any]:
    """For programs, and to compare with later."""
    return {"schema": SCHEMA, "kernels": [_plain(kernel) for kernel in kernels],
            "left_out": [{"why": why, "count": count} for why, count in skipped]}


def _plain(kernel: Figures) -> dict[str, Any]:
    out: dict[str, Any] = asdict(kernel)
    for name in ("mix", "tensor", "loads"):
        out[name] = dict(out[name])
    out["loops"] = [loop | {"clocks": dict(loop["clocks"])} for loop in out["loops"]]
    if out["occupancy"]:
        out["occupancy"] |= {"by": dict(out["occupancy"]["by"])}
    return out | {"hot_spills": kernel.hot_spills, "tensor_limit": kernel.tensor_limit}


def of_document(document: object, where: str) -> tuple[Figures, ...]:
    """The kernels of such a document. Raises InputError where it is another one."""
    kernels = document.get("kernels") if isinstance(document, dict) else None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or not isinstance(kernels, list):
        raise InputError(f"{where} is no document of sublight kernel inspect --format json (schema {SCHEMA})")
    try:
        return tuple(_kernel(row) for row in kernels)
    except (TypeError, ValueError, KeyError, AttributeError):
        raise InputError(f"{where} is damaged: expected kernels as sublight kernel inspect --format json writes them"
                         ) from None


def _kernel(row: dict[str, Any]) -> Figures:
    known = {field.name: row[field.name] for field in fields(Figures) if field.name in row}
    for name in ("mix", "tensor", "loads"):
        known[name] = _pairs(known.get(name, {}))
    known["loops"] = tuple(_loop(loop) for loop in known.get("loops", ()))
    known["notes"], known["fallbacks"] = tuple(known.get("notes", ())), tuple(known.get("fallbacks", ()))
    if known.get("occupancy"):
        known["occupancy"] = _occupancy(known["occupancy"])
    _check(known, INTEGERS, (int, NoneType))
    _check(known, ("reserved",), int)
    _check(known, ("producer", "unplaced"), (str, NoneType))
    _check(known, ("name", "arch", "kind", "source"), str)
    return Figures(**known)


INTEGERS = ("registers", "stack", "shared", "dynamic_shared", "constant", "barriers", "warps", "cluster",
            "instructions", "spill_loads", "spill_stores")


def _check(row: dict[str, Any], names: tuple[str, ...], kinds: type | tuple[type, ...]) -> None:
    """Raises TypeError where a value is of another kind."""
    for name in names:
        if name in row and (not isinstance(row[name], kinds) or isinstance(row[name], bool)):
            raise TypeError(name)


def _loop(row: dict[str, Any]) -> LoopFigures:
    known = {field.name: row[field.name] for field in fields(LoopFigures) if field.name in row}
    _check(known, ("start", "end", "depth", "instructions", "spill_loads", "spill_stores", "sometimes"), int)
    _check(known, ("tensor_limit",), (int, float, NoneType))
    _check(known, ("binds", "line"), (str, NoneType))
    return LoopFigures(**known | {"clocks": tuple((name, float(value)) for name, value in row["clocks"].items()),
                                  "tensor": tuple(row.get("tensor", ())), "notes": tuple(row.get("notes", ()))})


def _occupancy(row: dict[str, Any]) -> Occupancy:
    return Occupancy(int(row["blocks"]), int(row["warps"]), float(row["share"]), tuple(row["limiters"]),
                     _pairs(row["by"]), tuple(Cliff(**cliff) for cliff in row["cliffs"]))


def _pairs(row: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(count)) for name, count in row.items())
