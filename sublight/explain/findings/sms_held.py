"""SL102: SMs that communication kernels hold while compute runs beside them."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.explain.view import KernelRow, View
from sublight.explain.words import cut, of_window, percent
from sublight.finding import Finding

CODE, TITLE = "SL102", "SMs held by communication"
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
    gain = hidden * held // sms
    if view.share(gain) < SMALLEST_SHARE:
        return
    gemms = [r for r in view.kernels if r.category in ("gemm", "grouped gemm") and r.grid_blocks
             and sms - held - 1 <= r.grid_blocks <= sms]
    evidence = [f"communication runs with a grid of {held} blocks of {sms} SMs ({percent(held / sms)}), during "
                f"{of_window(view, hidden)} of compute"]
    sized = [r for r in gemms if r.grid_blocks == sms - held]
    if sized:
        evidence.append(f"{sum(r.count for r in sized)} GEMM runs have a grid of {sms - held} = {sms} - {held}: they "
                        "were sized for the SMs that are left")
    elif (beside := compute_beside(view)) is not None:
        evidence.append(f"the longest compute kernel, {cut(beside.short, 50)}, has a grid of {beside.grid_blocks}")
    yield Finding(
        CODE, TITLE,
        f"communication holds {held} of {sms} SMs while it is hidden: that costs compute up to "
        f"{of_window(view, gain)}",
        tuple(evidence),
        "Give communication fewer SMs (DeepEP: Buffer.set_num_sms; NCCL: NCCL_MAX_CTAS, NCCL_CTA_POLICY; copy-engine "
        "or NIC-driven transports), as long as it stays hidden",
        "medium", gain,
        ("an upper limit: it assumes that all compute beside is limited by SMs, not by memory",
         "a block is taken to hold one whole SM"),
    )
