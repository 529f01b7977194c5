"""This file knows about the names that predicted kernels get: of the libraries that carry such operators out today, so
that whoever reads a predicted trace tells their category from the name alone (catalog/kernels.toml).

    >>> from sublight.ops import Gemm
    >>> category("attention.qkv", Gemm(4096, 4096, 4096)), kernel_name("attention.qkv", Gemm(4096, 4096, 4096))[:9]
    ('gemm', 'nvjet_tst')
"""

from __future__ import annotations

from sublight.ops import (
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
from sublight.ops.op import Op

# What budgets call the kernels of an operator family; products and elementwise work are told by their label too.
CATEGORY: dict[type[Op], str] = {
    Gemm: "gemm", ScaledGemm: "gemm", GroupedGemm: "grouped gemm", Experts: "grouped gemm", Convolution: "convolution",
    Attention: "attention", IndexScores: "attention", Recurrence: "recurrent", ShortConvolution: "recurrent",
    Normalisation: "normalisation", Rotary: "position", CacheWrite: "kv cache", Gather: "copy",
    RotaryWrite: "position", Gated: "elementwise",
    Elementwise: "elementwise", Reduction: "reduction", Softmax: "softmax/loss", CrossEntropy: "softmax/loss",
    NegativeLogLikelihood: "softmax/loss", Routing: "routing", Permute: "routing", OptimizerStep: "optimizer",
    Communication: "communication",
}
DEEPGEMM = ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 0u, 0u, {}u, 64u, 128u, 128u, 128u, "
            "128u, 128u, 6u, 4u, 128u, 128u, 1u, false, 132u, (deep_gemm::GemmType){}, deep_gemm::Epilogue>(float*)")
FLASH = ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttn{0}Sm90<flash::CollectiveMainloop{0}Sm90<2, "
         "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<128>, cute::C<128> >, "
         "128, cutlass::bfloat16_t, float> > > >(flash::Params)")
NAMES = {
    "gemm": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", "gemm fp8": DEEPGEMM.format(1, 0),
    "grouped gemm": "fused_moe_kernel", "grouped gemm fp8": DEEPGEMM.format(32, 1),
    "convolution": "void cudnn::cnn::conv2d_grouped_direct_kernel<float>(int)",
    "attention": FLASH.format("Fwd"), "attention backward": FLASH.format("Bwd"),
    "attention index": "void deep_gemm::sm90_fp8_paged_mqa_logits<1u, 64u, 128u, 64u>(int)",
    "recurrent": "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "recurrent convolution": "_causal_conv1d_update_kernel",
    "normalisation": "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    "position": "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
    "kv cache": "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
                "(vllm::Fp8KVCacheDataType)0>(int)",
    "copy": "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::"
            "index_kernel_impl<at::native::OpaqueType<2> > > >(long)",
    "embedding": "void ragged_embed_kernel<int, __nv_bfloat16, 1>(int)",
    "activation": "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, "
                  "true>(c10::BFloat16*)",
    "elementwise": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
                   "std::array<char*, 3ul> >(int)",
    "reduction": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
                 "float, float, float> > >(int)",
    "softmax/loss": "liger_cross_entropy_kernel",
    "routing": "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int, float>(float const*)",
    "routing permute": "void moe_permute_kernel<__nv_bfloat16, float>(int)",
    "optimizer": "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
}
COLLECTIVES = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send_recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}


def category(label: str, op: Op) -> str:
    """The budget's category of an operator's kernels. label: as models have it, "moe.experts.up.weight_grad"."""
    found = CATEGORY[type(op)]
    if found == "gemm" and ".experts." in label:
        return "grouped gemm"
    if found == "copy" and "embedding" in label:
        return "embedding"
    if found == "elementwise" and ("activation" in label or "gate" in label):
        return "activation"
    return found


def kernel_name(label: str, op: Op) -> str:
    """The name of the kernel that carries an operator out."""
    if isinstance(op, Communication):
        return COLLECTIVES[op.collective]
    found = category(label, op)
    if isinstance(op, Permute):
        return NAMES["routing permute"]
    if isinstance(op, ShortConvolution):
        return NAMES["recurrent convolution"]
    if isinstance(op, IndexScores):
        return NAMES["attention index"]
    if isinstance(op, Attention) and op.backward:
        return NAMES["attention backward"]
    narrow = {getattr(op, "a", None), getattr(op, "activations", None)} & {"fp8"}
    return NAMES[f"{found} fp8"] if narrow and f"{found} fp8" in NAMES else NAMES[found]
