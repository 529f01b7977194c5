"""This file knows about what a window's kernels and marks tell of the run behind it, whatever model that is."""

from __future__ import annotations

import re

import numpy as np

from sublight.explain.columns import present
from sublight.explain.exchanges import TILE, kernel
from sublight.explain.view import View
from sublight.observe.kernel_name import classify
from sublight.ops.annotation import StepLoad, step_load
from sublight.trace import KERNEL

BACKWARD = re.compile(r"bwd|backward|bprop|dgrad|wgrad", re.IGNORECASE)
# Kernels of attention that stand beside its main one: preparation, and what puts split parts together.
HELPING = re.compile(r"dot_do_o|preprocess|postprocess|convert|combine|reduce|merge|metadata|prepare|mqa_logits|"
                     r"softmax", re.IGNORECASE)


class Seen:
    """What the window's kernels and marks tell."""

    def __init__(self, view: View) -> None:
        a, names = view.trace.activities, view.trace.names
        kernels = view.rows[a.kind[view.rows] == KERNEL]
        self.names = {names[i]: int((a.name[kernels] == i).sum()) for i in present(a.name[kernels])}
        self.category = {name: classify(name).category for name in self.names}
        self.backward = sum(n for name, n in self.names.items() if BACKWARD.search(name) and
                            self.category[name] in ("attention", "normalisation", "activation", "softmax/loss"))
        self.attention = sum(n for name, n in self.names.items()
                             if self.category[name] == "attention" and not HELPING.search(name)
                             and not BACKWARD.search(name))
        self.optimizer = sum(n for name, n in self.names.items() if self.category[name] == "optimizer")
        self.collectives = sum(n for name, n in self.names.items() if self.category[name] == "communication")
        self.experts = any(c == "grouped gemm" for c in self.category.values()) or any(map(kernel, self.names))
        self.ranks = max((told.ranks or 0 for name in self.names if (told := kernel(name))), default=0)
        self.cut = view.window == "A:B"
        self.tiles = self._tiles(view, kernels)
        self.loads = _loads(view)
        marked = view.steps if view.step_kind != "repetition" else ()      # what repeats may be layers
        self.steps = sum(step.window is not None and any(low < step.window[1] and step.window[0] < high
                                                         for low, high in view.windows) for step in marked)

    def _tiles(self, view: View, kernels: np.ndarray) -> tuple[int, int] | None:
        """(heads, sequences) of the grids of flash kernels that say them."""
        a, names = view.trace.activities, view.trace.names
        for row in kernels[np.unique(a.name[kernels], return_index=True)[1]].tolist():
            if TILE.search(names[int(a.name[row])]):
                return int(a.grid[row][1]), int(a.grid[row][2])
        return None


def _loads(view: View) -> tuple[StepLoad, ...]:
    """Of the engine steps in the window that say tokens and sums over requests, in order."""
    n = view.trace.annotations
    if view.engine is None or not view.steps:
        return ()
    known = {i: load for i in present(n.name) if (load := step_load(view.trace.names[i]))}
    rows = np.flatnonzero(np.isin(n.name, list(known)))
    return tuple(known[int(n.name[row])] for row in rows.tolist())
