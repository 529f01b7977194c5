"""Loops of SASS: natural, nested, with waits and conditions; and against brute force on any graph of blocks.

    header ──▶ body ──▶ latch ─┐
       ▲───────────────────────┘
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sass import function

from sublight.kernels.inspect.code import Function
from sublight.kernels.inspect.flow import ROOT, Block, Flow, dominates, dominators, flow_of
from sublight.kernels.inspect.loops import Loop, loops_in


def loops(text: str) -> tuple[Loop, ...]:
    return loops_in(function(text)).loops


def opcodes(loop: Loop) -> list[str]:
    return [one.opcode for one in loop.always]


def test_a_loop_is_from_its_label_to_its_branch_back() -> None:
    (loop,) = loops("""
        MOV R1, R2
        .L_0:
        FADD R0, R0, R1
        ISETP.GE P0, PT, R2, R3, PT
        @!P0 BRA .L_0
        EXIT
    """)
    assert (loop.label, loop.start, loop.end, loop.depth, loop.wait) == (".L_0", 0x10, 0x30, 1, False)
    assert opcodes(loop) == ["FADD", "ISETP.GE", "BRA"]


def test_code_without_branches_back_has_none() -> None:
    assert loops("MOV R1, R2\n@P0 BRA .L_0\nMOV R2, R3\n.L_0:\nEXIT") == ()
    assert loops_in(Function("ptx", "sm_90", None)).loops == ()


def test_padding_that_jumps_to_itself_is_never_reached() -> None:
    assert loops("EXIT\n.L_9:\nBRA .L_9\nNOP\nNOP") == ()


def test_a_guarded_exit_and_a_branch_on_two_predicates_go_on() -> None:
    (loop,) = loops(".L_0:\n@P3 EXIT\nFADD R0, R0, R1\n@!P0 BRA P1, .L_0\nEXIT")
    assert opcodes(loop) == ["EXIT", "FADD", "BRA"]
    found = loops(".L_0:\nFADD R0, R0, R1\nBRA.U UP0, .L_0\n.L_1:\nFMUL R0, R0, R1\n@P0 BRA .L_1\nEXIT")
    assert [opcodes(loop) for loop in found] == [["FADD", "BRA.U"], ["FMUL", "BRA"]]


NESTED = """
    .L_0:
    LDG.E R0, desc[UR4][R2.64]
    .L_1:
    FFMA R0, R0, R1, R2
    @P0 BRA .L_1
    STG.E desc[UR4][R2.64], R0
    @P1 BRA .L_0
    EXIT
"""


def test_instructions_of_an_inner_loop_are_not_the_outer_ones() -> None:
    outer, inner = loops(NESTED)
    assert (outer.depth, outer.parent, outer.inner) == (1, None, (1,))
    assert (inner.depth, inner.parent, inner.inner) == (2, 0, ())
    assert opcodes(outer) == ["LDG.E", "STG.E", "BRA"]
    assert opcodes(inner) == ["FFMA", "BRA"]


def test_the_parent_is_the_nearest_loop_around() -> None:
    found = loops(".L_0:\nFADD R0, R0, R1\n.L_1:\nFMUL R0, R0, R1\n.L_2:\nFFMA R0, R0, R1, R2\n"
                  "@P0 BRA .L_2\n@P1 BRA .L_1\n@P2 BRA .L_0\nEXIT")
    assert [(loop.depth, loop.parent, loop.inner) for loop in found] == [(1, None, (1,)), (2, 0, (2,)), (3, 1, ())]


def test_an_inner_loop_may_stand_before_the_outer_one() -> None:
    inner, outer = loops("""
        BRA .L_0
        .L_1:
        FFMA R0, R0, R1, R2
        @P0 BRA .L_1
        BRA .L_2
        .L_0:
        FADD R0, R0, R1
        BRA .L_1
        .L_2:
        @P1 BRA .L_0
        EXIT
    """)
    assert (inner.depth, inner.parent, outer.inner) == (2, 1, (0,))
    assert opcodes(outer) == ["BRA", "FADD", "BRA", "BRA"]


def test_what_stands_behind_a_condition_is_sometimes() -> None:
    (loop,) = loops("""
        .L_0:
        FADD R0, R0, R1
        @P2 BRA .L_1
        MUFU.EX2 R0, R0
        MUFU.RCP R0, R0
        .L_1:
        @P0 BRA .L_0
        EXIT
    """)
    assert opcodes(loop) == ["FADD", "BRA", "BRA"]
    assert [[one.opcode for one in block] for block in loop.sometimes] == [["MUFU.EX2", "MUFU.RCP"]]


def test_two_branches_back_to_one_header_are_one_loop() -> None:
    (loop,) = loops("""
        .L_0:
        FADD R0, R0, R1
        @P2 BRA .L_0
        FMUL R0, R0, R1
        @P0 BRA .L_0
        EXIT
    """)
    assert opcodes(loop) == ["FADD", "BRA"], "the second branch is not always reached"
    assert loop.end == 0x30


WAIT = """
    .L_2:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x24000], R8
    @!P0 BRA .L_1
    .L_3:
    HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24], R24, gsb0
    @P1 BRA .L_2
    EXIT
    .L_1:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9+0x24000], R8
    @!P0 BRA .L_1
    BRA .L_3
"""


def test_a_wait_behind_the_end_belongs_to_its_loop_but_does_not_always_run() -> None:
    loop, wait = loops(WAIT)
    assert (loop.end, loop.wait, wait.wait, wait.parent) == (0x30, False, True, 0)
    assert opcodes(loop) == ["SYNCS.PHASECHK.TRANS64.TRYWAIT", "BRA", "HGMMA.64x256x16.F32.BF16", "BRA"]
    assert sum(len(block) for block in loop.sometimes) == 3


def test_a_wait_in_line_runs_once() -> None:
    loop, wait = loops("""
        .L_0:
        FADD R0, R0, R1
        .L_1:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9], R8
        @!P0 BRA .L_1
        @P1 BRA .L_0
        EXIT
    """)
    assert (loop.wait, wait.wait) == (False, True)
    assert opcodes(loop) == ["FADD", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "BRA", "BRA"]


def test_a_strong_load_waits_where_it_asks_one_address_and_works_where_it_walks_on() -> None:
    spin = ".L_0:\nLDG.E.STRONG.SYS R0, desc[UR4][R2.64]\nISETP.NE.AND P0, PT, R0, RZ, PT\n@!P0 BRA .L_0\nEXIT"
    cas = ".L_0:\nATOMG.E.CAS.STRONG.GPU PT, R5, [R2], R4, R5\nISETP.NE.AND P0, PT, R5, R4, PT\n@P0 BRA .L_0\nEXIT"
    ldcg = (".L_0:\nIMAD.WIDE R2, R7, 0x4, R8\nLDG.E.STRONG.GPU R0, desc[UR4][R2.64]\nIADD3 R1, R1, R0, RZ\n"
            "@P0 BRA .L_0\nEXIT")
    assert [loops(text)[0].wait for text in (spin, cas, ldcg)] == [True, True, False]


def test_a_loop_that_starts_copies_is_no_wait() -> None:
    (loop,) = loops(".L_0:\nSYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9], R8\nUTMALDG.2D [UR4], [UR6]\n@P1 BRA .L_0\nEXIT")
    assert not loop.wait


def test_a_short_loop_that_works_is_no_wait() -> None:
    (loop,) = loops(".L_0:\nLDG.E.STRONG.GPU R0, desc[UR4][R2.64]\nFADD R1, R1, R0\n@P0 BRA .L_0\nEXIT")
    assert not loop.wait


def test_a_switch_goes_to_every_target_that_nvdisasm_tells() -> None:
    text = """
        .L_0:
        BRX R4 -0x10 (*"BRANCH_TARGETS .L_1,.L_2"*)
        .L_1:
        FADD R0, R0, R1
        BRA .L_3
        .L_2:
        FMUL R0, R0, R1
        .L_3:
        @P0 BRA .L_0
        EXIT
    """
    found = loops_in(function(text))
    assert opcodes(found.loops[0]) == ["BRX", "BRA"]
    assert [len(block) for block in found.loops[0].sometimes] == [2, 1]
    assert found.unknown == ()
    assert loops_in(function(text.replace('(*"BRANCH_TARGETS .L_1,.L_2"*)', ""))).unknown == (0,)


def test_a_call_comes_back_and_its_subroutine_is_no_part_of_the_loop() -> None:
    (loop, inside) = loops("""
        .L_0:
        @P2 CALL.REL.NOINC $div
        FADD R0, R0, R1
        @P0 BRA .L_0
        EXIT
        $div:
        MUFU.RCP R0, R1
        .L_1:
        FFMA R0, R0, R1, R2
        @P3 BRA .L_1
        RET.REL.NODEC R2 $f
    """)
    assert opcodes(loop) == ["CALL.REL.NOINC", "FADD", "BRA"]
    assert opcodes(inside) == ["FFMA", "BRA"]
    assert inside.depth == 1


def test_a_call_of_a_label_is_a_far_jump() -> None:
    loop, after = loops("""
        .L_1:
        HMMA.16816.F32.BF16 R4, R8, R12, R4
        @!P3 CALL.REL.NOINC .L_0
        BRA .L_1
        .L_0:
        STG.E desc[UR4][R2.64], R4
        @P0 BRA .L_0
        EXIT
    """)
    assert opcodes(loop) == ["HMMA.16816.F32.BF16", "CALL.REL.NOINC", "BRA"]
    assert opcodes(after) == ["STG.E", "BRA"]


def test_paths_meet_where_a_barrier_of_convergence_says() -> None:
    (loop,) = loops("""
        .L_0:
        BSSY B0, .L_2
        @P0 BRA .L_1
        FADD R0, R0, R1
        BSYNC B0
        .L_1:
        FMUL R0, R0, R1
        BSYNC B0
        .L_2:
        @P1 BRA .L_0
        EXIT
    """)
    assert opcodes(loop) == ["BSSY", "BRA", "BRA"]


def test_a_branch_into_the_middle_is_no_natural_loop() -> None:
    found = loops_in(function("""
        @P0 BRA .L_1
        .L_0:
        FADD R0, R0, R1
        .L_1:
        FMUL R0, R0, R1
        @P1 BRA .L_0
        EXIT
    """))
    assert found.loops == ()
    assert len(found.irreducible) == 1


def test_addresses_lead_as_labels_do() -> None:
    (loop,) = loops("MOV R1, R2\nFADD R0, R0, R1\n@P0 BRA 0x10\nEXIT")
    assert (loop.label, loop.start, loop.end) == (None, 0x10, 0x20)


# ---- any graph: against the definitions, by brute force --------------------------------------------------------------

@st.composite
def flows(draw: st.DrawFn) -> Flow:
    size = draw(st.integers(1, 9))
    edges = draw(st.lists(st.lists(st.integers(0, size - 1), max_size=3, unique=True), min_size=size, max_size=size))
    return Flow(tuple(Block(at, at + 1, tuple(to)) for at, to in enumerate(edges)), (0,), ())


def reached(flow: Flow, start: int, *, without: int | None = None) -> set[int]:
    seen: set[int] = set()
    todo = [start]
    while todo:
        block = todo.pop()
        if block not in seen and block != without:
            seen.add(block)
            todo += flow.blocks[block].successors
    return seen


@given(flows())
def test_dominators_are_what_every_path_passes(flow: Flow) -> None:
    nearest = dominators(flow)
    everything = reached(flow, 0)
    assert set(nearest) == everything
    assert nearest[0] == ROOT
    for a in everything:
        for b in everything:
            passed = a == b or b not in reached(flow, 0, without=a)
            assert dominates(a, b, nearest) == passed


@given(st.lists(st.tuples(st.sampled_from(["on", "back", "ahead"]), st.integers(0, 11)), min_size=2, max_size=12))
def test_every_branch_back_is_a_loop_or_said_not_to_be_one(steps: list[tuple[str, int]]) -> None:
    lines = []
    for at, (kind, to) in enumerate(steps):
        goal = to % (at + 1) if kind == "back" else at + 1 + to % (len(steps) - at)
        lines += [f".L_{at}:", "FADD R0, R0, R1" if kind == "on" else f"@P0 BRA .L_{goal}"]
    one = function("\n".join([*lines, f".L_{len(steps)}:", "EXIT"]))
    flow, found = flow_of(one), loops_in(one)
    nearest = dominators(flow)
    headers = {to for b in nearest for to in flow.blocks[b].successors if dominates(to, b, nearest)}
    assert {one.instructions[flow.blocks[to].first].address for to in headers} == {loop.start for loop in found.loops}
    for loop in found.loops:
        if loop.parent is not None:
            assert loop.depth == found.loops[loop.parent].depth + 1
            assert loop in [found.loops[i] for i in found.loops[loop.parent].inner]
