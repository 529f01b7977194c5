"""What the first screen says beside the budget, how shares are worded, and which stretch of time it is about."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from kineto import Kineto
from rich.console import Console

from sublight.errors import InputError
from sublight.explain import Explanation, explain
from sublight.explain.words import percent
from sublight.observe.read import read, read_all
from sublight.show.json import document
from sublight.show.rows import quality_line
from sublight.show.terminal import print_explanation

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EARLY = (-2_000, -1_000)                 # launched long before it runs: the device never waits for the host


def explained(folder: Path, trace: Kineto, window: str = "default") -> Explanation:
    return explain(read(trace.write(folder / "trace.json")), window=window)


def screen(explanation: Explanation) -> list[str]:
    console = Console(width=80, color_system=None, record=True, file=StringIO())
    print_explanation(explanation, console)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(("share", "text"), [
    (0, "0 %"), (0.00009, "< 0.01 %"), (0.0001, "0.01 %"), (0.0099, "0.99 %"), (0.01, "1.0 %"), (0.9994, "99.9 %"),
    (0.9995, "> 99.9 %"), (0.999999, "> 99.9 %"), (1, "100.0 %"),
])
def test_a_share_reads_as_nothing_or_as_all_only_where_it_is(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(("comm_start", "line"), [
    (4_000, "beside it: hidden communication       6.0 µs   50.0 %"), (10_000, None)])
def test_hidden_communication_stands_below_the_window_that_it_is_no_part_of(
    tmp_path: Path, comm_start: int, line: str | None
) -> None:
    # stream 7   ├──────── gemm 0–10 ────────┤
    # stream 20        ├──── all-reduce –12 ────┤         6 hidden, 2 exposed; or none hidden
    k = Kineto()
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.kernel(ALL_REDUCE, comm_start, 12_000, stream=20, launch=EARLY)
    lines = screen(explained(tmp_path, k, "all"))
    at = next(i for i, text in enumerate(lines) if text.startswith("= window: all"))
    beside = [text for text in lines if text.startswith("beside it")]
    assert beside == ([] if line is None else [line])
    assert line is None or lines[at + 1] == line


@pytest.mark.parametrize(("shapes", "stacks", "said"), [
    (False, False, None), (True, False, "! Recorded with shapes, which slows the host: the real cost is smaller."),
    (True, True, "! Recorded with stacks and shapes, which slows the host: the real cost is"),
])
def test_the_screen_warns_of_a_recording_that_slowed_the_host(
    tmp_path: Path, shapes: bool, stacks: bool, said: str | None
) -> None:
    k = Kineto(record_shapes=shapes, with_stack=stacks)
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    warned = [line for line in screen(explained(tmp_path, k)) if line.startswith("!")]
    assert [line[:len(said or "")] for line in warned] == ([] if said is None else [said])


def test_the_quality_line_counts_the_steps_that_are_complete(tmp_path: Path) -> None:
    # host     ├─ step 1 ─┤├─ step 2 ─┤├─ step 3 ─┤
    # device     ├─ a ─┤     ├─ b ─┤                 step 2 has a launch without a kernel, step 3 nothing at all
    k = Kineto()
    for number in range(3):
        k.step(number + 1, 20_000 * number, 20_000 * (number + 1))
    k.kernel(GEMM, 1_000, 11_000, launch=(100, 200))
    k.kernel(GEMM, 21_000, 31_000, launch=(20_100, 20_200))
    k.call("cudaLaunchKernel", 20_300, 20_400)
    explanation = explained(tmp_path, k)
    assert "; 1 of 3 steps complete; " in quality_line(explanation.devices[0].view)
    assert [step["lost_launches"] for step in document(explanation)["devices"][0]["steps"]] == [0, 1, 0]


@pytest.mark.parametrize(("names", "labels"), [
    (["execute_context_1(64)_generation_2(2)", "execute_new_context_0(0)_generation_3(3)"], ["0", "1"]),
    (["step[EXTEND bs=15 toks=15360]", "step[DECODE bs=16]"], ["EXTEND bs=15 toks=15360", "DECODE bs=16"]),
])
def test_marks_of_engines_are_engine_steps(tmp_path: Path, names: list[str], labels: list[str]) -> None:
    k = Kineto()
    for i, name in enumerate(names):
        k.annotate(name, 20_000 * i, 20_000 * (i + 1))
        k.kernel(GEMM, 20_000 * i + 1_000, 20_000 * i + 11_000, launch=(20_000 * i + 100, 20_000 * i + 200))
    view = explained(tmp_path, k).devices[0].view
    assert (view.window, view.window_reason) == ("step", "2 steps (engine step)")
    assert [step.label for step in view.steps] == labels


def test_of_marks_of_both_engines_sglangs_are_the_steps(tmp_path: Path) -> None:
    # host     ├── execute_… ───────────────┤
    #            ├─ step[…] ─┤ ├─ step[…] ─┤
    k = Kineto()
    k.annotate("execute_context_1(64)_generation_2(2)", 0, 50_000)
    for i in range(2):
        start = 1_000 + 20_000 * i
        k.annotate(f"step[DECODE bs={i + 1}]", start, start + 20_000)
        k.kernel(GEMM, start + 1_000, start + 11_000, launch=(start + 100, start + 200))
    assert [step.label for step in explained(tmp_path, k).devices[0].view.steps] == ["DECODE bs=1", "DECODE bs=2"]


def test_a_window_leaves_out_ranks_that_ended_before_it(tmp_path: Path) -> None:
    # rank 0   ├────── gemm, 30 ──────┤
    # rank 1   ├─ gemm, 10 ─┤
    # window                   ├ 20–25 ┤        and one that begins after both have ended
    paths = []
    for rank, ns in ((0, 30_000), (1, 10_000)):
        k = Kineto(rank=rank, world_size=2)
        k.kernel(GEMM, 0, ns, launch=EARLY)
        paths.append(str(k.write(tmp_path / f"{rank}.json")))
    traces = read_all(paths)
    both, one = (explain(traces, window=window).devices for window in ("5us:25us", "20us:25us"))
    assert [(d.view.trace.rank, d.view.budget.window_ns) for d in both] == [(0, 20_000), (1, 5_000)]
    assert [(d.view.trace.rank, d.view.budget.window_ns) for d in one] == [(0, 5_000)]
    with pytest.raises(InputError, match=r"begins 0\.030 ms after the first activity, but the device's span is only"):
        explain(traces, window="30us:40us")
