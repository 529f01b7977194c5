"""What a file cannot tell is refused by name: with the reason, and with what to capture instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto import Kineto

from sublight.explain import explain
from sublight.explain.view import View
from sublight.observe.read import read_all

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EARLY = (-2_000, -1_000)                 # launched long before it runs: the device never waits for the host


def views(folder: Path, *ranks: Kineto, window: str = "all") -> list[View]:
    paths = [str(k.write(folder / f"{i}.json")) for i, k in enumerate(ranks)]
    return [d.view for d in explain(read_all(paths), window=window).devices]


def refused(view: View) -> dict[str, str]:
    return {r.what: r.why for r in view.refusals}


@pytest.mark.parametrize(("unlinked", "is_refused"), [(2, True), (1, False)])
def test_causes_are_refused_where_over_5_percent_of_the_windows_activities_have_no_launch(
    tmp_path: Path, unlinked: int, is_refused: bool
) -> None:
    # stream 7   ├1┼2┼3┼ … ┼20┤├───── without a launch ─────┤        of the first 20, one or two have none either
    # window     |←    20    →|
    k = Kineto()
    for i in range(20):
        k.kernel(GEMM, 1_000 * i, 1_000 * (i + 1), launch=None if i < unlinked else EARLY)
    for i in range(20, 30):
        k.kernel(GEMM, 1_000 * i, 1_000 * (i + 1))
    (view,) = views(tmp_path, k, window="0us:20us")
    why = refused(view).get("causes of all idle time")
    assert why == ("2 of 20 device activities in the window have no launch in the file" if is_refused else None)


@pytest.mark.parametrize(("operators", "why"), [(0, "the file holds no operators"), (1, None)])
def test_operators_are_refused_where_the_file_has_none(tmp_path: Path, operators: int, why: str | None) -> None:
    # host       ├ aten::mm: launch a ┤              or the launch alone
    # stream 7                       ├ a ┤
    k = Kineto()
    op = k.op("aten::mm", -3_000, -500) if operators else None
    k.kernel(GEMM, 0, 1_000, launch=EARLY, op=op)
    (view,) = views(tmp_path, k)
    assert refused(view).get("operators behind kernels") == why


@pytest.mark.parametrize(("captured", "why"), [
    (2, "2 launches were recorded into CUDA graphs, which runs nothing: this is a recording of graph capture"),
    (1, None),
])
def test_the_length_of_a_step_is_refused_where_graphs_are_captured(
    tmp_path: Path, captured: int, why: str | None
) -> None:
    # host     launch a   begin capture   launch   launch   end capture
    # device       ├─ a ─┤
    k = Kineto()
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.call("cudaStreamBeginCapture", 1_000, 1_010)
    for i in range(captured):
        k.call("cudaLaunchKernel", 2_000 + 100 * i, 2_010 + 100 * i)
    k.call("cudaStreamEndCapture", 3_000, 3_010)
    (view,) = views(tmp_path, k)
    assert refused(view).get("how long a step takes") == why
    assert view.links is not None
    assert (view.links.captured_launches, view.links.launches, view.links.launches_without_activity) == (captured, 1, 0)


@pytest.mark.parametrize(("categories", "why"), [
    ((), "the file holds no kernels, copies or memsets: it is a CPU-only recording"),
    (("mtia_ccp_events", "mtia_runtime"),
     "this version does not read the file's kind of device activity (mtia_ccp_events, mtia_runtime)"),
    (("xpu_runtime",), "this version does not read the file's kind of device activity (xpu_runtime)"),
])
def test_activity_of_a_device_that_is_not_read_is_no_cpu_only_recording(
    tmp_path: Path, categories: tuple[str, ...], why: str
) -> None:
    # thread 1   ├─ aten::mm ─┤
    # MTIA            ├─ matmul ─┤
    k = Kineto(device_name=None)
    k.op("aten::mm", 0, 10_000)
    for category in categories:
        k.raw({"ph": "X", "cat": category, "name": "matmul", "pid": 0, "tid": 1, "ts": 4.0, "dur": 3.0})
    (view,) = views(tmp_path, k)
    assert refused(view)["device time"] == why


def test_several_ranks_do_not_refuse_what_they_can_tell_together(tmp_path: Path) -> None:
    # rank 0   ├─ all-reduce ─┤
    # rank 1   ├─ all-reduce ─┤
    ranks = [Kineto(rank=rank, world_size=2) for rank in (0, 1)]
    for k in ranks:
        k.kernel(ALL_REDUCE, 0, 10_000, launch=EARLY)
    (alone,) = views(tmp_path, ranks[0])
    assert "waiting inside collectives" in refused(alone)
    assert ["waiting inside collectives" in refused(view) for view in views(tmp_path, *ranks)] == [False, False]
