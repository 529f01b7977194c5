"""This file knows about what a trace's communication kernels move: by NCCL's record, by the names of DeepEP's kernels,
by the arguments of an operator that reduces over symmetric memory; and which of them nothing tells of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sublight.explain.columns import present
from sublight.explain.exchanges import Kernel, kernel
from sublight.explain.view import View
from sublight.observe.kernel_name import classify
from sublight.ops.collective import Communication
from sublight.trace import KERNEL, Collective, Trace
from sublight.work import Message

MOVING = ("communication", "communication: transfer")


@dataclass(frozen=True, slots=True)
class Direct:
    """An all-reduce over symmetric memory or buffers of the engine: its operator's arguments tell the size."""

    message: Message
    form: str
    kind: str                            # as comm.expect names it: "one-shot", "two-shot", "nvls"


# What the names of such kernels say: PyTorch's symm_mem, vLLM's and SGLang's cross_device_reduce, TensorRT-LLM's.
DIRECT = ((re.compile(r"multimem"), "nvls"), (re.compile(r"one_?shot|1stage", re.IGNORECASE), "one-shot"),
          (re.compile(r"two_?shot|2stage", re.IGNORECASE), "two-shot"))
What = Collective | Kernel | Direct


def calls(view: View) -> dict[What, tuple[int, ...]]:
    """The window's communication kernels that move data, by what they exchange."""
    trace: Trace = view.trace
    if view.cpu_only:
        return {}
    a = trace.activities
    out: dict[What, list[int]] = {}
    of_name = {i: told for i in present(a.name[view.rows]) if (told := kernel(trace.names[i])) is not None}
    tells = (a.collective[view.rows] >= 0) | np.isin(a.name[view.rows], list(of_name))
    rows = view.rows[(a.kind[view.rows] == KERNEL) & tells]
    for row, name, record in zip(rows.tolist(), a.name[rows].tolist(), a.collective[rows].tolist(), strict=True):
        out.setdefault(trace.collectives[record] if record >= 0 else of_name[name], []).append(row)
    for row, direct in _direct(view):
        out.setdefault(direct, []).append(row)
    return {what: tuple(members) for what, members in out.items()}


def _direct(view: View) -> Iterator[tuple[int, Direct]]:
    """Kernels of all-reduces that are no NCCL's, with what their operator's arguments and their own names tell."""
    if view.bounds is None:
        return
    a, names, joined = view.trace.activities, view.trace.names, view.bounds.joined
    kinds = {i: kind for i in present(a.name[view.rows]) if classify(names[i]).category in MOVING
             if (kind := next((k for pattern, k in DIRECT if pattern.search(names[i])), None)) is not None}
    rows = view.rows[np.isin(a.name[view.rows], list(kinds)) & (a.collective[view.rows] < 0)]
    for row in rows.tolist():
        call = int(joined.of_activity[row])
        ops = joined.calls[call].ops if call >= 0 else ()
        for op in ops:
            if isinstance(op, Communication) and op.collective == "all_reduce" and not op.inferred:
                yield row, Direct(op.work().messages[0], op.form, kinds[int(a.name[row])])


def untold(view: View, told_calls: Mapping[What, tuple[int, ...]]) -> dict[str, int]:
    """Of the window's other kernels that communicate, and do not only wait: whose they are, and their summed ns."""
    a, out = view.trace.activities, dict[str, int]()
    told = np.array([row for rows in told_calls.values() for row in rows], np.int64)
    kernels = view.rows[(a.kind[view.rows] == KERNEL) & ~np.isin(view.rows, told)]
    for i in present(a.name[kernels]):
        known = classify(view.trace.names[i])
        if known.category not in MOVING:
            continue
        whose = " ".join(filter(None, (known.library, known.family))) or known.short
        why = f"{whose}: the file does not say what they move"
        out[why] = out.get(why, 0) + int(a.dur_ns[kernels[a.name[kernels] == i]].sum())
    return out


def ranks_needed(what: What) -> int:
    """Ranks that a call needs; 0 where nothing tells."""
    if isinstance(what, Direct):
        return what.message.group
    return (what.ranks or 0) if isinstance(what, Kernel) else max(what.group_size, max(what.ranks, default=-1) + 1)
