"""Faults of real trace files, by the number that docs/faults.md gives them, and what becomes of each."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kineto import Event, Indent, Kineto, Micros

from sublight.budget import BLOCKED, DEPENDENCY, EXPOSED_COPIES, STARVED
from sublight.cli import main
from sublight.errors import InputError
from sublight.explain import Explained, explain
from sublight.explain.headline import headline
from sublight.explain.links import link
from sublight.observe.read import read, read_all
from sublight.show.rows import quality_line
from sublight.trace import Trace

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EARLY = (-2_000, -1_000)  # launched long before it runs: the device never waits for the host
BASE_NS = 1_700_000_000_000_000_000

Reader = Callable[[str | bytes], Trace]


@pytest.fixture
def from_text(tmp_path: Path) -> Reader:
    """Reads a trace from its text."""

    def read_text(text: str | bytes) -> Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read(path)

    return read_text


def only(trace: Trace, window: str = "all") -> Explained:
    (device,) = explain(trace, window=window).devices
    return device


def found(device: Explained) -> dict[str, str]:
    """Claim and evidence of each finding, by code."""
    return {f.code: "\n".join((f.claim, *f.evidence)) for f in device.findings}


def refused(device: Explained) -> dict[str, str]:
    return {r.what: r.why for r in device.view.refusals}


def names_of(trace: Trace) -> list[str]:
    return [trace.name_of(i) for i in trace.activities.name.tolist()]


def intervals(trace: Trace) -> list[tuple[int, int]]:
    """Device activities, in ns after the base."""
    a = trace.activities
    return [(int(s) - BASE_NS, int(e) - BASE_NS) for s, e in zip(a.ts_ns, a.end_ns, strict=True)]


def three_kernels(first: str = GEMM, **args: Any) -> Kineto:
    # stream 7   ├─ first ─┼─ gemm ─┼─ gemm ─┤
    k = Kineto()
    k.kernel(first, 0, 1_000, launch=EARLY, **args)
    k.kernel(GEMM, 1_000, 2_000, launch=EARLY)
    k.kernel(GEMM, 2_000, 3_000, launch=EARLY)
    return k


def assert_nothing_lost(trace: Trace, k: Kineto, repaired: dict[str, int]) -> None:
    """Every event of the file was read, with these repairs, and all three kernels are there and linked."""
    q = trace.quality
    assert (q.events, q.lost, q.repaired, q.cut_short) == (len(k.events), 0, repaired, False)
    assert intervals(trace) == [(0, 1_000), (1_000, 2_000), (2_000, 3_000)]
    assert link(trace).complete


# ---- size and speed --------------------------------------------------------------------------------------

MEASURE = """
import re, sys
from sublight.observe.read import read

def kib(key):
    return int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

before = kib("VmRSS")
trace = read(sys.argv[1])
print(trace.quality.events, trace.quality.text_bytes, (kib("VmHWM") - before) * 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("indent", ["kineto", None])
def test_fault_01_memory_is_bounded_by_columns_not_by_text(tmp_path: Path, indent: Indent) -> None:
    # 100 times: operator, call, kernel, and five Python frames, as traces with stacks have them
    k = Kineto(with_stack=True)
    for i in range(100):
        op = k.op("aten::mm", 10 * i, 10 * i + 9, dims=[[1024, 8944], [8944, 1024]])
        k.kernel(GEMM, 1_000 + 10 * i, 1_010 + 10 * i, launch=(10 * i + 1, 10 * i + 2), op=op)
        for depth in range(5):
            k.raw(python_function(f"torch/nn/modules/module.py(1773): _call_impl {depth}", 10 * i, depth))
    text = k.text(indent=indent)
    start, end = text.index('{\n    "ph"' if indent else '{"ph"'), text.rindex("}", 0, text.rindex("]")) + 1
    block, repeats = text[start:end], 40_000_000 // (end - start)
    path = tmp_path / "big.json"
    with path.open("w") as file:
        file.write(text[:start])
        file.writelines(block + ",\n" for _ in range(repeats - 1))
        file.write(block + text[end:])
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    events, text_bytes, peak_bytes = map(int, done.stdout.split())
    assert events == repeats * len(k.events)
    assert text_bytes == path.stat().st_size > 39_000_000
    assert peak_bytes < 0.4 * text_bytes, f"{peak_bytes / 1e6:.0f} MB for {text_bytes / 1e6:.0f} MB of text"


def python_function(name: str, start: int, number: int) -> Event:
    return {
        "ph": "X", "cat": "python_function", "name": name, "pid": 4242, "tid": 4242,
        "ts": Micros(start), "dur": Micros(5),
        "args": {"Python parent id": None, "Python id": number, "Ev Idx": number},
    }  # fmt: skip


def test_fault_02_python_frames_are_counted_and_left_out(from_text: Reader) -> None:
    k = three_kernels()
    for i in range(10):
        k.raw(python_function(f"secret.py({i}): frame", 100 * i, i))
    trace = from_text(k.text())
    assert_nothing_lost(trace, k, {})
    assert trace.quality.ignored == {"python_function": 10}
    assert [name for name in trace.names if "secret" in name] == []
    assert trace.recording.stacks is True


def test_fault_04_files_are_ranks_and_a_folder_is_all_of_its_ranks(tmp_path: Path) -> None:
    for rank in (1, 0):
        k = Kineto(rank=rank, world_size=2)
        k.kernel(GEMM, 0, 1_000 + rank, launch=EARLY)
        k.write(tmp_path / f"{rank}.json.gz")
    traces = read_all([tmp_path / "1.json.gz", tmp_path / "0.json.gz"])
    assert [trace.rank for trace in traces] == [0, 1]
    (tmp_path / "notes.txt").write_text("no trace")
    assert [trace.rank for trace in read_all([tmp_path])] == [0, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty is a folder without traces"):
        read(tmp_path / "empty")


def test_ranks_of_a_folder_come_in_their_numbers_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        k = Kineto(rank=None)
        k.kernel(GEMM, 0, 1_000 + rank, launch=EARLY)
        k.write(tmp_path / f"rank{rank}.json")
    assert [trace.quality.files for trace in read_all([tmp_path])] == [
        ("rank0.json",), ("rank2.json",), ("rank10.json",)]


# ---- broken or odd files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", ["kineto", 2, None])
def test_fault_06_big_integers_are_read_and_still_link(from_text: Reader, indent: Indent) -> None:
    # 2^63 is the first that no int64 holds, 2^64 the first that no uint64 does
    k = Kineto()
    for i, correlation in enumerate((2**63 + 5, 2**64 - 1, 2**64 + 7)):
        ids: dict[str, Any] = {"Comms Id": 2**64 - 3 + i, "Seq": 2**70}
        called = 100 * i - 5_000
        k.kernel(ALL_REDUCE, 1_000 * i, 1_000 * (i + 1), launch=(called, called + 50),
                 correlation=correlation, **ids)  # fmt: skip
    trace = from_text(k.text(indent=indent))
    assert_nothing_lost(trace, k, {})
    assert (link(trace).launch_ns - BASE_NS).tolist() == [-5_000, -4_900, -4_800]


def test_fault_07_an_empty_value_costs_no_event(from_text: Reader) -> None:
    # kineto PR#1184: "Process Group Description": ,
    k = three_kernels(ALL_REDUCE, **{"Process Group Description": "EMPTY"})
    assert_nothing_lost(from_text(k.text().replace('"EMPTY"', "")), k, {"empty values": 1})


def test_fault_07_unescaped_quotes_cost_no_event(from_text: Reader) -> None:
    k = three_kernels(ALL_REDUCE, **{"Process Group Description": "say QUOTEhelloQUOTE twice"})
    assert_nothing_lost(from_text(k.text().replace("QUOTE", '"')), k, {"unescaped quotes": 1})


def test_fault_07_bytes_that_are_not_utf8_cost_no_event(from_text: Reader) -> None:
    k = three_kernels("gemm_BYTES")
    trace = from_text(k.text().encode().replace(b"BYTES", b"\xff\xfe"))
    assert_nothing_lost(trace, k, {"invalid UTF-8": 1})
    assert names_of(trace)[0] == "gemm_\ufffd\ufffd"


def test_fault_07_a_hopeless_event_is_counted_and_its_neighbours_kept(from_text: Reader) -> None:
    k = three_kernels()
    broken = k.text().replace('"ts": 1.000', '"ts" 1.000 "', 1)
    trace = from_text(broken)
    assert intervals(trace) == [(0, 1_000), (2_000, 3_000)]
    assert (trace.quality.events, trace.quality.lost) == (len(k.events) - 1, 1)
    assert "1 events could not be read" in found(only(trace))["SL001"]
    assert "1 lost" in quality_line(only(trace).view)


def test_fault_08_control_characters_cost_no_event(from_text: Reader) -> None:
    k = three_kernels("gemm CONTROL end")
    trace = from_text(k.text().replace("CONTROL", "\x01\n\x1b[31m"))
    assert_nothing_lost(trace, k, {"control characters or not-a-number": 1})


def test_fault_08_control_characters_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = three_kernels("zubako CONTROL").write(tmp_path / "trace.json")
    path.write_text(path.read_text().replace("CONTROL", "\x01\x1b[31m"))
    assert main(["explain", str(path)]) == 0
    assert re.findall(r"[\x00-\x09\x0b-\x1f]", capsys.readouterr().out) == []


@pytest.mark.parametrize("name", ["a[1]].json", 'x], "y": [{', "]}"])
@pytest.mark.parametrize("indent", ["kineto", 4, None])
def test_fault_09_a_bracket_in_the_last_key_does_not_end_the_list(
    from_text: Reader, name: str, indent: Indent
) -> None:
    k = three_kernels("gemm ] }, {")
    text = k.text(indent=indent).rstrip()
    assert text.endswith("}")
    trace = from_text(f'{text[:-1].rstrip()}, "traceName": {json.dumps(name)}}}')
    assert_nothing_lost(trace, k, {})
    assert trace.rank == 0


def test_fault_09_nor_does_it_after_damage(from_text: Reader) -> None:
    k = three_kernels(ALL_REDUCE, **{"Process Group Description": "EMPTY"})
    text = k.text().replace('"EMPTY"', "").rstrip()
    trace = from_text(text[:-1].rstrip() + ', "traceName": "a[1]].json"\n}')
    assert_nothing_lost(trace, k, {"empty values": 1})


@pytest.mark.parametrize("indent", ["kineto", 1, None])
def test_fault_10_a_list_at_the_root_is_a_trace(from_text: Reader, indent: Indent) -> None:
    k = Kineto(base_ns=BASE_NS)
    k.kernel(GEMM, 1_500, 3_000, launch=(0, 100))
    trace = from_text(k.text(indent=indent, list_root=True))
    assert (trace.quality.events, trace.quality.lost) == (2, 0)
    assert trace.activities.ts_ns.tolist() == [1_500]  # no base time in such a file
    assert link(trace).complete


def test_fault_10_files_of_2021_and_ids_as_text(from_text: Reader) -> None:
    # the categories Operator, Kernel, Runtime; pid "CPU functions"; tid "stream 7"; "external id"
    k = Kineto(base_ns=None)
    op = k.op("aten::mm", 0, 500)
    k.kernel(GEMM, 1_000, 3_000, launch=(100, 200), op=op)
    k.memcpy("HtoD", 3_000, 4_000, launch=(300, 400))
    for e in k.events:
        on_host = e["cat"] in ("cpu_op", "cuda_runtime")
        e["pid"] = "CPU functions" if on_host else "2"
        e["tid"] = "123" if on_host else f"stream {e['tid']}"
        e["args"] = {
            "external id" if key == "External id" else key: str(value)
            for key, value in e["args"].items()
            if key not in ("device", "stream")
        }
    trace = from_text(k.text(legacy=True))
    assert (trace.quality.events, trace.quality.lost) == (5, 0)
    assert trace.quality.kept["operators"] == 1
    assert trace.activities.ts_ns.tolist() == [1_000, 3_000]
    assert (trace.activities.device.tolist(), trace.activities.stream.tolist()) == ([2, 2], [7, 7])
    assert (link(trace).linked, link(trace).linked_to_op) == (2, 1)
    assert only(trace).view.budget[EXPOSED_COPIES] == 1_000


def test_fault_11_records_of_zeros_are_counted_not_timed(from_text: Reader) -> None:
    # ts 0, dur 0                       two seconds later
    # ¦ ← garbled                       ├─ a ─┼─ b ─┤
    late = 2_000_000_000
    k = Kineto()
    k.kernel(GEMM, late, late + 1_000, launch=(late - 200, late - 100))
    k.kernel(GEMM, late + 1_000, late + 2_000, launch=(late - 100, late - 50))
    k.kernel(GEMM, 0, 0)
    trace = from_text(k.text())
    assert trace.quality.untimed == {"start and duration are zero": 1}
    assert (trace.quality.events, trace.quality.lost) == (5, 0)
    assert only(trace).view.budget.window_ns == 2_000
    assert "1 events: start and duration are zero" in found(only(trace))["SL001"]


def test_fault_12_a_file_without_a_rank_says_where_its_rank_is_from(tmp_path: Path) -> None:
    k = Kineto(rank=None)
    k.kernel(GEMM, 0, 1_000, launch=EARLY)
    named = read(k.write(tmp_path / "worker3_step_12.json"))
    nameless = read(k.write(tmp_path / "trace.json"))
    assert (named.rank, named.rank_source) == (3, "file name")
    assert (nameless.rank, nameless.rank_source) == (None, "order")
    assert len(explain((named, nameless)).devices) == 2


# ---- wrong numbers, silently -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ALL_REDUCE, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"])
def test_fault_15_nccl_kernels_communicate_by_their_old_and_their_new_name(
    from_text: Reader, name: str
) -> None:
    assert only(from_text(three_kernels(name).text())).view.budget.communication.union_ns == 1_000


def test_fault_15_names_that_the_taxonomy_does_not_know_raise_an_alarm(from_text: Reader) -> None:
    device = only(from_text(three_kernels("zubako_all").text()))
    assert "zubako_all" in found(device)["SL003"]
    assert device.view.unclassified_share == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", [
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, size_t)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, int)",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
])  # fmt: skip
def test_fault_16_collectives_without_metadata_communicate(from_text: Reader, name: str) -> None:
    # stream 7   ├──────── gemm ────────┤
    # stream 20      ├─ collective ─┤           told by its name; held SMs by its grid
    k = Kineto(sms=132)
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.kernel(name, 2_000, 8_000, stream=20, launch=EARLY, grid=(24, 1, 1))
    device = only(from_text(k.text()))
    c = device.view.budget.communication
    assert (c.union_ns, c.hidden_ns, c.exposed_ns) == (6_000, 6_000, 0)
    assert "holds 24 of 132 SMs" in found(device)["SL102"]


def test_fault_17_kernels_of_a_graph_are_busy_time_and_the_blindness_is_flagged(from_text: Reader) -> None:
    # host     ├ cudaGraphLaunch ┤
    # device       ├ a ┼ b ┤      ├ c ┤           idle only between b and c
    k = Kineto()
    k.graph_launch((0, 4_000), [(GEMM, 1_000, 2_000, 7), (GEMM, 2_000, 3_000, 7), (GEMM, 3_500, 6_000, 7)])
    device = only(from_text(k.text()))
    assert (device.view.budget.busy_ns, device.view.budget[DEPENDENCY]) == (4_500, 500)
    assert device.view.budget.idle_ns == 500
    assert "100.0 % of kernel time (4.5 µs) runs under 1 graph launch" in found(device)["SL002"]
    assert "operators behind kernels" in refused(device)
    assert "100.0 % of kernel time in CUDA graphs" in quality_line(device.view)


def test_fault_18_graph_replays_without_kernels_refuse_a_verdict_on_idle_time(from_text: Reader) -> None:
    # host     replay    replay    replay    replay
    # device    ├ a ┤                         ├ a ┤       the kernels of two replays are lost
    k = Kineto()
    for i in (0, 3):
        k.graph_launch((10_000 * i, 10_000 * i + 100), [(GEMM, 10_000 * i + 200, 10_000 * i + 900, 7)])
    for i in (1, 2):
        k.graph_launch((10_000 * i, 10_000 * i + 100), [])
    device = only(from_text(k.text()))
    assert "2 of 4 launches have no kernel in the file" in refused(device)["how idle the device is"]
    assert headline(device.view).startswith("No verdict on idle time: 2 of 4 launches have no kernel")


def test_fault_18_graph_replays_that_lost_most_of_their_kernels_refuse_it_too(from_text: Reader) -> None:
    # host     replay            replay            replay
    # device    ├a┼b┼c┼d┤         ├a┤               ├a┼b┼c┼d┤
    k = Kineto()
    for i, kernels in enumerate((4, 1, 4)):
        start = 10_000 * i
        k.graph_launch((start, start + 100), [
            (GEMM, start + 1_000 + 1_000 * j, start + 2_000 + 1_000 * j, 7) for j in range(kernels)
        ])  # fmt: skip
    assert "how idle the device is" in refused(only(from_text(k.text())))


def two_of_32_steps(*, launches: bool) -> Kineto:
    # host     ├ 0 ┤├ 1 ┤├ 2 ┤ … ├ 31 ┤
    # device     ├a┤  ├a┤                   back to back: no idle time to be seen
    k = Kineto()
    for number in range(32):
        start = 10_000 * number
        k.step(number, start, start + 10_000)
        if number < 2:
            k.kernel(GEMM, start + 1_000, start + 11_000, launch=(start + 100, start + 200))
        elif launches:
            k.call("cudaLaunchKernel", start + 100, start + 200)
    return k


def test_fault_19_steps_whose_launches_lost_their_kernels_refuse_a_verdict(from_text: Reader) -> None:
    device = only(from_text(two_of_32_steps(launches=True).text()), "default")
    assert device.view.window == "all"
    assert device.view.window_reason == "30 of 32 marked steps have no linked activity on this device"
    assert "30 of 32 marked steps have no activity" in refused(device)["figures per step"]
    assert "30 of 32 launches have no kernel" in refused(device)["how idle the device is"]
    assert headline(device.view).startswith("No verdict on idle time: 30 of 32 launches")
    assert {"SL001", "SL004"} <= set(found(device))


def test_fault_19_events_in_two_of_32_steps_refuse_figures_per_step(from_text: Reader) -> None:
    device = only(from_text(two_of_32_steps(launches=False).text()), "default")
    assert "30 of 32 marked steps have no activity" in refused(device)["figures per step"]
    assert "30 of 32 marked steps have no activity" in found(device)["SL004"]


def test_fault_19_events_in_two_of_32_steps_refuse_a_verdict_on_idle_time(from_text: Reader) -> None:
    device = only(from_text(two_of_32_steps(launches=False).text()), "default")
    assert headline(device.view).startswith("No verdict")


@pytest.mark.parametrize(("successors", "repaired"), [(8, 1), (7, 0)])
def test_fault_20_a_duration_past_its_successors_is_cut_at_the_next_start(
    from_text: Reader, successors: int, repaired: int
) -> None:
    # stream 7   ├─ a ──────────────────────── … 1 s        written
    #            ├─ a ─┤                                     meant
    #                  ├─ 1 ─┼─ 2 ─┼ … ┼─ 8 ─┤             seven could be a graph's other branch
    k = Kineto()
    k.kernel(GEMM, 0, 1_000_000_000, launch=EARLY)
    for i in range(1, successors + 1):
        k.kernel(GEMM, 1_000 * i, 1_000 * (i + 1), launch=EARLY)
    trace = from_text(k.text())
    expected = {"duration ran past its successors on one stream": 1} if repaired else {}
    assert trace.quality.repaired == expected
    assert only(trace).view.budget.window_ns == (9_000 if repaired else 1_000_000_000)
    assert intervals(trace)[1:] == [(1_000 * i, 1_000 * (i + 1)) for i in range(1, successors + 1)]


def test_fault_21_a_recording_of_an_idle_engine_says_so(from_text: Reader) -> None:
    # device   ├a┤                                                     ├b┤
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=EARLY)
    k.kernel(GEMM, 999_000, 1_000_000, launch=EARLY)
    assert "the device works during 0.20 % of the window" in found(only(from_text(k.text())))["SL004"]


def test_fault_22_kernels_that_overlap_on_one_stream_are_kept_as_they_are(from_text: Reader) -> None:
    # stream 7   ├──── a ────┤
    #                     ├──── b ────┤              programmatic dependent launch
    #                                ├──── c ────┤
    k = Kineto()
    for start in (0, 900, 1_800):
        k.kernel(GEMM, start, start + 1_000, launch=EARLY)
    trace = from_text(k.text())
    device = only(trace)
    assert intervals(trace) == [(0, 1_000), (900, 1_900), (1_800, 2_800)]
    assert trace.quality.repaired == {}
    assert (device.view.budget.busy_ns, device.view.budget.window_ns) == (2_800, 2_800)
    assert [row.ns for row in device.view.kernels] == [3_000]  # durations as they were


def test_fault_22_a_kernel_that_outlasts_one_successor_is_kept_too(from_text: Reader) -> None:
    # stream 7   ├──────── a ────────┤
    #                    ├─ b ─┤
    #                                 ├─ c ─┤
    k = Kineto()
    k.kernel(GEMM, 0, 2_000, launch=EARLY)
    k.kernel(GEMM, 900, 1_900, launch=EARLY)
    k.kernel(GEMM, 2_000, 3_000, launch=EARLY)
    assert intervals(from_text(k.text())) == [(0, 2_000), (900, 1_900), (2_000, 3_000)]


def test_fault_23_crossing_ranges_on_a_thread_are_tolerated(from_text: Reader) -> None:
    # thread 1   ├──── aten::mm ────┤
    #                  ├──── aten::add ────┤         the one that began last owns the crossing
    k = Kineto(device_name=None)
    k.op("aten::mm", 0, 10_000)
    k.op("aten::add", 6_000, 15_000)
    view = only(from_text(k.text())).view
    budget = view.budget
    assert (budget["gemm"], budget["elementwise"], budget.window_ns) == (6_000, 9_000, 15_000)
    assert {row.name: row.ns for row in view.kernels} == {"aten::mm": 6_000, "aten::add": 9_000}


def test_fault_24_device_times_are_never_moved_to_their_launches(from_text: Reader) -> None:
    # host       launch a, launch b                   at the same time
    # stream 20       ├─ a ─┤    ├─ b ─┤              they do not overlap
    k = Kineto(flows=True)
    k.kernel(ALL_REDUCE, 5_000, 6_000, stream=20, launch=(0, 100))
    k.kernel(ALL_REDUCE, 8_000, 9_000, stream=20, launch=(100, 200))
    trace = from_text(k.text())
    assert intervals(trace) == [(5_000, 6_000), (8_000, 9_000)]
    assert only(trace).view.budget.communication.union_ns == 2_000


def test_fault_26_overlap_stands_beside_the_budget_with_the_sms_that_it_holds(from_text: Reader) -> None:
    # stream 7   ├──────── gemm ────────┤
    # stream 20        ├──── all-reduce ────┤         6 hidden, 2 exposed
    k = Kineto(sms=132)
    k.kernel(GEMM, 0, 10_000, launch=EARLY, grid=(112, 1, 1))
    k.kernel(ALL_REDUCE, 4_000, 12_000, stream=20, launch=EARLY, grid=(20, 1, 1))
    device = only(from_text(k.text()))
    budget = device.view.budget
    c = budget.communication
    assert (c.union_ns, c.hidden_ns, c.exposed_ns) == (8_000, 6_000, 2_000)
    assert (budget.group_ns("compute"), budget.group_ns("communication")) == (10_000, 2_000)
    assert "holds 20 of 132 SMs" in found(device)["SL102"]
    assert "1 GEMM run with a grid of 112 = 132 - 20" in found(device)["SL102"]


@pytest.mark.parametrize("api", ["cuLaunchKernelEx", "hipLaunchKernel", "hipGraphLaunch", "zubakoEnqueue"])
def test_fault_27_launches_are_linked_whatever_their_api_is_called(from_text: Reader, api: str) -> None:
    # host                  api
    # device   ├─ a ─┤           ├─ b ─┤           b waited for its launch
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=EARLY)
    k.kernel(GEMM, 2_000, 3_000, launch=(1_500, 1_600), api=api)
    trace = from_text(k.text())
    assert link(trace).complete
    assert only(trace).view.budget[STARVED] == 1_000


@pytest.mark.parametrize("lead", [300, 5_000])
def test_fault_28_a_kernel_that_starts_before_its_launch_is_linked_and_reported(
    from_text: Reader, lead: int
) -> None:
    # host             launch b
    # device   ├─ a ─┼─ b ─┤               two clocks that do not agree
    k = Kineto()
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.kernel(GEMM, 10_000, 20_000, launch=(10_000 + lead, 10_000 + lead + 100))
    trace = from_text(k.text())
    links = link(trace)
    assert links.complete
    assert (links.before_launch, links.largest_lead_ns) == (1, lead)
    assert intervals(trace) == [(0, 10_000), (10_000, 20_000)]
    assert only(trace).view.budget.busy_ns == 20_000
    assert "1 start before their launch" in quality_line(only(trace).view)


def test_fault_29_launches_without_kernels_are_counted(from_text: Reader) -> None:
    k = three_kernels()
    for i in range(2):
        k.call("cudaLaunchKernelExC", 100 * i, 100 * i + 50)
    k.call("cudaLaunchHostFunc", 300, 350)  # runs on the host: nothing is missing
    k.call("cudaEventRecord", 400, 450)
    device = only(from_text(k.text()))
    assert device.view.links is not None
    assert (device.view.links.launches, device.view.links.launches_without_activity) == (5, 2)
    assert "2 of 5 launches have no kernel in the file" in found(device)["SL001"]
    assert "2 launches without kernel" in quality_line(device.view)
    assert "how idle the device is" in refused(device)


def test_fault_29_launches_into_a_graph_under_capture_have_no_kernels_to_lose(from_text: Reader) -> None:
    # thread 1   begin capture  launch  launch  end capture
    # thread 2                  launch                          this one is missed
    k = three_kernels()
    k.call("cudaStreamBeginCapture", 0, 10)
    k.call("cudaLaunchKernel", 100, 110)
    k.call("cudaLaunchKernel", 200, 210)
    k.call("cudaLaunchKernel", 200, 210, thread=2)
    k.call("cudaStreamEndCapture", 300, 310)
    links = link(from_text(k.text()))
    assert (links.launches, links.launches_without_activity) == (4, 1)


def test_fault_30_records_that_end_before_they_start_are_counted_not_timed(from_text: Reader) -> None:
    k = three_kernels()
    k.kernel(GEMM, 4_000, 3_500)
    trace = from_text(k.text())
    assert trace.quality.untimed == {"ends before it starts": 1}
    assert (trace.quality.events, trace.quality.lost) == (len(k.events), 0)
    assert only(trace).view.budget.window_ns == 3_000
    assert "1 events: ends before it starts" in found(only(trace))["SL001"]


def test_fault_30_records_hours_away_are_counted_not_timed(from_text: Reader) -> None:
    # ├a┼b┼ … 20 kernels ┤            five hours later: ├ garbled ┤
    k = Kineto()
    for i in range(20):
        k.kernel(GEMM, 1_000 * i, 1_000 * (i + 1), launch=EARLY)
    k.kernel(GEMM, 5 * 3_600_000_000_000, 5 * 3_600_000_000_000 + 1_000)
    trace = from_text(k.text())
    assert trace.quality.untimed == {"more than an hour away from the rest": 1}
    assert only(trace).view.budget.window_ns == 20_000


@pytest.mark.parametrize("stamp", ["null", '"soon"', "NaN", "1e300"])
def test_fault_30_records_without_a_usable_time_are_counted_not_timed(from_text: Reader, stamp: str) -> None:
    k = three_kernels()
    k.kernel(GEMM, 7_777, 8_000)
    trace = from_text(k.text().replace('"ts": 7.777', f'"ts": {stamp}'))
    assert trace.quality.untimed == {"no usable time stamp": 1}
    assert (trace.quality.events, trace.quality.lost) == (len(k.events), 0)
    assert only(trace).view.budget.window_ns == 3_000


# ---- missing or displaced events -------------------------------------------------------------------------


def test_fault_32_the_share_of_kernels_without_an_operator_is_said(from_text: Reader) -> None:
    # host     ├ aten::mm: launch a ┤  ├ graph launch ┤
    # device         ├─ a ─┼───── b ─────┼───── c ─────┤
    k = Kineto()
    op = k.op("aten::mm", -3_000, -500)
    k.kernel(GEMM, 0, 1_000, launch=EARLY, op=op)
    k.graph_launch((0, 100), [(GEMM, 1_000, 6_000, 7), (GEMM, 6_000, 10_000, 7)])
    device = only(from_text(k.text()))
    assert "90.0 % of kernel time (9.0 µs) runs under 1 graph launch" in found(device)["SL002"]
    assert "1 of 3 activities are linked to an operator" in found(device)["SL002"]
    assert refused(device)["operators behind kernels"].startswith("90.0 % of kernel time")


def test_fault_33_link_coverage_is_in_the_quality_line(from_text: Reader) -> None:
    # stream 7   ├─ a ─┼─ b ─┼─ c ─┼─ d ─┤      a has no launch, b has an operator too
    k = Kineto()
    op = k.op("aten::mm", -3_000, -500)
    k.kernel(GEMM, 0, 1_000)
    k.kernel(GEMM, 1_000, 2_000, launch=EARLY, op=op)
    k.kernel(GEMM, 2_000, 3_000, launch=EARLY)
    k.kernel(GEMM, 3_000, 4_000, launch=EARLY)
    device = only(from_text(k.text()))
    assert "launches linked 75.0 %" in quality_line(device.view)
    assert "operators linked 25.0 %" in quality_line(device.view)
    assert refused(device)["causes of all idle time"] == (
        "1 of 4 device activities in the window have no launch in the file")


@pytest.mark.parametrize("stream", [-1, 4294967295])
def test_fault_34_synchronisation_events_are_no_activity(from_text: Reader, stream: int) -> None:
    # host     ├──── cudaDeviceSynchronize ────┤ launch b
    # device   ├─ a ─┤                             ├─ b ─┤
    #                ├── Context Sync, stream -1 ─┤          drawn on the device, yet nothing runs
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=EARLY)
    k.kernel(GEMM, 5_000, 6_000, launch=(4_100, 4_200))
    correlation = k.call("cudaDeviceSynchronize", 100, 4_000)
    k.raw({
        "ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 0, "tid": stream,
        "ts": Micros(1_000), "dur": Micros(3_000),
        "args": {"cuda_sync_kind": "Context Sync", "stream": stream, "correlation": correlation, "device": 0},
    })  # fmt: skip
    trace = from_text(k.text())
    budget = only(trace).view.budget
    assert trace.quality.ignored == {"cuda_sync": 1}
    assert (budget.busy_ns, budget[BLOCKED], budget[STARVED]) == (2_000, 3_000, 1_000)


# ---- meaning ---------------------------------------------------------------------------------------------


def test_fault_36_text_and_json_need_no_viewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(three_kernels(ALL_REDUCE).write(tmp_path / "trace.json.gz"))
    assert main(["explain", path]) == 0
    assert "exposed communication" in capsys.readouterr().out
    assert main(["explain", path, "--format", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert sum(part["ns"] for part in device["parts"]) == device["window_ns"] == 3_000
    assert device["communication"]["exposed_ns"] == 1_000
