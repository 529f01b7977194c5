"""Gains are limits: take the planted cause away, let everything after it come earlier, and the window shrinks by no
more than the gain that its finding gave.

Runs are played, not drawn: a host that launches kernels one after the other, and a device that runs them in order.

    host     │ pause │ launch a │ launch b │ wait for the device │ launch c │
    device            LATENCY ├── a ──┼── b ──┤                   LATENCY ├── c ──┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from explaining import explained
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAUNCH_NS, LATENCY_NS = 1_000, 400       # what a launch costs the host; from its start to the kernel's, if it is free
RETURN_NS = 3_000                        # from the end of the device's work to the return of the call that waits


@dataclass(frozen=True)
class Run:
    """A kernel, and what the host does before it launches it."""

    ns: int
    pause_ns: int = 0
    waits: bool = False                  # for all work so far


def played(runs: Sequence[Run], *, latency_ns: int = LATENCY_NS) -> Kineto:
    """The trace of a host and a device that do this. A file does not tell the latency: a launch that begins less than
    that before the device goes idle counts as in time, so limits are exact where it is 0."""
    k = Kineto()
    host = free = 0
    for run in runs:
        if run.waits:
            returned = max(host, free) + RETURN_NS
            k.call("cudaStreamSynchronize", host, returned)
            host = returned
        host += run.pause_ns
        start = max(host + latency_ns, free)
        free = start + run.ns
        k.kernel(GEMM, start, free, launch=(host, host + LAUNCH_NS))
        host += LAUNCH_NS
    return k


def gains(trace: Kineto) -> dict[str, int]:
    return {f.code: f.gain_ns_at_most or 0 for f in explained(trace).findings}


def shrinks(trace: Kineto, without: Kineto) -> int:
    """By how much the window of the second is shorter."""
    return explained(trace).view.budget.window_ns - explained(without).view.budget.window_ns


def kernels(*, least_ns: int, most_ns: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least_ns, most_ns), min_size=1, max_size=8)


# ---- SL201: launches that come late ----------------------------------------------------------------------


def test_sl201_a_late_launch_taken_away_shrinks_the_window_by_the_gain() -> None:
    # device   ├ a, 10 ┤      20 000 late      ├ b, 10 ┤       the launch of b needs 400 to arrive, and would have had
    #                                                          all of a's time for it
    late = [Run(10_000), Run(10_000, pause_ns=29_000)]
    assert gains(played(late))["SL201"] == shrinks(played(late), played([Run(10_000), Run(10_000)])) == 20_000


@pytest.mark.heavy
@settings(max_examples=100, deadline=None)
@given(lengths=kernels(least_ns=300, most_ns=20_000), pauses=st.lists(st.integers(0, 30_000), min_size=8, max_size=8))
def test_sl201_pauses_of_the_host_taken_away_shrink_the_window_by_no_more_than_the_gain(
    lengths: list[int], pauses: list[int]
) -> None:
    # host     │ launch │ pause │ launch │ pause │ launch │
    late = [Run(1_000), *(Run(ns, pause_ns=pause) for ns, pause in zip(lengths, pauses, strict=False))]
    trace, without = (played(runs, latency_ns=0) for runs in (late, [replace(run, pause_ns=0) for run in late]))
    at_least = explained(trace).view.budget.window_ns // 100             # below 1 % there is no finding
    assert shrinks(trace, without) <= gains(trace).get("SL201", at_least)


# ---- SL202: a wait in the middle -------------------------------------------------------------------------


def test_sl202_a_wait_taken_away_shrinks_the_window_by_no_more_than_blocked_and_starved_time() -> None:
    # host     │a│b│├──────── wait ────────┤│c│d│e│
    # device    ├ a, 5 ┼ b, 5 ┤ blocked 3 │400├c┤600├d┤600├ e, 5 ┤      c and d are shorter than a launch: the host is
    #                                                                   behind until nothing follows
    waits = [Run(5_000), Run(5_000), Run(400, waits=True), Run(400), Run(5_000)]
    trace, without = played(waits), played([replace(run, waits=False) for run in waits])
    assert gains(trace)["SL202"] == shrinks(trace, without) == RETURN_NS + LATENCY_NS + 600 + 600


@pytest.mark.heavy
@settings(max_examples=100, deadline=None)
@given(before=kernels(least_ns=300, most_ns=20_000), after=kernels(least_ns=300, most_ns=3_000), last=st.integers(3, 6))
def test_sl202_a_wait_taken_away_shrinks_the_window_by_no_more_than_the_gain(
    before: list[int], after: list[int], last: int
) -> None:
    # host     │a│b│ … ├──── wait ────┤│x│y│ …         launched without a pause
    # device    ├ a ┼ b ┤ … blocked │    ├x┤ ├y┤ …      the shortest first after the wait: once ahead, the host stays so
    waits = [*map(Run, before), *map(Run, sorted(after)), Run(last * LAUNCH_NS)]
    waits[len(before)] = replace(waits[len(before)], waits=True)
    trace, without = (played(runs, latency_ns=0) for runs in (waits, [replace(run, waits=False) for run in waits]))
    assert 0 < shrinks(trace, without) <= gains(trace)["SL202"]


# ---- SL203: short kernels --------------------------------------------------------------------------------


@pytest.mark.heavy
@settings(max_examples=50, deadline=None)
@given(short=st.lists(st.integers(100, 4_999), min_size=20, max_size=30), early=st.integers(0, 30))
def test_sl203_short_kernels_fused_away_shrink_the_window_by_no_more_than_the_gain(
    short: list[int], early: int
) -> None:
    # host     │a│ launch x │ launch y │ …                 │b│
    # device    ├ a, 20 ┤ ├x┤ ├y┤ ├z┤ …                       ├ b, 20 ┤
    #           ├ a, 20 ┼ b, 20 ┤                                         without them, and without what they waited for
    k = Kineto()
    k.kernel(GEMM, 0, 20_000, launch=(-2_000, -1_000))
    at = 20_000
    for i, ns in enumerate(short):
        start = at + 700                                                 # launched in time, or 600 before it starts
        k.kernel(GEMM, start, start + ns, launch=(-900 + i, -800 + i) if i < early else (start - 600, start - 500))
        at = start + ns
    k.kernel(GEMM, at, at + 20_000, launch=(-500, -400))
    without = Kineto()
    without.kernel(GEMM, 0, 20_000, launch=(-2_000, -1_000))
    without.kernel(GEMM, 20_000, 40_000, launch=(-500, -400))
    assert shrinks(k, without) == at - 20_000 <= gains(k)["SL203"]


# ---- SL101: communication that nothing hides -------------------------------------------------------------


@pytest.mark.parametrize("size", [3_000, 40_000])
def test_sl101_exposed_communication_taken_away_shrinks_the_window_by_the_gain(size: int) -> None:
    # compute   ├─ a, 50 ─┤               ├─ b, 50 ─┤       b needs the result
    # comm.           ├─ all-reduce ─┤
    #                      |← size →|
    k, without = Kineto(), Kineto()
    for trace, moved in ((k, 0), (without, size)):
        trace.kernel(GEMM, 0, 50_000, launch=(-2_000, -1_000))
        trace.kernel(GEMM, 50_000 + size - moved, 100_000 + size - moved, launch=(-2_000, -1_000))
    k.kernel(ALL_REDUCE, 40_000, 50_000 + size, stream=20, launch=(-2_000, -1_000))
    assert gains(k)["SL101"] == shrinks(k, without) == size


@pytest.mark.heavy
@settings(max_examples=100, deadline=None)
@given(computes=st.lists(st.integers(1_000, 20_000), min_size=2, max_size=6),
       sends=st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 30_000)), min_size=6, max_size=6))
def test_sl101_communication_taken_away_shrinks_the_window_by_no_more_than_the_gain(
    computes: list[int], sends: list[tuple[int, int]]
) -> None:
    # compute   ├─ a ─┤          ├─ b ─┤      ├─ c ─┤        each needs what was sent before it
    # comm.        ├── send ──┤      ├─ send ─┤              begins while, or just as, a kernel ends
    def run(lasting: float) -> Kineto:
        k = Kineto()
        at = 0
        for i, ns in enumerate(computes):
            k.kernel(GEMM, at, at + ns, launch=(-2_000, -1_000))
            after, length = sends[i]
            start = at + min(after, ns)
            at += ns
            if lasting and i + 1 < len(computes):
                k.kernel(ALL_REDUCE, start, start + length, stream=20, launch=(-2_000, -1_000))
                at = max(at, start + length)
        return k

    trace = run(1)
    at_least = explained(trace).view.budget.window_ns // 100
    assert shrinks(trace, run(0)) <= gains(trace).get("SL101", at_least)
