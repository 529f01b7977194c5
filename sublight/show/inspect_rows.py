"""This file knows about the rows of inspected kernels, of a gate and of a comparison. No format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sublight.kernels.inspect.compare import Comparison
from sublight.kernels.inspect.figures import Figures, LoopFigures, percent
from sublight.kernels.inspect.gate import Failure
from sublight.kernels.inspect.occupancy import Cliff
from sublight.kernels.inspect.waves import Waves
from sublight.observe.kernel_name import demangled
from sublight.show.page_data import printable
from sublight.show.predict_rows import Table

LONGEST = 44                     # characters of a kernel's name in a table
UNKNOWN = "?"                    # this input does not tell
KERNEL_WORDS = {"kernel", "from", "arch", "limited by", "bound by", "loop", "check", "got", "why", "what", "before",
                "after", "better"}


# What would move a loop, by the pipe that binds it.
CHANGES = {
    "tensor": "these instructions allow the tensor cores' peak; what is lost is lost in waits, in waves of blocks and "
              "outside this loop",
    "issue": "fewer instructions for the same work: a larger tile of a warp, wider loads, addresses, scales and masks "
             "out of the loop",
    "shared": "fewer accesses of shared memory for the same work: a larger tile of a warp reads an operand less often",
    "lsu": "fewer loads, stores and shuffles: wider ones, bulk copies (TMA) instead, and no spills",
    "xu": "fewer special functions and conversions: out of the loop, or as polynomials on the fp32 pipe",
    "fp32": "less fp32 arithmetic and fewer integer multiplications: packed or 16-bit forms, tensor cores",
    "imad": "fewer integer multiplications: addresses that are added to",
    "alu": "fewer integer and logic instructions: addresses and masks out of the loop",
    "fp64": "less fp64 arithmetic: tensor cores where they take fp64, or fewer digits",
    "fp16": "less 16-bit arithmetic: tensor cores",
}


def short(name: str) -> str:
    """A kernel's name as C++ spells it, without what it returns and takes, cut where it is long."""
    spelled = printable(demangled(name)).removeprefix("void ")
    depth = 0
    for at, letter in enumerate(spelled):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and at and not spelled.startswith("(anonymous", at):
            spelled = spelled[:at]
            break
    return spelled if len(spelled) <= LONGEST else f"{spelled[:LONGEST - 1]}…"


def summary(kernels: Sequence[Figures]) -> Table:
    """One row a kernel; with the file it is from where names do not tell them apart."""
    head: tuple[str, ...] = ("kernel", "arch", "registers", "stack", "shared", "warps", "blocks", "occupancy",
                             "limited by", "loop spills", "tensor limit", "bound by")
    rows: tuple[tuple[str, ...], ...] = tuple(_summary(kernel) for kernel in kernels)
    if len({row[:2] for row in rows}) < len(rows):
        head, rows = (*head, "from"), tuple((*row, kernel.source) for row, kernel in zip(rows, kernels, strict=True))
    return Table(f"{len(kernels)} kernel{'s' if len(kernels) > 1 else ''}", head, rows)


def _summary(kernel: Figures) -> tuple[str, ...]:
    fit = kernel.occupancy
    loop = kernel.main_loop
    limit = kernel.tensor_limit
    most = "≤ " if kernel.at_most and fit and fit.blocks else ""
    return (short(kernel.name), kernel.arch, _count(kernel.registers), _count(kernel.stack), _shared(kernel),
            _count(kernel.warps), most + _count(fit.blocks if fit else None),
            most + percent(fit.share) if fit else UNKNOWN, " and ".join(fit.limiters) if fit else UNKNOWN,
            _count(kernel.hot_spills),
            f"≤ {percent(limit)}" if limit is not None else "-" if kernel.instructions is not None else UNKNOWN,
            (loop.binds or UNKNOWN) if loop else "-" if kernel.instructions is not None else UNKNOWN)


def _shared(kernel: Figures) -> str:
    """Static and dynamic bytes: "3,072 + ?" where nobody told the dynamic ones."""
    if kernel.shared is None:
        return UNKNOWN
    own = kernel.shared - kernel.reserved
    return f"{own:,} + {UNKNOWN}" if kernel.dynamic_shared is None else f"{own + kernel.dynamic_shared:,}"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def details(kernel: Figures) -> Iterator[tuple[str, str]]:
    """What there is to say of one kernel: a word and a sentence."""
    yield "from", ", ".join(filter(None, (kernel.source, kernel.producer)))
    yield from (("to change", said) for said in _to_change(kernel))
    if kernel.registers is not None:
        yield "resources", _resources(kernel)
    if kernel.occupancy is not None:
        yield from _occupancy(kernel)
    if kernel.instructions is not None:
        mix = ", ".join(f"{count:,} {name}" for name, count in kernel.mix)
        yield "instructions", f"{kernel.instructions:,}: {mix}"
    for word, rows in (("tensor", kernel.tensor), ("global memory", kernel.loads)):
        if rows:
            yield word, ", ".join(f"{count:,} {name}" for name, count in rows)
    yield from (("fall-back", said) for said in kernel.fallbacks)
    if kernel.spill_loads or kernel.spill_stores:
        yield "local memory", (f"{kernel.spill_loads:,} loads and {kernel.spill_stores:,} stores, "
                               f"{_count(kernel.hot_spills)} of them in loops")
    yield from (("note", note) for note in kernel.notes)


def _to_change(kernel: Figures) -> Iterator[str]:
    """What binds the main loop, how far, and what would move it."""
    loop = kernel.main_loop
    if loop and loop.binds:
        clocks = dict(loop.clocks)
        beside = f", tensor {clocks['tensor']:,.0f}" if loop.binds != "tensor" and "tensor" in clocks else ""
        loads = any("global memory" in note for note in loop.notes)
        memory = ", if global memory does not bind it before" if loads else ""
        yield (f"the loop at {loop.start:#06x} is bound by {loop.binds} ({clocks[loop.binds]:,.0f} clocks{beside})"
               f"{memory}: {CHANGES[loop.binds]}")
    if kernel.hot_spills:
        yield (f"{kernel.hot_spills:,} loads and stores of spilled registers in loops: allow more registers "
               "(__launch_bounds__, -maxrregcount), or smaller tiles")


def _resources(kernel: Figures) -> str:
    own = (kernel.shared or 0) - kernel.reserved
    dynamic = "unknown dynamic" if kernel.dynamic_shared is None else f"{kernel.dynamic_shared:,} dynamic"
    parts = [f"{kernel.registers} registers", f"{kernel.stack} bytes of stack a thread",
             f"{own:,} static and {dynamic} bytes of shared memory", f"{kernel.constant} bytes of constants"]
    if kernel.barriers:
        parts.append(f"{kernel.barriers} barrier{'s' if kernel.barriers > 1 else ''}")
    if kernel.warps:
        parts.append(f"{kernel.warps} warps a block")
    if kernel.cluster and kernel.cluster > 1:
        parts.append(f"clusters of {kernel.cluster} blocks")
    return ", ".join(parts)


def _occupancy(kernel: Figures) -> Iterator[tuple[str, str]]:
    fit = kernel.occupancy
    assert fit is not None
    if not fit.blocks:
        yield "occupancy", f"cannot be launched: {' and '.join(fit.limiters)} allow no block"
    else:
        allowed = ", ".join(f"{name} {count:,}" for name, count in fit.by)
        most = "at most " if kernel.at_most else ""
        yield "occupancy", (f"{most}{fit.blocks} block{'s' if fit.blocks > 1 else ''} an SM, {fit.warps} warps, "
                            f"{percent(fit.share)}; blocks that each allows: {allowed}")
    if fit.cliffs:
        yield "cliffs", "; ".join(_cliff(cliff) for cliff in fit.cliffs)


def _cliff(cliff: Cliff) -> str:
    unit = "registers" if cliff.resource == "registers" else "bytes of shared memory"
    if abs(cliff.by) == 1:
        unit = unit.replace("registers", "register").replace("bytes", "byte")
    return (f"{abs(cliff.by):,} {unit} {'less' if cliff.by < 0 else 'more'}: "
            f"{cliff.blocks} block{'' if cliff.blocks == 1 else 's'}")


def loops(kernel: Figures) -> Table:
    """Its loops that do work."""
    rows = tuple(_loop(loop) for loop in kernel.loops if loop.hot)
    return Table(f"Loops of {short(kernel.name)}: clocks of one iteration of one block's warps", (
        "loop", "depth", "instructions", "loop spills", "tensor limit", "bound by", "clocks"), rows)


def _loop(loop: LoopFigures) -> tuple[str, ...]:
    place = f"{loop.start:#06x}-{loop.end:#06x}" + (f" {loop.line}" if loop.line else "")
    clocks = ", ".join(f"{name} {value:,.0f}" for name, value in sorted(loop.clocks, key=lambda row: -row[1]) if value)
    limit = "-" if loop.tensor_limit is None else f"≤ {percent(loop.tensor_limit)}"
    sometimes = f" + {loop.sometimes:,}" if loop.sometimes else ""
    return (place, str(loop.depth), f"{loop.instructions:,}{sometimes}", str(loop.spill_loads + loop.spill_stores),
            limit, loop.binds or UNKNOWN, clocks)


def wave_rows(found: Sequence[tuple[str, Waves]], title: str) -> Table:
    """Rounds of a grid, for each kernel or number of blocks an SM."""
    head = ("kernel", "tiles", "at once", "rounds", "in the last", "idle", "outside M x N", "full at")
    return Table(title, head, tuple(
        (name, f"{one.tiles:,}", f"{one.slots:,}", f"{one.rounds:,}", f"{one.last:,}", percent(one.lost),
         percent(one.padded), " or ".join(f"{size:,}" for size in dict.fromkeys(one.fills) if size))
        for name, one in found))


def failures(found: Sequence[Failure], kernels: int) -> Table:
    """What a gate did not let pass."""
    rows = tuple((short(one.kernel), one.arch, one.check, one.got, one.why) for one in found)
    caption = (f"{len(found)} check{'' if len(found) == 1 else 's'} failed, in "
               f"{len({(one.kernel, one.arch) for one in found})} of {kernels} kernels" if found else
               f"{kernels} kernel{'s' if kernels != 1 else ''} passed")
    return Table(caption, ("kernel", "arch", "check", "got", "why"), rows)


def comparison(found: Comparison) -> Table:
    """Each change of each kernel, what matters most first."""
    rows: list[tuple[str, ...]] = []
    for pair in found.pairs:
        name = short(pair.after.name)
        for change in pair.changes:
            better = {True: "better", False: "worse", None: ""}[change.better]
            values = (change.before, change.after)
            if change.what == "name":
                values = (short(change.before), short(change.after))
            rows.append((name, pair.after.arch, change.what, *values, better))
            name = ""
    rows += [(short(one.name), one.arch, "gone", "", "", "worse") for one in found.gone]
    rows += [(short(one.name), one.arch, "new", "", "", "") for one in found.new]
    same = sum(not pair.changes for pair in found.pairs)
    return Table(f"{len(found.pairs)} kernels in both, {same} of them unchanged; {len(found.gone)} gone, "
                 f"{len(found.new)} new", ("kernel", "arch", "what", "before", "after", "better"), tuple(rows))
