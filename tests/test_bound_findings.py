"""Findings that need bounds: each sees its fault at its true size, and nothing in a healthy twin."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest
from conftest import shared
from explaining import codes, explained
from kineto import Kineto

from sublight.explain import explain
from sublight.explain.findings.gemm_waves import Waves, waves_of
from sublight.finding import Finding
from sublight.observe.read import read
from sublight.ops.gemm import Gemm

TILED = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
PLAIN = "cublas_gemm_kernel"             # a product whose name tells no tile
TF32 = "sm80_xmma_gemm_tf32f32"
SGEMM = "void gemmk1_kernel<int, float>"
FP8 = "deep_gemm::fp8_gemm_kernel"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EARLY = (-2_000, -1_000)
WINDOW_NS = 100_000
TYPES = {"bf16": "c10::BFloat16", "fp32": "float", "fp64": "double", "fp8": "c10::Float8_e4m3fn"}
Sizes = Sequence[Sequence[int]]


def found(trace: Kineto, code: str, *, window: str = "all") -> Finding:
    (finding,) = (f for f in explained(trace, window=window).findings if f.code == code)
    return finding


def contiguous(dims: Sequence[int]) -> list[int]:
    return [prod(dims[i + 1:]) for i in range(len(dims))]


class Host:
    """Calls operators one after the other, long before their kernels run."""

    def __init__(self, **options: Any) -> None:
        self.trace = Kineto(**options)
        self._at = -100_000

    def run(self, name: str, kernel: str, start: int, end: int, dims: Sizes, *, form: str = "bf16", stream: int = 7,
            blocks: tuple[int, int, int] = (1, 1, 1), strides: Sizes | None = None) -> None:
        """One operator with one kernel. Arguments without dimensions are numbers."""
        types = [TYPES[form] if size else "Scalar" for size in dims]
        recorded: dict[str, Any] = {
            "Input type": types, "Concrete Inputs": [""] * len(dims),
            "Input Strides": [contiguous(size) for size in dims] if strides is None else strides}
        op = self.trace.op(name, self._at, self._at + 90, dims=dims, **recorded)
        self.trace.kernel(kernel, start, end, stream=stream, grid=blocks, launch=(self._at + 10, self._at + 20), op=op)
        self._at += 100

    def rest(self, start: int, end: int = WINDOW_NS) -> Kineto:
        """The window's other time: a product of which nothing is recorded."""
        self.trace.kernel(PLAIN, start, end, launch=EARLY)
        return self.trace


# ---- planted faults, which tests/test_findings.py also tries at and below their thresholds ----------------


def far_above(ns: int) -> Kineto:
    # stream 7   ├─ add of 1,000 elements, ns ─┼──── gemm ────┤
    h = Host()
    h.run("aten::add", ADD, 0, ns, [[1_000], [1_000], []])
    return h.rest(ns)


def unfilled_wave(ns: int, *, m: int = 3_840, grid: tuple[int, int, int] = (20, 10, 1)) -> Kineto:
    # stream 7   ├─ 20 x 10 tiles of 192 x 192 on 132 SMs, ns ─┼──── gemm ────┤     64 of 2 x 132 places are empty
    h = Host()
    h.run("aten::mm", TILED, 0, ns, [[m, 448], [448, 1_920]], blocks=grid)       # at its bound: 6,172 ns
    return h.rest(ns)


def slow_format(ns: int, *, form: str = "fp32", kernel: str = TF32) -> Kineto:
    # stream 7   ├─ gemm in tf32, ns ─┼──── gemm ────┤
    h = Host()
    h.run("aten::mm", kernel, 0, ns, [[1_536, 448], [448, 1_408]], form=form)
    return h.rest(ns)


def unfused_attention(ns: int, *, runs: int = 2, mask: bool = False, inner: int = 256) -> Kineto:
    # stream 7   ├ q·k ┼ softmax ┼ ·v ┤├ q·k ┼ softmax ┼ ·v ┤ … ┼──── gemm ────┤      ns together
    h = Host()
    score = [2, 256, 256]
    steps: list[tuple[str, str, Sizes]] = [("aten::bmm", PLAIN, [[2, 256, 64], [2, 64, 256]])]
    steps += [("aten::add", ADD, [score, score, []])] if mask else []
    steps += [("aten::_softmax", SOFTMAX, [score, [], []]), ("aten::bmm", PLAIN, [[2, 256, inner], [2, inner, 64]])]
    count = runs * len(steps)
    for i in range(count):
        h.run(steps[i % len(steps)][0], steps[i % len(steps)][1], ns * i // count, ns * (i + 1) // count,
              steps[i % len(steps)][2])
    return h.rest(ns)


def chain(ns: int, names: Sequence[str] = ("mul", "add", "gelu"), elements: int = 4_096) -> Kineto:
    # stream 7   ├ mul ┼ add ┼ gelu ┤──── gemm ────┤         ns together
    h = Host()
    for i, name in enumerate(names):
        dims: Sizes = [[elements]] if name == "gelu" else [[elements], [elements], []]
        h.run(f"aten::{name}", ADD, ns * i // len(names), ns * (i + 1) // len(names), dims)
    return h.rest(ns)


def sm_tax(ns: int) -> Kineto:
    # stream 7   ├─ gemm, 60,000, of which 50,151 at its bound ─┼──── gemm ────┤
    # stream 20  ├─ all-reduce, ns, on 20 of 132 SMs ─┤
    h = Host()
    h.run("aten::mm", PLAIN, 0, 60_000, [[4_096, 1_600], [1_600, 4_096]], blocks=(112, 1, 1))
    h.trace.kernel(ALL_REDUCE, 0, ns, stream=20, launch=EARLY, grid=(20, 1, 1))
    return h.rest(60_000)


# ---- SL302 ------------------------------------------------------------------------------------------------


def test_sl302_leaves_alone_what_takes_no_longer_than_streaming_its_bytes() -> None:
    # 16,777,216 elements: 3 x 33.6 MB take 30.0 µs at 3.35 TB/s
    for took, seen in ((59_000, []), (61_000, ["SL302"])):
        h = Host()
        h.run("aten::add", ADD, 0, took, [[1 << 24], [1 << 24], []])
        assert seen == [code for code in codes(h.rest(took)) if code == "SL302"]


def test_sl302_says_what_limits_the_operator() -> None:
    finding = found(far_above(3_000), "SL302")
    assert finding.evidence == ("aten::add (Elementwise 1,000 elements): 3.0 µs in 1 call; bound 0 ns (vector fp32), "
                                "bytes streamed from memory 2 ns",)


# ---- SL303 ------------------------------------------------------------------------------------------------


def test_sl303_names_tiles_and_waves() -> None:
    (line,) = found(unfilled_wave(10_000), "SL303").evidence
    assert line == ("aten::mm (Gemm m=3840 n=1920 k=448 bf16): 200 tiles of 192x192, 132 at a time on 132 SMs: 24.2 % "
                    "of their time has no tile; at most 2.4 µs of 10.0 µs in 1 call")


def test_sl303_sees_nothing_where_the_last_wave_is_full() -> None:
    # 26 x 10 tiles on 2 x 132 places
    assert codes(unfilled_wave(10_000, m=192 * 26, grid=(26, 10, 1))) == []


def test_sl303_counts_the_tiles_of_a_persistent_kernel() -> None:
    assert found(unfilled_wave(10_000, grid=(132, 1, 1)), "SL303").gain_ns_at_most == 10_000 * 64 // 264
    assert found(unfilled_wave(10_000, grid=(0, 0, 0)), "SL303").gain_ns_at_most == 10_000 * 64 // 264


@pytest.mark.parametrize(("op", "name", "tile", "grid", "waves"), [
    # a grid that fits one way to lay the tile
    (Gemm(888, 2_880, 512), "a", (144, 128, 64), (140, 1, 1), [Waves(140, 148, 148)]),
    # one that fits neither: both ways
    (Gemm(788, 768, 768), "a", (128, 64), (104, 1, 1), [Waves(78, 148, 148), Waves(84, 148, 148)]),
    # persistent, on fewer SMs than there are
    (Gemm(8_944, 1_024, 1_024), "a", (128, 128), (120, 1, 1), [Waves(560, 120, 148)]),
    # split along k: five blocks for each tile, and their rounding
    (Gemm(5, 768, 3_072), "a", (64, 64), (8, 2, 5), [Waves(80, 148, 148)]),
    # persistent and split: how is not known
    (Gemm(8_944, 1_024, 1_024), "gemm_stream_k", (128, 128), (120, 1, 1), []),
    (Gemm(0, 1_024, 1_024), "a", (128, 128), (0, 0, 0), []),
    (Gemm(64, 64, 64), "a", (0, 0), (1, 1, 1), []),
])
def test_sl303_reads_waves_from_tile_and_grid(
    op: Gemm, name: str, tile: tuple[int, ...], grid: tuple[int, int, int], waves: list[Waves]
) -> None:
    assert waves == waves_of(op, name, tile, grid, 148)


@pytest.mark.parametrize(("ends", "lost"), [(10_000, 0), (0, 15_151)])
def test_sl303_leaves_out_the_sms_that_communication_holds(ends: int, lost: int) -> None:
    # stream 7   ├─ 14 x 8 = 112 tiles on 132 SMs, or on the 112 that are left ─┤
    # stream 20  ├─ all-reduce, 20 SMs, beside all of it or none ─┤
    h = Host()
    h.run("aten::mm", TILED, 0, 10_000 * 10, [[192 * 14, 9_472], [9_472, 192 * 8]], blocks=(14, 8, 1))
    if ends:
        h.trace.kernel(ALL_REDUCE, 0, 100_000, stream=20, launch=EARLY, grid=(20, 1, 1))
    seen = [f.gain_ns_at_most for f in explained(h.trace).findings if f.code == "SL303"]
    assert seen == ([lost] if lost else [])


def test_sl303_gains_no_more_than_the_time_above_the_bound() -> None:
    # at 6,300 ns the product is 129 above its bound: less than the 24 % of its waves
    h = Host()
    for i in range(15):
        h.run("aten::mm", TILED, 6_300 * i, 6_300 * (i + 1), [[3_840, 448], [448, 1_920]], blocks=(20, 10, 1))
    assert [f.code for f in explained(h.rest(94_500)).findings] == []


@pytest.mark.parametrize(("k", "strides", "seen"), [
    (448, None, []),
    (449, None, ["SL303"]),                                      # rows of 898 bytes
    (449, [[456, 1], [1_920, 1]], []),                           # padded rows
    (449, [[1, 3_840], [1_920, 1]], []),                         # transposed: k is not along a row
])
def test_sl303_sees_rows_that_are_not_multiples_of_16_bytes(
    k: int, strides: Sizes | None, seen: list[str]
) -> None:
    h = Host()
    h.run("aten::mm", PLAIN, 0, 10_000, [[3_840, k], [k, 1_920]], strides=strides)
    trace = h.rest(10_000)
    assert seen == codes(trace)
    if seen:
        finding = found(trace, "SL303")
        assert finding.gain_ns_at_most == 10_000 - 6_184
        assert "rows of 449 bf16: not a multiple of 16 bytes" in finding.evidence[0]


def test_sl303_ignores_a_single_row() -> None:
    # a matrix times a vector: neither the vector nor the result has a second row
    h = Host()
    h.run("aten::mm", PLAIN, 0, 10_000, [[1, 4_095], [4_095, 8_192]])
    assert "SL303" not in codes(h.rest(10_000))


# ---- SL304 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "kernel", "says", "ratio"), [
    ("fp32", TF32, "in tf32 on tensor cores; bf16 has 2.0x its rate", 1 / 2),
    ("fp32", SGEMM, "in fp32 on the vector unit; bf16 has 16.0x its rate", 1 / 16),
    ("fp64", PLAIN, "in fp64 on tensor cores; bf16 has 16.0x its rate", 1 / 16),
])
def test_sl304_compares_the_device_s_rates(form: str, kernel: str, says: str, ratio: float) -> None:
    finding = found(slow_format(8_000, form=form, kernel=kernel), "SL304")
    assert says in finding.evidence[0]
    assert finding.gain_ns_at_most == int(8_000 * (1 - ratio))


def test_sl304_leaves_bf16_alone_unless_the_run_uses_fp8() -> None:
    assert codes(slow_format(6_000, form="bf16", kernel=PLAIN)) == ["SL302"]
    h = Host()
    h.run("aten::mm", PLAIN, 0, 6_000, [[1_536, 448], [448, 1_408]])
    h.trace.kernel(FP8, 6_000, 7_000, launch=EARLY)
    finding = found(h.rest(7_000), "SL304")
    assert (finding.confidence, finding.gain_ns_at_most) == ("low", 3_000)
    assert "fp8 has 2.0x its rate" in finding.evidence[0]


def test_sl304_mentions_16_bits_beside_slower_formats_without_counting_them() -> None:
    h = Host()
    h.run("aten::mm", TF32, 0, 6_000, [[1_536, 448], [448, 1_408]], form="fp32")
    h.run("aten::mm", PLAIN, 6_000, 9_000, [[1_536, 448], [448, 1_408]])
    finding = found(h.rest(9_000), "SL304")
    assert finding.gain_ns_at_most == 3_000
    assert finding.evidence[-1] == "not counted: 3.0 µs in 16 bits, where the device has fp8 at twice the rate"


def test_sl304_knows_no_faster_format_on_a_device_without_one() -> None:
    # V100: fp16 is 8x fp32 on matrix hardware, and nothing is faster than fp16
    v100 = {"device_name": "Tesla V100-SXM2-16GB", "sms": 80, "memory_bytes": 16 * 2**30, "compute_capability": (7, 0)}
    for form, seen in (("fp32", ["SL304"]), ("bf16", [])):
        h = Host(**v100)
        h.run("aten::mm", SGEMM if form == "fp32" else PLAIN, 0, 50_000, [[1_536, 448], [448, 1_408]], form=form)
        assert seen == [code for code in codes(h.rest(50_000)) if code == "SL304"]


# ---- SL305 ------------------------------------------------------------------------------------------------


def test_sl305_needs_the_same_attention_twice() -> None:
    assert codes(unfused_attention(1_800)) == ["SL305"]
    assert codes(unfused_attention(1_800, runs=1)) == []


def test_sl305_needs_matching_sizes() -> None:
    assert codes(unfused_attention(1_800, inner=128)) == []


def test_sl305_counts_half_of_the_pairs_where_something_may_mask() -> None:
    # 2 heads of 256 x 256 pairs, 256 operations a pair: 31.3 ns at 1.07 PFLOP/s; masked 15.7
    assert found(unfused_attention(1_800), "SL305").gain_ns_at_most == 1_800 - 2 * 31
    masked = found(unfused_attention(1_800, mask=True), "SL305")
    assert masked.gain_ns_at_most == 1_800 - 2 * 15
    assert masked.evidence[0].startswith("bmm, add, _softmax, bmm: 2 x 256 x 256 scores, d 64")


def test_sl305_counts_of_attention_what_is_in_the_window() -> None:
    # three of 20,000, the second cut at 16,000: it keeps its share of the bound
    finding = found(unfused_attention(60_000, runs=3), "SL305", window="0us:36us")
    assert finding.gain_ns_at_most == 36_000 - 31 - 31 * 16_000 // 20_000


# ---- SL306 ------------------------------------------------------------------------------------------------


def test_sl306_names_the_chain_and_what_must_move() -> None:
    # the first reads 2 x 8,192 bytes, the last writes 8,192: 7 ns at 3.35 TB/s
    finding = found(chain(1_800), "SL306")
    assert finding.gain_ns_at_most == 1_800 - 7
    assert finding.evidence == ("mul → add → gelu: 1.8 µs in 1 chain, at most 1.8 µs less as one kernel each",)


def test_sl306_takes_the_rate_of_a_kernel_that_the_cache_serves() -> None:
    # 1,048,576 elements: each kernel reads and writes 6.3 MB, or gelu 4.2 MB, in 1,000 ns: twice the memory's rate
    finding = found(chain(3_000, elements=1 << 20), "SL306")
    assert finding.gain_ns_at_most == 3_000 - 1_000


@pytest.mark.parametrize(("names", "ns", "seen"), [
    (("mul", "gelu"), 4_999, []), (("mul", "gelu"), 5_000, ["SL306"]),       # two: from 5 % of the window on
    (("mul", "mul", "mul"), 1_800, []),                                      # three tensors' turns, more likely
    (("mul", "bmm", "gelu"), 1_800, []),
])
def test_sl306_takes_only_chains(names: Sequence[str], ns: int, seen: list[str]) -> None:
    assert seen == [code for code in codes(chain(ns, names)) if code == "SL306"]


def test_sl306_needs_the_kernels_next_to_each_other_and_of_one_size() -> None:
    # stream 7   ├ mul ┤├ add ┤├ kernel ┤├ gelu ┤
    h = Host()
    h.run("aten::mul", ADD, 0, 600, [[4_096], [4_096]])
    h.run("aten::add", ADD, 600, 1_200, [[4_096], [4_096], []])
    h.trace.kernel(PLAIN, 1_200, 1_300, launch=EARLY)
    h.run("aten::gelu", ADD, 1_300, 1_900, [[4_096]])
    assert codes(h.rest(1_900)) == []
    # a row's scale is no chain with what it scales
    h = Host()
    h.run("aten::add", ADD, 0, 600, [[64, 1], [64, 1], []])
    h.run("aten::rsqrt", ADD, 600, 1_200, [[64, 1]])
    h.run("aten::mul", ADD, 1_200, 1_800, [[64, 64], [64, 1]])
    assert codes(h.rest(1_800)) == []


# ---- SL307 ------------------------------------------------------------------------------------------------


def test_sl307_prints_both_bounds() -> None:
    # beside: 6,000 of 60,000; bound 50,151 -> 5,015, and 5,911 on 112 of 132 SMs
    finding = found(sm_tax(6_000), "SL307")
    assert finding.gain_ns_at_most is None
    assert finding.evidence[0] == "bound on all 132 SMs: 5.0 µs; on the 112 left: 5.9 µs; measured: 6.0 µs"
    assert "the SMs that are held explain 896 ns (90.9 %) of that" in finding.claim


def test_sl307_scales_arithmetic_only() -> None:
    # an addition of 6.4 GB is limited by memory, whatever SMs it has
    h = Host()
    h.run("aten::add", ADD, 0, 2_000_000, [[1 << 30], [1 << 30], []])
    h.trace.kernel(ALL_REDUCE, 0, 100_000, stream=20, launch=EARLY, grid=(20, 1, 1))
    assert "SL307" not in codes(h.trace)


def test_sl307_needs_compute_of_known_work_beside_communication() -> None:
    # stream 7   ├─ gemm ─┼─ gemm of unknown work ─┤
    # stream 20            ├─ all-reduce ─┤
    h = Host()
    h.run("aten::mm", PLAIN, 0, 60_000, [[4_096, 1_600], [1_600, 4_096]], blocks=(112, 1, 1))
    h.trace.kernel(ALL_REDUCE, 60_000, 66_000, stream=20, launch=EARLY, grid=(20, 1, 1))
    assert codes(h.rest(60_000)) == []


# ---- all of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", [
    far_above(3_000), unfilled_wave(10_000), slow_format(6_000), unfused_attention(1_800), chain(1_800), sm_tax(6_000),
], ids=["SL302", "SL303", "SL304", "SL305", "SL306", "SL307"])
def test_nothing_is_found_where_no_bound_is_known(trace: Kineto) -> None:
    trace.device_name, trace.sms = "Somebody's Accelerator", 0
    assert codes(trace) == []


def test_findings_of_a_public_trace() -> None:
    (device,) = explain(read(shared("kineto/h100_qwen15_05b.json.gz"))).devices
    of = {finding.code: finding for finding in device.findings}
    assert "560 tiles of 128x128, 120 at a time on 132 SMs: 15.2 %" in of["SL303"].evidence[0]
    assert of["SL306"].evidence[0].startswith("mul → copy_ → mul: 3.741 ms in 49 chains")
    assert {"SL304", "SL305", "SL307"} & of.keys() == set()
