"""This file knows about what binds a loop: clocks that one iteration takes at least, by pipe, and what follows.

For one iteration of one block on one SM, with W warps that run the loop (rates: catalog/kernels/pipes.toml):

    tensor   Σ FLOPs of its tensor-core instructions / FLOPs a clock: a warp's once for each warp, a warpgroup's once
             for four warps, a thread's once a block (.2CTA: half of it on each of two SMs)
    issue    instructions · W / 4
    fp32, imad, alu, xu, fp64, fp16, lsu     instructions · 32 lanes · W / results a clock
    shared   128 bytes · W at least for each access / 128 bytes a clock (LDSM and STSM: 128 bytes a matrix)

The largest binds, and tensor / largest is the share of the tensor cores' peak that the loop reaches at most. All are
upper limits of speed: latencies, stalls, bank conflicts, the time of memory and trip counts are not in SASS.

A loop with inner loops has clocks of its own instructions, and no verdict: how often the inner ones run is not there.
Nor has one that calls a subroutine in every iteration.

Counted is what each iteration runs (loops.py: always). Where tensor-core instructions stand behind a condition: those
of a single thread (UTC*MMA) with their block, as one warp's; others with the whole body, and the verdict says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sublight.kernels.inspect.code import Function, Instruction, Launch
from sublight.kernels.inspect.flow import calls, flow_of
from sublight.kernels.inspect.loops import Loop, Loops, loops_in
from sublight.kernels.inspect.mix import Mix, is_spill, mix_of_code
from sublight.kernels.inspect.pipes import OTHER, Pipes, pipe_of, pipes_of, plain
from sublight.kernels.inspect.tensor import TensorKind, tensor_kinds

LANES = 32
WARPGROUP = 4
PAIRED = {"FFMA2", "FADD2", "FMUL2"}                      # two fp32 results a lane: half as many fit in a clock
MATRIX_BYTES = 128                                        # 8x8 of two bytes: LDSM and STSM
SIXTEEN = 2                                               # results a lane of HFMA2 and its like
SMALL = ("U8", "S8", "U16", "S16", "B1", "B2", "B3")      # conversions of small integers run faster than xu's rate
LSU = ("shared", "global", "local", "shuffle")
HALVED = ("sm_86", "sm_89", "sm_120")                     # NVIDIA's whitepapers of GA102, Ada and RTX Blackwell
BEHIND = "tensor-core instructions stand behind a condition"
UNRATED = ("convert", "compare", "bits", "tma", "tmem", OTHER)


@dataclass(frozen=True, slots=True)
class LoopVerdict:
    """What binds one loop. Clocks: of one iteration of one block, at least."""

    label: str | None                    # ".L_x_2"
    start: int                           # addresses of its first instruction and its last branch back
    end: int
    depth: int                           # 1: outermost
    parent: int | None                   # index of the loop around it
    hot: bool                            # False: it waits for something (an mbarrier, a lock)
    lines: tuple[str, int, int] | None   # source file, first and last line, where line tables are there
    instructions: int                    # that every iteration runs, outside inner loops
    sometimes: int                       # behind a condition
    warps: int                           # that run it
    warps_from: str                      # how we know
    mix: Mix                             # of all its own instructions
    clocks: tuple[tuple[str, float], ...]                # by pipe, most first
    binds: str | None                    # the pipe with most; None: it waits, has inner loops, or too little is known
    tensor_limit: float | None           # share of the tensor cores' peak at most; None: no tensor work, or unknown
    refused: tuple[str, ...]             # pipes that it uses and whose clocks are not known, and why
    notes: tuple[str, ...]

    @property
    def spill_loads(self) -> int:
        return self.mix.spill_loads

    @property
    def spill_stores(self) -> int:
        return self.mix.spill_stores

    def clocks_of(self, pipe: str) -> float | None:
        return dict(self.clocks).get(pipe)


def loops_of(function: Function, launch: Launch) -> tuple[LoopVerdict, ...]:
    """Verdicts of a function's loops, in order of address. Empty for a function without instructions."""
    return verdicts(function, launch, loops_in(function))


def verdicts(function: Function, launch: Launch, found: Loops) -> tuple[LoopVerdict, ...]:
    """The same, of loops that are found already."""
    if not found.loops:
        return ()
    kinds = tensor_kinds(function)
    known, roles = _warps(function, launch), _has_roles(function)
    notes = _notes_of_function(function, found.irreducible, found.unknown)
    return tuple(_verdict(function, loop, any(not found.loops[i].wait for i in loop.inner), kinds,
                          _warps_of_loop(loop, kinds, known, roles), notes) for loop in found.loops)


def _warps(function: Function, launch: Launch) -> tuple[int, str]:
    if launch.warps:
        return launch.warps, "the launch"
    needed = function.resources.required_threads if function.resources else None
    if needed:
        return -(-needed // LANES), "the block size that the kernel requires"
    return WARPGROUP, "assumed: neither the launch nor the kernel says how many"


def _has_roles(function: Function) -> bool:
    """Whether warps of a block do different things: registers are moved between them."""
    return any(one.name == "USETMAXREG" for one in function.instructions)


def _warps_of_loop(loop: Loop, kinds: dict[int, TensorKind], known: tuple[int, str], roles: bool) -> tuple[int, str]:
    """One warp where every warp that runs the loop would issue a thread's tensor instruction, or may: the fewest, so
    that a limit stays one. Else all of the block."""
    by_thread = [one for one in (loop.own if roles else loop.always)
                 if one.address in kinds and kinds[one.address].issued_by == "thread"]
    return (1, f"{by_thread[0].name} is one thread's: taken for the loop of one warp") if by_thread else known


def _notes_of_function(function: Function, irreducible: tuple[int, ...], unknown: tuple[int, ...]) -> tuple[str, ...]:
    notes = []
    if _has_roles(function):
        notes.append("warps have roles (setmaxnreg): fewer may run this loop, and others run theirs at the same time")
    return (*notes, *_missing(irreducible, unknown))


def _missing(irreducible: tuple[int, ...], unknown: tuple[int, ...]) -> tuple[str, ...]:
    """Why loops may not be listed."""
    notes = []
    if unknown:
        notes.append(f"{_counted_of(unknown, 'indirect branch', 'es')} whose targets nvdisasm does not tell: loops may "
                     "be missing")
    if irreducible:
        notes.append(f"{_counted_of(irreducible, 'branch', 'es')} back into the middle of code: no natural loop, not "
                     "listed")
    return tuple(notes)


def _counted_of(places: tuple[int, ...], word: str, plural: str) -> str:
    return f"{len(places)} {word}{plural if len(places) > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Unlisted:
    """What the loops of a function do not show. notes: loops that may be missing; unplaced: why spills outside the
    loops that are listed may run in each iteration of one, None: they do not."""

    notes: tuple[str, ...]
    unplaced: str | None


def unlisted(function: Function, found: Loops) -> Unlisted:
    """What of a function may be in a loop, and is in none of those found."""
    notes = _missing(found.irreducible, found.unknown)
    return Unlisted(notes, _unplaced(function, found, notes))


def _unplaced(function: Function, found: Loops, notes: tuple[str, ...]) -> str | None:
    spills = {one.address for one in function.instructions if is_spill(one)}
    called = {one.address: one for one in function.instructions if calls(one)}
    if not spills and not called:
        return None
    inside = {one.address for loop in found.loops for one in loop.own}
    spills -= inside
    if spills and notes:
        return notes[0]
    inner = [one for address, one in called.items() if address in inside]
    if inner and spills and not _main(function).issuperset(spills):
        return "a subroutine that a loop calls loads or stores spilled registers"
    names = {one.operands[-1].strip("`()") for one in inner if one.operands and one.operands[-1].startswith("`")}
    names.difference_update(name for name, _ in function.labels)
    return f"a loop calls {', '.join(sorted(names))}, whose code is not looked into" if names else None


def _main(function: Function) -> set[int]:
    """Addresses of instructions that the function's own entry reaches without a call."""
    flow, seen, todo = flow_of(function), {0}, [0]
    while todo:
        new = set(flow.blocks[todo.pop()].successors) - seen
        seen |= new
        todo += new
    return {one.address for at in seen
            for one in function.instructions[flow.blocks[at].first:flow.blocks[at].end]}


def _verdict(function: Function, loop: Loop, has_inner: bool, kinds: dict[int, TensorKind],
             run_by: tuple[int, str], notes: tuple[str, ...]) -> LoopVerdict:
    warps, warps_from = run_by
    counted, how = _counted(loop, kinds, warps)
    clocks, refused = _clocks(counted, kinds, pipes_of(function.arch), warps, function.arch)
    order = tuple(sorted(clocks.items(), key=lambda pair: (-pair[1], pair[0] != "tensor", pair[0])))
    has_tensor = any(one.address in kinds for one, _ in counted)
    known = (bool(order) and not loop.wait and not has_inner and (not has_tensor or "tensor" in clocks)
             and not any(calls(one) and not one.predicate for one in loop.always))
    mix = mix_of_code(loop.own, kinds, function.arch)
    return LoopVerdict(
        label=loop.label, start=loop.start, end=loop.end, depth=loop.depth, parent=loop.parent, hot=not loop.wait,
        lines=_lines(loop.own), instructions=len(loop.always), sometimes=len(loop.own) - len(loop.always),
        warps=warps, warps_from=warps_from, mix=mix, clocks=order, binds=order[0][0] if known else None,
        tensor_limit=clocks["tensor"] / order[0][1] if known and has_tensor else None, refused=refused,
        notes=(*how, *_notes_of_loop(loop, mix, has_inner, has_tensor), *_notes_of_tensor(mix, function.arch), *notes),
    )


Counted = list[tuple[Instruction, int]]                   # and how many warps of the block run it


def _counted(loop: Loop, kinds: dict[int, TensorKind], warps: int) -> tuple[Counted, tuple[str, ...]]:
    """Instructions that an iteration runs, as far as they bound it from below; and what that takes for granted."""
    counted = [(one, warps) for one in loop.always]
    behind = [block for block in loop.sometimes if any(one.address in kinds for one in block)]
    by_thread = [all(kinds[one.address].issued_by == "thread" for one in block if one.address in kinds)
                 for block in behind]
    if behind and not all(by_thread):
        return [(one, warps) for one in loop.own], (f"{BEHIND}: the whole body counts, as if each iteration ran it",)
    counted += [(one, 1) for block in behind for one in block]
    return counted, ((f"{BEHIND}: counted as one warp's, in each iteration",) if behind else ())


def _clocks(counted: Counted, kinds: dict[int, TensorKind], pipes: Pipes | None, warps: int,
            arch: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Clocks by pipe, and what has no clocks and why."""
    if pipes is None:
        return {}, (f"everything: no rates of {plain(arch)} in our sources",)
    clocks = {"issue": sum(times for _, times in counted) / pipes.rates["issue"]}
    refused = []
    for pipe, amount in _amounts(counted).items():
        rate = pipes.rates.get("shared_bytes" if pipe == "shared" else pipe)
        if rate is not None:
            clocks[pipe] = amount / rate
        else:
            refused.append(f"{pipe}: no rate of {pipes.arch} in our sources")
    work = Counter(kinds[one.address] for one, _ in counted if one.address in kinds)
    tensor, why = _tensor_clocks(work, pipes, warps)
    if tensor is not None:
        clocks["tensor"] = tensor
    alone = sorted({pipe for one, _ in counted if (pipe := pipe_of(one.name)) in UNRATED})
    if alone:
        refused.append(f"{', '.join(alone)}: no rate in our sources, counted in issue alone")
    return clocks, (*why, *refused)


def _tensor_clocks(counts: Counter[TensorKind], pipes: Pipes, warps: int) -> tuple[float | None, tuple[str, ...]]:
    """Clocks that the tensor cores of one SM work in one iteration of one block. None: there is no such work, or what
    it takes is not known, and why."""
    total, why = 0.0, []
    for kind, count in counts.items():
        rate = pipes.tensor.get(kind.rate or "")
        if kind.unknown or kind.flops is None:
            why.append(f"tensor: {kind.unknown}")
        elif kind.sparse:
            why.append(f"tensor: no rate of sparse {kind.name} in our sources")
        elif rate is None:
            why.append(f"tensor: no rate of {kind.rate} on {pipes.arch} in our sources")
        else:
            groups = {"warp": warps, "warpgroup": warps / WARPGROUP, "thread": 1 / kind.blocks}[kind.issued_by]
            total += count * groups * kind.flops / rate
    return (None if why or not counts else total), tuple(why)


def _amounts(counted: Counted) -> dict[str, float]:
    """What is asked of each pipe: results of its lanes, or bytes of shared memory."""
    out: Counter[str] = Counter()
    for one, times in counted:
        pipe, lanes = pipe_of(one.name), LANES * times
        if pipe in ("fp32", "imad"):
            out["fp32"] += lanes * (2 if one.name in PAIRED else 1)
        if pipe in ("imad", "alu", "fp64") or (pipe == "xu" and _is_slow(one)):
            out[pipe] += lanes
        if pipe == "fp16":
            out[pipe] += lanes * (1 if "F32" in one.opcode.split(".") else SIXTEEN)
        if pipe == "shared":
            out[pipe] += times * _shared_bytes(one)
        if pipe in LSU:
            out["lsu"] += lanes
    return dict(out)


def _is_slow(one: Instruction) -> bool:
    """Whether a conversion runs at the rate of special functions: those of small integers and of 16 bits may not."""
    parts = one.opcode.split(".")
    return one.name in ("MUFU", "F2I", "FRND") or (one.name == "I2F" and not set(parts) & set(SMALL)) or "F64" in parts


def _shared_bytes(one: Instruction) -> int:
    """Bytes that an access of one warp takes of shared memory at least: lanes that ask for one word share it."""
    last = one.opcode.rsplit(".", 1)[-1]
    return MATRIX_BYTES * (int(last) if one.name in ("LDSM", "STSM") and last in ("2", "4") else 1)


def _notes_of_loop(loop: Loop, mix: Mix, has_inner: bool, has_tensor: bool) -> tuple[str, ...]:
    notes = []
    if has_inner:
        notes.append("inner loops are not counted here: how often those run is not in the code")
    called = dict.fromkeys(one.operands[-1].strip("`()") for one in loop.own if calls(one) and one.operands)
    notes += [f"calls {name}, which is not counted" for name in called]
    if not loop.wait and not has_tensor and any(row.kind in ("load", "store") for row in mix.loads):
        notes.append("reads or writes global memory: that may bind long before any of these")
    return tuple(notes)


def _notes_of_tensor(mix: Mix, arch: str) -> tuple[str, ...]:
    """What makes the peak of this loop's tensor-core instructions less than the rate that it is held against."""
    notes = list(dict.fromkeys(use.deserves for use in mix.tensor if use.deserves))
    below = sorted({use.kind.name for use in mix.tensor if use.kind.issued_by == "warp" and use.deserves})
    notes += [f"{name} counts at the tensor cores' peak, which it may not reach on {plain(arch)}: they may bind before "
              "the pipe that is named" for name in below]
    if plain(arch) in HALVED and any(use.kind.a not in ("int8", "fp64") for use in mix.tensor):
        notes.append(f"GeForce boards of {plain(arch)} accumulate in fp32 at half this tensor rate")
    return tuple(notes)


def _lines(code: Iterable[Instruction]) -> tuple[str, int, int] | None:
    """The source file that most of the code is from, and its lines there."""
    files = Counter(one.line[0] for one in code if one.line)
    if not files:
        return None
    name = files.most_common(1)[0][0]
    lines = [one.line[1] for one in code if one.line and one.line[0] == name]
    return name, min(lines), max(lines)
