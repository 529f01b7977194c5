"""What operators have to do: real calls counted by hand, properties, and arguments that are not what they should be.

Bytes: each distinct element of an input once, each element of an output once. bf16 2 bytes, fp32 4, fp8 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest
from conftest import KINETO, shared
from hypothesis import given
from hypothesis import strategies as st

from sublight.device import by_key
from sublight.explain.calls import OpCall, op_calls
from sublight.explain.links import link
from sublight.observe.kineto import read_kineto
from sublight.ops import (
    OPS,
    Attention,
    CacheWrite,
    Communication,
    Convolution,
    CrossEntropy,
    Elementwise,
    Experts,
    Gated,
    Gather,
    Gemm,
    GroupedGemm,
    IndexScores,
    NegativeLogLikelihood,
    Normalisation,
    Op,
    Operand,
    OptimizerStep,
    Permute,
    Recurrence,
    Reduction,
    Rotary,
    RotaryWrite,
    Routing,
    ScaledGemm,
    ShortConvolution,
    Softmax,
)
from sublight.ops.annotation import StepLoad, step_load
from sublight.ops.attention import unmasked_pairs
from sublight.ops.context import Context, KernelHint
from sublight.ops.from_call import RULES, ops_of_call
from sublight.ops.inferred import experts
from sublight.ops.op import distinct_elements
from sublight.trace import Collective, OpArgs, Trace
from sublight.work import Message, Work

# ---- real calls, counted by hand --------------------------------------------------------------------------------

V100 = "kineto/v100_dlrm_8rank/dlrm_kineto/worker0_step_12.1694128201545.pt.trace.json"
DEVICES = {"b200": "b200", "h100": "h100-sxm", "a100": "a100-sxm-40", "v100": "v100-sxm2-32"}


@dataclass(frozen=True)
class Real:
    """A call of a shared trace. kernel: a part of the name of one of its kernels, where that tells calls apart."""

    trace: str
    name: str
    dims: str
    flops: dict[tuple[str, str], int]
    read: int
    written: int
    kernel: str = ""
    inferred: bool = False
    messages: tuple[Message, ...] = ()

    def __str__(self) -> str:
        return f"{self.trace}-{self.name}-{self.dims}-{self.kernel}"


BF16, FP8, FP32 = ("tensor", "bf16"), ("tensor", "fp8"), ("vector", "fp32")
T = 16 * 559                                               # tokens of the H100 trace: 16 sequences of 559
X = "[[16,559,1024],[16,559,1024],[]]"
HEADS = "[[16,16,559,64],[16,16,559,64],[]]"

REAL = (
    # Matrix products: 2·m·n·k; A, B and a bias read, C written
    Real("h100", "aten::mm", "[[8944,1024],[1024,2816]]", {BF16: 2 * 8944 * 1024 * 2816},
         2 * (8944 * 1024 + 1024 * 2816), 2 * 8944 * 2816),
    Real("h100", "aten::mm", "[[8944,2816],[2816,1024]]", {BF16: 2 * 8944 * 2816 * 1024},
         2 * (8944 * 2816 + 2816 * 1024), 2 * 8944 * 1024),
    Real("h100", "aten::mm", "[[8944,1024],[1024,1024]]", {BF16: 18_756_927_488}, 20_414_464, 18_317_312),
    Real("h100", "aten::addmm", "[[1024],[8944,1024],[1024,1024],[],[]]", {BF16: 2 * 8944 * 1024**2},
         2 * (1024 + 8944 * 1024 + 1024**2), 2 * 8944 * 1024),
    Real("h100", "aten::bmm", "[[1,32,1],[1,1,559]]", {FP32: 2 * 32 * 559}, 4 * (32 + 559), 4 * 32 * 559),
    Real("b200", "aten::addmm", "[[640],[888,2880],[2880,640],[],[]]", {BF16: 2 * 888 * 2880 * 640},
         2 * (640 + 888 * 2880 + 2880 * 640), 2 * 888 * 640),
    Real("b200", "aten::addmm", "[[2880],[888,512],[512,2880],[],[]]", {BF16: 2_618_818_560}, 3_864_192, 5_114_880),
    Real("b200", "aten::addmm", "[[128],[888,2880],[2880,128],[],[]]", {BF16: 654_704_640}, 5_852_416, 227_328),
    Real("b200", "aten::mm", "[[1,2880],[2880,25136]]", {BF16: 2 * 2880 * 25136}, 2 * (2880 + 2880 * 25136), 2 * 25136),
    # volta_sgemm: no matrix hardware for fp32; strides are not recorded, hence marked
    Real("v100", "aten::mm", "[[512,16],[16,512]]", {FP32: 2 * 512 * 16 * 512}, 4 * 2 * 512 * 16, 4 * 512 * 512,
         inferred=True),
    Real("v100", "aten::bmm", "[[16,27,16],[16,16,27]]", {FP32: 16 * 2 * 27 * 16 * 27}, 4 * 16 * 2 * 27 * 16,
         4 * 16 * 27 * 27, inferred=True),
    # Attention: query i of 559 sees i + 1 keys: 156,520 pairs a head; 2·64 for the score and 2·64 for the sum each
    Real("h100", "aten::_flash_attention_forward", "[[16,559,16,64],[16,559,16,64],[16,559,16,64]" + ",[]" * 12 + "]",
         {BF16: 16 * 16 * (559 * 560 // 2) * 4 * 64}, 3 * 2 * T * 16 * 64, 2 * T * 16 * 64),
    # One request of 888 tokens, 8 heads over 1 of keys and values, cached in 8 bits
    Real("b200", "vllm::unified_attention_with_output", "[[888,8,64],[888,1,64],[888,1,64],[888,8,64],[],[],[]]",
         {FP8: 8 * (888 * 889 // 2) * 4 * 64}, 888 * 8 * 64 + 2 * 888 * 64, 2 * 888 * 8 * 64, kernel="PagedKvCausal"),
    # The window's width is in no name: each query sees itself
    Real("b200", "vllm::unified_attention_with_output", "[[888,8,64],[888,1,64],[888,1,64],[888,8,64],[],[],[]]",
         {FP8: 8 * 888 * 4 * 64}, 888 * 8 * 64 + 2 * 888 * 64, 2 * 888 * 8 * 64, kernel="SlidingOrChunked"),
    # Normalisation: square, add, scale, weight; with the residual an add, and both are read and written
    Real("b200", "_C::rms_norm", "[[888,2880],[888,2880],[2880],[]]", {FP32: 4 * 888 * 2880},
         2 * (888 * 2880 + 2880), 2 * 888 * 2880),
    Real("b200", "_C::fused_add_rms_norm", "[[888,2880],[888,2880],[2880],[]]", {FP32: 5 * 888 * 2880},
         2 * (2 * 888 * 2880 + 2880), 2 * 2 * 888 * 2880),
    # Elementwise
    Real("h100", "aten::silu", "[[16,559,2816]]", {FP32: T * 2816}, 2 * T * 2816, 2 * T * 2816),
    Real("h100", "aten::mul", "[[16,559,2816],[16,559,2816]]", {FP32: T * 2816}, 2 * 2 * T * 2816, 2 * T * 2816),
    Real("h100", "aten::mul", "[[16,559,1024],[16,559,1]]", {FP32: T * 1024}, 4 * (T * 1024 + T), 4 * T * 1024),
    Real("h100", "aten::mul", "[[1024],[16,559,1024]]", {FP32: T * 1024}, 2 * (1024 + T * 1024), 2 * T * 1024),
    Real("h100", "aten::mul", "[[16,16,559,64],[1,1,559,64]]", {FP32: T * 1024}, 2 * (T * 1024 + 559 * 64),
         2 * T * 1024),
    Real("h100", "aten::mul", "[[1,559,64],[]]", {FP32: 559 * 64}, 4 * 559 * 64, 4 * 559 * 64),    # by a host number
    Real("h100", "aten::add", HEADS, {FP32: T * 1024}, 2 * 2 * T * 1024, 2 * T * 1024),
    Real("h100", "aten::pow", "[[16,559,1024],[]]", {FP32: T * 1024}, 4 * T * 1024, 4 * T * 1024),
    Real("h100", "aten::rsqrt", "[[16,559,1]]", {FP32: T}, 4 * T, 4 * T),
    Real("h100", "aten::neg", "[[16,16,559,32]]", {}, 2 * T * 512, 2 * T * 512),
    Real("h100", "aten::cat", "[[[16,16,559,32],[16,16,559,32]],[]]", {}, 2 * T * 1024, 2 * T * 1024, inferred=True),
    Real("h100", "aten::eq", "[[16,559],[]]", {}, 8 * T, T),                                       # int64 -> bool
    Real("h100", "aten::copy_", HEADS, {}, 2 * T * 1024, 2 * T * 1024),
    Real("h100", "aten::copy_", X, {}, 4 * T * 1024, 2 * T * 1024, kernel="bfloat16_copy_kernel"),
    Real("h100", "aten::copy_", X, {}, 2 * T * 1024, 4 * T * 1024, kernel="unrolled_elementwise"),
    Real("b200", "aten::copy_", "[[888,3072],[888,3072],[]]", {}, 2 * 888 * 3072, 2 * 888 * 3072),
    Real("b200", "aten::fill_", "[[888,3072],[]]", {}, 0, 2 * 888 * 3072),
    Real("b200", "aten::copy_", "[[513],[513],[]]", {}, 0, 4 * 513),                               # from the host
    Real("b200", "_C::static_scaled_fp8_quant", "[[888,512],[888,512],[]]", {FP32: 888 * 512}, 2 * 888 * 512,
         888 * 512),
    Real("v100", "aten::addcmul_", "[[512,512],[512,512],[512,512],[]]", {FP32: 2 * 512 * 512}, 3 * 4 * 512 * 512,
         4 * 512 * 512, inferred=True),
    # 8 heads of queries and 1 of keys, 64 wide: 2 products and a sum each; positions, and one row of the table
    Real("b200", "_C::rotary_embedding", "[[888],[888,512],[888,64],[],[131072,64],[]]", {FP32: 3 * 888 * 9 * 64},
         2 * 888 * 9 * 64 + 8 * 888 + 2 * 64, 2 * 888 * 9 * 64),
    # Keys and values of 64 each into an 8-bit cache
    Real("b200", "_C_cache_ops::reshape_and_cache_flash",
         "[[888,1,64],[888,1,64],[4213816,16,1,64],[4213816,16,1,64],[888],[],[],[]]", {}, 2 * 888 * 128 + 8 * 888,
         888 * 128),
    # Lookups: indices, one row at least, and the result
    Real("h100", "aten::index_select", "[[151936,1024],[],[8944]]", {}, 8 * T + 2 * 1024, 2 * T * 1024),
    # indices expanded over the row: 888 distinct ones; each column is read once at least
    Real("b200", "aten::gather", "[[25136,2880],[],[888,2880],[],[888,2880]]", {}, 8 * 888 + 2 * 2880, 2 * 888 * 2880),
    # Reductions: n - 1 additions a result
    Real("h100", "aten::mean", "[[16,559,1024],[],[],[]]", {FP32: T * 1023}, 4 * T * 1024, 4 * T),
    Real("h100", "aten::all", "[[16,559]]", {}, T, 1),
    # Collectives: all of it leaves and enters; of the gather an eighth leaves
    Real("b200", "symm_mem::multimem_all_reduce_", "[[2557440],[],[]]", {}, 2 * 2557440, 2 * 2557440,
         messages=(Message("all_reduce", 8, 2 * 2557440),)),
    Real("b200", "record_param_comms", "[[1,25136],[],[],[],[],[],[],[],[],[]]", {}, 2 * 25136, 2 * 7 * 25136,
         messages=(Message("all_gather", 8, 2 * 201088),)),
    # 888 tokens to 4 of 128 experts, 3072 wide, at least 449 inside (7 whole tiles of 128 gate and up rows and one row)
    Real("b200", "vllm::moe_forward", "[[888,3072],[888,128],[]]",
         {FP8: 2 * 888 * 4 * 3072 * 3 * 449, FP32: 2 * 888 * 4 * 449},
         2 * 888 * 3072 + 4 * 3072 * 3 * 449 // 2 + 4 * 3072 * 3 * 449 // 32, 2 * 888 * 3072, inferred=True),
)


@cache
def joined(key: str) -> tuple[Trace, tuple[OpCall, ...]]:
    trace = read_kineto(str(shared(V100 if key == "v100" else KINETO[key])))
    return trace, op_calls(trace, link(trace), by_key(DEVICES[key]).limits).calls


@pytest.mark.parametrize("real", REAL, ids=str)
def test_a_real_call_has_the_work_that_was_counted_by_hand(real: Real) -> None:
    trace, calls = joined(real.trace)
    a = trace.activities
    found = [
        call for call in calls
        if call.name == real.name and call.row is not None
        and trace.op_args[trace.ops.args[call.row]].dims == real.dims
        and any(real.kernel in trace.names[a.name[i]] for i in call.activities)
    ]
    assert found
    expected = Work(real.flops, real.read, real.written, real.messages, real.inferred)
    assert {work_key(call.work) for call in found} == {work_key(expected)}


def work_key(work: Work | None) -> object:
    return work and (*sorted(work.flops.items()), work.bytes_read, work.bytes_written, work.messages, work.inferred)


def test_at_least_thirty_real_calls_of_many_families_are_listed() -> None:
    families = {type(op) for real in REAL for found in joined(real.trace)[1] if found.name == real.name
                for op in found.ops}
    assert len(REAL) >= 30
    assert families == {Gemm, Attention, Normalisation, Elementwise, Rotary, CacheWrite, Gather, Reduction,
                        Communication, Experts}


# ---- calls as PyTorch records them that the shared traces lack ---------------------------------------------------

BF, F32, I64, LIST, S, N = "c10::BFloat16", "float", "long int", "TensorList", "Scalar", ""


def call(
    name: str, dims: list[Any], types: list[Any], concrete: list[str] | None = None, *,
    strides: list[Any] | None = None, context: Context | None = None,
) -> Work | None:
    dense = [[1] * len(d) if all(isinstance(n, int) for n in d) else [] for d in dims]
    for d, s in zip(dims, dense, strict=True):
        for i in range(len(s) - 2, -1, -1):
            s[i] = s[i + 1] * max(1, d[i + 1])
    args = OpArgs(json.dumps(dims), json.dumps(types), json.dumps(strides or dense), json.dumps(concrete or []))
    ops = ops_of_call(name, args, context=context or Context())
    if ops is None:
        return None
    total = Work()
    for op in ops:
        total = total + op.work()
    return total


def adam(form: str) -> Context:
    return Context(kernels=(KernelHint(
        "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
        f"at::native::FusedAdamMathFunctor<{form}, 4, (at::native::ADAM_MODE)1, false>>(int)"),))


QKV = [[2, 8, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64]]
CONV = [[8, 64, 56, 56], [128, 64, 3, 3], [], [], [], [], [], [], []]

RECORDED: tuple[tuple[str, list[Any], list[Any], list[str], Context, dict[tuple[str, str], int], int, int], ...] = (
    ("aten::linear", [[4, 32, 64], [96, 64], [96]], [BF, BF, BF], [], Context(),
     {BF16: 2 * 128 * 96 * 64}, 2 * (128 * 64 + 96 * 64 + 96), 2 * 128 * 96),
    ("aten::matmul", [[5, 16, 8], [5, 8, 4]], [BF, BF], [], Context(), {BF16: 2 * 5 * 16 * 8 * 4},
     2 * 5 * (16 * 8 + 8 * 4), 2 * 5 * 16 * 4),
    ("aten::addmm", [[16, 4], [16, 8], [8, 4], [], []], [BF, BF, BF, S, S], ["", "", "", "0", "1"], Context(),
     {BF16: 2 * 16 * 8 * 4}, 2 * (16 * 8 + 8 * 4), 2 * 16 * 4),                              # beta 0: C is not read
    ("aten::_scaled_mm", [[16, 32], [32, 8], [], [], [], [], [], []],
     ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", F32, F32, N, N, S, S], ["", "", "", "", "", "", "15", "False"],
     Context(), {FP8: 2 * 16 * 32 * 8}, 16 * 32 + 32 * 8, 2 * 16 * 8),
    ("aten::einsum", [[], [[2, 3, 4], [2, 4, 5]], []], [S, [BF, BF], N], ["bmk,bkn->bmn"], Context(),
     {BF16: 2 * 2 * 3 * 4 * 5}, 2 * (24 + 40), 2 * 30),
    ("aten::convolution", CONV, [BF, BF, N, S, S, S, S, S, S],
     ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"], Context(),
     {BF16: 2 * 8 * 56 * 56 * 128 * 64 * 9}, 2 * (8 * 64 * 56 * 56 + 128 * 64 * 9), 2 * 8 * 128 * 56 * 56),
    ("aten::convolution_backward", [[8, 128, 56, 56], *CONV[:2], *[[]] * 8], [BF, BF, BF, *[S] * 8],
     ["", "", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"], Context(),
     {BF16: 2 * 2 * 8 * 56 * 56 * 128 * 64 * 9}, 2 * (8 * 64 * 56 * 56 + 128 * 64 * 9 + 8 * 128 * 56 * 56),
     2 * (8 * 64 * 56 * 56 + 128 * 64 * 9)),
    ("aten::scaled_dot_product_attention", [*QKV, [], [], [], []], [BF, BF, BF, N, S, S, N],
     ["", "", "", "", "0.", "False", ""], Context(), {BF16: 2 * 8 * 128 * 128 * 4 * 64},
     2 * (2 * 8 * 128 * 64 + 2 * 2 * 2 * 128 * 64), 2 * 2 * 8 * 128 * 64),                   # grouped queries
    ("aten::_scaled_dot_product_flash_attention_backward", [QKV[0], *QKV, QKV[0], [2, 8, 128], *[[]] * 8],
     [BF, BF, BF, BF, BF, F32, N, N, S, S, S, S, N, N], [*[""] * 8, "128", "128", "0.", "True", "", ""], Context(),
     {BF16: 2 * 8 * (128 * 129 // 2) * 4 * 64 * 5 // 2}, 2 * (3 * 2 * 8 * 128 * 64 + 2 * 2 * 2 * 128 * 64),
     2 * (2 * 8 * 128 * 64 + 2 * 2 * 2 * 128 * 64)),
    ("aten::native_layer_norm", [[32, 256], [], [256], [256], []], [F32, S, F32, F32, S], [], Context(),
     {FP32: 7 * 32 * 256}, 4 * (32 * 256 + 512), 4 * 32 * 256),
    ("aten::native_layer_norm_backward", [[32, 256], [32, 256], [], [32, 1], [32, 1], [256], [256], []],
     [F32, F32, S, F32, F32, F32, F32, S], [], Context(), {FP32: 6 * 32 * 256}, 4 * (2 * 32 * 256 + 256),
     4 * (32 * 256 + 512)),
    ("aten::cudnn_batch_norm", [[8, 64, 7, 7], [64], [64], [64], [64], [], [], []], [F32] * 5 + [S] * 3, [], Context(),
     {FP32: 7 * 8 * 64 * 49}, 4 * (8 * 64 * 49 + 128), 4 * 8 * 64 * 49),
    ("aten::_softmax", [[64, 1000], [], []], [BF, S, S], ["", "-1", "True"], Context(), {FP32: 4 * 64000}, 2 * 64000,
     4 * 64000),
    ("aten::_log_softmax_backward_data", [[64, 1000], [64, 1000], [], []], [F32, F32, S, S], ["", "", "1", "6"],
     Context(), {FP32: 4 * 64000}, 2 * 4 * 64000, 4 * 64000),
    ("aten::nll_loss_forward", [[64, 1000], [64], [], [], []], [F32, I64, N, S, S], ["", "", "", "1", "-100"],
     Context(), {}, 4 * 64 + 8 * 64, 4),
    ("aten::cross_entropy_loss", [[64, 1000], [64], [], [], [], []], [BF, I64, N, S, S, S], [], Context(),
     {FP32: 3 * 64000}, 2 * 64000 + 8 * 64, 2 * 64),
    ("aten::embedding", [[50000, 512], [4, 128], [], [], []], [BF, I64, S, S, S], [], Context(), {},
     8 * 512 + 2 * 512, 2 * 512 * 512),
    ("aten::embedding_dense_backward", [[4, 128, 512], [4, 128], [], [], []], [BF, I64, S, S, S],
     ["", "", "50000", "-1", "False"], Context(), {}, 2 * 512 * 512 + 8 * 512, 2 * 50000 * 512),
    ("aten::topk", [[8, 128], [], [], [], []], [F32, S, S, S, S], ["", "4", "-1", "True", "True"], Context(), {},
     4 * 8 * 128, (4 + 8) * 8 * 4),
    ("aten::sort", [[8, 128], [], []], [F32, S, S], [], Context(), {}, 4 * 1024, (4 + 8) * 1024),
    ("aten::_foreach_add_", [[[10], [5, 6]], [[10], [5, 6]], []], [LIST, LIST, S], [], adam("float"), {FP32: 40},
     4 * 80, 4 * 40),
    ("aten::_fused_adamw_", [[[1000], [50]]] * 4 + [[], [[], []], *[[]] * 6], [LIST] * 4 + [LIST, LIST, *[S] * 6], [],
     adam("float"), {FP32: 8 * 1050}, 4 * 4 * 1050, 3 * 4 * 1050),                           # p, g, m, v -> p, m, v
    ("_C::silu_and_mul", [[32, 100], [32, 200]], [BF, BF], [], Context(), {FP32: 2 * 3200}, 2 * 6400, 2 * 3200),
    ("sublight::rms_norm", [[2, 3, 64], [64], []], [BF, BF, S], ["", "", "1e-06"], Context(), {FP32: 4 * 384},
     2 * (384 + 64), 2 * 384),
    ("sublight::swiglu", [[2, 1, 96], [2, 1, 96]], [BF, BF], [], Context(), {FP32: 2 * 192}, 2 * 2 * 192, 2 * 192),
    ("sublight::decode", [[2, 8, 1, 64], [2, 2, 100, 64], [2, 2, 100, 64], []], [BF, BF, BF, S], [], Context(),
     {BF16: 2 * 8 * 100 * 4 * 64}, 2 * 2 * (8 * 64 + 2 * 2 * 100 * 64), 2 * 2 * 8 * 64),
    ("aten::where", [[4, 8], [4, 8], [4, 8]], ["bool", BF, BF], [], Context(), {}, 32, 2 * 32),
    ("aten::view", [[4, 8], []], [BF, S], [], Context(), {}, 0, 0),
)


@pytest.mark.parametrize(("name", "dims", "types", "concrete", "context", "flops", "read", "written"), RECORDED,
                         ids=[row[0] for row in RECORDED])
def test_a_recorded_call_has_the_work_that_was_counted_by_hand(
    name: str, dims: list[Any], types: list[Any], concrete: list[str], context: Context,
    flops: dict[tuple[str, str], int], read: int, written: int,
) -> None:
    work = call(name, dims, types, concrete, context=context)
    assert work is not None
    assert (dict(work.flops), work.bytes_read, work.bytes_written) == (flops, read, written)


def test_an_expanded_operand_is_read_once() -> None:
    dims, types = [[8, 16, 32], [8, 32, 4]], [BF, BF]
    work = call("aten::bmm", dims, types, strides=[[512, 32, 1], [0, 4, 1]])
    assert work is not None
    assert work.bytes_read == 2 * (8 * 16 * 32 + 32 * 4)


def test_a_winograd_kernel_is_not_charged_what_it_saves() -> None:
    kernels = (KernelHint("sm80_cudnn_winograd_fwd", "convolution"),)
    row = next(r for r in RECORDED if r[0] == "aten::convolution")
    work = call(row[0], row[1], row[2], row[3], context=Context(kernels=kernels))
    assert work is not None
    assert work.flops == {}


@pytest.mark.parametrize(("record", "message"), [
    (Collective("allreduce", "Float", 1000, 1000, 8, "0"), Message("all_reduce", 8, 4000)),
    (Collective("_allgather_base", "BFloat16", 10, 80, 8, "0"), Message("all_gather", 8, 160)),
    (Collective("_reduce_scatter_base", "BFloat16", 80, 10, 8, "0"), Message("reduce_scatter", 8, 160)),
    (Collective("all_to_all", "Half", 64, 64, 4, "0"), Message("all_to_all", 4, 128)),
])
def test_a_collective_is_what_its_record_says(record: Collective, message: Message) -> None:
    ops = ops_of_call("record_param_comms", None, context=Context(collective=record))
    assert ops is not None
    assert ops[0].work().messages == (message,)


def test_uneven_exchanges_are_not_guessed() -> None:
    record = Collective("all_to_allv", "Half", 64, 64, 4, "0")
    assert ops_of_call("record_param_comms", None, context=Context(collective=record)) is None


# ---- steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("annotation", "load"), [
    ("execute_context_1(888_788544)_generation_0(0)", StepLoad(1, 888, 0, 0, 888, None, 888**2, None)),
    ("execute_context_2(300)_generation_3(3)", StepLoad(2, 300, 3, 3, 303, None, None, None)),
    ("execute_context_0(0)_generation_64(64)", StepLoad(0, 0, 64, 64, 64, None, 64, None)),
    ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
     StepLoad(0, 0, 32, 32, 32, 32785, 32, 32785)),
    ("execute_769_context_3(sq768sk768sqsq196608sqsk196608)_generation_1(sq1sk257sqsq1sqsk257)",
     StepLoad(3, 768, 1, 1, 769, 1025, 196609, 196865)),
    ("step[EXTEND bs=15 toks=15360]", StepLoad(15, 15360, 0, 0, 15360, None, None, None)),
    ("step[DECODE bs=64]", StepLoad(0, 0, 64, 64, 64, None, 64, None)),
    ("step[EXTEND bs=1 toks=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]",
     StepLoad(1, 1025, 0, 0, 1025, 1025, 1050625, 1050625)),
    ("step[MIXED bs=66 c=2 g=64 c_sq=2048 c_sk=2048 c_sqsq=2097152 c_sqsk=2097152 g_sq=64 g_sk=65600 g_sqsq=64 "
     "g_sqsk=65600]", StepLoad(2, 2048, 64, 64, 2112, 67648, 2097216, 2162752)),
    ("execute_new_3_cached_29", StepLoad(None, None, None, None, None, None, None, None)),
    ("ProfilerStep#6", None),
    ("execute_context_1(888", None),
])
def test_annotations_of_engines(annotation: str, load: StepLoad | None) -> None:
    assert step_load(annotation) == load


requests = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 200)), min_size=1, max_size=8)


@given(requests)
def test_pairs_of_a_step_are_those_of_its_requests(batch: list[tuple[int, int]]) -> None:
    """(new tokens, tokens before them) of requests; without the sums, never more than that."""
    true = sum(unmasked_pairs(q, q + before, causal="end") for q, before in batch)
    q, k = sum(new for new, _ in batch), sum(new + before for new, before in batch)
    qq, qk = sum(new * new for new, _ in batch), sum(new * (new + before) for new, before in batch)
    exact = step_load(f"execute_{q}_context_{len(batch)}(sq{q}sk{k}sqsq{qq}sqsk{qk})_generation_0(sq0sk0sqsq0sqsk0)")
    assert exact is not None
    assert exact.causal_pairs == true
    for text in (f"execute_context_{len(batch)}({q}_{qq})_generation_0(0)", f"step[EXTEND bs={len(batch)} toks={q}]",
                 f"execute_context_{len(batch)}({q})_generation_0(0)"):
        load = step_load(text)
        assert load is not None
        assert load.causal_pairs is not None
        assert q <= load.causal_pairs <= true


@given(st.integers(0, 12), st.integers(1, 12), st.sampled_from(["start", "end", None]))
def test_unmasked_pairs_are_those_of_the_mask(q: int, k: int, causal: str | None) -> None:
    ahead = {None: k + q, "start": 0, "end": k - q}[causal]              # query i sees keys up to i + ahead
    assert unmasked_pairs(q, k, causal=causal) == sum(j <= i + ahead for i in range(q) for j in range(k))


# ---- properties -------------------------------------------------------------------------------------------------

EXAMPLES: tuple[Op, ...] = (
    ScaledGemm(4, 16, 8, "fp4", "fp4", 16), Recurrence(1, 1, 1, 1, 2, 3, gates=2), ShortConvolution(5, 1, 3, 4),
    IndexScores(1, 1, 1, 2, 4, 1),
    Gemm(8, 4, 2), GroupedGemm(8, 4, 2, 3), Convolution(2, 4, 8, (9, 9), (3, 3), (4, 4), (2, 2), (0, 0)),
    Attention.dense(batch=2, q_length=8, kv_length=8, heads=4, kv_heads=2, d_qk=24, d_v=16, causal="end"),
    Normalisation(64, 8), Elementwise((Operand(8, "bf16"),), (Operand(8, "fp32"),), 1),
    Gather(16, "bf16", Operand(4, "int64"), 4), Rotary(4, 2, 8), CacheWrite(4, 16), Reduction(
        Operand(16, "fp32"), (Operand(4, "fp32"),)), Softmax(32), CrossEntropy(4, 8), NegativeLogLikelihood(4, 8),
    Gated(4, 8, out="fp8"), RotaryWrite(4, 2, 1, 8, 8),
    Routing(8, 16, 2), Permute(8, 2, 16), Experts(8, 2, 4, 16, 8), OptimizerStep(32), Communication("all_reduce", 8, 64,
                                                                                                   "bf16"),
)


def test_every_family_has_work_and_an_example() -> None:
    assert {type(op) for op in EXAMPLES} == set(OPS)
    for op in EXAMPLES:
        work = op.work()
        assert work.bytes_total > 0
        assert all(type(n) is int for n in (*work.flops.values(), work.bytes_read, work.bytes_written))
        assert op.__doc__
        assert op == type(op)(**{f.name: getattr(op, f.name) for f in fields(op)})  # type: ignore[arg-type]


@given(st.sampled_from(EXAMPLES), st.sampled_from(EXAMPLES), st.integers(0, 7))
def test_work_adds_and_scales(one: Op, other: Op, times: int) -> None:
    a, b = one.work(), other.work()
    both = a + b
    assert both.flops_total == a.flops_total + b.flops_total
    assert both.bytes_total == a.bytes_total + b.bytes_total
    assert work_key(both) is not None
    assert (a + b).flops == (b + a).flops
    assert (times * a).flops_total == times * a.flops_total
    assert (times * a).bytes_total == times * a.bytes_total
    total = Work()
    for _ in range(times):
        total = total + a
    assert (total.flops_total, total.bytes_total, total.messages) == (
        times * a.flops_total, times * a.bytes_total, a.messages * times)


size = st.integers(1, 40)


@given(size, size, size, st.integers(1, 10), st.integers(1, 10))
def test_a_gemm_by_tiles_is_the_whole(m: int, n: int, k: int, tile_m: int, tile_n: int) -> None:
    tiles = [Gemm(min(tile_m, m - i), min(tile_n, n - j), k).work()
             for i in range(0, m, tile_m) for j in range(0, n, tile_n)]
    whole = Gemm(m, n, k).work()
    assert sum(t.flops_total for t in tiles) == whole.flops_total
    assert sum(t.bytes_written for t in tiles) == whole.bytes_written
    assert sum(t.bytes_read for t in tiles) >= whole.bytes_read


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(shapes, st.data())
def test_broadcasting_never_charges_more_than_dense(shape: list[int], data: st.DataObject) -> None:
    narrow = [data.draw(st.sampled_from([1, n])) for n in shape]
    cut = data.draw(st.integers(0, len(shape) - 1))
    dense, thin = (call("aten::add", [shape, other, []], [BF, BF, S]) for other in (shape, narrow[cut:]))
    assert dense is not None
    assert thin is not None
    assert thin.bytes_read <= dense.bytes_read
    assert (thin.bytes_written, thin.flops) == (dense.bytes_written, dense.flops)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=4))
def test_distinct_elements_are_at_most_the_addresses(axes: list[tuple[int, int]]) -> None:
    addresses = {0}
    for n, stride in axes:
        addresses = {at + i * stride for at in addresses for i in range(n)}
    counted = distinct_elements(tuple(n for n, _ in axes), tuple(s for _, s in axes))
    assert 1 <= counted <= len(addresses)


# ---- arguments that are not what they should be -----------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=6)
    | st.sampled_from([BF, F32, I64, LIST, S, "True", "-1", "[-1]", "0"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=2), max_leaves=12,
)
sizes = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=8)
kinds = st.lists(st.sampled_from([BF, F32, I64, "bool", "double", LIST, S, N, "c10::Float4_e2m1fn_x2", "c10::qint8"]),
                 max_size=8)
values = st.lists(st.sampled_from(["", "0", "1", "-1", "15", "2", "[1]", "[0, 1]", "[1, 1]", "True", "False", "nan",
                                   "1e400", "[True, False, True]", "ij,jk->ik"]), max_size=12)


def texts(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    return strategy.map(json.dumps) | st.text(max_size=20)


@given(st.sampled_from(sorted(RULES)), texts(junk), texts(junk), texts(junk), texts(junk))
def test_arguments_that_make_no_sense_raise_nothing(name: str, dims: str, types: str, strides: str, said: str) -> None:
    ops_of_call(name, OpArgs(dims, types, strides, said), context=Context())


@given(st.sampled_from(sorted(RULES)), st.data())
def test_arguments_of_the_wrong_sizes_raise_nothing(name: str, data: st.DataObject) -> None:
    dims = data.draw(sizes)
    types = data.draw(kinds.map(lambda k: (k * 8)[: len(dims)] if k else [N] * len(dims)))
    concrete = data.draw(values)
    args = OpArgs(json.dumps(dims), json.dumps(types), data.draw(texts(sizes)), json.dumps(concrete))
    load = step_load("execute_context_2(30)_generation_3(3)")
    for op in ops_of_call(name, args, context=Context(step=load, kernels=adam("float").kernels)) or ():
        work = op.work()
        assert work.bytes_read >= 0
        assert work.bytes_written >= 0
        assert all(n >= 0 for n in work.flops.values())


@given(st.sampled_from(RECORDED), st.data())
def test_a_recorded_call_with_one_thing_changed_raises_nothing(row: tuple[Any, ...], data: st.DataObject) -> None:
    name, dims, types, concrete, context = row[:5]
    lists: list[list[Any]] = [list(dims), list(types), list(concrete)]
    changed = data.draw(st.sampled_from([i for i, values in enumerate(lists) if values]))
    at = data.draw(st.integers(0, len(lists[changed]) - 1))
    another: tuple[st.SearchStrategy[Any], ...] = (
        st.lists(st.integers(0, 9), max_size=5) | junk, st.sampled_from([BF, N, LIST, "int"]),
        values.filter(bool).map(lambda v: v[0]),
    )
    lists[changed][at] = data.draw(another[changed])
    args = OpArgs(json.dumps(lists[0]), json.dumps(lists[1]), "", json.dumps(lists[2]))
    for op in ops_of_call(name, args, context=context) or ():
        assert op.work().bytes_total >= 0


@pytest.mark.parametrize(("name", "args"), [
    ("aten::no_such_operator", OpArgs("[[2,2]]", '["float"]', "", "")),
    ("aten::mm", None),
    ("aten::mm", OpArgs("", "", "", "")),
    ("aten::mm", OpArgs("[[2,3],[4,5]]", '["float","float"]', "", "")),
    ("aten::mm", OpArgs("[[2,3],[3,5]]", '["c10::qint8","float"]', "", "")),
    ("aten::mm", OpArgs("[[2,-3],[-3,5]]", '["float","float"]', "", "")),
    ("aten::mm", OpArgs(f"[[{1 << 60},3],[3,5]]", '["float","float"]', "", "")),
    ("aten::cat", OpArgs("[[[2,3],[2,3]],[]]", '["TensorList","Scalar"]', "", "")),
    ("vllm::unified_attention_with_output", OpArgs("[[8,1,64],[8,1,64],[8,1,64],[8,1,64]]", f'{["c10::Half"] * 4}'
                                                   .replace("'", '"'), "", "")),
])
def test_what_the_arguments_do_not_tell_is_unknown(name: str, args: OpArgs | None) -> None:
    assert ops_of_call(name, args, context=Context()) is None


UP = KernelHint("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_rM_TN_swiGlu_dynBatch_sm100f",
                grid=(8, 342, 1))
DOWN = KernelHint("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_rM_TN_dynBatch_sm100f", grid=(24, 342, 1))


def test_experts_follow_from_the_grids_of_their_products() -> None:
    found = experts(tokens=888, width=3072, experts=128, form="bf16", kernels=(DOWN, UP))
    assert found is not None
    assert (found.top_k, found.inner, found.weights, found.activations, found.inferred) == (4, 449, "fp4", "fp8", True)


@pytest.mark.parametrize(("tokens", "width", "kernels"), [
    (889, 3200, (UP, DOWN)),                                             # the second grid is not the hidden width
    (100, 3072, (UP, DOWN)),                                             # no number of experts gives that grid
    (888, 3072, (UP,)), (888, 3072, (UP, UP)), (888, 3072, (UP, DOWN, UP)), (888, 3072, ()),
])
def test_experts_whose_grids_do_not_agree_are_unknown(tokens: int, width: int, kernels: tuple[KernelHint, ...]) -> None:
    assert experts(tokens=tokens, width=width, experts=128, form="bf16", kernels=kernels) is None
