"""This file knows about loops in SASS: which instructions an iteration runs, always or sometimes, and how loops nest.

A loop is natural: a branch goes back to a block (the header) that every path to the branch passes. Its body is what
reaches the branch without passing the header. Branches back to one header are one loop.

    always      blocks of the loop's own, outside inner loops, that every whole iteration passes
    sometimes   the rest of its own blocks: behind a condition, or the slow path of a wait

A wait is a loop of a few instructions that asks again whether something has come (an mbarrier's phase, a lock), or
meets others at a barrier. It counts as instructions of the loop around it: it runs once where what it waits for is
there already. ptxas puts the second try behind the function's end and the first one in line, so the loop around a wait
spans more addresses than its label and its branch say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sublight.kernels.inspect.code import Function, Instruction
from sublight.kernels.inspect.flow import Flow, dominates, dominators, flow_of, predecessors, reverse_postorder
from sublight.kernels.inspect.pipes import pipe_of

WAIT_AT_MOST = 12                       # instructions; waits of ptxas have 2 to 8
WAITS = re.compile(r"BAR(\.|$)|WARPSYNC|SYNCS\.PHASECHK|NANOSLEEP|UTCATOMSWS|USETMAXREG|CCTL")
ASKS = re.compile(r"(LD|LDG|ATOM|ATOMG|ATOMS)\..*(STRONG|CAS|EXCH)")      # of one address, again and again: a lock
WORKS = {"FFMA", "FADD", "FMUL", "MUFU", "DFMA", "DADD", "DMUL", "HFMA2", "HADD2", "HMUL2", "STG", "STS", "RED", "REDG",
         "LDGSTS", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED"}
REGISTER = re.compile(r"\bU?R\d+")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a function."""

    label: str | None                   # ".L_x_2": where it begins; None: the listing has no label there
    start: int                          # address of its first instruction
    end: int                            # address of its last branch back
    depth: int                          # 1: outermost
    parent: int | None                  # index in the loops of the function
    inner: tuple[int, ...]              # indices of the loops directly inside it, waits included
    wait: bool
    always: tuple[Instruction, ...]
    sometimes: tuple[tuple[Instruction, ...], ...]       # by block

    @property
    def own(self) -> tuple[Instruction, ...]:
        """All instructions of the loop but those of inner loops that are no waits."""
        return (*self.always, *(one for block in self.sometimes for one in block))


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops of a function in order of address, and what was not understood."""

    loops: tuple[Loop, ...]
    irreducible: tuple[int, ...]        # addresses of branches back into the middle of something: no natural loop
    unknown: tuple[int, ...]            # addresses of indirect branches whose targets are not told


def loops_in(function: Function) -> Loops:
    """Natural loops of a function's instructions, its subroutines' included."""
    flow = flow_of(function)
    nearest, before = dominators(flow), predecessors(flow)
    latches, irreducible = _latches(flow, nearest)
    bodies = {header: _body(before, header, from_) for header, from_ in sorted(latches.items())}
    every, parents = list(bodies.values()), _parents(bodies)
    waits = [_is_wait(_code(function, flow, body)) for body in every]
    inside: dict[int, tuple[int, ...]] = {}
    for at, parent in enumerate(parents):
        if parent is not None:
            inside[parent] = (*inside.get(parent, ()), at)
    labels = {address: name for name, address in reversed(function.labels)}
    loops = []
    for at, (header, body) in enumerate(bodies.items()):
        inner = inside.get(at, ())
        own = body.difference(*(every[i] for i in inner if not waits[i]))
        always = own.intersection(*(_passed(latch, header, nearest) for latch in latches[header]))
        start = function.instructions[flow.blocks[header].first].address
        loops.append(Loop(
            label=labels.get(start), start=start, end=max(_last(function, flow, latch) for latch in latches[header]),
            depth=_depth(at, parents), parent=parents[at], inner=inner, wait=waits[at],
            always=_code(function, flow, always),
            sometimes=tuple(_code(function, flow, [b]) for b in sorted(own - always)),
        ))
    return Loops(tuple(loops), tuple(_last(function, flow, b) for b in irreducible), flow.unknown)


def _last(function: Function, flow: Flow, block: int) -> int:
    """Address of a block's last instruction."""
    return function.instructions[flow.blocks[block].end - 1].address


def _passed(latch: int, header: int, nearest: dict[int, int]) -> set[int]:
    """Blocks that every path from the header to a branch back passes."""
    passed = {latch}
    while latch != header:
        latch = nearest[latch]
        passed.add(latch)
    return passed


def _latches(flow: Flow, nearest: dict[int, int]) -> tuple[dict[int, list[int]], list[int]]:
    """Blocks that branch back, by the header they go to; and those whose target does not dominate them."""
    rank = {block: at for at, block in enumerate(reverse_postorder(flow))}
    latches: dict[int, list[int]] = {}
    irreducible = []
    for block in sorted(nearest):
        for following in flow.blocks[block].successors:
            if rank[following] > rank[block]:
                continue
            if dominates(following, block, nearest):
                latches.setdefault(following, []).append(block)
            else:
                irreducible.append(block)
    return latches, irreducible


def _body(before: tuple[tuple[int, ...], ...], header: int, latches: list[int]) -> frozenset[int]:
    body, todo = {header}, [latch for latch in latches if latch != header]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += before[block]
    return frozenset(body)


def _parents(bodies: dict[int, frozenset[int]]) -> list[int | None]:
    """Of each loop, the smallest one around it. bodies: by header."""
    headers = list(bodies)
    around: dict[int, int] = {}                          # of each block, the smallest loop so far
    parents: list[int | None] = [None] * len(headers)
    for at in sorted(range(len(headers)), key=lambda at: -len(bodies[headers[at]])):
        parents[at] = around.get(headers[at])
        around.update(dict.fromkeys(bodies[headers[at]], at))
    return parents


def _depth(at: int, parents: list[int | None]) -> int:
    depth, above = 1, parents[at]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth


def _code(function: Function, flow: Flow, blocks: Iterable[int]) -> tuple[Instruction, ...]:
    return tuple(one for b in sorted(blocks) for one in function.instructions[flow.blocks[b].first:flow.blocks[b].end])


def _is_wait(code: tuple[Instruction, ...]) -> bool:
    return (len(code) <= WAIT_AT_MOST and any(WAITS.match(one.opcode) or _asks_again(one, code) for one in code)
            and not any(one.name in WORKS or pipe_of(one.name) == "tensor" for one in code))


def _asks_again(one: Instruction, code: tuple[Instruction, ...]) -> bool:
    """Whether a load or an atomic asks for what stands at one address all the time. One that walks on works: __ldcg
    and volatile are STRONG too."""
    if not ASKS.match(one.opcode):
        return False
    address = {found for operand in one.operands if "[" in operand for found in REGISTER.findall(operand)}
    moved = {found[0] for other in code if other is not one and other.operands
             and (found := REGISTER.match(other.operands[0]))}
    return not address & moved

