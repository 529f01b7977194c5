"""SL301: time in kernels that only move or reshape data: casts, transposes, copies, elementwise work."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import ms, of_window, top
from sublight.finding import Finding

CODE, TITLE = "SL301", "memory-bound casts, copies and elementwise work"
PARTS = ("quantise", "copy", "elementwise")
SMALLEST_SHARE = 0.10


def find(view: View) -> Iterable[Finding]:
    """Fires where such kernels own at least 10 % of the busy time."""
    owned = {part: view.budget[part] for part in PARTS}
    total = sum(owned.values())
    if not total or total < SMALLEST_SHARE * view.budget.busy_ns:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, total)} goes to kernels that only cast, copy, transpose or combine elements",
        (", ".join(f"{part} {ms(ns)}" for part, ns in owned.items() if ns), *top(view.of_parts(PARTS))),
        "Fuse casts and transposes into the kernels before and after them (fused quantise in norms and activations, "
        "epilogues), and keep one layout through the layer",
        "medium", total, ("an upper limit: bytes that must move still take their time",),
    )
