"""SL301: time in kernels that only move or reshape data: casts, transposes, copies, elementwise work."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import View
from sublight.explain.words import ms, of_window, top
from sublight.finding import Finding

CODE, TITLE = "SL301", "memory-bound casts, copies and elementwise work"
PARTS = ("quantise", "copy", "elementwise")
SMALLEST_SHARE, SMALLEST_OF_WINDOW = 0.10, 0.01


def find(view: View) -> Iterable[Finding]:
    """Fires where such kernels own at least 10 % of the busy time and 1 % of the window."""
    owned = {part: view.budget[part] for part in PARTS}
    total = sum(owned.values())
    if not total or total < SMALLEST_SHARE * view.budget.busy_ns or view.share(total) < SMALLEST_OF_WINDOW:
        return
    yield Finding(
        CODE, TITLE,
        f"{of_window(view, total)} goes to kernels that only cast, copy, transpose or combine elements",
        (", ".join(f"{part} {ms(ns)}" for part, ns in owned.items() if ns), *top(view.of_parts(PARTS))),
        "Let a compiler fuse them (torch.compile), and keep one layout and one number format" if view.cpu_only else
        "Fuse casts and transposes into the kernels before and after them (fused quantise in norms and activations, "
        "epilogues), and keep one layout through the layer",
        "medium", total, ("an upper limit: bytes that must move still take their time",),
    )
