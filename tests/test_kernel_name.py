# ruff: noqa: E501 - a kernel's name is as long as it is
"""The rules that read a kernel's name: they know what they know, and nothing else."""

import random
import re
import string
import subprocess
import sys
from collections import Counter

import cxxfilt
import pytest

from sublight.observe import kernel_name
from sublight.observe.kernel_name import CATEGORIES, Pattern, Rule, classify, demangled, needed, rules

EXAMPLES = [(rule, example) for rule in rules() for example in rule.examples]


def test_every_rule_has_a_known_category_an_own_id_and_an_example() -> None:
    assert {rule.category for rule in rules()} <= set(CATEGORIES)
    assert [name for name, n in Counter(rule.id for rule in rules()).items() if n > 1] == []
    assert [rule.id for rule in rules() if not rule.examples] == []


def test_every_category_has_a_rule() -> None:
    assert set(CATEGORIES) - {rule.category for rule in rules()} == set()


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=[f"{r.id}-{e[:40]}" for r, e in EXAMPLES])
def test_an_example_hits_its_own_rule_and_none_before(rule: Rule, example: str) -> None:
    told = classify(example)
    assert (told.rule, told.category) == (rule.id, rule.category)
    assert told.library is not None or rule.library is None  # a namespace may know better than the rule


# ---- precision: no rule may match any name ---------------------------------------------------------------------

SYLLABLES = re.findall("..", "bakozumitevesanimuposufigahitosebewajycopadufeskornalopiretavo")
WRAPPERS = (
    "{a}", "{a}_kernel", "fused_{a}", "{a}_{b}_kernel", "_{a}_fwd", "void {a}<float, 4>(int, float*)",
    "void {a}::{b}<__half, 128, true>({a}::Params)", "{a}::detail::{b}(float const*, int)", "{A}{B}Kernel",
    "void (anonymous namespace)::{a}_kernel<c10::BFloat16>(c10::BFloat16*, long)", "k{A}", "{a}_v2", "{a}{n}",
    "void {a}_launch_impl<cutlass::half_t, {n}>({b}_args)", "fused_{a}_{b}_bwd", "triton_like_{a}", "{a}_{n}x{n}_nt",
    "void at_{a}::vec_{b}<at::Tensor>(at::Tensor)", "_Z{l}{a}PfS_i", "{a}_step", "{a}_block_{n}", "main_{a}",
)  # fmt: skip


def invented(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)

    def word() -> str:
        return "".join(rng.choices(SYLLABLES, k=rng.randint(2, 4)))

    def name() -> str:
        a, b = word(), word()
        n = rng.choice((1, 4, 16, 64, 128))
        return rng.choice(WRAPPERS).format(a=a, b=b, A=a.title(), B=b.title(), n=n, l=len(a))

    return [name() for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_invented_names_stay_unclassified(seed: int) -> None:
    names = invented(seed, 1000)
    assert [(name, classify(name).rule) for name in names if classify(name).category != "unclassified"] == []


@pytest.mark.parametrize(
    "name",
    ["", " ", "kernel", "fused_kernel", "main_kernel", "vectorized_add", "Kernel2", "void kernel<float>(float*)",
     "triton_kernel", "_kernel", "cutlass", "at::native::foo", "void f(int)", "<", "(", "foo<", "_Z", "_ZN", "_Z3", "0",
     "forward", "run", "step", "my_op", "vec_add", "saxpy", "compute", "dispatch", "combine", "barrier", "operator()",
     "void add<at::Tensor>(at::Tensor)", "scale_kernel", "ompt_offloading", "lambda_1", "grid_launch", "moe", "nccl"],
)  # fmt: skip
def test_names_that_tell_nothing_stay_unclassified(name: str) -> None:
    assert classify(name).category == "unclassified"
    assert classify(name).rule is None


# Kernels of CUDA samples, Rodinia and HeCBench: image filters, finance, graphs, molecules, hashing, games.
OTHER_FIELDS = re.findall(r"\S+", """
accuracy_kernel addConstant addForces_k advCubatureHex3D AESEncrypt affine aggregate_final AIDW_Kernel AoSKernel atomicKernel
barrel_distort base64_enc bc_kernel benchmark_func BezierGPU bilateralFilter binomialOptionsKernel bisectKernelLarge black_kernel
BlackScholesGPU block_stride bonds boxmuller BP_queens_root_dfs bpnn_adjust_weights_cuda bspline bucketcount build_quadtree_kernel
buildHashKernel calc_temp calcStrainRates calculate_temp calculateForceKernel calNumEigenValueInterval CanDeleteEdge ccsd_kernel
cdp_kernel cenergy cgkernel check_connect chemicalPotential chi_kernel ckMedian clockBlock cmpfhd cobahh col_kernel
collide_and_stream_g collideD colsGPU complex_double CompressionKernel compute_bicluster compute_cost compute_haversine_distance
compute_probs compute_ssim computeAngles_kernel computeBezierLinesCDP computeDistance ComputePhiMag_GPU containerFill contraction
crc64_kernel cross3_kernel cuda_compute_flux_contributions cuda_kernel_texture_2d CUDAkernel1IDCT CUDAkernel2DCT cuThomasBatch
d2q9_bgk d_bilateral_filter d_boxfilter_x_tex d_mipmap d_recursiveGaussian_rgba d_render d_renderFastBicubic DCT8x8_kernel
decompressKernel degrid_kernel derivative_y2_zeroflux DetectionOverlayBox device_cbow dfs_gpu dilate_kernel distance div_kernel
dslash dwtHaar1D dynproc_kernel entropy EstepKernel euclid extract f16AtomicOnGlobalMem fasten_main fdwt53Kernel filter_kernel
find_index_kernel find_min_in_sad_array findMovingPixels finite_difference FiniteDifferencesKernel floydWarshallPass FSMKernel
fwtBatch1Kernel gabor gamma_correction generate_nms_bitmap generate_table generateTriangles getOutValOption gpu_apply_commutator
gpuConjugateGradient gqsort_kernel haccmk_kernel hellinger hessian_matrix_det histo_kernel histogram256Kernel histogram64Kernel
histogram_gmem_atomics hotspot3d hotspotOpt1 hypterm_1 iDFT2D2gpu IMGVF_kernel incKernel increment_kernel init_btree init_array
initialize_variables insertions integrateBodies inverseCNDKernel invkin_kernel iso_2dfd_kernel jaccard_is jacobi_step
JacobiIteration JacobiMethod k_cube_select_two k_forward_rush_larsen k_hashtable_delete kalman ker_Keccak kernCacheSegmentTest
kernel_compute_cost kernel_GICOV kernel_gpu_cuda kernel_layerforward kernel_reset_random_gpupcg kernelDownsampling
kernelUpdateParticle kmeansPoint KNNdiag laplace3d lb_keogh ldpc_cnp_kernel lombscargle lud_diagonal lud_perimeter
malvar_he_cutler_demosaic mandel MandelbrotDS0 mandelbrot mapToBuckets Match10 md5hash_kernel mean_shift mergeSinglePath minkowski
modulateAndNormalize_kernel monte_carlo_kernel MPCcompress MRCGradient3 MurmurHash3_x64_128_kernel mv_csr nbnxmKernelTest nbody
needle_cuda_shared_2 negateArray NLM2diag normalizeFilter nv12ToBGRplanarBatchKernel pair_HMM_forward parallelMatch pathfinder
Pathcalc_Portfolio_KernelGPU2 perlin PetrinetKernel pnpoly_opt prescan propagate ptrChasingKernel QuarticSolver_full
rainflow_count RANSAC_kernel_block raytrace relax relextrema_2D remap_kernel render_kernel resizeNV12BatchKernel RHS_f romberg
rotate_matrix_parallel saxpy scalarProdGPU secp256k1 seed_clusters_kernel set_horz_pres_BCs Set_suffix_rank shfl_intimage_rows
simple_vbo_kernel SimpleRecursiveRGBA Simulation sinewave_gen_kernel sneaky_snake sobel_filter SobelShared sobolGPU_kernel
solvePoisson sosfilt spinWhileLessThanOne sptrsv_mix srad_cuda_1 SSSP_gpu stencil3d stencil_1d stereoDisparityKernel
StreamCompaction StringSearchLoadBalance surfel_render_tile svd3_SOA target_inner_3d_kernel tausworthe_lookback toCoef2DX
toneMapping triad TwoOpt uniformUpdate updateAccelerationsFP updateHeightmapKernel upperMaskKernel vanGenuchten vectorAdd
vhgw_vert viterbi vlc_encode_kernel_sm64huff VoteAnyKernel1 WarpingKernel wyllie yuvToGrayscale lbm fdtd3d
""")  # fmt: skip


def test_kernels_of_other_fields_stay_unclassified() -> None:
    assert len(set(OTHER_FIELDS)) >= 150
    assert [(name, classify(name).rule) for name in OTHER_FIELDS if classify(name).rule is not None] == []


def test_a_phrase_is_found_in_every_spelling_of_a_name() -> None:
    for name in ("acme_kv_copy_kernel", "AcmeKvCopyKernel", "acme::KVCopy<4>", "acmeKvCopy2", "ACME_KV_COPY"):
        assert classify(name).category == "kv cache", name
    for name in ("copykv_kernel", "kvcopying", "acme_kv_x_copier", "acme_k_vcopies"):
        assert classify(name).category != "kv cache", name


def test_an_acronym_tells_only_in_a_name_that_looks_like_a_kernel() -> None:
    assert classify("acme_gdn_fwd").category == "recurrent"
    assert classify("acme_gdn_x").category == "unclassified"


FOUR_LETTERS = {phrase for rule in rules() for phrase in rule.words if len(phrase.split()) == 1 and len(phrase) <= 6}


def by_chance(name: str) -> bool:
    """Whether a name holds a word of four letters that the catalogue knows: so short a word comes up by itself."""
    words = kernel_name._words(name)
    return any(phrase in words for phrase in FOUR_LETTERS)


def shuffled(name: str, rng: random.Random) -> str:
    """`name` with the letters of each identifier of three or more characters in another order."""

    def shuffle(found: re.Match[str]) -> str:
        letters = list(found[0])
        for _ in range(8):
            rng.shuffle(letters)
            if "".join(letters) != found[0]:
                break
        return "".join(letters)

    return re.sub(r"[A-Za-z_]\w{2,}", shuffle, name)


@pytest.mark.parametrize("seed", range(5))
def test_real_names_with_shuffled_letters_stay_unclassified(seed: int) -> None:
    rng = random.Random(seed)
    names = [shuffled(demangled(example), rng) for _, example in EXAMPLES]
    hits = [(name, classify(name).rule) for name in names if classify(name).rule is not None]
    assert [hit for hit in hits if not by_chance(hit[0])] == []
    assert len(hits) <= len(names) / 200


def test_a_word_inside_another_word_is_not_that_word() -> None:
    for name in (
        "europeans_kernel",
        "adamant_step",
        "gemmology",
        "scissor_kernel",
        "attentive_reader",
        "propel_fwd",
    ):
        assert classify(name).category == "unclassified", name


# ---- symbols ---------------------------------------------------------------------------------------------------

SYMBOLS = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_",
    "_ZN4vllm15rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fii",
    "_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4PfPiPlPKS2_PKf",
    "_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb0EN7cutlass10bfloat16_tEEEEv16Flash_fwd_params",
    "_ZN7cutlass7Kernel2I61cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8EEvNT_6ParamsE",
    "_Z20ncclDevKernel_GenericI5paramEvT_",
)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_symbol_tells_what_its_spelled_name_tells(symbol: str) -> None:
    by_symbol, by_name = classify(symbol), classify(demangled(symbol))
    assert by_symbol.name == by_name.name
    assert (by_symbol.category, by_symbol.rule) == (by_name.category, by_name.rule)


@pytest.mark.parametrize("symbol", SYMBOLS[:5])
def test_without_a_cpp_run_time_the_identifiers_of_a_symbol_still_classify(
    symbol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_run_time = classify(symbol)

    def missing(name: str) -> str:
        raise cxxfilt.LibraryNotFound("no C++ run time")

    monkeypatch.setattr(cxxfilt, "demangle", missing)
    classify.cache_clear()
    without = classify(symbol)
    classify.cache_clear()
    assert without.rule is not None
    assert (without.category, without.rule) == (with_run_time.category, with_run_time.rule)
    assert without.number_format in (with_run_time.number_format, None)


def test_builtin_types_that_are_newer_than_the_cpp_run_time_are_spelled_out() -> None:
    assert "__bf16" in demangled("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64EEEvPT0_PT_")


# ---- what else a name tells ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number_format", "tile", "name"),
    [
        ("bf16", (192, 208, 64), "nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT"),
        ("fp8 e4m3", (128, 256, 128), "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT"),
        ("bf16", (128, 128, 64), "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_x"),
        ("fp16", (128, 64, 64), "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn"),
        ("fp32", (128, 32), "volta_sgemm_128x32_nt"),
        ("tf32", (256, 64, 16), "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(int)"),
        ("bf16", (128, 256, 32), "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x256x32_MI16x16x1_SN"),
        ("fp8 e4m3", (128, 32, 256), "bmm_E4m3_E4m3E4m3_Fp32_BtokBfloat16_t128x32x256u2_s5_et128x32_m128x32x32_c1x1x1"),
        ("mxfp4", (128, 128, 128), "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu"),
        ("bf16", (128, 64), "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, "
         "(bool)0, (bool)0, cutlass::bfloat16_t>>(flash::Flash_fwd_params)"),
        ("fp8 e4m3", (128, 128), "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext"),
        ("fp8 e4m3", (64, 112, 128), "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 2112u, 7168u, 1u, 64u, "
         "112u, 128u, 128u, 128u, 128u, 6u, 4u, 128u, 128u, 1u, false, 132u, (deep_gemm::GemmType)0>(float*)"),
        ("bf16", (128, 176, 128), "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<"
         "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
         "cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t> > > >(int)"),
        ("fp64", (64, 64), "ampere_dgemm_64x64_nn"),
        ("bf16", None, "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)"),
        (None, None, "kernel_unified_attention_2d"),
    ],
)  # fmt: skip
def test_number_format_and_tile(number_format: str | None, tile: tuple[int, ...] | None, name: str) -> None:
    assert classify(name).tile == tile
    assert classify(name).number_format == number_format


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("vLLM", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)"),
        ("SGLang", "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*)"),
        ("FlashInfer", "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<1>(int)"),
        ("TensorRT-LLM", "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<1>(int)"),
        ("CUTLASS", "void cutlass::device_kernel<vllm::enable_sm90_or_later<cutlass::gemm::kernel::GemmUniversal<int>>>(int)"),
        (None, "my_rmsnorm_kernel"),
    ],
)  # fmt: skip
def test_library_is_whose_namespace_it_is(library: str | None, name: str) -> None:
    assert classify(name).library == library


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("flash::fwd<128, 64>", "void flash::fwd<128, 64>(float*, int)"),
        ("vllm::fused", "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused(int)"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)"),
        ("f<" + "x" * 60 + "…>", "void f<" + "x" * 200 + ">(int)"),
        ("plain_name", "plain_name"),
    ],
)  # fmt: skip
def test_short_is_the_function_without_return_type_and_parameters(short: str, name: str) -> None:
    assert classify(name).short == short


def test_classify_is_deterministic() -> None:
    names = [example for _, example in EXAMPLES]
    first = [classify(name) for name in names]
    classify.cache_clear()
    assert [classify(name) for name in reversed(names)] == first[::-1]


def test_any_text_is_taken() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        text = "".join(rng.choices(string.printable + "<>(){}:~é", k=rng.randint(0, 60)))
        assert classify(text).category in CATEGORIES
        assert classify("_Z" + text).category in CATEGORIES


@pytest.mark.parametrize(
    "name", ["\ud800", "_Z\ud800", "_Z9999999999999foo", "_Z" + "9" * 5000, "a<" * 9999, "x" * 99999]
)
def test_damaged_names_are_taken_too(name: str) -> None:
    assert classify(name).category == "unclassified"


# ---- the literals that a pattern needs before it is compiled ---------------------------------------------------


@pytest.mark.parametrize(
    ("source", "literals"),
    [
        ("abc", ("abc",)),
        (" a b c d? ", ("abc",)),
        ("abc | DEF", ("abc", "def")),
        ("abc | d?", ()),
        (r"\b \w* (?: one | two_ )? (?: three | four ) \w*", ("four", "three")),
        (r"(?: xx (?:yy)* | (?i: ZZ ) )", ("xx", "zz")),
        (r"(?! never ) always | [abc]+ ever", ("always", "ever")),
        (r"(?<! never ) \d{4,5} gemm", ("gemm",)),
        (r"foo\.bar\ baz", ("foo.bar baz",)),
        (r"at :: native \s* ::", ("at::native",)),
        (r"ab{0,2}cdef", ("cdef",)),
        (r"\w+", ()),
    ],
)  # fmt: skip
def test_needed_literals(source: str, literals: tuple[str, ...]) -> None:
    assert needed(source) == literals


def patterns() -> list[Pattern]:
    found = [pattern for rule in rules() for pattern in (rule.match, rule.inside) if pattern]
    return found + [pattern for table in ("format", "tile", "namespace") for pattern, _ in kernel_name._patterns(table)]


def test_no_pattern_matches_a_text_without_its_literals() -> None:
    texts = {
        text for _, example in EXAMPLES for text in (demangled(example), kernel_name._function(demangled(example))[1])
    }
    lower = [(text, text.lower()) for text in texts]
    for pattern in patterns():
        for text, low in lower:
            if pattern.compiled.search(text):
                assert any(literal in low for literal in pattern.needs) or not pattern.needs, (pattern.source, text)


def test_few_patterns_are_compiled_for_the_kernels_of_one_trace() -> None:
    script = """
from sublight.observe import kernel_name as k
for n in ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128> >(int)",
          "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "triton_poi_fused_mul_silu_2"):
    assert k.classify(n).rule
print(sum("compiled" in vars(p) for r in k.rules() for p in (r.match, r.inside) if p))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(patterns()) / 5
