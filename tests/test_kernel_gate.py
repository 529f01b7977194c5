"""The gate: each rule catches what it is for, the baseline what got worse, and what is unknown never passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sublight.errors import InputError
from sublight.kernels.inspect.code import Resources
from sublight.kernels.inspect.figures import Figures, LoopFigures, as_document, of_document
from sublight.kernels.inspect.gate import Rule, checked, renamed, rules_of, worse
from sublight.kernels.inspect.occupancy import occupancy

LOOP = LoopFigures(0x100, 0x900, 1, 86, True, "tensor", 1.0, (("tensor", 1024.0), ("issue", 172.0)),
                   ("HGMMA 64x256x16 bf16",))
GOOD = Figures(
    "matmul", "sm_90a", "cubin", "x.cubin", "ptxas 12.9", registers=168, stack=0, shared=1024, reserved=1024,
    dynamic_shared=65536, constant=584, barriers=1, warps=8,
    occupancy=occupancy("sm_90a", Resources(168, 0, 0, 0), warps=8), instructions=700, mix=(("alu", 100),),
    tensor=(("HGMMA 64x256x16 bf16", 4),), loads=(("LDG.E.128", 4),), spill_loads=0, spill_stores=0, loops=(LOOP,))
UNKNOWN = Figures("matmul", "sm_90a", "cubin", "x.cubin", None, registers=168, stack=0, shared=0,
                  notes=("needs nvdisasm",))
SPILLING = replace(GOOD, stack=64, loops=(replace(LOOP, spill_loads=3, spill_stores=2, line="a.py:7"),))


def of(**changes: Any) -> Figures:
    return replace(GOOD, **changes)


def test_a_good_kernel_passes_every_rule() -> None:
    rule = Rule(max_registers=168, max_stack=0, max_shared=65536, max_spills=0, require_tensor="HGMMA",
                min_tensor_limit=1.0, min_occupancy=0.125, min_blocks=1)
    assert checked([GOOD], [rule]) == ()


@pytest.mark.parametrize(("kernel", "rule", "got", "why"), [
    (GOOD, Rule(max_registers=167), "168", ""),
    (SPILLING, Rule(max_stack=63), "64", ""),
    (GOOD, Rule(max_shared=65535), "65536", ""),
    (SPILLING, Rule(max_spills=4), "5", "3 loads and 2 stores in the loop at 0x100 (a.py:7)"),
    (of(tensor=(("HMMA 16x8x16 bf16", 64),), fallbacks=("HMMA: less",)), Rule(require_tensor="HGMMA"),
     "64 HMMA 16x8x16 bf16", "HMMA: less"),
    (of(tensor=()), Rule(require_tensor="hgmma"), "none", ""),
    (of(loops=(replace(LOOP, tensor_limit=0.849, binds="issue"),)), Rule(min_tensor_limit=0.85), "84.9 %",
     "the loop at 0x100 is bound by issue"),
    (GOOD, Rule(min_occupancy=0.13), "12.5 %", "limited by registers"),
    (GOOD, Rule(min_blocks=2), "1", "limited by registers"),
])
def test_each_rule_catches_what_it_is_for(kernel: Figures, rule: Rule, got: str, why: str) -> None:
    failure, = checked([kernel], [rule])
    assert (failure.kernel, failure.got, failure.why, failure.unknown) == ("matmul", got, why, False)


@pytest.mark.parametrize("rule", [
    Rule(max_spills=0), Rule(require_tensor="HGMMA"), Rule(min_tensor_limit=0.1), Rule(min_occupancy=0.01),
    Rule(min_blocks=1)])
def test_what_is_unknown_does_not_pass(rule: Rule) -> None:
    failure, = checked([UNKNOWN], [rule])
    assert (failure.got, failure.why, failure.unknown) == ("unknown", "needs nvdisasm", True)


def test_spills_outside_loops_and_in_waits_are_not_in_loops() -> None:
    wait = replace(LOOP, hot=False, spill_loads=9, binds=None, tensor_limit=None)
    assert checked([of(spill_loads=9, loops=(LOOP, wait))], [Rule(max_spills=0, min_tensor_limit=1.0)]) == ()


@pytest.mark.parametrize("rule", [Rule(min_occupancy=0.125), Rule(min_blocks=1), Rule(max_shared=65536)])
def test_dynamic_shared_memory_that_nobody_told_does_not_pass(rule: Rule) -> None:
    """extern __shared__: the occupancy that the code shows is an upper limit."""
    untold = of(dynamic_shared=None, notes=("dynamic: not told",))
    failure, = checked([untold], [rule])
    assert (failure.got, failure.why, failure.unknown) == ("unknown", "dynamic: not told", True)
    assert checked([GOOD], [rule]) == ()


def test_what_fails_whatever_dynamic_shared_memory_there_is_is_said() -> None:
    untold = of(dynamic_shared=None, shared=3072)
    found = checked([untold], [Rule(min_blocks=2, max_shared=2047)])
    assert [(one.got, one.unknown) for one in found] == [("2048", False), ("1", False)]


def test_spills_that_may_be_in_a_loop_that_is_not_listed_do_not_pass() -> None:
    hidden = of(spill_loads=9, unplaced="a subroutine", notes=("a subroutine",))
    assert checked([of(spill_loads=9)], [Rule(max_spills=0)]) == ()
    failure, = checked([hidden], [Rule(max_spills=0)])
    assert (failure.got, failure.unknown) == ("unknown", True)


@pytest.mark.parametrize(("loops", "why"), [
    ((), "no loop is found in it"),
    ((replace(LOOP, tensor_limit=None, tensor=()),), "its loops have no tensor-core instructions"),
    ((replace(LOOP, tensor_limit=None, binds=None, notes=("tensor: no rate of int4",)),), "tensor: no rate of int4"),
])
def test_why_there_is_no_tensor_limit(loops: tuple[LoopFigures, ...], why: str) -> None:
    failure, = checked([of(loops=loops, notes=("something else",))], [Rule(min_tensor_limit=0.1)])
    assert (failure.got, failure.why, failure.unknown) == ("unknown", why, True)


def test_of_loops_with_equal_tensor_work_the_highest_limit_is_the_kernel_s() -> None:
    """The masked loop of causal attention does as much and runs once: 88 % is no limit of the kernel."""
    masked = replace(LOOP, start=0x1000, tensor_limit=0.88, binds="issue", instructions=500)
    assert of(loops=(LOOP, masked)).tensor_limit == 1.0


def test_rules_are_for_the_kernels_that_they_name() -> None:
    other = replace(SPILLING, name="_Z4attnv")
    assert checked([GOOD, other], [Rule("attn*", max_stack=0)], ["matmul", "attn"])[0].kernel == "_Z4attnv"
    assert checked([GOOD, other], [Rule("matmul", "sm_9*", max_stack=0)]) == ()
    with pytest.raises(InputError, match="matches none of 2 kernels"):
        checked([GOOD, other], [Rule("mat_mul", max_stack=0)])


def test_which_rules_need_instructions() -> None:
    assert not Rule(max_registers=1, max_stack=1, max_shared=1, min_occupancy=0.5, min_blocks=1).needs_instructions
    assert all(rule.needs_instructions for rule in (
        Rule(max_spills=0), Rule(require_tensor="HMMA"), Rule(min_tensor_limit=0.5)))


def test_rules_of_a_file() -> None:
    text = '[[rule]]\nkernels = "attn*"\nmax-spills = 0\nmin-tensor-limit = 85\n[[rule]]\nmax_registers = 168\n'
    assert rules_of(text, "x") == (Rule("attn*", max_spills=0, min_tensor_limit=0.85), Rule(max_registers=168))


@pytest.mark.parametrize(("text", "says"), [
    ("[[rule]]\nmax-register = 1", "no check 'max-register'"),
    ("[[rule]]\nkernels = 'a'", "checks nothing"),
    ("[[rule]]\nmax-stack = 'x'", "expected a number"),
    ("[[rule]]\nmin-occupancy = 101", "0 to 100"),
    ("[rules]\nmax-stack = 0", "expected \\[\\[rule\\]\\] tables"),
    ("max-stack 0", "no TOML"),
    ("", "got nothing"),
])
def test_a_file_of_rules_with_a_mistake_is_one_error(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        rules_of(text, "rules.toml")


# ---- against a baseline


def test_nothing_got_worse_of_the_same() -> None:
    assert worse([GOOD], [GOOD]) == ()


@pytest.mark.parametrize(("now", "check"), [
    (of(stack=8), "baseline stack 0"),
    (of(loops=(replace(LOOP, spill_loads=1),)), "baseline spills in loops 0"),
    (of(registers=200, occupancy=occupancy("sm_90a", Resources(255, 0, 0, 0), warps=16)), "baseline blocks an SM 1"),
    (of(tensor=(("HMMA 16x8x16 bf16", 4),)), "baseline tensor HGMMA"),
    (of(loops=(replace(LOOP, tensor_limit=0.98),)), "baseline tensor limit 100 %"),
    (replace(UNKNOWN, occupancy=GOOD.occupancy), "baseline spills in loops 0"),
])
def test_what_got_worse(now: Figures, check: str) -> None:
    assert check in [failure.check for failure in worse([GOOD], [now])]


def test_what_costs_nothing_is_not_worse() -> None:
    assert worse([GOOD], [of(registers=170), of(name="another")]) == ()
    assert worse([GOOD], [of(loops=(replace(LOOP, tensor_limit=0.995),))]) == ()


def test_a_baseline_without_instructions_checks_none_of_them_and_says_so() -> None:
    bare = replace(UNKNOWN, occupancy=GOOD.occupancy)
    failure, = worse([bare], [of(spill_loads=1, loops=(replace(LOOP, spill_loads=1),))])
    assert (failure.check, failure.got, failure.unknown) == ("baseline instructions", "unknown", True)
    assert worse([bare], [bare], instructions=False) == ()


def test_more_registers_may_cost_a_block_where_nobody_told_the_warps() -> None:
    old = of(occupancy=None, warps=None)
    assert worse([old], [old]) == worse([old], [replace(old, registers=160)]) == ()
    failure, = worse([old], [replace(old, registers=176)])
    assert failure.unknown
    assert "registers 168 -> 176" in failure.why


def test_who_is_held_against_another_name() -> None:
    old, new = replace(GOOD, name="_Z4gemmILi128EEvPf"), replace(GOOD, name="_Z4gemmILi64EEvPf")
    assert renamed([old], [new]) == (("_Z4gemmILi128EEvPf", "_Z4gemmILi64EEvPf"),)
    assert renamed([old], [old]) == ()


def test_a_kernel_that_is_gone_is_a_failure() -> None:
    assert [failure.got for failure in worse([GOOD], [of(name="softmax")])] == ["gone"]


# ---- documents


def test_a_document_comes_back_as_it_was() -> None:
    assert of_document(as_document((GOOD, SPILLING, UNKNOWN)), "x") == (GOOD, SPILLING, UNKNOWN)


@pytest.mark.parametrize("document", [
    [], {}, {"schema": "sublight.kernels/1"}, {"schema": "other", "kernels": []},
    {"schema": "sublight.kernels/1", "kernels": [{"name": "f"}]}, {"schema": "sublight.kernels/1", "kernels": [3]},
    {"schema": "sublight.kernels/1", "kernels": [{"name": "f", "arch": "sm_90", "kind": "cubin", "source": "x",
                                                   "producer": None, "registers": "many"}]},
])
def test_another_document_is_one_error(document: object) -> None:
    with pytest.raises(InputError):
        of_document(document, "x.json")


@pytest.mark.parametrize("changed", [
    {"instructions": "9"}, {"warps": 4.5}, {"source": None}, {"unplaced": 3}, {"reserved": None}, {"stack": True},
    {"loops": [{"spill_loads": None}]}, {"loops": [{"tensor_limit": "high"}]}, {"loops": [{"binds": 7}]},
])
def test_a_damaged_figure_is_one_error(changed: dict[str, Any]) -> None:
    document = as_document((GOOD,))
    row = document["kernels"][0]
    if "loops" in changed:
        changed = {"loops": [row["loops"][0] | changed["loops"][0]]}
    document["kernels"][0] = row | changed
    with pytest.raises(InputError, match="damaged"):
        of_document(document, "x.json")
