"""Traces of known structure: operators described by their sizes, placed on streams of one or several ranks.

    sizes ──decoder_step──▶ [Placed(call, ns, stream, …), …] ──faults──▶ the same, changed ──written──▶ Kineto files

Every operator knows its work from its sizes alone; what is written is what PyTorch writes: names, arguments, launches,
kernels. So a reader that gets the files only must find again what was placed. Durations are the caller's: `at_bound`
gives the least that a device allows. A kernel starts once its stream is free, what it waits for has ended, and its
launch has reached the device; a collective ends on all ranks at once, `ns` after the last one came.

    host       [op [launch]] [op [launch]] … [wait] …      begins each step 300 µs ahead of the device, and runs on
    stream 7     ├──── gemm ────┤├ add ┤   waits    ├── gemm ──┤
    stream 20                           ├─ all-reduce ─┤
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, prod
from typing import Any

from kineto import Kineto

from sublight.bound import bound
from sublight.device import Limits, by_key
from sublight.ops import (
    Attention,
    Communication,
    Elementwise,
    Gemm,
    NegativeLogLikelihood,
    Normalisation,
    Op,
    Operand,
    Softmax,
)

# As drivers name the devices of the catalog.
NAMES = {
    "v100-sxm2-32": "Tesla V100-SXM2-32GB", "a100-sxm-80": "NVIDIA A100-SXM4-80GB", "l4": "NVIDIA L4",
    "h100-sxm": "NVIDIA H100 80GB HBM3", "h800": "NVIDIA H800", "h200": "NVIDIA H200", "b200": "NVIDIA B200",
    "gb200": "NVIDIA GB200",
}
TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "int64": "long int"}
COLLECTIVE_TYPES = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float"}
COMPUTE, COMMUNICATION = 7, 20           # streams

LEAD_NS = 300_000                        # how far ahead of the device the host begins a step
LATENCY_NS = 4_000                       # from a launch call to its kernel at least
ENTER_NS, LAUNCH_NS, EVENT_NS = 100, 300, 50


@dataclass(frozen=True)
class Argument:
    """One argument of an operator, as PyTorch records it: a tensor, or a number as text."""

    dims: tuple[int, ...] = ()
    type: str = ""
    strides: tuple[int, ...] = ()
    concrete: str = ""


NONE = Argument()


def tensor(dims: Sequence[int], form: str, strides: Sequence[int] | None = None) -> Argument:
    """Contiguous unless strides are given."""
    contiguous = [prod(dims[i + 1:]) for i in range(len(dims))]
    return Argument(tuple(dims), TYPES[form], tuple(contiguous if strides is None else strides))


def number(value: str) -> Argument:
    return Argument(type="Scalar", concrete=value)


@dataclass(frozen=True)
class Call:
    """A host operator. Inside it are others; one with `op` launches `kernels`, which do the op's work together."""

    name: str
    args: tuple[Argument, ...] = ()
    inside: tuple[Call, ...] = ()
    op: Op | None = None
    kernels: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)      # of a collective

    @property
    def launching(self) -> tuple[Call, ...]:
        """Of this call and those inside it the ones that launch kernels, in order."""
        return tuple(c for inner in self.inside for c in inner.launching) + ((self,) if self.kernels else ())

    @property
    def collective(self) -> bool:
        return any(isinstance(call.op, Communication) for call in self.launching)


# ---- operators -----------------------------------------------------------------------------------------------------

GEMM = {"bf16": "cublas_gemm_bf16_kernel", "fp16": "cublas_gemm_fp16_kernel", "fp32": "sm80_xmma_gemm_tf32f32_kernel"}
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>(cublasLt::cublasSplitKParams<float>)"
EFFICIENT = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(pytorch_flash::Flash_fwd_params)"
VECTORISED = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int)"
LAYER_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)"
LOG_SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, float>(float*, int)"
NLL = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)"
NCCL = "ncclDevKernel_{}_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def mm(m: int, n: int, k: int, *, form: str = "bf16", split_k: bool = False) -> Call:
    """(m, k) · (k, n), the second one transposed in memory as a weight is."""
    kernels = (GEMM[form], SPLIT_K) if split_k else (GEMM[form],)
    return Call("aten::mm", (tensor((m, k), form), tensor((k, n), form, (1, k))), op=_gemm(m, n, k, form),
                kernels=kernels)


def _gemm(m: int, n: int, k: int, form: str, addend: Operand | None = None) -> Gemm:
    return Gemm(m, n, k, a=form, b=form, out=form, math="tf32" if form == "fp32" else None, addend=addend)


def addmm(m: int, n: int, k: int, *, form: str = "bf16") -> Call:
    return Call("aten::addmm", (tensor((n,), form), tensor((m, k), form), tensor((k, n), form, (1, k)), number("1"),
                                number("1")), op=_gemm(m, n, k, form, Operand(n, form)), kernels=(GEMM[form],))


def linear(batch: int, length: int, n: int, k: int, *, form: str = "bf16", bias: bool = True) -> Call:
    """aten::linear with what it calls: a product of all tokens with the weight (n, k)."""
    weight = tensor((n, k), form)
    turned = Call("aten::t", (weight,))
    product = (addmm if bias else mm)(batch * length, n, k, form=form)
    inside = (turned, product) if bias else (turned, Call("aten::matmul", (
        tensor((batch, length, k), form), tensor((k, n), form, (1, k))), inside=(product,)))
    return Call("aten::linear", (tensor((batch, length, k), form), weight, tensor((n,), form) if bias else NONE),
                inside=inside)


def attention(batch: int, length: int, heads: int, d: int, *, kv_heads: int | None = None, causal: bool = True,
              form: str = "bf16") -> Call:
    """aten::scaled_dot_product_attention: the flash kernel, or the memory-efficient one for fp32."""
    flag, scale, no, n = number(str(causal)), number(str(d**-0.5)), number("False"), number(str(length))
    shapes = [(batch, h, length, d) for h in (heads, kv_heads or heads, kv_heads or heads)]
    outer = tuple(tensor(s, form) for s in shapes)
    inner = tuple(tensor((b, n, h, d), form, (h * n * d, d, n * d, 1)) for b, h, n, d in shapes)
    op = Attention.dense(batch=batch, q_length=length, kv_length=length, heads=heads, kv_heads=kv_heads or heads,
                         d_qk=d, d_v=d, causal="start" if causal else None, form=form,
                         math="tf32" if form == "fp32" else None)
    if form == "fp32":
        kernel = Call("aten::_efficient_attention_forward", (
            *inner, NONE, NONE, NONE, n, n, number("0."), number(str(int(causal))), no, scale, NONE, NONE),
            op=op, kernels=(EFFICIENT,))
        chosen = Call("aten::_scaled_dot_product_efficient_attention",
                      (*outer, NONE, no, number("0."), flag, scale), inside=(kernel,))
    else:
        kernel = Call("aten::_flash_attention_forward", (
            *inner, NONE, NONE, n, n, number("0."), flag, no, scale, NONE, NONE, NONE, NONE),
            op=op, kernels=(FLASH,))
        chosen = Call("aten::_scaled_dot_product_flash_attention", (*outer, number("0."), flag, no, scale),
                      inside=(kernel,))
    return Call("aten::scaled_dot_product_attention", (*outer, NONE, number("0."), flag, scale, no), inside=(chosen,))


def _elementwise(name: str, functor: str, operands: int, more: tuple[Argument, ...]) -> Callable[..., Call]:
    def make(dims: Sequence[int], *, form: str = "bf16") -> Call:
        whole = Operand(prod(dims), form)
        return Call(name, (tensor(dims, form),) * operands + more, op=Elementwise((whole,) * operands, (whole,), 1),
                    kernels=(VECTORISED.format(functor),))
    return make


add = _elementwise("aten::add", "CUDAFunctor_add<float>", 2, (number("1"),))
mul = _elementwise("aten::mul", "BinaryFunctor<float, float, float, at::native::MulFunctor<float> >", 2, ())
silu = _elementwise("aten::silu", "(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)", 1, ())


def copy(dims: Sequence[int], *, to: str, form: str) -> Call:
    """aten::copy_ from one number format to another."""
    functor = f"{'bfloat16' if to == 'bf16' else 'direct'}_copy_kernel_cuda(at::TensorIteratorBase&)"
    return Call("aten::copy_", (tensor(dims, to), tensor(dims, form), number("False")),
                op=Elementwise((Operand(prod(dims), form),), (Operand(prod(dims), to),)),
                kernels=(VECTORISED.format(functor),))


def layer_norm(dims: Sequence[int], *, form: str = "bf16") -> Call:
    width = dims[-1]
    shape = Argument(type="ScalarList", concrete=f"[{width}]")
    args = (tensor(dims, form), shape, tensor((width,), form), tensor((width,), form), number("1.0e-05"))
    native = Call("aten::native_layer_norm", args, kernels=(LAYER_NORM,),
                  op=Normalisation(prod(dims), width, "mean", form, form, form))
    return Call("aten::layer_norm", (*args, number("True")), inside=(native,))


def cross_entropy(rows: int, classes: int, *, form: str = "bf16") -> Call:
    """aten::cross_entropy_loss: a log-softmax, and the sum of what it gives for the targets."""
    logits, targets = tensor((rows, classes), form), tensor((rows,), "int64")
    softmax = Call("aten::_log_softmax", (logits, number("1"), number("False")), kernels=(LOG_SOFTMAX,),
                   op=Softmax(rows * classes, form, form))
    picked = Call("aten::nll_loss_forward", (logits, targets, NONE, number("1"), number("-100")), kernels=(NLL,),
                  op=NegativeLogLikelihood(rows, classes, form))
    return Call("aten::cross_entropy_loss", (logits, targets, NONE, number("1"), number("-100"), number("0.")),
                inside=(softmax, picked))


def all_reduce(elements: int, group: int, *, form: str = "bf16") -> Call:
    return _collective("c10d::allreduce_", "allreduce", "all_reduce", "AllReduce", elements, elements, group, form)


def reduce_scatter(elements: int, group: int, *, form: str = "bf16") -> Call:
    """elements: of the input, a multiple of the group's size."""
    return _collective("c10d::_reduce_scatter_base_", "_reduce_scatter_base", "reduce_scatter", "ReduceScatter",
                       elements, elements // group, group, form)


def _collective(name: str, recorded: str, kind: str, spelled: str, elements: int, out: int, group: int,
                form: str) -> Call:
    record = {
        "Collective name": recorded, "In msg nelems": elements, "Out msg nelems": out, "Group size": group,
        "dtype": COLLECTIVE_TYPES[form], "In split size": "[]", "Out split size": "[]", "Process Group Name": "0",
        "Process Group Description": "default_pg", "Process Group Ranks": str(list(range(group))),
    }
    comms = Call("record_param_comms", op=Communication(kind, group, elements, form), record=record,
                 kernels=(NCCL.format(spelled, form),))
    return Call(name, inside=(comms,))


# ---- a step --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """One call in its place on a stream.

    ns: how long each of `call.launching` keeps the stream. waits: streams whose work so far must have ended.
    gap_ns: how long the stream idles first, since the host launches late. late_ns: longer by so much, by rank.
    """

    call: Call
    ns: tuple[int, ...]
    stream: int = COMPUTE
    waits: tuple[int, ...] = ()
    gap_ns: int = 0
    late_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(call.op for call in self.call.launching if call.op)


Step = tuple[Placed, ...]


def least_ns(op: Op, limits: Limits) -> float:
    least = bound(op.work(), limits)
    assert least is not None, f"no bound for {op}"
    return least.seconds * 1e9


def at_bound(call: Call, limits: Limits, *, stream: int = COMPUTE, waits: tuple[int, ...] = ()) -> Placed:
    """As fast as the device can be, in whole ns, and 1 ns at least."""
    ns = tuple(max(1, ceil(least_ns(c.op, limits))) for c in call.launching if c.op)
    return Placed(call, ns, stream, waits)


@dataclass(frozen=True)
class Sizes:
    """A decoder, as one rank of a tensor-parallel group sees it."""

    batch: int = 4
    length: int = 2_048
    heads: int = 16
    d: int = 128
    inner: int = 8_192
    vocabulary: int = 32_000
    layers: int = 2
    form: str = "bf16"
    group: int = 8                       # ranks; 1: no communication

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def width(self) -> int:
        return self.heads * self.d


def decoder_step(s: Sizes, limits: Limits, *, transfer_ns: int | None = None) -> Step:
    """Forward and loss, each operator at its bound. After its two blocks, each layer's compute waits for an all-reduce
    of `transfer_ns` (None: at its bound)."""
    x, h = (s.batch, s.length, s.width), (s.batch, s.length, s.inner)
    calls: list[Call] = []
    for _ in range(s.layers):
        calls += [layer_norm(x, form=s.form), linear(*x[:2], 3 * s.width, s.width, form=s.form),
                  attention(s.batch, s.length, s.heads, s.d, form=s.form),
                  linear(*x[:2], s.width, s.width, form=s.form)]
        calls += [all_reduce(prod(x), s.group, form=s.form)] if s.group > 1 else []
        calls += [add(x, form=s.form), layer_norm(x, form=s.form),
                  linear(*x[:2], s.inner, s.width, form=s.form, bias=False), silu(h, form=s.form),
                  mul(h, form=s.form), linear(*x[:2], s.width, s.inner, form=s.form, bias=False)]
        calls += [reduce_scatter(prod(x), s.group, form=s.form)] if s.group > 1 else []
        calls += [add(x, form=s.form)]
    calls += [copy(x, to="fp32", form=s.form), mm(s.tokens, s.vocabulary, s.width, form=s.form, split_k=True),
              cross_entropy(s.tokens, s.vocabulary, form=s.form)]
    out = [at_bound(calls[0], limits)]
    for before, call in pairwise(calls):
        stream = COMMUNICATION if call.collective else COMPUTE
        waits = (COMPUTE,) if call.collective else (COMMUNICATION,) if before.collective else ()
        placed = at_bound(call, limits, stream=stream, waits=waits)
        out.append(replace(placed, ns=(transfer_ns,)) if call.collective and transfer_ns else placed)
    return tuple(out)


def changed(step: Step, at: int, **fields: Any) -> Step:
    """The same step, but for one place."""
    return (*step[:at], replace(step[at], **fields), *step[at + 1:])


def places(step: Step, name: str) -> list[int]:
    """Where a call of that name is launched."""
    return [i for i, placed in enumerate(step) if any(call.name == name for call in placed.call.launching)]


# ---- the files -----------------------------------------------------------------------------------------------------


@dataclass
class _Rank:
    k: Kineto
    host_ns: int = 0
    free_ns: dict[int, int] = field(default_factory=dict)        # by stream
    ends_ns: list[int] = field(default_factory=list)             # of kernels


def written(steps: Sequence[Step], *, device: str, ranks: int = 1, world: int | None = None,
            lead_ns: int = LEAD_NS) -> list[Kineto]:
    """One trace a rank: every step's calls in turn, on all ranks alike but for `late_ns`.

    device: a key of NAMES. world: how many ranks the run has, where not all are written. lead_ns: how far ahead of the
    device the host begins a step.
    """
    known = by_key(device)
    several = [_Rank(Kineto(
        rank=rank, world_size=world or ranks, device_name=NAMES[device], sms=known.sms,
        memory_bytes=known.memory_bytes, compute_capability=known.capability or (0, 0), record_shapes=True, flows=True,
    )) for rank in range(ranks)]
    for number_of, step in enumerate(steps):
        began = [r.host_ns for r in several]
        for i, placed in enumerate(step):
            starts = [_launch(r, rank, placed, begins=None if i else number_of, lead_ns=lead_ns)
                      for rank, r in enumerate(several)]
            if placed.call.collective:
                end = max(start for (start, _), in starts) + sum(placed.ns)
                starts = [[(start, end)] for (start, _), in starts]
            for r, spans in zip(several, starts, strict=True):
                _write(r, placed, spans)
        for r, host_ns in zip(several, began, strict=True):
            r.k.step(number_of, host_ns, r.host_ns)
            r.host_ns += 1
    return [r.k for r in several]


def _launch(r: _Rank, rank: int, placed: Placed, *, begins: int | None, lead_ns: int) -> list[tuple[int, int]]:
    """(start, end) of each launching call's kernels; moves the host to the call's beginning. begins: the number of
    the step of which this is the first call."""
    ready = max((r.free_ns.get(s, 0) for s in (placed.stream, *placed.waits)), default=0)
    offsets = list(_offsets(placed.call))
    ahead = (EVENT_NS * 2 if placed.waits else 0) + offsets[0]
    if placed.gap_ns:
        r.host_ns = max(r.host_ns, ready + placed.gap_ns - LATENCY_NS - ahead)
    elif begins:
        _await(r, ready - lead_ns)
    elif begins == 0:
        ready = lead_ns
    spans = []
    for which, (offset, ns) in enumerate(zip(offsets, placed.ns, strict=True)):
        start = max(ready, r.host_ns + ahead - offsets[0] + offset + LATENCY_NS)
        ready = start + ns + (placed.late_ns.get(rank, 0) if not which else 0)
        spans.append((start, ready))
    return spans


def _await(r: _Rank, until_ns: int) -> None:
    """The host waits for the last kernel that ends by then, and is busy with the next input after that."""
    ended = max((end for end in r.ends_ns if end <= until_ns - EVENT_NS), default=0)
    if ended > r.host_ns:
        r.k.call("cudaEventSynchronize", r.host_ns, ended + EVENT_NS)
        r.host_ns = until_ns


def _offsets(call: Call, at: int = ENTER_NS) -> Iterator[int]:
    """When each launching call launches its first kernel, after the call's begin."""
    for inner in call.inside:
        yield from _offsets(inner, at + ENTER_NS)
        at += _cost_ns(inner)
    if call.kernels:
        yield at


def _cost_ns(call: Call) -> int:
    return 2 * ENTER_NS + sum(map(_cost_ns, call.inside)) + LAUNCH_NS * len(call.kernels)


def _write(r: _Rank, placed: Placed, spans: Sequence[tuple[int, int]]) -> None:
    if placed.waits:
        if placed.call.collective:
            r.k.call("cudaEventRecord", r.host_ns, r.host_ns + EVENT_NS - 1)
        r.k.call("cudaStreamWaitEvent", r.host_ns + EVENT_NS, r.host_ns + 2 * EVENT_NS - 1)
        r.host_ns += 2 * EVENT_NS
    _call(r, placed.call, r.host_ns, placed.stream, iter(spans))
    r.host_ns += _cost_ns(placed.call)
    if placed.call.collective:
        r.k.call("cudaEventRecord", r.host_ns, r.host_ns + EVENT_NS)
        r.host_ns += EVENT_NS
    r.free_ns[placed.stream] = spans[-1][1]
    r.ends_ns += [end for _, end in spans]


def _call(r: _Rank, call: Call, at: int, stream: int, spans: Iterator[tuple[int, int]]) -> None:
    recorded: dict[str, Any] = {} if not call.args else {
        "Concrete Inputs": [a.concrete for a in call.args], "Input type": [a.type for a in call.args],
        "Input Strides": [list(a.strides) for a in call.args]}
    op = r.k.op(call.name, at, at + _cost_ns(call), dims=[a.dims for a in call.args] if call.args else None,
                **recorded, **call.record)
    at += ENTER_NS
    for inner in call.inside:
        _call(r, inner, at, stream, spans)
        at += _cost_ns(inner)
    if not call.kernels:
        return
    start, end = next(spans)
    # Several kernels of one call: the first has most of the time.
    cuts = [start, *(end - (end - start) // 10 * (len(call.kernels) - 1 - i) for i in range(len(call.kernels)))]
    for name, (begin, stop) in zip(call.kernels, pairwise(cuts), strict=True):
        r.k.kernel(name, begin, stop, stream=stream, launch=(at, at + LAUNCH_NS - 50), op=op, grid=(20, 1, 1)
                   if call.record else (1, 1, 1), **call.record)
        at += LAUNCH_NS
