"""Short listings for tests: lines of SASS, one instruction each, into a function."""

from __future__ import annotations

import re

from sublight.kernels.inspect.code import Function
from sublight.kernels.inspect.sass import disassembled


def function(text: str, *, arch: str = "sm_90") -> Function:
    """A function of lines such as `.L_0:` and `@P0 BRA .L_0`; each instruction takes 16 bytes.

    `MOV R1, R2 x 40` stands for forty of them.
    """
    out, address = ['.section .text.f,"ax"'], 0
    for line in (part for part in map(str.strip, text.splitlines()) if part):
        if line.endswith(":"):
            out.append(line)
            continue
        one, _, count = line.partition(" x ")
        for _ in range(int(count or 1)):
            out.append(f"/*{address:04x}*/ {_named(one)} ;")
            address += 16
    found = disassembled("\n".join(out))["f"]
    return Function("f", arch, None, found.instructions, found.labels)


def _named(line: str) -> str:
    """With labels as nvdisasm quotes them."""
    if "BRANCH_TARGETS" in line:
        return line
    return re.sub(r"(?<= )(\.L_\w+|\$\w+)(?=,|$)", r"`(\1)", line)
