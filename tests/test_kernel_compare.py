"""Two builds: which kernel belongs to which, what changed, in the order of what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from test_kernel_gate import GOOD, LOOP, SPILLING, UNKNOWN

from sublight.kernels.inspect.code import Resources
from sublight.kernels.inspect.compare import changes, compare, matched
from sublight.kernels.inspect.figures import Figures
from sublight.kernels.inspect.occupancy import occupancy
from sublight.show.inspect_rows import comparison as rows


def named(name: str, **figures: Any) -> Figures:
    return replace(GOOD, name=name, **figures)


def test_the_same_has_no_changes() -> None:
    assert changes(GOOD, GOOD) == ()


def test_what_matters_most_comes_first() -> None:
    now = replace(SPILLING, registers=128, tensor=(("HMMA 16x8x16 bf16", 4),),
                  occupancy=occupancy("sm_90a", Resources(128, 0, 0, 0), warps=8))
    assert [(change.what, change.before, change.after, change.better) for change in changes(GOOD, now)] == [
        ("tensor instructions", "HGMMA 64x256x16 bf16", "HMMA 16x8x16 bf16", False),
        ("spills in loops", "0", "5", False),
        ("blocks an SM", "1 (12.5 %, registers)", "2 (25 %, registers)", True),
        ("stack", "0", "64", False),
        ("registers", "168", "128", None),
    ]


def test_another_shape_of_the_same_kind_is_neither_better_nor_worse() -> None:
    change, = changes(GOOD, replace(GOOD, tensor=(("HGMMA 64x128x16 bf16", 8),)))
    assert (change.what, change.better) == ("tensor instructions", None)


def test_limits_loads_and_pipes() -> None:
    now = replace(GOOD, loops=(replace(LOOP, tensor_limit=0.6, binds="issue"),), loads=(("LDG.E.U8", 64),),
                  mix=(("alu", 100), ("spilled", 90)))
    assert [(change.what, change.before, change.after, change.better) for change in changes(GOOD, now)] == [
        ("tensor limit", "100 %", "60 %", False), ("bound by", "tensor", "issue", None),
        ("loads", "LDG.E.128", "LDG.E.U8", None), ("pipe spilled", "0", "90", None)]


def test_what_one_side_does_not_know_is_not_compared() -> None:
    assert {change.what for change in changes(GOOD, UNKNOWN)} == {"shared"}


def test_worse_kernels_come_before_those_that_only_changed() -> None:
    before = [named("a"), named("b"), named("c")]
    after = [named("a"), replace(SPILLING, name="c"), named("b", registers=170)]
    assert [pair.after.name for pair in compare(before, after).pairs] == ["c", "b", "a"]


# ---- names


def pairs_of(before: list[Figures], after: list[Figures]) -> list[tuple[str, str]]:
    return [(old.name, new.name) for old, new in matched(before, after)[0]]


def test_equal_names_then_near_ones() -> None:
    before = [named("attn_fwd_0d1d2de"), named("rmsnorm"), named("gone_entirely")]
    after = [named("rmsnorm"), named("attn_fwd_0d1d2d3c"), named("completely_new")]
    assert pairs_of(before, after) == [("rmsnorm", "rmsnorm"), ("attn_fwd_0d1d2de", "attn_fwd_0d1d2d3c")]
    comparison = compare(before, after)
    assert [kernel.name for kernel in comparison.gone] == ["gone_entirely"]
    assert [kernel.name for kernel in comparison.new] == ["completely_new"]


def test_a_kernel_of_another_name_is_never_unchanged() -> None:
    """gemm<128> is gone and gemm<64> is there: as near as names are, they are two kernels to whoever calls them."""
    comparison = compare([named("_Z4gemmILi128EEvPf")], [named("_Z4gemmILi64EEvPf")])
    change, = comparison.pairs[0].changes
    assert (change.what, change.before, change.after) == ("name", "_Z4gemmILi128EEvPf", "_Z4gemmILi64EEvPf")
    assert "gemm<128>" in str(rows(comparison).rows)


def test_several_of_one_name_are_paired_by_how_they_are_launched() -> None:
    before = [named("matmul", warps=4, dynamic_shared=24576), named("matmul", warps=8, dynamic_shared=147456)]
    after = list(reversed(before))
    assert [(old.warps, new.warps) for old, new in matched(before, after)[0]] == [(4, 4), (8, 8)]


def test_architectures_are_not_mixed() -> None:
    pairs, gone, new = matched([GOOD], [replace(GOOD, arch="sm_100a")])
    assert (pairs, len(gone), len(new)) == ([], 1, 1)
