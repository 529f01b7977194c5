"""Write the GPU-shaped demo trace: synthetic, three training steps of one H100 with faults of known size.

    python examples/make_demo_gpu.py --out sublight/demo/gpu_step.json.gz

No GPU was involved. The steps are shaped like those of a mixture-of-experts model under FSDP and expert
parallelism; every duration is a constant below, and the budget that the script prints follows from the
construction alone, to the nanosecond.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kineto import Kineto

US = 1_000  # ns

# Planted, per step
EXPOSED_DISPATCH_NS = 400 * US  # the expert dispatch outlasts the shared expert
EXPOSED_SCATTER_NS = 800 * US  # the gradients' reduce-scatter outlasts the backward pass
STARVED_LOSS_NS = 500 * US  # the host launches the loss that long after the device went idle
STARVED_ADAM_NS = 300 * US  # and the optimiser
BLOCKED_NS = 200 * US  # cudaStreamSynchronize of .item() returns that long after its copy ended
SMS, COMM_SMS = 132, 20  # communication holds 20 SMs: GEMMs beside it run on the other 112
STEPS = 3

# The rest of a step
COPY_IN_NS, COPY_OUT_NS = 12 * US, 2 * US
GATHER_NS = 900 * US  # hidden entirely
NOTIFY_DISPATCH_NS, NOTIFY_COMBINE_NS = 120 * US, 40 * US  # kernels that only wait for other ranks
COMBINE_NS = 560 * US  # hidden entirely
GAP_NS = 1 * US  # between some neighbours on the device although the launch came early
LAUNCH_NS = 5 * US  # from the start of a launch to its kernel, on an idle device
CALL_NS, OP_NS = 3_500, 7 * US  # a launch call on the host, the operator around it

COMPUTE, NCCL, EXPERTS = 7, 20, 24  # streams
MAIN, AUTOGRAD = 1, 2  # threads

NVJET = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_{}"
TE = "transformer_engine::normalization"
TRAITS = (
    f"{TE}::Kernel_traits<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, unsigned int, 7168u, 1u, 1u, "
)
RMSNORM = f"void {TE}::rmsnorm_fwd_tuned_kernel<{TRAITS}4u, 16u> >({TE}::ForwardKernelParams)"
RMSNORM_BWD = f"void {TE}::rmsnorm_bwd_tuned_kernel<{TRAITS}8u, 16u> >({TE}::BackwardKernelParams)"
TILE = "cute::tuple<cute::C<128>, cute::C<128>, cute::C<192> >"
ATTENTION = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
    f"{TILE}, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, false, false, false, false, false, "
    "false, false, true, false, false, false> > > >(flash::FlashAttnFwdSm90::Params)"
)
ATTENTION_BWD = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<"
    f"2, 2, 2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, {TILE}, cutlass::bfloat16_t, float, "
    "cutlass::arch::Sm90, true, false, false, false, true, false> > > >(flash::FlashAttnBwdSm90::Params)"
)
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {0}, std::array<char*, 3ul> >"
    "(int, {0}, std::array<char*, 3ul>)"
)
ADD = ELEMENTWISE.format("at::native::CUDAFunctor_add<c10::BFloat16>")
MULTIPLY = ELEMENTWISE.format(
    "at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> >"
)
ADD_UP = (
    "at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, "
    "float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4>"
)
SUM = f"void at::native::reduce_kernel<512, 1, {ADD_UP} >({ADD_UP})"
FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::(anonymous namespace)::ADAM_MODE)1, false>, float const*, double, double, double, double, "
    "double, bool, float const*, float const*>(at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::(anonymous namespace)::ADAM_MODE)1, false>, float const*, double, double, double, double, "
    "double, bool, float const*, float const*)"
)
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
DEEP_EP = "void deep_ep::internode::"
NOTIFY_DISPATCH = (
    f"{DEEP_EP}notify_dispatch<false, 8>(int const*, int*, int, int const*, int*, int const*, int*, int, "
    "bool const*, int, int, int, int, int, int, int, int*, int*, int*, int*, void*, void**, int**, int, int, "
    "int)"
)
DISPATCH = (
    f"{DEEP_EP}dispatch<false, 8, false, 7, 8>(int4*, float*, long*, float*, "
    "deep_ep::internode::SourceMeta*, int4 const*, float const*, long const*, float const*, int*, int*, "
    "int*, int*, int const*, int const*, int const*, int const*, int, int, int, int, int, bool const*, "
    "void*, int, int, void**, int, int, int, int)"
)
NOTIFY_COMBINE = (
    f"{DEEP_EP}cached_notify<false>(int, int, int, int, int*, int, int, int const*, int const*, int*, void*, "
    "void**, int**, int, int, int, bool, int)"
)
COMBINE = (
    f"{DEEP_EP}combine<false, 8, __nv_bfloat16, 8, 4, 4, 16, 24>(int4*, float*, bool const*, int4 const*, "
    "float const*, int const*, int const*, deep_ep::internode::SourceMeta const*, int const*, int const*, "
    "int const*, int, int, int, int, void*, int, int, void**, int, int, int, int)"
)


@dataclass
class Run:
    """The device and its host as they are built, with the budget that follows from each move.

    `now` is where the compute stream has got to, `host` where the launching thread has; both in ns.
    """

    trace: Kineto
    now: int = 60 * US
    host: int = 20 * US
    thread: int = MAIN
    busy_until: dict[int, int] = field(default_factory=dict)  # communication, by stream
    parts: Counter[str] = field(default_factory=Counter)
    beside: Counter[str] = field(default_factory=Counter)

    def launch(self, op: str, at: int) -> tuple[int, tuple[int, int]]:
        """The operator and the call that launch what starts `at`: its External id, the call's interval."""
        start = self.host
        call = (start + 2 * US, start + 2 * US + CALL_NS)
        assert call[1] <= at, "the host is late where no fault was planted"
        self.host += OP_NS + 1 * US
        return self.trace.op(op, start, start + OP_NS, thread=self.thread), call

    def compute(self, part: str, name: str, us: int, op: str, *, sms: int = SMS, gap_ns: int = 0) -> None:
        """A compute kernel, next on its stream."""
        self.now += gap_ns
        self.parts["idle: dependency"] += gap_ns
        external, call = self.launch(op, self.now)
        end = self.now + us * US
        self.trace.kernel(name, self.now, end, stream=COMPUTE, launch=call, thread=self.thread, op=external,
                          api="cudaLaunchKernelExC", grid=(sms, 1, 1), block=(384, 1, 1))  # fmt: skip
        self.parts[part] += us * US
        self.now = end

    def communicate(self, name: str, ns: int, op: str, stream: int, *, sms: int = COMM_SMS) -> None:
        """A communication kernel, beside the compute that follows."""
        start = max(self.now, self.busy_until.get(stream, 0))
        external, call = self.launch(op, start)
        end = start + ns
        self.trace.kernel(name, start, end, stream=stream, launch=call, thread=self.thread, op=external,
                          api="cudaLaunchKernelExC", grid=(sms, 1, 1), block=(512, 1, 1))  # fmt: skip
        self.busy_until[stream] = end
        self.beside["communication"] += ns

    def join(self, stream: int) -> None:
        """Compute waits for communication: what is left of that is exposed. NCCL's kernels move data and wait
        in one, the experts' only move it."""
        exposed = max(0, self.busy_until[stream] - self.now)
        self.parts[f"exposed communication{': transfer' if stream == EXPERTS else ''}"] += exposed
        self.beside["exposed"] += exposed
        self.now += exposed

    def starve(self, ns: int) -> None:
        """The host comes late: the next launch is issued when the device has been idle for most of `ns`."""
        self.parts["idle: launch-starved"] += ns
        self.now += ns
        self.host = max(self.host, self.now - LAUNCH_NS - 2 * US)

    def item(self) -> None:
        """`.item()`: a copy to the host, and a synchronise that returns `BLOCKED_NS` after it."""
        op_start = self.host
        copied = self.now + COPY_OUT_NS
        back = copied + BLOCKED_NS
        outer = self.trace.op("aten::_local_scalar_dense", op_start, back + 1 * US, thread=self.thread)
        call = (op_start + 1 * US, op_start + 1 * US + CALL_NS)
        assert call[0] < self.now
        self.trace.memcpy("Memcpy DtoH (Device -> Pageable)", self.now, copied, nbytes=4, launch=call,
                          thread=self.thread, op=outer)  # fmt: skip
        self.trace.call("cudaStreamSynchronize", call[1] + 500, back, thread=self.thread, op=outer)
        self.parts["exposed copies"] += COPY_OUT_NS
        self.parts["idle: blocked"] += BLOCKED_NS
        self.now, self.host = back, back + 1 * US
        # only now can the host launch again: a little starvation comes with it
        self.starve(LAUNCH_NS + 3 * US)


def forward(run: Run) -> None:
    external, call = run.launch("aten::copy_", run.now)
    run.trace.memcpy("HtoD", run.now, run.now + COPY_IN_NS, nbytes=32_768, launch=call, op=external)
    run.parts["exposed copies"] += COPY_IN_NS
    run.now += COPY_IN_NS
    run.communicate(GATHER, GATHER_NS, "c10d::_allgather_base_", NCCL)
    free = SMS - COMM_SMS
    run.compute("normalisation", RMSNORM, 60, "transformer_engine::rmsnorm_fwd")
    run.compute("gemm", NVJET.format("TNT"), 420, "aten::mm", sms=free)
    run.compute("elementwise", ADD, 50, "aten::add")
    run.compute("attention", ATTENTION, 700, "flash_attn_3::fwd")
    run.compute("gemm", NVJET.format("TNN"), 260, "aten::mm", gap_ns=GAP_NS)
    run.compute("gemm", "nvjet_tst_64x64_64x16_2x1_v_bz_TNT", 40, "aten::mm", gap_ns=GAP_NS)
    shared_us = 320
    dispatch_ns = shared_us * US + EXPOSED_DISPATCH_NS - NOTIFY_DISPATCH_NS
    run.communicate(NOTIFY_DISPATCH, NOTIFY_DISPATCH_NS, "deep_ep::notify_dispatch", EXPERTS, sms=9)
    run.communicate(DISPATCH, dispatch_ns, "deep_ep::dispatch", EXPERTS)
    run.compute("gemm", NVJET.format("TNT"), shared_us, "aten::mm", sms=free)
    run.join(EXPERTS)
    run.compute("gemm", NVJET.format("TNT"), 640, "aten::_grouped_mm", gap_ns=GAP_NS)
    run.compute("elementwise", MULTIPLY, 90, "aten::mul", gap_ns=GAP_NS)
    run.compute("gemm", NVJET.format("TNN"), 330, "aten::_grouped_mm", gap_ns=GAP_NS)
    run.communicate(NOTIFY_COMBINE, NOTIFY_COMBINE_NS, "deep_ep::cached_notify", EXPERTS)
    run.communicate(COMBINE, COMBINE_NS, "deep_ep::combine", EXPERTS)
    run.compute("gemm", NVJET.format("TNT"), 700, "aten::mm", sms=free)  # of the other micro-batch
    run.join(EXPERTS)
    run.starve(STARVED_LOSS_NS)
    run.compute("reduction", SUM, 120, "aten::sum")


def backward(run: Run) -> None:
    run.thread = AUTOGRAD
    for layout in ("NNT", "NTN"):
        run.compute("gemm", NVJET.format(layout), 490, "aten::mm")
    run.compute("attention", ATTENTION_BWD, 1_500, "flash_attn_3::bwd")
    scatter_ns = (420 + 420 + 110) * US + EXPOSED_SCATTER_NS
    run.communicate(SCATTER, scatter_ns, "c10d::_reduce_scatter_base_", NCCL)
    for layout in ("NNT", "NTN"):
        run.compute("gemm", NVJET.format(layout), 420, "aten::mm", sms=SMS - COMM_SMS)
    run.compute("normalisation", RMSNORM_BWD, 110, "transformer_engine::rmsnorm_bwd")
    run.join(NCCL)
    run.thread = MAIN


def optimise(run: Run) -> None:
    run.compute("reduction", SUM, 70, "aten::sum")
    run.item()
    run.compute("elementwise", MULTIPLY, 60, "aten::mul")
    run.starve(STARVED_ADAM_NS)
    run.compute("optimizer", FUSED_ADAM, 640, "aten::_fused_adamw_")


def build() -> Run:
    run = Run(Kineto(rank=0, world_size=16))
    for number in range(1, STEPS + 1):
        host, device = run.host - 1 * US, run.now
        forward(run)
        backward(run)
        optimise(run)
        step = run.trace.step(number, host, run.host)
        run.trace.gpu_annotate(f"ProfilerStep#{number}", device, run.now, op=step)
        run.host += 2 * US
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the synthetic GPU demo trace.")
    parser.add_argument("--out", type=Path, required=True, help="the trace to write, .json or .json.gz")
    args = parser.parse_args()
    run = build()
    path = run.trace.write(args.out)
    window = run.now - 60 * US
    print(f"{path}: {path.stat().st_size:,} bytes, {len(run.trace.events)} events, {STEPS} steps, synthetic")
    print(f"{'planted, in every step':40} {'ns':>12}")
    for name, ns in [
        ("exposed: dispatch", EXPOSED_DISPATCH_NS),
        ("exposed: reduce-scatter", EXPOSED_SCATTER_NS),
        ("launch-starved: before the loss", STARVED_LOSS_NS),
        ("launch-starved: before the optimiser", STARVED_ADAM_NS),
        ("blocked: .item()", BLOCKED_NS),
    ]:
        print(f"  {name:38} {ns:12,}")
    print(f"  communication holds {COMM_SMS} of {SMS} SMs, GEMMs beside it have {SMS - COMM_SMS}")
    print(f"{'expected budget of all steps':40} {window:12,}")
    for name, ns in sorted(run.parts.items()):
        print(f"  {name:38} {ns:12,}")
    assert sum(run.parts.values()) == window
    union = run.beside["communication"]
    print(f"{'beside it: communication':40} {union:12,}")
    print(f"  {'hidden':38} {union - run.beside['exposed']:12,}")
    print(f"  {'in kernels that only wait':38} {STEPS * (NOTIFY_DISPATCH_NS + NOTIFY_COMBINE_NS):12,}")


if __name__ == "__main__":
    main()
