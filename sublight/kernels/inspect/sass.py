"""This file knows about SASS as text: what nvdisasm and cuobjdump print, into instructions and labels.

Read are `nvdisasm -c`, with or without -g, -gi and -hex, and `cuobjdump -sass`. A line of either:

    /*1230*/             @!P0 BRA P1, `(.L_x_2) ;      /* 0x... */
    address        predicate  opcode, operands          encoding: not kept

nvdisasm names what a branch goes to (.L_x_2); cuobjdump writes its address. nvdisasm 13.5 prints labels that nothing
branches to, so labels alone do not part a function into blocks: see flow.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sublight.kernels.inspect.code import Instruction

SECTION = re.compile(r'^\s*\.section\s+"?\.text\.([^",]+)"?')     # nvdisasm: a function's section
OTHER = re.compile(r"^\s*\.section\s")
HEADER = re.compile(r"^\s*Function : (\S+)")                      # cuobjdump
LABEL = re.compile(r"^\s*\"?([.$\w][^\s:]*?)\"?:\s*$")
LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')         # the innermost; "inlined at" follows it
CODE = re.compile(r"^\s*/\*([0-9a-fA-F]+)\*/\s*([^;]*)")         # its encoding, in a comment, comes after the semicolon
GUARD = re.compile(r"^(@!?U?PT?\d*)\s+")
TARGETS = re.compile(r'\(\*"BRANCH_TARGETS[^"]*"\*\)')            # of an indirect branch, from nvdisasm's dataflow
BRACES = "{} \t"                        # they pair instructions on old architectures


class Listing(NamedTuple):
    """One function's code: its instructions in order, and its labels (name, address) in order."""

    instructions: tuple[Instruction, ...]
    labels: tuple[tuple[str, int], ...]


def disassembled(text: str) -> dict[str, Listing]:
    """Functions by the name that the linker knows them by. Code that is no function's is not kept.

    >>> listing = disassembled('''
    ... .section .text.f,"ax",@progbits
    ... .text.f:
    ...         /*0000*/                   MOV R1, c[0x0][0x28] ;
    ... .L_x_0:
    ...         /*0010*/              @!P0 BRA `(.L_x_0) ;
    ... ''')["f"]
    >>> listing.labels, listing.instructions[1].predicate, listing.instructions[1].operands
    ((('.L_x_0', 16),), '@!P0', ('`(.L_x_0)',))
    """
    return {name: _listing(name, lines) for name, lines in _functions(text)}


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    name: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        started = SECTION.match(line) or HEADER.match(line)
        if started or OTHER.match(line):
            if name is not None:
                yield name, lines
            name, lines = (started[1] if started else None), []
        elif name is not None:
            lines.append(line)
    if name is not None:
        yield name, lines


def _listing(name: str, lines: list[str]) -> Listing:
    instructions: list[Instruction] = []
    labels: list[tuple[str, int]] = []
    waiting: list[str] = []                                       # labels, until the next instruction tells an address
    source: tuple[str, int] | None = None
    for line in lines:
        if found := LINE.match(line):
            source = (re.split(r"[/\\]", found[1])[-1], int(found[2]))
        elif (found := LABEL.match(line)) and found[1] not in (name, f".text.{name}"):
            waiting.append(found[1])
        elif (found := CODE.match(line)) and found[2].strip(BRACES):
            instruction = _instruction(int(found[1], 16), found[2], source)
            labels += [(label, instruction.address) for label in waiting]
            waiting = []
            instructions.append(instruction)
    end = instructions[-1].address + 16 if instructions else 0    # a label at the end gives the function's size
    labels += [(label, end) for label in waiting]
    return Listing(tuple(instructions), tuple(labels))


def _instruction(address: int, text: str, source: tuple[str, int] | None) -> Instruction:
    text = text.strip(BRACES)
    guard = GUARD.match(text)
    if guard:
        text = text[guard.end():]
    told = TARGETS.search(text)
    if told:
        text = text[:told.start()]
    opcode, _, rest = text.strip().partition(" ")
    operands = tuple(_split(rest)) + ((told[0],) if told else ())
    return Instruction(address, guard[1] if guard else None, opcode, operands, source)


def _split(text: str) -> Iterator[str]:
    """Operands between commas that stand outside brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()
