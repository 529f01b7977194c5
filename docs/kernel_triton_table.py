"""This file knows about the table of docs/kernel-triton.md: our Triton kernels on each architecture, from their code.

    python docs/kernel_triton_table.py > table.md        # compiles all of them: a minute or four
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sublight.kernels.launch.support import Cell, cells
from sublight.kernels.launch.targets import TARGETS


def lines(found: Sequence[Cell]) -> Iterator[str]:
    """The table, a line each, and below it why cells are empty."""
    reasons: dict[str, int] = {}
    yield "| kernel | format | " + " | ".join(target.name for target in TARGETS) + " |"
    yield "|:--|:--|" + ":--|" * len(TARGETS)
    for row, same in groupby(found, key=lambda cell: cell.row):
        yield f"| {row.title} | {row.format} | " + " | ".join(said(cell, reasons) for cell in same) + " |"
    yield ""
    yield from (f"{number}. {reason}" for reason, number in reasons.items())


def said(cell: Cell, reasons: dict[str, int]) -> str:
    """A cell: tensor-core instruction or width of accesses, registers a thread, KiB of shared memory a block, and where
    something else than the tensor cores binds the best loop, what, and the share of their peak that it allows."""
    if cell.facts is None:
        number = reasons.setdefault(cell.why or "", len(reasons) + 1)
        return f"no ({number})"
    facts = cell.facts
    what = ", ".join(facts.tensor) if cell.row.tensor else "128 bits" if facts.wide >= 0.75 else "narrow"
    spills = f", {facts.spills} spills" if facts.spills else ""
    binds = facts.limit is not None and facts.binds != "tensor"
    limit = f"; {facts.binds} ≤ {facts.limit:.0%}" if binds and facts.limit is not None else ""
    return f"{what}; {facts.registers}{spills}; {-(-facts.shared // 1024)}{limit}"


if __name__ == "__main__":
    print("\n".join(lines(cells())))
