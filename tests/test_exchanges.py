"""DeepEP's exchanges: sizes from names, grids and arguments; what is assumed is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import KINETO, shared
from kineto import Kineto

from sublight.errors import InputError
from sublight.explain.exchanges import Kernel, kernel, parse_sizes, sizes
from sublight.observe.read import read

LAYOUT = "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)"
NORM = "void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16, float, unsigned int, {}u, 1u> >(int)"
ATTENTION = ("void flash::compute_attn_ws<Flash_fwd_kernel_traits<128, 128, 128, 12, 2, false, 1, "
             "cutlass::bfloat16_t>, true, flash::SingleTileScheduler>(int)")
FP8 = "void cutlass::device_kernel<deep_gemm::fp8_gemm_kernel<7168u> >(int)"


@pytest.mark.parametrize(("name", "expected"), [
    ("void deep_ep::internode::dispatch<false, 4, false, 7>(int4*)", Kernel("dispatch", "normal", 32, 4, None)),
    ("void deep_ep::internode::combine<false, 2, __nv_bfloat16, 8>(int4*)", Kernel("combine", "normal", 16, 2, None)),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", Kernel("dispatch", "normal", 8, 1, None)),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 4, 768, 4096>(int4*)", Kernel("combine", "normal", 4, 1, None)),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
     Kernel("dispatch", "low-latency", None, None, 7168)),
    ("void deep_ep::internode::notify_dispatch<false, 8>(int const*)", None),
    ("void deep_ep::elastic::dispatch_impl<8, 7168, 4>(void*)", None),          # its arguments were not read
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", None),
])
def test_a_kernels_name_tells_the_exchange(name: str, expected: Kernel | None) -> None:
    assert kernel(name) == expected


def trace(tmp_path: Path, *kernels: tuple[str, tuple[int, int, int]]) -> Path:
    k = Kineto(world_size=64)
    for i, (name, grid) in enumerate(kernels):
        k.kernel(name, 1_000 * i, 1_000 * i + 900, grid=grid)
    return k.write(tmp_path / "trace.json")


def test_names_and_grids_tell_the_sizes(tmp_path: Path) -> None:
    found = sizes(read(trace(tmp_path, (LAYOUT, (16, 1, 1)), (NORM.format(512), (9, 1, 1)),
                             (NORM.format(5120), (9, 1, 1)), (ATTENTION, (16, 128, 2)))), 64, {})
    assert (found.experts, found.hidden, found.tokens) == ((16 - 64 // 8) * 32, 5120, 16 * 128 * 2)
    assert (found.top_k, found.form, found.group_limit) == (8, "bf16", None)
    assert [line for line in found.told_by if line.startswith("assumed")] == [
        "assumed: top-k 8, as in DeepSeek-V3", "assumed: dispatch in bf16, as no product is in fp8"]


def test_products_in_fp8_and_group_limited_routing_are_noticed(tmp_path: Path) -> None:
    routing = "void cuda::topk_sum_and_topk_idx<16, 64>(float const*)"
    found = sizes(read(trace(tmp_path, (FP8, (100, 1, 1)), (routing, (9, 1, 1)))), 64, {})
    assert (found.form, found.group_limit) == ("fp8", 4)
    assert found.missing == ("tokens", "hidden", "experts")


def test_what_is_given_stands_before_what_is_inferred(tmp_path: Path) -> None:
    given = parse_sizes("hidden=7168,top_k=6,form=fp8")
    found = sizes(read(trace(tmp_path, (NORM.format(5120), (9, 1, 1)))), 64, given)
    assert (found.hidden, found.top_k, found.form) == (7168, 6, "fp8")
    assert "hidden 7168: as given" in found.told_by


def test_a_routers_recorded_choice_tells_tokens_experts_and_top_k(tmp_path: Path) -> None:
    k = Kineto(world_size=64, record_shapes=True)
    recorded: dict[str, Any] = {"Input type": ["float", *["Scalar"] * 4],
                                "Concrete Inputs": ["", "6", "-1", "True", "False"]}
    k.op("aten::topk", 0, 100, dims=[[300, 160], [], [], [], []], **recorded)
    k.kernel(NORM.format(5120), 1_000, 2_000)
    found = sizes(read(k.write(tmp_path / "trace.json")), 64, {})
    assert (found.tokens, found.experts, found.top_k) == (300, 160, 6)


@pytest.mark.parametrize("text", ["tokens=0", "tokens=-1", "top=8", "tokens", "form=fp4", "tokens=4096;top_k=8", ""])
def test_sizes_that_are_not_understood_are_named(text: str) -> None:
    with pytest.raises(InputError, match="--exchange"):
        parse_sizes(text)


def test_the_h800_trace_tells_all_but_top_k() -> None:
    found = sizes(read(shared(KINETO["h800"])), 64, {})
    assert (found.tokens, found.hidden, found.experts, found.group_limit, found.form) == (4096, 7168, 256, 4, "fp8")
    assert any(line.startswith("assumed: top-k 8") for line in found.told_by)
