"""This file knows about the data that a page's script draws: lanes and rows of each device, cut to a size, as JSON
that is nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sublight.budget import PARTS
from sublight.explain.view import KernelRow, View
from sublight.explain.words import cut
from sublight.show.lanes import owner_lanes, stream_lanes, thinned

# Of all devices together, so that a page stays under 6 MB.
MOST_MARKS, MOST_ROWS, MOST_NAME_BYTES = 120_000, 12_000, 1_500_000
MOST_NAME, LEAST_NAME = 4_000, 40   # characters of a kernel's name
MOST_STEPS, MOST_LABEL = 500, 80
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Columns of the kernel table only where any row has them.
BOUND_COLUMNS = (("bound_ns", "bound", "ns"), ("bound_share", "of bound", "share"))


def page_data(views: Sequence[View]) -> dict[str, Any]:
    """Names, each once, and the devices that refer to them."""
    names: dict[str, int] = {}
    longest = _name_length(views)
    devices = [_device(view, len(views), names, longest) for view in views]
    return {"names": list(names), "devices": devices}


def printable(text: str) -> str:
    """Without what steers a page or a terminal: control characters, direction marks, halves of characters."""
    return UNPRINTABLE.sub("\ufffd", text)


def inert_json(value: object) -> str:
    """JSON that stays inside its script element, whatever the names in it are."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _name_length(views: Sequence[View]) -> int:
    """How many characters of a kernel's name the page can carry."""
    rows = [row for view in views for row in view.kernels[: MOST_ROWS // len(views)]]
    names = {row.name for row in rows} | {row.short for row in rows}
    length = MOST_NAME
    while length > LEAST_NAME and sum(len(inert_json(name[:length])) for name in names) > MOST_NAME_BYTES:
        length //= 2
    return length


def shown_name(name: str, longest: int) -> str:
    text = printable(name)
    return text if len(text) <= longest else f"{text[:longest]}\u2026 ({len(text):,} characters)"


def _device(view: View, devices: int, names: dict[str, int], longest: int) -> dict[str, Any]:
    """One device's lanes and kernel table."""
    kernels = view.kernels[: MOST_ROWS // devices]
    columns = _kernel_columns(kernels)
    return {"timeline": _timeline(view, MOST_MARKS // devices, len(kernels)),
            "columns": [[label, kind] for _, label, kind in columns],
            "rows": [_kernel_values(row, columns, view, names, longest) for row in kernels],
            "parts": [PARTS.index(row.part) for row in kernels]}


def _timeline(view: View, most: int, kernels: int) -> dict[str, Any] | None:
    if not view.windows:
        return None
    low, high = view.windows[0][0], view.windows[-1][1]
    streams, left_out = stream_lanes(view)
    owners = owner_lanes(view)
    lanes, grain = thinned(owners + streams, high - low, most)
    packed = [{"name": name, "stream": i >= len(owners), **marks.packed(low)} for i, (name, marks) in enumerate(lanes)]
    steps = [(s.label, s.window) for s in view.steps if s.window and s.window[1] > low and s.window[0] < high]
    return {"span": high - low, "offset": low - view.timeline.span[0], "grain": grain, "left_out": left_out,
            "kernels": kernels, "windows": [[a - low, b - low] for a, b in view.windows],
            "steps": [[cut(printable(label), MOST_LABEL), w[0] - low, w[1] - low] for label, w in steps[:MOST_STEPS]],
            "lanes": packed}


Columns = tuple[tuple[str, str, str], ...]


def _kernel_columns(rows: Sequence[KernelRow]) -> Columns:
    """(attribute, heading, kind) of the kernel table; what no row has gets no column."""
    always = (("name", "name", "name"), ("category", "category", "text"), ("origin", "library \u00b7 family", "text"),
              ("number_format", "format", "text"), ("count", "runs", "count"), ("ns", "time", "ns"),
              ("share", "share", "share"), ("mean", "mean", "ns"), ("grid_blocks", "grid", "count"))
    return (*always, *(c for c in BOUND_COLUMNS if any(getattr(row, c[0]) is not None for row in rows)))


def _kernel_values(
    row: KernelRow, columns: Columns, view: View, names: dict[str, int], longest: int
) -> list[Any]:
    total = view.kernel_ns or 1
    special: dict[str, Any] = {
        "name": [names.setdefault(shown_name(row.short, longest), len(names)),
                 names.setdefault(shown_name(row.name, longest), len(names))],
        "category": row.category if row.kind in ("kernel", "operator") else row.kind,
        "origin": row.origin or None,
        "share": row.ns / total if row.kind in ("kernel", "operator") else None,
        "mean": row.ns / row.count if row.count else None,
    }
    values = [special[a] if a in special else getattr(row, a) for a, _, _ in columns]
    return [round(v, 6) if isinstance(v, float) else v for v in values]
