"""SL102: SMs that communication kernels hold while compute runs beside them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sublight.budget import COMPUTE
from sublight.explain.columns import joined
from sublight.explain.view import KernelRow, View, inside, is_kernel
from sublight.explain.words import cut, number, of_window, percent, units
from sublight.finding import Finding

CODE, TITLE = "SL102", "SMs held by communication"
SETTINGS = {
    "nvidia": "DeepEP: Buffer.set_num_sms; NCCL: NCCL_MAX_CTAS, NCCL_CTA_POLICY; copy-engine or NIC-driven transports",
    "amd": "RCCL: NCCL_MAX_NCHANNELS; copy-engine or NIC-driven transports",
}
SMALLEST_SHARE = 0.02        # of the window, as compute time that the held SMs would take off


def held_blocks(view: View) -> int | None:
    """Thread blocks of the grid that communication ran longest with; a resident block keeps its SM. None where
    there is none or the file gives no grids."""
    by_grid: dict[int, int] = {}
    for row in view.communication_kernels:
        if row.grid_blocks:
            by_grid[row.grid_blocks] = by_grid.get(row.grid_blocks, 0) + row.ns
    return max(by_grid, key=lambda blocks: (by_grid[blocks], -blocks)) if by_grid else None


def compute_beside(view: View) -> KernelRow | None:
    """The compute kernel with the most time, whose grid shows what it was launched for."""
    return next((r for r in view.kernels if r.kind == "kernel" and not r.category.startswith("communication")
                 and r.grid_blocks), None)


def find(view: View) -> Iterable[Finding]:
    """Fires where handing the held SMs to the compute that ran beside could save at least 2 % of the window."""
    held, sms, hidden = held_blocks(view), view.sms, view.budget.communication.hidden_ns
    if held is None or not sms or not hidden:
        return
    held = min(held, sms)
    gain = min(_taken(view, held, sms), hidden)
    if view.share(gain) < SMALLEST_SHARE:
        return
    gemms = [r for r in view.kernels if r.category in ("gemm", "grouped gemm") and r.grid_blocks
             and sms - held - 1 <= r.grid_blocks <= sms]
    evidence = [f"communication runs with a grid of {held} blocks of {sms} {units(view)} ({percent(held / sms)}), "
                f"during {of_window(view, hidden)} of compute"]
    sized = [r for r in gemms if r.grid_blocks == sms - held]
    if sized:
        runs = number(sum(r.count for r in sized), "GEMM run")
        evidence.append(f"{runs} with a grid of {sms - held} = {sms} - {held}: sized for the {units(view)} that are "
                        "left")
    elif (beside := compute_beside(view)) is not None:
        evidence.append(f"the longest compute kernel, {cut(beside.short, 50)}, has a grid of {beside.grid_blocks}")
    yield Finding(
        CODE, TITLE,
        f"communication holds {held} of {sms} {units(view)} while it is hidden: that costs the compute beside it up to "
        f"{of_window(view, gain)}",
        tuple(evidence),
        f"Give communication fewer {units(view)} ({SETTINGS['amd' if view.amd else 'nvidia']}), as long as it stays "
        "hidden",
        "medium", gain,
        ("an upper limit for kernels that the SMs limit; those that memory limits gain nothing",
         "a block is taken to hold one whole SM"),
    )


def _taken(view: View, held: int, sms: int) -> int:
    """What the compute kernels beside communication would save at most with all SMs, in ns.

    A kernel of B blocks, one an SM at a time, runs in ceil(B / SMs) waves; a persistent one in proportion to its SMs.
    The larger saving of the two counts, for the time that the kernel has communication beside it.
    """
    rows = is_kernel(view)
    part = view.part[rows]
    line = view.timeline
    in_flight = np.flatnonzero(line.communicating)
    starts, ends = joined(line.edges_ns[in_flight], line.edges_ns[in_flight + 1])
    compute = view.rows[rows[part < len(COMPUTE)]]
    a = view.trace.activities
    beside = inside(a.ts_ns[compute], a.end_ns[compute], list(zip(starts.tolist(), ends.tolist(), strict=True)))
    blocks = np.maximum(np.prod(a.grid[compute].astype(np.int64), axis=1), 1)
    left = max(sms - held, 1)
    waves = 1 - np.ceil(blocks / sms) / np.ceil(blocks / left)
    return int((beside * np.maximum(waves, held / sms)).sum())
