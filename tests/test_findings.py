"""The findings: each sees its fault, at its true size, and nothing in the same trace without it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import all_kineto, shared
from explaining import codes, explained
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto import Kineto
from strategies import span, traces
from test_bound_findings import chain, far_above, slow_format, sm_tax, unfilled_wave, unfused_attention
from test_fabric import EXPECTED_SMALL, small_all_reduce

from sublight.errors import InputError
from sublight.explain import Explained, explain
from sublight.explain.findings import FINDINGS, FindingModule
from sublight.explain.rank_findings import RANK_FINDINGS, RankFindingModule
from sublight.finding import Finding
from sublight.observe.read import read

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
CAST = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NOTIFY = "void deep_ep::internode::notify_dispatch<false, 8>(int const*)"
DISPATCH = "void deep_ep::internode::dispatch<false, 8, false, 8>(int4*, float*)"
NOBODY_KNOWS = "zubako_tenvel"
EARLY = (-2_000, -1_000)  # launched long before it runs: the device never waits for the host
WINDOW_NS = 100_000

CODES = [module.CODE for module in FINDINGS]
ROOT = Path(__file__).parent.parent


# ---- planted faults: builders of traces with a fault of a given size, nothing else wrong -----------------


def lost_launches(count: int) -> Kineto:
    # host     launch a  launch  launch …
    # device      ├──── a ────┤                 the others have no kernel
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    for i in range(count):
        k.call("cudaLaunchKernel", 1_000 * i, 1_000 * i + 500)
    return k


def under_a_graph(ns: int) -> Kineto:
    # stream 7   ├──── gemm ────┼─ gemm of a graph ─┤
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS - ns, launch=EARLY)
    k.graph_launch(EARLY, [(GEMM, WINDOW_NS - ns, WINDOW_NS, 7)])
    return k


def unknown_name(ns: int) -> Kineto:
    # stream 7   ├──── gemm ────┼─ zubako ─┤
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS - ns, launch=EARLY)
    k.kernel(NOBODY_KNOWS, WINDOW_NS - ns, WINDOW_NS, launch=EARLY)
    return k


def uneven_steps(ns: int) -> Kineto:
    # host     ├─ step 1 ─┤├─ step 2 ─┤├─ step 3 ─┤
    # device     ├ 10 µs ┤   ├ 10 µs ┤   ├─── ns ───┤
    k = Kineto()
    for number, length in enumerate((10_000, 10_000, ns)):
        start = 20_000 * number
        k.step(number + 1, start, start + 20_000)
        k.kernel(GEMM, start + 1_000, start + 1_000 + length, launch=(start + 100, start + 200))
    return k


def exposed(ns: int) -> Kineto:
    # stream 7   ├──── gemm ────┤
    # stream 20          ├─ all-reduce ─┤       ns of it outlast the gemm
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS - ns, launch=EARLY)
    k.kernel(ALL_REDUCE, WINDOW_NS - ns - 500, WINDOW_NS, stream=20, launch=EARLY)
    return k


def sms_held(ns: int) -> Kineto:
    # stream 7   ├───────── gemm ─────────┤
    # stream 20     ├ all-reduce, ns ┤          20 of 132 SMs
    k = Kineto(sms=132)
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY, grid=(112, 1, 1))
    k.kernel(ALL_REDUCE, 0, ns, stream=20, launch=EARLY, grid=(20, 1, 1))
    return k


def waiting(ns: int) -> Kineto:
    # stream 7   ├───────── gemm ─────────┤
    # stream 20     ├─ notify, ns ─┤            hidden: it costs one SM of 132
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    k.kernel(NOTIFY, 0, ns, stream=20, launch=EARLY)
    return k


def late_launch(ns: int) -> Kineto:
    # host                      launch b
    # device     ├──── a ────┤            ├─ b ─┤
    #                        |←─── ns ───→|
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.kernel(GEMM, 50_000 + ns, WINDOW_NS, launch=(50_000, 50_000 + ns))
    return k


def synchronised(ns: int) -> Kineto:
    # host       ├─── cudaStreamSynchronize ───┤ launch b
    # device     ├──── a ────┤                            ├─ b ─┤      then nothing: the device never catches up
    #                        |←── blocked ns ─→|← 400 ns →|
    k = Kineto()
    k.kernel(GEMM, 0, 90_000, launch=EARLY)
    k.call("cudaStreamSynchronize", 1_000, 90_000 + ns)
    k.kernel(GEMM, 90_000 + ns + 400, WINDOW_NS, launch=(90_000 + ns + 100, 90_000 + ns + 300))
    return k


def short_kernels(count: int) -> Kineto:
    # stream 7   ├4┼4┼4┤ … ├─6─┼─6─┤ …         20 kernels, `count` of them of 4 µs, the others of 6
    k = Kineto()
    start = 0
    for i in range(20):
        end = start + (4_000 if i < count else 6_000)
        k.kernel(GEMM, start, end, launch=EARLY)
        start = end
    return k


def host_copy(ns: int) -> Kineto:
    # stream 7   ├ HtoD, ns ┼──── gemm ────┤
    k = Kineto()
    k.memcpy("Memcpy HtoD (Pageable -> Device)", 0, ns, nbytes=4_096, launch=EARLY)
    k.kernel(GEMM, ns, WINDOW_NS, launch=EARLY)
    return k


def late_start(ns: int) -> Kineto:
    # host       launch b
    # device     ├──── a ────┤            ├─ b ─┤      b waits for something else
    #                        |←─── ns ───→|
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.kernel(GEMM, 50_000 + ns, WINDOW_NS, launch=(49_999, 50_500))
    return k


def host_stall(ns: int) -> Kineto:
    # thread 1   ├─ aten::mm ─┤           ├─ aten::bmm ─┤
    #                         |←── ns ───→|
    k = Kineto(device_name=None)
    k.op("aten::mm", 0, 40_000)
    k.op("aten::bmm", 40_000 + ns, WINDOW_NS)
    return k


def memory_bound(ns: int) -> Kineto:
    # stream 7   ├──── gemm ────┼─ add, ns ─┤
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS - ns, launch=EARLY)
    k.kernel(CAST, WINDOW_NS - ns, WINDOW_NS, launch=EARLY)
    return k


@dataclass(frozen=True)
class Planted:
    """A fault of `size` in a trace that is healthy otherwise; below `least` it is not worth a finding."""

    code: str
    build: Callable[[int], Kineto]
    least: int
    size: int
    gain_ns: int | None
    says: str  # in the claim or its evidence
    window: str = "all"


PLANTED = (
    Planted("SL001", lost_launches, 1, 3, None, "3 of 4 launches have no kernel"),
    Planted("SL002", under_a_graph, 10_000, 40_000, None, "40.0 % of kernel time (40.0 µs)"),
    Planted("SL003", unknown_name, 1_001, 3_000, None, "3.0 % of the time of kernels (3.0 µs)"),
    Planted("SL004", uneven_steps, 20_001, 50_000, None, "takes 50.0 µs, the median 10.0 µs", "default"),
    Planted("SL101", exposed, 1_000, 3_000, 3_000, "3.0 µs (3.0 % of the window)"),
    Planted("SL102", sms_held, 13_200, 66_000, 10_000, "holds 20 of 132 SMs"),
    Planted("SL103", waiting, 1_000, 30_000, 30_000 * 1 // 132, "30.0 µs (30.0 % of the window)"),
    Planted("SL107", small_all_reduce, ceil(EXPECTED_SMALL.low * 1e9), round(EXPECTED_SMALL.seconds * 1e9), None,
            "what limits: "),
    Planted("SL108", small_all_reduce, ceil(EXPECTED_SMALL.high * 1e9 + 999.5),
            round(EXPECTED_SMALL.high * 1e9) + 3_000, 0, "3.0 µs (3.0 % of the window), as if"),
    Planted("SL201", late_launch, 1_000, 7_000, 7_000, "7.0 µs (7.0 % of the window)"),
    Planted("SL202", synchronised, 100, 4_000, 4_400, "for 4.0 µs (4.0 % of the window) in calls that make the host "
            "wait, and for 400 ns until"),
    Planted("SL203", short_kernels, 10, 15, 60_000, "15 of 20 kernels run for less than 5.0 µs each"),
    Planted("SL204", host_copy, 500, 6_000, 6_000, "1 copy between host and device: 6.0 µs (6.0 %"),
    Planted("SL205", host_stall, 2_000, 9_000, 9_000, "9.0 µs (9.0 % of the window) between aten::mm and"),
    Planted("SL206", late_start, 1_000, 7_000, 7_000, "7.0 µs (7.0 % of the window) before work that"),
    Planted("SL301", memory_bound, 10_000, 25_000, 25_000, "25.0 µs (25.0 % of the window)"),
    Planted("SL302", far_above, 2_000, 3_000, 3_000, "3.0 µs (3.0 % of the window) is spent above the bound"),
    Planted("SL303", unfilled_wave, 8_250, 10_000, 2_424, "24.2 % of their time has no tile"),
    Planted("SL304", slow_format, 5_000, 6_000, 3_000, "6.0 µs (6.0 % of the window)"),
    Planted("SL305", unfused_attention, 1_062, 1_800, 1_738, "1.8 µs (1.8 % of the window) goes to attention"),
    Planted("SL306", chain, 1_007, 1_800, 1_793, "1.8 µs (1.8 % of the window) goes to 1 chain"),
    Planted("SL307", sm_tax, 3_350, 6_000, None, "bound on all 132 SMs: 5.0 µs; on the 112 left: 5.9 µs"),
)
each_planted = pytest.mark.parametrize("fault", PLANTED, ids=[fault.code for fault in PLANTED])


@each_planted
def test_a_planted_fault_is_the_only_finding_and_has_its_size(fault: Planted) -> None:
    (finding,) = explained(fault.build(fault.size), window=fault.window).findings
    assert (fault.code, fault.gain_ns) == (finding.code, finding.gain_ns_at_most)
    assert fault.says in "\n".join((finding.claim, *finding.evidence))


@each_planted
def test_a_fault_is_found_from_its_threshold_on_and_not_below(fault: Planted) -> None:
    assert [fault.code] == codes(fault.build(fault.least), window=fault.window)
    assert codes(fault.build(fault.least - 1), window=fault.window) == []


def test_every_finding_has_a_planted_fault() -> None:
    with_a_model = "SL308"               # planted in test_predicted_trace.py
    assert sorted(CODES) == sorted([*(fault.code for fault in PLANTED), with_a_model])


# ---- the other ways in which a finding can be true -------------------------------------------------------


def reasons(finding: Finding) -> str:
    return "\n".join(finding.evidence)


def test_sl001_names_activities_without_a_launch() -> None:
    # stream 7   ├──── a ────┼─ b ─┤            b was launched before the recording began
    k = Kineto()
    k.kernel(GEMM, 0, 90_000, launch=EARLY)
    k.kernel(GEMM, 90_000, WINDOW_NS)
    (finding,) = explained(k).findings
    assert (finding.code, reasons(finding)) == ("SL001", "1 of 2 activities in the window have no launch in the file")
    assert codes(k, window="0us:90us") == []


def test_sl001_names_records_that_end_before_they_start() -> None:
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    k.op("aten::mm", 5_000, 4_000)
    (finding,) = explained(k).findings
    assert (finding.code, reasons(finding)) == ("SL001", "1 events: ends before it starts")


def test_sl001_names_an_event_that_cannot_be_read_and_a_file_that_ends_early(tmp_path: Path) -> None:
    k = Kineto()
    k.kernel(GEMM, 0, 90_000, launch=EARLY)
    k.kernel(GEMM, 90_000, WINDOW_NS, launch=EARLY)
    whole = k.text(indent=None)
    last = whole.rindex('{"ph"')
    (tmp_path / "cut.json").write_text(whole[: last + 60])
    (device,) = explain(read(tmp_path / "cut.json"), window="all").devices
    assert "SL001" in [f.code for f in device.findings]
    found = next(f for f in device.findings if f.code == "SL001")
    assert found.evidence[:2] == ("the file ends in the middle", "1 events could not be read")


def test_sl001_and_sl004_name_steps_without_activity() -> None:
    # host     ├─ step 1 ─┤├─ step 2 ─┤├─ step 3 ─┤
    # device     ├─ a ─┤                               steps 2 and 3 have nothing in the file
    k = Kineto()
    for number in range(3):
        k.step(number + 1, 20_000 * number, 20_000 * (number + 1))
    k.kernel(GEMM, 1_000, 11_000, launch=(100, 200))
    missing, unsteady = explained(k, window="default").findings
    assert missing.code == "SL001"
    assert reasons(missing) == "2 of 3 marked steps have no activity on this device"
    assert (unsteady.code, reasons(unsteady)) == ("SL004", "2 of 3 marked steps have no activity")


@pytest.mark.parametrize(("activities", "found"), [(5, ["SL004"]), (4, [])])
def test_sl004_compares_the_activities_of_steps(activities: int, found: list[str]) -> None:
    # host     ├─ step 1 ─┤├─ step 2 ─┤├─ step 3 ─┤
    # device     ├ a ┼ b ┤   ├ a ┼ b ┤   ├a┼b┼c┼d┼e┤     all of 10 µs
    k = Kineto()
    for number, count in enumerate((2, 2, activities)):
        start, each = 20_000 * number, 10_000 // count
        k.step(number + 1, start, start + 20_000)
        for i in range(count):
            at = start + 1_000 + i * each
            k.kernel(GEMM, at, at + each, launch=(start + 100, start + 200))
    assert found == codes(k, window="default")


@pytest.mark.parametrize(("busy_ns", "found"), [(1_999, ["SL201", "SL004"]), (2_000, ["SL201"])])
def test_sl004_sees_a_recording_of_an_idle_device(busy_ns: int, found: list[str]) -> None:
    # host                                          launch b
    # device   ├ a ┤                                 ├ b ┤       2 % of 100 µs
    k = Kineto()
    k.kernel(GEMM, 0, 1_000, launch=EARLY)
    start = WINDOW_NS - busy_ns + 1_000
    k.kernel(GEMM, start, WINDOW_NS, launch=(start - 500, start - 400))
    assert found == codes(k)


@pytest.mark.parametrize(("captured", "found"), [(2, ["SL004"]), (1, [])])
def test_sl004_sees_a_recording_of_graph_capture(captured: int, found: list[str]) -> None:
    # host     launch a   begin capture   launch   launch   end capture       more captured than launched
    # device       ├──── a ────┤
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    k.call("cudaStreamBeginCapture", 1_000, 1_010)
    for i in range(captured):
        k.call("cudaLaunchKernel", 2_000 + 100 * i, 2_010 + 100 * i)
    k.call("cudaStreamEndCapture", 3_000, 3_010)
    device = explained(k)
    assert found == [f.code for f in device.findings]
    if found:
        assert reasons(device.findings[0]) == (
            "2 launches were recorded into CUDA graphs, which runs nothing: a recording of graph capture")


def test_sl102_says_that_gemms_were_sized_for_the_sms_that_are_left() -> None:
    (finding,) = explained(sms_held(66_000)).findings
    assert "1 GEMM run with a grid of 112 = 132 - 20" in reasons(finding)
    assert "communication runs with a grid of 20 blocks of 132 SMs (15.2 %)" in reasons(finding)


def test_sl102_needs_to_know_the_grid_and_the_device() -> None:
    # stream 7   ├───────── gemm ─────────┤
    # stream 20  ├───── all-reduce ─────┤           no grid in the file, or no SM count
    k = sms_held(66_000)
    k.events[-1]["args"].pop("grid")
    assert codes(k) == []
    k = sms_held(66_000)
    k.device_name, k.sms = "Somebody's Accelerator", 0
    assert codes(k) == []


@pytest.mark.parametrize(("blocks", "gain_ns"), [
    (112, 66_000 * 20 // 132),       # one wave either way: as a persistent kernel, in proportion to its SMs
    (132, 66_000 // 2),              # one wave of 132, two of 112
    (264, 66_000 // 3),              # two waves of 132, three of 112
    (1_120, 66_000 * 20 // 132),     # nine waves and ten: a tenth is less than 20 of 132
])
def test_sl102_counts_the_waves_that_the_held_sms_cost(blocks: int, gain_ns: int) -> None:
    # stream 7   ├───────── gemm of `blocks` blocks ─────────┤
    # stream 20  ├ all-reduce on 20 of 132 SMs, 66 ┤
    k = sms_held(66_000)
    next(e for e in k.events if e["name"] == GEMM and e["cat"] == "kernel")["args"]["grid"] = [blocks, 1, 1]
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL102", gain_ns)


def test_sl102_gains_no_more_than_the_time_that_communication_is_hidden() -> None:
    # stream 7    ├────── gemm of 132 blocks ──────┤
    # stream 8    ├────── gemm of 132 blocks ──────┤
    # stream 9    ├────── gemm of 132 blocks ──────┤      each would save half of the 60
    # stream 20   ├ all-reduce, 60 ┤
    k = Kineto(sms=132)
    for stream in (7, 8, 9):
        k.kernel(GEMM, 0, WINDOW_NS, stream=stream, launch=EARLY, grid=(132, 1, 1))
    k.kernel(ALL_REDUCE, 0, 60_000, stream=20, launch=EARLY, grid=(20, 1, 1))
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL102", 60_000)


def test_sl103_gains_what_is_exposed_and_the_sms_that_hidden_waiting_holds() -> None:
    # stream 7   ├──── gemm ────┤
    # stream 20          ├─ notify, 1,000 ─┤        600 outlast the gemm; 400 hidden on 1 of 132 SMs: 3
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS - 600, launch=EARLY)
    k.kernel(NOTIFY, WINDOW_NS - 1_000, WINDOW_NS, stream=20, launch=EARLY)
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL103", 603)
    assert "1.0 µs (1.0 % of the window), 100.0 % of the time of all communication" in finding.claim


def test_sl103_gains_the_exposed_transfer_behind_the_waiting_too() -> None:
    # stream 7   ├──── gemm, 40 ────┤                        ├──── gemm, 50 ────┤
    # stream 20                     ├ notify, 4 ┼ dispatch, 6 ┤        what waits late is sent late
    k = Kineto()
    k.kernel(GEMM, 0, 40_000, launch=EARLY)
    k.kernel(NOTIFY, 40_000, 44_000, stream=20, launch=EARLY)
    k.kernel(DISPATCH, 44_000, 50_000, stream=20, launch=EARLY)
    k.kernel(GEMM, 50_000, WINDOW_NS, launch=EARLY)
    gains = {f.code: f.gain_ns_at_most for f in explained(k).findings}
    assert gains == {"SL101": 10_000, "SL103": 10_000}


def test_sl103_gains_no_more_than_the_window() -> None:
    # stream 7             ├ gemm ┤
    # stream 20..23   ├──── notify ────┤      four of them, each on all SMs
    k = Kineto()
    k.kernel(GEMM, 50_000, WINDOW_NS, launch=EARLY)
    for stream in range(20, 24):
        k.kernel(NOTIFY, 0, WINDOW_NS, stream=stream, launch=EARLY, grid=(132, 1, 1))
    found = next(f for f in explained(k).findings if f.code == "SL103")
    assert found.gain_ns_at_most == WINDOW_NS


def test_sl201_says_how_much_passes_inside_the_launch_call_and_after_it_returned() -> None:
    # host                   ├─ launch b ─┤
    # device   ├── a, 50 ──┤      20      30    40 ├─ b ─┤      ends of idle time, after a
    #                       |← 20 →|← 10 →|← 10 →|
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.kernel(GEMM, 90_000, WINDOW_NS, launch=(70_000, 80_000))
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL201", 40_000)
    assert finding.evidence[1:3] == (
        "10.0 µs of it passes inside the launch calls themselves (lazy loading, a full queue)",
        "10.0 µs of it passes after the launch call had returned: something else held it back",
    )


def test_sl201_says_nothing_of_launch_calls_that_are_short() -> None:
    # host                            ├ launch b ┤ 200 ns of 40,000, and 400 after it
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.kernel(GEMM, 90_000, WINDOW_NS, launch=(89_400, 89_600))
    (finding,) = explained(k).findings
    assert (finding.code, len(finding.evidence)) == ("SL201", 2)


def test_sl201_counts_overlapping_work_of_the_profiler_once_and_only_in_the_window() -> None:
    # device     ├── a, 50 ──┤                                ├─ b ─┤
    # profiler             ├─ flush 40–60 ─┤
    # profiler                    ├─ request 55–65 ─┤           55–60 is there twice
    #                         |← 15 in the gap ────→|
    k = late_launch(40_000)
    k.overhead("Buffer Flush", 40_000, 60_000)
    k.overhead("Activity Buffer Request", 55_000, 65_000)
    (finding,) = explained(k).findings
    assert finding.evidence[-2] == "15.0 µs of it coincides with the profiler's own work (buffers, lazy loading)"
    (finding,) = explained(k, window="58us:62us").findings[:1]
    assert (finding.code, finding.gain_ns_at_most) == ("SL201", 4_000)
    assert finding.evidence[-2] == "4.0 µs of it coincides with the profiler's own work (buffers, lazy loading)"


def test_sl201_counts_a_gap_once_into_however_many_pieces_it_is_cut() -> None:
    # host       ├────────── step 1 ──────────┤     launch b ┐
    # profiler              ├ flush ┤                                 edges that cut the gap into pieces
    # device     ├── a, 50 ──┤                               ├─ b ─┤
    #                        |←─────────── 40 ──────────────→|
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.overhead("Buffer Flush", 55_000, 60_000)
    k.call("cudaDeviceSynchronize", 61_000, 63_000, thread=2)
    k.kernel(GEMM, 90_000, WINDOW_NS, launch=(70_000, 80_000))
    (finding,) = explained(k).findings
    assert finding.evidence[0] == "1 stretch, median 40.0 µs, longest 40.0 µs"


def test_sl201_and_sl202_carry_a_caveat_where_the_recording_slowed_the_host() -> None:
    for build, size in ((late_launch, 7_000), (synchronised, 4_000)):
        k = build(size)
        k.record_shapes = True
        (finding,) = explained(k).findings
        assert [c[:20] for c in finding.caveats] == ["recorded with shapes"]
        (finding,) = explained(build(size)).findings
        assert finding.caveats == ()


def after_a_wait(*starts_and_launches: tuple[int, int]) -> Kineto:
    """A kernel of 10 µs, a wait for it that lasts 4 µs longer, then kernels of 1 µs: (start, start of its launch)."""
    k = Kineto()
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.call("cudaStreamSynchronize", 1_000, 14_000)
    for start, launch in starts_and_launches:
        k.kernel(GEMM, start, start + 1_000, launch=(launch, launch + 100))
    return k


@pytest.mark.parametrize(("following", "behind_ns", "starved_ns"), [
    # starved: also what came after the host had been ahead, which a longer lead would have hidden
    # host        ├ wait ┤ b  c  d          each 500 after its launch; the host is behind all the while
    (((15_000, 14_500), (17_000, 16_500), (19_000, 18_500)), 1_000 + 1_000 + 1_000, 3_000),
    # device                ├ b ┼ c ┤   ├ d ┤     no gap before c: the host was ahead again
    (((15_000, 14_500), (16_000, 15_500), (18_000, 17_500)), 1_000, 2_000),
    # device                ├ b ┤ ├ c ┤   ├ d ┤   c was launched before b ended: a gap that ends in time
    (((15_000, 14_500), (17_000, 15_500), (19_000, 18_500)), 1_000, 2_000),
])
def test_sl202_adds_starved_time_until_the_host_is_ahead_again(
    following: tuple[tuple[int, int], ...], behind_ns: int, starved_ns: int
) -> None:
    # device   ├── a, 10 ──┤ blocked 10–14 │ 14–15 ├ b ┤ …
    found = next(f for f in explained(after_a_wait(*following)).findings if f.code == "SL202")
    assert found.gain_ns_at_most == min(4_000 + starved_ns, 13_000)         # the wait itself lasts 13 µs on the host
    assert found.evidence[0].startswith(f"4.0 µs idle inside such calls, {behind_ns / 1_000:.1f} µs launch-starved")


def test_sl203_gains_the_idle_time_between_the_kernels_too() -> None:
    # stream 7   ├─ a, 50 ─┤  ├4┤  ├4┤ …         20 short ones, 1 µs before each: ten launched late, ten in time
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    for i in range(20):
        start = 51_000 + 5_000 * i
        k.kernel(GEMM, start, start + 4_000, launch=(start - 500, start - 400) if i % 2 else EARLY)
    found = next(f for f in explained(k).findings if f.code == "SL203")
    assert found.gain_ns_at_most == 80_000 + 10_000 + 10_000


def test_sl203_gains_no_more_than_the_time_that_short_kernels_cover() -> None:
    # stream 7    ├4┼4┼4┤ …
    # stream 20   ├4┼4┼4┤ …        the same 40 µs twice
    k = Kineto()
    for i in range(10):
        for stream in (7, 20):
            k.kernel(GEMM, 4_000 * i, 4_000 * (i + 1), stream=stream, launch=EARLY)
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL203", 40_000)


def test_sl203_takes_no_long_kernel_for_a_short_one_because_the_window_cuts_it() -> None:
    # stream 7   ├─6─┼─6─┤ …          20 kernels of 6 µs side by side, of which the window shows 1 µs each
    k = Kineto()
    for i in range(20):
        k.kernel(GEMM, 0, 6_000, stream=i, launch=EARLY)
    assert codes(k, window="5us:6us") == []


def test_sl204_counts_small_copies_if_they_are_many() -> None:
    # stream 7   ├─────────── gemm ───────────┤
    # stream 20  ¦ ¦ ¦ ¦ …  copies of 1 ns each, hidden
    for count, found in ((10, ["SL204"]), (9, [])):
        k = Kineto()
        k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
        for i in range(count):
            k.memcpy("DtoH", 100 * i, 100 * i + 1, stream=20, launch=EARLY)
        assert found == codes(k)
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    for i in range(10):
        k.memcpy("DtoD", 100 * i, 100 * i + 1, stream=20, launch=EARLY)
    assert codes(k) == []  # within the device: none of the host's business


def test_sl204_gains_nothing_from_copies_that_compute_hides() -> None:
    # stream 7   ├─────────── gemm ───────────┤
    # stream 20        ├─ HtoD ─┤
    k = Kineto()
    k.kernel(GEMM, 0, WINDOW_NS, launch=EARLY)
    k.memcpy("HtoD", 10_000, 30_000, stream=20, launch=EARLY)
    (finding,) = explained(k).findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL204", 0)


@pytest.mark.parametrize(("kind", "gain_ns"), [
    ("Memcpy DtoH (Device -> Pageable)", 6_000 + 4_000), ("Memcpy DtoH (Device -> Pinned)", 6_000)])
def test_sl204_gains_blocked_time_where_copies_are_pageable(kind: str, gain_ns: int) -> None:
    # host       ├───────── cudaMemcpy ─────────┤ launch b
    # device   ├── a, 50 ──┼ DtoH, 6 ┤ blocked 4 │├── b ──┤
    k = Kineto()
    k.kernel(GEMM, 0, 50_000, launch=EARLY)
    k.memcpy(kind, 50_000, 56_000, launch=(1_000, 60_000), api="cudaMemcpy")
    k.kernel(GEMM, 60_000, WINDOW_NS, launch=(60_000, 60_100))
    found = next(f for f in explained(k).findings if f.code == "SL204")
    assert found.gain_ns_at_most == gain_ns


def test_sl205_counts_of_a_gap_only_what_is_in_the_window() -> None:
    # thread 1   ├─ aten::mm ─┤                     ├─ aten::bmm ─┤
    #                         40                    49
    # window               ├───────┤ 38 to 43, then 45 to 50
    (finding,) = explained(host_stall(9_000), window="38us:43us").findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL205", 3_000)
    (finding,) = explained(host_stall(9_000), window="45us:50us").findings
    assert (finding.code, finding.gain_ns_at_most) == ("SL205", 4_000)


@pytest.mark.parametrize(("ns", "found"), [(1_000, ["SL201", "SL004", "SL301"]), (999, ["SL201", "SL004"])])
def test_sl301_is_not_found_where_it_is_little_of_the_window(ns: int, found: list[str]) -> None:
    # host                               launch b
    # device   ├ add, ns ┤                ├ gemm, 500 ┤      more than 10 % of the busy time; 1 % of 100 µs is 1,000
    k = Kineto()
    k.kernel(CAST, 0, ns, launch=EARLY)
    k.kernel(GEMM, WINDOW_NS - 500, WINDOW_NS, launch=(98_000, 98_100))
    assert sorted(found) == sorted(codes(k))


def test_sl301_is_not_found_where_nothing_ran() -> None:
    # device   ├ a ┤                    ├ b ┤
    # window             ├────┤
    k = Kineto()
    k.kernel(GEMM, 0, 10_000, launch=EARLY)
    k.kernel(GEMM, 50_000, 60_000, launch=EARLY)
    assert codes(k, window="20us:30us") == ["SL206", "SL004"]


# ---- what holds for all of them --------------------------------------------------------------------------


def test_codes_are_unique_and_well_formed() -> None:
    everything: tuple[FindingModule | RankFindingModule, ...] = (*FINDINGS, *RANK_FINDINGS)
    codes = [module.CODE for module in everything]
    assert len(codes) == len(set(codes))
    assert [code for code in codes if not re.fullmatch(r"SL\d{3}", code)] == []
    assert [module for module in everything if not (module.__doc__ or "").startswith(f"{module.CODE}: ")] == []


@pytest.mark.parametrize("code", [*CODES, *(module.CODE for module in RANK_FINDINGS)])
def test_every_finding_has_its_page(code: str) -> None:
    page = ROOT / "docs/findings" / f"{code}.md"
    assert page.is_file()
    assert code in page.read_text("utf-8").splitlines()[0]


def assert_sound(device: Explained) -> None:
    """What every list of findings keeps to."""
    window_ns = device.view.budget.window_ns
    gains = [finding.gain_ns_at_most for finding in device.findings]
    assert [g for g in gains if g is not None and not 0 <= g <= window_ns] == []
    assert [g or 0 for g in gains] == sorted((g or 0 for g in gains), reverse=True)
    for finding in device.findings:
        assert finding.code in CODES
        assert finding.title
        assert finding.claim
        assert finding.action
        assert finding.evidence
        assert all(finding.evidence)
        assert finding.confidence in ("high", "medium", "low")


@cache
def real(relative: str, window: str) -> tuple[Explained, ...]:
    return explain(read(shared(relative)), window=window).devices


@pytest.mark.parametrize("window", ["default", "all"])
@pytest.mark.parametrize("relative", all_kineto())
def test_findings_of_real_traces_have_evidence_and_a_possible_gain(relative: str, window: str) -> None:
    for device in real(relative, window):
        assert_sound(device)


@pytest.mark.parametrize("relative", all_kineto())
def test_real_traces_have_findings(relative: str) -> None:
    assert all(device.findings for device in real(relative, "default"))


def some_interval() -> st.SearchStrategy[str]:
    starts, lengths = st.integers(0, 2_000), st.integers(1, 2_000)
    return st.builds(lambda start, length: f"{start}ns:{start + length}ns", starts, lengths)


@pytest.mark.heavy
@settings(max_examples=150, deadline=None)
@given(trace=traces(max_activities=30), window=st.sampled_from(("default", "all")) | some_interval())
def test_findings_of_random_traces_gain_no_more_than_the_window(trace: Kineto, window: str) -> None:
    with TemporaryDirectory() as folder:
        one = read(trace.write(Path(folder) / "trace.json"))
    if window.endswith("ns") and int(window.split("ns", 1)[0]) >= span(trace)[1] - span(trace)[0]:
        with pytest.raises(InputError, match="span is only"):
            explain(one, window=window)
        return
    (device,) = explain(one, window=window).devices
    assert_sound(device)
