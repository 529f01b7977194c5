"""Write the small traces that the pages of docs use: one fact each, with times that can be checked by hand.

    python docs/examples/make.py                  # into docs/examples

None was recorded. Times are microseconds after the first activity. Drawings show the device, where they do not say
host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from kineto import Kineto  # noqa: E402   (the builders of the tests)
from nsys import Nsys  # noqa: E402

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
CAST = "void transformer_engine::cast_transpose<__nv_bfloat16, __nv_fp8_e4m3>(int)"
PRODUCT, TF32 = "cublas_gemm_kernel", "sm80_xmma_gemm_tf32f32"      # names that tell no tile
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, c10::BFloat16>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NOTIFY = "void deep_ep::internode::notify_dispatch<false, 8>(int const*)"
DISPATCH = "void deep_ep::internode::dispatch<false, 8, false, 8>(int4*, float*)"
NORM = "void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16> >(layer_norm::FwdParams)"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(float)"
SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_mul<float> >(int)"
COMPUTE, COMM = 7, 20  # streams
ORIGIN = 1_000  # µs between the base of the file and the first activity: room for the launches before it


class Page:
    """A trace in microseconds after its first activity. Activities without `at` were launched long before."""

    def __init__(self, **options: Any) -> None:
        self.trace = Kineto(**options)
        self._launched = -900

    def kernel(self, name: str, start: float, end: float, *, at: float | None = None, stream: int = COMPUTE,
               blocks: int = 132, linked: bool = True, **more: Any) -> None:
        launch = self._launch(at) if linked else None
        self.trace.kernel(name, ns(start), ns(end), stream=stream, grid=(blocks, 1, 1), launch=launch, **more)

    def call(self, op: str, name: str, start: float, end: float, *dims: list[int], form: str = "c10::BFloat16",
             blocks: int | tuple[int, int, int] = 132, strided: bool = True, at: float | None = None) -> None:
        """An operator with recorded arguments, and its kernel. Arguments without sizes are numbers."""
        if at is None:
            at, self._launched = self._launched, self._launched + 10
        types = [form if d else "Scalar" for d in dims]
        strides = [[prod(d[i + 1:]) for i in range(len(d))] for d in dims]
        recorded: dict[str, Any] = {"Input type": types}
        if strided:
            recorded["Input Strides"] = strides
        recorded["Concrete Inputs"] = [""] * len(dims)
        called = self.trace.op(op, ns(at), ns(at + 8), dims=dims, **recorded)
        self.trace.kernel(name, ns(start), ns(end), stream=COMPUTE, launch=(ns(at + 2), ns(at + 6)), op=called,
                          grid=(blocks, 1, 1) if isinstance(blocks, int) else blocks)

    def copy(self, kind: str, start: float, end: float, *, nbytes: int) -> None:
        self.trace.memcpy(kind, ns(start), ns(end), nbytes=nbytes, launch=self._launch(None))

    def wait(self, name: str, start: float, end: float) -> None:
        self.trace.call(name, ns(start), ns(end))

    def step(self, number: int, start: float, end: float) -> None:
        self.trace.step(number, ns(start), ns(end))

    def _launch(self, at: float | None) -> tuple[int, int]:
        if at is None:
            at, self._launched = self._launched, self._launched + 10
        return ns(at), ns(at + 4)


def ns(us: float) -> int:
    return round((us + ORIGIN) * 1_000)


def exposed(rank: int = 0, computes: int = 4_000, arrives: int = 3_000) -> Page:
    """   compute  ├─ gemm 0–4000 ─┤               ├─ gemm 6000–10000 ─┤
          comm.               ├─ all-reduce 3000–6000 ─┤
                              hidden ┘└ exposed 2000 ┘                      """
    page = Page(rank=rank, world_size=3)
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, computes)
    page.kernel(ALL_REDUCE, arrives, 6_000, stream=COMM, blocks=24)
    page.kernel(GEMM, 6_000, 10_000)
    return page


def exposed_rank1() -> Page:
    """The same step on another rank, which comes 2000 later to the all-reduce."""
    return exposed(1, 5_000, 5_000)


def exposed_rank2() -> Page:
    """And on one that comes 1000 earlier."""
    return exposed(2, 2_000, 2_000)


def all_reduces(*microseconds: int) -> Page:
    """Each 64 MiB of bf16 on 8 ranks, after 1 ms of compute, one after the other."""
    page, at = Page(world_size=8), 0
    record: dict[str, Any] = {
        "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1 << 25, "Out msg nelems": 1 << 25,
        "Group size": 8, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }
    for length in microseconds:
        page.kernel(GEMM, at, at + 1_000)
        page.kernel(ALL_REDUCE, at + 1_000, at + 1_000 + length, stream=COMM, blocks=24, **record)
        at += 1_000 + length
    return page


def network_bound() -> Page:
    """   compute  ├─ gemm 1000 ─┤          ├─ gemm 1000 ─┤
          comm.                  ├─ 400 ─┤                ├─ 330 ─┤          the shorter one tells the transfer"""
    return all_reduces(400, 330)


def slow_fabric() -> Page:
    """The same on a fabric of half the rate."""
    return all_reduces(700, 660)


def sms_held() -> Page:
    """   compute  ├──────── gemm 0–10000, 112 blocks ────────┤
          comm.    ├──── dispatch 0–8000, 20 blocks ───┤                """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 10_000, blocks=112)
    page.kernel(DISPATCH, 0, 8_000, stream=COMM, blocks=20)
    return page


def waiting() -> Page:
    """   compute  ├─ gemm 0–2000 ─┤                                ├─ gemm 5000–10000 ─┤
          comm.    ├───── notify 0–3000 ─────┤├─ dispatch 3000–5000 ─┤                      """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 2_000)
    page.kernel(NOTIFY, 0, 3_000, stream=COMM, blocks=9)
    page.kernel(DISPATCH, 3_000, 5_000, stream=COMM, blocks=20)
    page.kernel(GEMM, 5_000, 10_000)
    return page


def starved() -> Page:
    """   host                                    launch at 5990 ┐
          device   ├─ gemm 0–4000 ─┤    idle 2000              ├─ gemm 6000–10000 ─┤   """
    page = Page()
    page.step(1, -950, 7_000)
    page.kernel(GEMM, 0, 4_000)
    page.kernel(GEMM, 6_000, 10_000, at=5_990)
    return page


def blocked() -> Page:
    """   host         ├──── cudaStreamSynchronize 500–6000 ────┤  launch at 6190 ┐
          device   ├ gemm 0–4000 ┤├ copy –4010 ┤  blocked 1990  │ starved 190    ├ gemm 6200–10000 ┤   """
    page = Page()
    page.step(1, -950, 7_000)
    page.kernel(GEMM, 0, 4_000)
    page.copy("DtoH", 4_000, 4_010, nbytes=4)
    page.wait("cudaStreamSynchronize", 500, 6_000)
    page.kernel(GEMM, 6_200, 10_000, at=6_190)
    return page


def dependency() -> Page:
    """   ├─ gemm 0–4000 ─┤   idle 500   ├─ gemm 4500–10000 ─┤   both launched before the first began   """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 4_000)
    page.kernel(GEMM, 4_500, 10_000)
    return page


def short_kernels() -> Page:
    """A gemm of 400 µs, then 40 additions of 3 µs, one every 10 µs, each launched 5 µs before it starts."""
    page = Page()
    page.step(1, -950, 900)
    page.kernel(GEMM, 0, 400)
    for i in range(40):
        page.kernel(ADD, 410 + 10 * i, 413 + 10 * i, at=405 + 10 * i)
    return page


def host_copies() -> Page:
    """   ├─ gemm 0–4000 ─┤├─ copy from pageable host memory 4000–6000 ─┤├─ gemm 6000–10000 ─┤   """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 4_000)
    page.copy("Memcpy HtoD (Pageable -> Device)", 4_000, 6_000, nbytes=12_000_000)
    page.kernel(GEMM, 6_000, 10_000)
    return page


def unclassified() -> Page:
    """   ├─ gemm 0–9000 ─┤├─ zumiko_kernel 9000–10000 ─┤   a name that says nothing   """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 9_000)
    page.kernel("zumiko_kernel", 9_000, 10_000)
    return page


def memory_bound() -> Page:
    """   ├─ gemm 0–6000 ─┤├─ cast 6000–8500 ─┤├─ add 8500–10000 ─┤   """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 6_000)
    page.kernel(CAST, 6_000, 8_500)
    page.kernel(ADD, 8_500, 10_000)
    return page


def above_bound() -> Page:
    """   ├─ gemm of 4096³ 0–2000 ─┤├─ gemm of unknown sizes 2000–10000 ─┤   """
    page = Page()
    page.step(1, -950, -800)
    page.call("aten::mm", PRODUCT, 0, 2_000, [4_096, 4_096], [4_096, 4_096])
    page.kernel(PRODUCT, 2_000, 10_000)
    return page


def bounds() -> Page:
    """   ├─ mm 0–200 ─┤├─ gelu –600 ─┤├─ add –630 ─┤├─ mm –760 ─┤├─ gemm of unknown sizes –1000 ─┤

    gelu: 2²⁸ elements. add: 2²², within the L2. The second mm is half as wide, and its strides were not recorded."""
    page = Page()
    page.step(1, -950, -800)
    square, half, large, small = [4_096, 4_096], [4_096, 2_048], [1 << 28], [1 << 22]
    page.call("aten::mm", PRODUCT, 0, 200, square, square)
    page.call("aten::gelu", ADD, 200, 600, large)
    page.call("aten::add", ADD, 600, 630, small, small, [])
    page.call("aten::mm", PRODUCT, 630, 760, square, half, strided=False)
    page.kernel(PRODUCT, 760, 1_000)
    return page


def unfilled_waves() -> Page:
    """   ├─ gemm of 20 x 10 tiles 0–2000 ─┤├─ gemm of unknown sizes 2000–10000 ─┤   """
    page = Page()
    page.step(1, -950, -800)
    page.call("aten::mm", GEMM, 0, 2_000, [3_840, 89_600], [89_600, 1_920], blocks=(20, 10, 1))
    page.kernel(PRODUCT, 2_000, 10_000)
    return page


def slow_format() -> Page:
    """   ├─ fp32 gemm of 8192³ 0–3000 ─┤├─ gemm of unknown sizes 3000–10000 ─┤   """
    page = Page()
    page.step(1, -950, -800)
    page.call("aten::mm", TF32, 0, 3_000, [8_192, 8_192], [8_192, 8_192], form="float")
    page.kernel(PRODUCT, 3_000, 10_000)
    return page


def unfused_attention() -> Page:
    """Twice   ├─ bmm 250 ─┤├─ softmax 500 ─┤├─ bmm 250 ─┤   then a gemm of unknown sizes 2000–10000"""
    page = Page()
    page.step(1, -950, -800)
    q, k, scores, v = [64, 2_048, 128], [64, 128, 2_048], [64, 2_048, 2_048], [64, 2_048, 128]
    for at in (0, 1_000):
        page.call("aten::bmm", PRODUCT, at, at + 250, q, k)
        page.call("aten::_softmax", SOFTMAX, at + 250, at + 750, scores, [], [])
        page.call("aten::bmm", PRODUCT, at + 750, at + 1_000, scores, v)
    page.kernel(PRODUCT, 2_000, 10_000)
    return page


def fusable_chain() -> Page:
    """   ├─ mul 600 ─┤├─ add 600 ─┤├─ gelu 400 ─┤├─ gemm of unknown sizes 1600–10000 ─┤   of 2²⁸ elements"""
    page = Page()
    page.step(1, -950, -800)
    x = [1 << 28]
    page.call("aten::mul", ADD, 0, 600, x, x)
    page.call("aten::add", ADD, 600, 1_200, x, x, [])
    page.call("aten::gelu", ADD, 1_200, 1_600, x)
    page.kernel(PRODUCT, 1_600, 10_000)
    return page


def sm_tax() -> Page:
    """   compute  ├─ gemm 0–6000, 112 blocks ─┤├─ gemm of unknown sizes 6000–10000 ─┤
          comm.    ├─ dispatch 0–6000, 20 blocks ─┤                                      """
    page = Page()
    page.step(1, -950, -800)
    page.call("aten::mm", PRODUCT, 0, 6_000, [4_096, 160_000], [160_000, 4_096], blocks=112)
    page.kernel(DISPATCH, 0, 6_000, stream=COMM, blocks=20)
    page.kernel(PRODUCT, 6_000, 10_000)
    return page


def graphs() -> Page:
    """   host     cudaGraphLaunch at -20, another at 420
          device   ├ gemm 0–100 ┤ 10 ├ add 110–200 ┤ 10 ├ gemm 210–400 ┤  30  ├ gemm 430–530 ┤ …   """
    page = Page()
    page.step(1, -950, 900)
    for offset, at in ((0, -20), (430, 420)):
        page.trace.graph_launch((ns(at), ns(at + 8)), [
            (GEMM, ns(offset), ns(offset + 100), COMPUTE),
            (ADD, ns(offset + 110), ns(offset + 200), COMPUTE),
            (GEMM, ns(offset + 210), ns(offset + 400), COMPUTE),
        ])
    return page


def incomplete() -> Page:
    """Four launches; one has no kernel in the file.   ├ gemm 0–1000 ┤  ?  ├ gemm 2000–4000 ┤├ –6000 ┤   """
    page = Page()
    page.step(1, -950, -800)
    page.kernel(GEMM, 0, 1_000)
    page.trace.call("cudaLaunchKernel", ns(-600), ns(-596))
    page.kernel(GEMM, 2_000, 4_000)
    page.kernel(GEMM, 4_000, 6_000)
    return page


def no_steady_step() -> Page:
    """Four steps of one gemm each; the first, of 5000 µs, compiles. The others take 1000 µs."""
    page = Page()
    at = 0
    for number, length in enumerate((5_000, 1_000, 1_000, 1_000)):
        page.step(number, at - 20, at + length - 20)
        page.kernel(GEMM, at, at + length, at=at - 10)
        at += length
    return page


def host_stall() -> Page:
    """CPU only, two steps of 20000 µs:   ├─ aten::mm 10000 ─┤├─ aten::add_ 2000 ─┤   nothing 8000   ┤   """
    page = Page(device_name=None, backend="gloo")
    for number, start in enumerate((0, 20_000)):
        page.step(number, start, start + 20_000)
        page.trace.op("aten::mm", ns(start), ns(start + 10_000))
        page.trace.op("aten::add_", ns(start + 10_000), ns(start + 12_000))
    return page


def idle() -> Page:
    """Every cause of idle time once, in the order in which they are tested; docs/idle.md draws it.

    device  A 0–100   B 160–200   C 250–300   D 330–400   E 460–500   F 520–560   G 600–640   H 700–740
    launch  early     155         240         260         none        480         none        early
    host    waits 20–150 for the device; the profiler works 570–590
    steps   A to D, then F to H
    """
    page = Page()
    page.step(1, -950, 450)
    page.step(2, 450, 900)
    page.kernel(GEMM, 0, 100)
    page.wait("cudaDeviceSynchronize", 20, 150)
    page.kernel(GEMM, 160, 200, at=155)
    page.kernel(GEMM, 250, 300, at=240)
    page.kernel(GEMM, 330, 400, at=260)
    page.kernel(GEMM, 460, 500, linked=False)
    page.kernel(GEMM, 520, 560, at=480)
    page.trace.overhead("Activity Buffer Request", ns(570), ns(590))
    page.kernel(GEMM, 600, 640, linked=False)
    page.kernel(GEMM, 700, 740, at=500)
    return page


def late(rank: int, starts: int, computes: int) -> Page:
    """Two steps of 10000 on one of three ranks:

       compute          ├─ gemm ─┤                          ├─ gemm 6000–10000 ─┤
       comm.                      ├─ all-reduce until 6000 ─┤
                 starts ┘        └ starts + computes
    """
    page = Page(rank=rank, world_size=3)
    for number in range(2):
        at = 10_000 * number
        page.step(number + 1, at - 950, at + 9_050)
        page.kernel(GEMM, at + starts, at + starts + computes, at=at + starts - 10)
        page.kernel(ALL_REDUCE, at + starts + computes, at + 6_000, at=at + starts - 5, stream=COMM, blocks=24)
        page.kernel(GEMM, at + 6_000, at + 10_000, at=at + starts)
    return page


def late_rank0() -> Page:
    """A rank that comes 1500 before rank 1 to each all-reduce."""
    return late(0, 0, 4_000)


def late_rank1() -> Page:
    """It computes as long, but its first launch of each step comes 1500 late."""
    return late(1, 1_500, 4_000)


def late_rank2() -> Page:
    """As rank 0, but 100 later."""
    return late(2, 0, 4_100)


def uneven_rank0() -> Page:
    """A rank with its share of the work."""
    return late(0, 0, 4_000)


def uneven_rank1() -> Page:
    """A rank with more than its share: 1500 more in each step."""
    return late(1, 0, 5_500)


def uneven_rank2() -> Page:
    """Another one with its share."""
    return late(2, 0, 4_000)


def clocks(rank: int, set_by: int) -> Page:
    """Four times   ├─ gemm 2000 ─┤├─ all-reduce 500 ─┤   and in the middle the clock is set."""
    page = Page(rank=rank, world_size=2)
    for number in range(4):
        at = 2_500 * number + (set_by if number >= 2 else 0)
        page.kernel(GEMM, at, at + 2_000)
        page.kernel(ALL_REDUCE, at + 2_000, at + 2_500, stream=COMM, blocks=24)
    return page


def clocks_rank0() -> Page:
    """A rank whose clock runs through."""
    return clocks(0, 0)


def clocks_rank1() -> Page:
    """A rank whose clock is set forward by 800."""
    return clocks(1, 800)


def unmarked() -> Page:
    """   a b │ n g a g a │ n g a g a │ n g a g a │ n g a g a │ n g a g a       each 10, and 50 before every n"""
    page, step = Page(), (NORM, GEMM, ADD, GEMM, ADD)
    at = 0
    for name in (*step[-2:], *step * 5):
        at += 50 if name == NORM else 0
        page.kernel(name, at, at + 10)
        at += 10
    return page


def step_after_step(norms: tuple[str, ...], product: int, gap: int, hidden: bool) -> Page:
    """Three steps, 60 between them: normalisation of 40 or in pieces of 35, two products, an all-reduce of 100 beside
    the second or after it. A gap is before the first product, which is launched only then."""
    page, at = Page(rank=0, world_size=8), 0
    for number in range(3):
        begin = at
        page.step(number + 1, begin - 20, begin + 300)
        for name in norms:
            length = 40 if len(norms) == 1 else 35
            page.kernel(name, at, at + length, at=begin - 15)
            at += length
        for i in range(2):
            late = 0 if i else gap
            page.call("aten::mm", GEMM, at + late, at + late + product, [4096, 4096], [4096, 4096],
                      at=at + late - 8 if late else begin - 10 + 10 * i)
            at += late + product
        beside = at - product if hidden else at
        page.kernel(ALL_REDUCE, beside, beside + 100, stream=COMM, blocks=24, at=begin + 20)
        at += 60 if hidden else 160
    return page


def diff_before() -> Page:
    """   compute  ├ norm 40 ┤├ mm 200 ┤├ mm 200 ┤      60 to the next step
          comm.                        ├ 100 ┤                                   500 a step"""
    return step_after_step((NORM,), 200, 0, hidden=True)


def diff_after() -> Page:
    """   compute  ├ 35 ┤├ 35 ┤ gap 200 ├ mm 260 ┤├ mm 260 ┤            60 to the next step
          comm.                                            ├ 100 ┤       950 a step"""
    return step_after_step((MEAN, SCALE), 260, 200, hidden=False)


TRACES: tuple[Callable[[], Page], ...] = (
    exposed, exposed_rank1, exposed_rank2, network_bound, slow_fabric, sms_held, waiting, starved, blocked,
    dependency, short_kernels, host_copies, unclassified, memory_bound, above_bound, bounds,
    unfilled_waves, slow_format, unfused_attention,
    fusable_chain, sm_tax, graphs, incomplete, no_steady_step, host_stall, idle,
    late_rank0, late_rank1, late_rank2, uneven_rank0, uneven_rank1, uneven_rank2, clocks_rank0, clocks_rank1,
    unmarked, diff_before, diff_after,
)


def two_ranks(folder: Path) -> None:
    """An export of two processes with a device each; rank 1 computes for longer and comes last to the all-reduce.

        rank 0    ├── gemm 3 ms ──┤├──── all-reduce ────┤
        rank 1    ├────── gemm 5 ms ──────┤├ all-reduce ┤       two steps of 7 ms, 1 ms apart
    """
    export = Nsys()
    for rank, computes in enumerate((3_000, 5_000)):
        p = export.process(pid=144 + rank)
        export.row("TARGET_INFO_CUDA_DEVICE", gpuId=rank, cudaId=rank, pid=144 + rank)
        export.gpu(rank, "NVIDIA H100 80GB HBM3", 132, 85_000_000_000)
        for step in range(2):
            at = 1_000 + 8_000 * step
            p.range(f"step {step}", ns(at - 900), ns(at - 100))
            p.range(f"aten::mm, seq = {step}, op_id = {2 * step + 1}", ns(at - 800), ns(at - 600))
            p.range(f"aten::empty, op_id = {2 * step + 2}", ns(at - 550), ns(at - 540))
            p.kernel(GEMM, ns(at), ns(at + computes), launch=(ns(at - 700), ns(at - 690)), device=rank)
            p.kernel(ALL_REDUCE, ns(at + computes), ns(at + 7_000), launch=(ns(at - 500), ns(at - 490)), device=rank,
                     stream=COMM)
    export.write(folder / "two_ranks.sqlite")


def whole_graphs(folder: Path) -> None:
    """An export whose CUDA graphs were recorded as a whole, as nsys does unless it is told otherwise."""
    export = Nsys()
    p = export.process()
    for i in range(3):
        p.graph(ns(1_000 + 2_000 * i), ns(2_800 + 2_000 * i), launch=(ns(900 + 2_000 * i), ns(950 + 2_000 * i)))
    export.write(folder / "whole_graphs.sqlite")


def exports(folder: Path) -> None:
    """Write the exports of Nsight Systems. SQLite files of equal content differ by version: they are not kept."""
    for build in (two_ranks, whole_graphs):
        build(folder)


def main(folder: Path = HERE) -> None:
    for build in TRACES:
        path = build().trace.write(folder / f"{build.__name__}.json")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
