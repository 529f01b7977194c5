"""This file knows about control flow in SASS: which instruction may follow which, blocks, and what dominates what.

A branch goes to a label (nvdisasm) or to an address (cuobjdump). Branches by their opcode, sm_70 to sm_120:

    BRA, JMP        to the target; on to the next as well where a predicate guards it (@P0 BRA, BRA P1, BRA.U UP0)
    BRX, BRXU, JMX  indirect, to the targets that nvdisasm tells; where it tells none, the flow says that
    BSYNC           on, and to where the BSSY of its barrier said that paths meet
    CALL            comes back to the next; a subroutine in the same section is a second entry. ptxas also calls a label
                    (.L_x_0) of the function itself and does not come back: a far jump
    RET, EXIT       end; on to the next where guarded
    WARPSYNC, BSSY  name a label but go on

Source: CUDA Binary Utilities, instruction set reference of Volta to Blackwell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce

from sublight.kernels.inspect.code import Function, Instruction

NAMED = re.compile(r"^`\((.+)\)$")                       # `(.L_x_2)
ADDRESS = re.compile(r"^0x([0-9a-fA-F]+)$")
TOLD = re.compile(r'BRANCH_TARGETS\s+([^"]*)"')
JUMPS = {"BRA", "JMP"}
INDIRECT = {"BRX", "BRXU", "JMX", "JMXU"}
ENDS = {"EXIT", "RET"}


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run one after the other: [first, end) of the function's, and the blocks that may follow."""

    first: int
    end: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Blocks in order of address. unknown: addresses of indirect branches whose targets are not told."""

    blocks: tuple[Block, ...]
    entries: tuple[int, ...]                             # the function's first block, then its subroutines
    unknown: tuple[int, ...]


def flow_of(function: Function) -> Flow:
    """Blocks of a function, and what may follow each. Empty for a function without instructions."""
    code = function.instructions
    if not code:
        return Flow((), (), ())
    places = _Places.of(function)
    steps = [places.after(at) for at in range(len(code))]
    called = [at for one in code if calls(one) and (at := places.target(one)) is not None]
    leaders = {0, *called}
    for at, following in enumerate(steps):
        if following != (at + 1,):
            leaders |= {at + 1, *following}
    firsts = sorted(at for at in leaders if at < len(code))
    block_at = {at: block for block, at in enumerate(firsts)}
    ends = [*firsts[1:], len(code)]
    blocks = tuple(
        Block(first, end, tuple(dict.fromkeys(block_at[at] for at in steps[end - 1] if at in block_at)))
        for first, end in zip(firsts, ends, strict=True))
    entries = tuple(dict.fromkeys([0, *(block_at[at] for at in called)]))
    return Flow(blocks, entries, places.unknown())


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a function's labels, addresses and barriers lead, as indices of instructions."""

    code: tuple[Instruction, ...]
    index: dict[int, int]
    labels: dict[str, int]
    meeting: dict[str, tuple[int, ...]]                  # of a convergence barrier: where its BSSYs say that paths meet

    @classmethod
    def of(cls, function: Function) -> _Places:
        index = {one.address: at for at, one in enumerate(function.instructions)}
        places = cls(function.instructions, index, dict(function.labels), {})
        for one in function.instructions:
            at = places.target(one) if one.name == "BSSY" else None
            if at is not None:
                places.meeting[one.operands[0]] = (*places.meeting.get(one.operands[0], ()), at)
        return places

    def target(self, one: Instruction) -> int | None:
        """The instruction that the last operand names, where it names one of this function."""
        for operand in reversed(one.operands):
            if named := NAMED.match(operand):
                return self.index.get(self.labels.get(named[1], -1))
            if address := ADDRESS.match(operand):
                return self.index.get(int(address[1], 16))
        return None

    def told(self, one: Instruction) -> tuple[int, ...]:
        """Targets that nvdisasm's dataflow found for an indirect branch."""
        found = TOLD.search(one.operands[-1]) if one.operands else None
        names = [name.strip() for name in found[1].split(",")] if found else []
        return tuple(self.index[self.labels[n]] for n in names if self.labels.get(n) in self.index)

    def after(self, at: int) -> tuple[int, ...]:
        """Instructions that may follow instruction `at`."""
        one, following = self.code[at], (at + 1,)
        if one.name in ENDS:
            return following if _guarded(one) else ()
        if one.name in INDIRECT:
            return self.told(one) + (following if _guarded(one) else ())
        if one.name in JUMPS:
            to = self.target(one)
            on = following if _guarded(one) or len(one.operands) > 1 else ()
            return on if to is None else (to, *on)
        if one.name == "CALL" and not calls(one):
            to = self.target(one)
            return following if to is None else (to, *following)
        if one.name == "BSYNC" and one.operands:
            met = self.meeting.get(one.operands[0], ())
            return following if at + 1 in met else (*following, *met)
        return following

    def unknown(self) -> tuple[int, ...]:
        return tuple(one.address for one in self.code if one.name in INDIRECT and not self.told(one))


def calls(one: Instruction) -> bool:
    """Whether an instruction calls a subroutine, as its name says: a label of the function's own is jumped to."""
    return one.name == "CALL" and not (one.operands and one.operands[-1].startswith("`(.L_"))


def _guarded(one: Instruction) -> bool:
    return one.predicate not in (None, "@PT", "@UPT")


def predecessors(flow: Flow) -> tuple[tuple[int, ...], ...]:
    """Of every block, those that it may follow."""
    before: list[list[int]] = [[] for _ in flow.blocks]
    for at, block in enumerate(flow.blocks):
        for following in block.successors:
            before[following].append(at)
    return tuple(tuple(blocks) for blocks in before)


ROOT = -1                                                # above all entries


def dominators(flow: Flow) -> dict[int, int]:
    """Of every block that an entry reaches: the nearest block that all paths to it pass. Of an entry: ROOT.

    Source: Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm (2001).
    """
    order, before = reverse_postorder(flow), predecessors(flow)
    rank = {ROOT: -1} | {block: at for at, block in enumerate(order)}
    nearest = dict.fromkeys(flow.entries, ROOT)

    def meet(a: int, b: int) -> int:
        while a != b:
            if rank[a] > rank[b]:
                a = nearest[a]
            else:
                b = nearest[b]
        return a

    changed = True
    while changed:
        changed = False
        for block in order:
            if block not in flow.entries:
                new = reduce(meet, [b for b in before[block] if b in nearest])
                changed = changed or nearest.get(block) != new
                nearest[block] = new
    return nearest


def dominates(a: int, b: int, nearest: dict[int, int]) -> bool:
    """Whether all paths to block b pass block a."""
    while b not in (a, ROOT):
        b = nearest[b]
    return a == b


def reverse_postorder(flow: Flow) -> list[int]:
    """Blocks that an entry reaches, each before those that follow it but for branches back."""
    seen: set[int] = set()
    out: list[int] = []
    for entry in reversed(flow.entries):
        stack = [] if entry in seen else [(entry, 0)]
        seen.add(entry)
        while stack:
            block, child = stack.pop()
            successors = flow.blocks[block].successors
            if child == len(successors):
                out.append(block)
                continue
            stack.append((block, child + 1))
            if successors[child] not in seen:
                seen.add(successors[child])
                stack.append((successors[child], 0))
    return out[::-1]
