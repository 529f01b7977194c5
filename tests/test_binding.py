"""What binds a loop: clocks counted by hand.

sm_90 a clock: 4 warp instructions, 128 fp32, 64 integer and 16 special results, 4096 bf16 and 8192 fp8 FLOPs.
One FFMA of 8 warps: 8 · 32 / 128 = 2 clocks. One HGMMA 64x256x16 of 8 warps: 2 warpgroups · 524288 / 4096 = 256.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sass import function

from sublight.kernels.inspect.binding import LoopVerdict, loops_of, unlisted
from sublight.kernels.inspect.code import Function, Launch, Resources
from sublight.kernels.inspect.loops import loops_in
from sublight.kernels.inspect.mix import mix_of, width_bits


def loop(body: str, *, arch: str = "sm_90", warps: int | None = 8, before: str = "") -> LoopVerdict:
    """The verdict of one loop of that body; its branch back is one instruction more."""
    one = function(f"{before}\n.L_0:\n{body}\n@P0 BRA .L_0\nEXIT", arch=arch)
    return loops_of(one, Launch(warps=warps))[0]


# ---- the three kernels of research: instructions, and clocks that were counted with another program ------------------

@pytest.mark.parametrize(("body", "instructions", "tensor", "issue", "xu", "binds", "limit"), [
    ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24], R24 x 4\nUMOV UR4, UR5 x 81", 86, 1024, 172, None, "tensor", 1.0),
    ("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24 x 4\nFFMA R1, R1, R2, R3 x 64\nFMUL R1, R1, R2 x 64\n"
     "UMOV UR4, UR5 x 168", 301, 512, 602, None, "issue", 512 / 602),
    ("HGMMA.64x64x16.F32.BF16 R88, gdesc[UR8], R88 x 8\nHGMMA.64x128x16.F32.BF16 R24, R132, gdesc[UR8], R24 x 4\n"
     "MUFU.EX2 R1, R1 x 34\nUMOV UR4, UR5 x 504", 551, 1024, 1102, 544, "issue", 1024 / 1102),
])
def test_known_kernels_bind_where_they_are_known_to(body: str, instructions: int, tensor: float, issue: float,
                                                    xu: float | None, binds: str, limit: float) -> None:
    verdict = loop(body)
    assert verdict.instructions == instructions
    assert (verdict.clocks_of("tensor"), verdict.clocks_of("issue"), verdict.clocks_of("xu")) == (tensor, issue, xu)
    assert (verdict.binds, verdict.tensor_limit) == (binds, limit)
    assert verdict.clocks[0][0] == binds


@pytest.mark.parametrize(("body", "arch", "pipe", "clocks"), [
    ("FFMA R1, R1, R2, R3", "sm_90", "fp32", 2),                     # 8 · 32 / 128
    ("FFMA R1, R1, R2, R3", "sm_80", "fp32", 4),                     # 64 lanes
    ("FFMA2 R2, R2.F32x2.HI_LO, R4.F32x2.HI_LO, R6.F32x2.HI_LO", "sm_100", "fp32", 4),     # two results a lane
    ("IMAD R1, R1, R2, R3", "sm_90", "imad", 4),                     # half of the fp32 pipe
    ("IMAD R1, R1, R2, R3", "sm_90", "fp32", 2),                     # which it shares
    ("LOP3.LUT R1, R1, R2, R3, 0xc0, !PT", "sm_90", "alu", 4),
    ("IADD3 R1, R1, R2, RZ", "sm_120", "alu", 2),
    ("MUFU.EX2 R1, R1", "sm_90", "xu", 16),
    ("F2I.TRUNC.NTZ R1, R1", "sm_90", "xu", 16),
    ("DFMA R2, R2, R4, R6", "sm_90", "fp64", 4),
    ("DFMA R2, R2, R4, R6", "sm_86", "fp64", 128),
    ("HFMA2 R1, R1, R2, R3", "sm_90", "fp16", 2),                    # 8 · 32 · 2 / 256
    ("SHFL.BFLY PT, R1, R1, 0x1, 0x1f", "sm_90", "lsu", 8),
    ("LDS.128 R4, [R2]", "sm_90", "shared", 8),                      # at least: its lanes may ask for the same word
    ("LDSM.16.M88.4 R4, [R2]", "sm_90", "shared", 32),               # four matrices of 128 bytes
    ("LDSM.16.MT88.2 R4, [R2]", "sm_90", "shared", 16),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "sm_80", "tensor", 16),  # 8 · 4096 / 2048
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "sm_120", "tensor", 32),
    ("QMMA.16832.F32.E4M3.E4M3 R4, R8, R12, R4", "sm_120", "tensor", 32),
    ("IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4", "sm_80", "tensor", 16),
    ("DMMA.884 R4, R8, R12, R4", "sm_80", "tensor", 32),             # 8 · 512 / 128
])
def test_one_instruction_of_eight_warps(body: str, arch: str, pipe: str, clocks: float) -> None:
    assert loop(body, arch=arch).clocks_of(pipe) == clocks


def test_small_integers_are_converted_faster_than_the_rate_we_know() -> None:
    assert loop("I2F.U8 R1, R1").clocks_of("xu") is None
    assert loop("I2F R1, R1").clocks_of("xu") == 16


# ---- warps -----------------------------------------------------------------------------------------------------------

HGMMA = "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24], R24"


def test_warps_are_the_launchs_else_those_that_the_kernel_requires_else_assumed() -> None:
    one = function(f".L_0:\n{HGMMA}\n@P0 BRA .L_0\nEXIT")
    known = replace(one, resources=Resources(90, 0, 0, 0, required_threads=384))
    assert [(v.warps, v.warps_from) for v in loops_of(known, Launch(warps=8))] == [(8, "the launch")]
    assert [(v.warps, v.warps_from) for v in loops_of(known, Launch())] == [
        (12, "the block size that the kernel requires")]
    (assumed,) = loops_of(one, Launch())
    assert assumed.warps == 4
    assert assumed.warps_from.startswith("assumed")


def test_shares_of_warps_and_warpgroups_do_not_depend_on_how_many_there_are() -> None:
    body = f"{HGMMA} x 2\nFFMA R1, R1, R2, R3 x 700"
    assert {loop(body, warps=warps).tensor_limit for warps in (4, 8, 12)} == {256 / (703 + 0)}


UTC = "UTCHMMA gdesc[UR6], gdesc[UR4], tmem[UR9], tmem[UR36], idesc[UR37], UPT"
SETS = "UMOV UR37, 0x8400490"                                        # 128x256x16 bf16: 1048576 / 8192 = 128 clocks


def test_a_threads_instruction_behind_a_condition_is_one_warps() -> None:
    verdict = loop(f"UMOV UR4, UR5 x 10\n@P1 BRA .L_1\n{UTC} x 4\n.L_1:", arch="sm_100", before=SETS)
    assert (verdict.warps, verdict.instructions, verdict.sometimes) == (8, 12, 4)
    assert verdict.clocks_of("tensor") == 4 * 128
    assert verdict.clocks_of("issue") == (12 * 8 + 4 * 1) / 4
    assert any("behind a condition" in note for note in verdict.notes)


def test_a_threads_instruction_that_every_warp_would_issue_makes_the_loop_one_warps() -> None:
    verdict = loop(f"{UTC} x 2\nUMOV UR4, UR5 x 97", arch="sm_100", before=SETS)
    assert (verdict.warps, verdict.clocks_of("issue"), verdict.clocks_of("tensor")) == (1, 25, 256)
    assert verdict.warps_from == "UTCHMMA is one thread's: taken for the loop of one warp"


def test_two_blocks_share_one_instruction() -> None:
    two = UTC.replace("UTCHMMA", "UTCHMMA.2CTA")
    verdict = loop(two, arch="sm_100", before="UMOV UR37, 0x10400490")         # 256x256x16: 2097152 on two SMs
    assert verdict.clocks_of("tensor") == 128


def test_where_warps_have_roles_a_verdict_says_so() -> None:
    verdict = loop(HGMMA, before="USETMAXREG.DEALLOC.CTAPOOL 0x28")
    assert any("roles" in note for note in verdict.notes)
    behind = loop(f"@P1 BRA .L_1\n{UTC}\n.L_1:", arch="sm_100", before=f"USETMAXREG.DEALLOC.CTAPOOL 0x28\n{SETS}")
    assert behind.warps == 1, "how many run the loop is not known: the fewest keep the limit one"


# ---- what cannot be said ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("body", "arch", "refused"), [
    (UTC, "sm_100", "tensor: UTCHMMA: its descriptor is computed at run time, so its shape is unknown"),
    ("HMMA.SP.16832.F32.BF16 R8, R32, R32, R8, R32, 0x0", "sm_90", "tensor: no rate of sparse HMMA in our sources"),
    ("DMMA.8x8x4 R4, R8, R12, R4", "sm_120", "tensor: no rate of fp64 on sm_120 in our sources"),
    ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "sm_75", "everything: no rates of sm_75 in our sources"),
])
def test_tensor_work_without_a_known_rate_has_no_verdict(body: str, arch: str, refused: str) -> None:
    verdict = loop(body, arch=arch)
    assert [verdict.binds, verdict.tensor_limit, verdict.clocks_of("tensor")] == [None, None, None]
    assert refused in verdict.refused


def test_a_pipe_without_a_rate_is_refused_by_name_and_the_rest_stands() -> None:
    verdict = loop("MUFU.EX2 R1, R1\nLOP3.LUT R1, R1, R2, R3, 0xc0, !PT\nFFMA R1, R1, R2, R3", arch="sm_103")
    assert dict(verdict.clocks) == {"issue": 8, "fp32": 2}
    assert verdict.refused == ("xu: no rate of sm_103 in our sources", "alu: no rate of sm_103 in our sources")


def test_what_counts_in_issue_alone_is_named() -> None:
    verdict = loop("F2FP.BF16.F32.PACK_AB R1, R2, R3\nFSETP.GT.AND P1, PT, R1, R2, PT\nFROB R1, R2")
    assert verdict.refused == ("compare, convert, other: no rate in our sources, counted in issue alone",)
    assert verdict.mix.unknown == ("FROB",)


def test_a_loop_around_loops_has_no_verdict_and_a_wait_none_either() -> None:
    one = function("""
        .L_0:
        FADD R0, R0, R1
        .L_1:
        FFMA R0, R0, R1, R2
        @P0 BRA .L_1
        .L_2:
        SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR9], R8
        @!P0 BRA .L_2
        @P1 BRA .L_0
        EXIT
    """)
    outer, inner, wait = loops_of(one, Launch(warps=4))
    assert (outer.binds, outer.clocks_of("issue"), outer.hot) == (None, 4.0, True)
    assert any("inner loops" in note for note in outer.notes)
    assert (inner.binds, inner.parent) == ("issue", 0)
    assert (wait.binds, wait.hot) == (None, False)


def test_tensor_work_of_warps_behind_a_condition_counts_with_the_whole_body() -> None:
    verdict = loop("@P1 BRA .L_1\nHMMA.16816.F32.BF16 R4, R8, R12, R4 x 4\nFADD R1, R1, R2 x 4\n.L_1:", arch="sm_80")
    assert (verdict.instructions, verdict.sometimes) == (2, 8)
    assert (verdict.clocks_of("tensor"), verdict.clocks_of("issue")) == (64, 20)
    assert any("the whole body counts" in note for note in verdict.notes)


def test_a_peak_that_the_instructions_cannot_have_is_noted() -> None:
    hmma = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
    assert loop(hmma, arch="sm_90").notes[0] == "HMMA for bf16 on sm_90: HGMMA is what the format deserves"
    assert loop(hmma, arch="sm_120").notes == (
        "GeForce boards of sm_120 accumulate in fp32 at half this tensor rate",)
    assert loop(hmma, arch="sm_80").notes == ()
    assert loop("IMMA.16832.S8.S8 R4, R8, R12, R4", arch="sm_120").notes == ()


def test_a_loop_that_only_moves_data_says_that_memory_may_bind() -> None:
    verdict = loop("LDG.E.128 R4, desc[UR4][R2.64]\nSTG.E.128 desc[UR4][R2.64], R4")
    assert verdict.tensor_limit is None
    assert any("global memory" in note for note in verdict.notes)


def test_ptx_has_no_verdicts() -> None:
    assert loops_of(Function("f", "sm_90", None), Launch()) == ()
    assert mix_of(Function("f", "sm_90", None)).count == 0


WORDS = ("BRA", "@P0 BRA", "CALL.REL.NOINC", "BSSY", "BSYNC", "BRX", "EXIT", "@P1 EXIT", "RET", "UMOV", "UTCHMMA",
         "HMMA.880", "HGMMA.64x256x16.F32.BF16", "QGMMA", "LDSM.16.M88.9", "LDL", "STL.128", "FFMA", "SYNCS.PHASECHK",
         "MUFU", "FROB")
OPERANDS = (".L_0", ".L_7", ".L_99", "0x20", "0xzz", "UR37", "UR36", "idesc[UR37]", "idesc[]", "[R1+", "[R1]", "P0",
            "B0", '(*"BRANCH_TARGETS .L_1,,.L_44"*)', "R4")


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.lists(st.sampled_from(OPERANDS), max_size=4)), max_size=30),
       st.sampled_from(["sm_90a", "sm_100", "sm_120", "sm_75", "sm_", "gfx942"]))
def test_no_listing_is_too_strange(lines: list[tuple[str, list[str]]], arch: str) -> None:
    text = "\n".join(f".L_{at}:\n{word} {', '.join(rest)}" for at, (word, rest) in enumerate(lines))
    one = function(text, arch=arch)
    assert mix_of(one).count == len(lines)
    for verdict in loops_of(one, Launch()):
        assert verdict.tensor_limit is None or 0 <= verdict.tensor_limit <= 1
        assert verdict.instructions <= len(lines)


# ---- the mix ---------------------------------------------------------------------------------------------------------

def test_loads_by_kind_and_width() -> None:
    mix = mix_of(function("""
        LDG.E.128.CONSTANT R4, desc[UR4][R2.64] x 3
        LDG.E.U8 R4, desc[UR4][R2.64]
        LDGSTS.E.BYPASS.LTC128B.128 [R1], desc[UR4][R2.64] x 2
        UTMALDG.2D [UR24], [UR4]
        STS.64 [R1], R2
        LDSM.16.M88.4 R4, [R2]
        EXIT
    """))
    assert [(row.opcode, row.kind, row.width_bits, row.count) for row in mix.loads] == [
        ("LDG.E.128.CONSTANT", "load", 128, 3),
        ("LDGSTS.E.BYPASS.LTC128B.128", "copy to shared", 128, 2),
        ("LDG.E.U8", "load", 8, 1),
        ("UTMALDG.2D", "bulk copy to shared", None, 1),
    ]
    assert [(row.opcode, row.width_bits) for row in mix.shared] == [("LDSM.16.M88.4", None), ("STS.64", 64)]
    assert dict(mix.pipes) == {"global": 6, "shared": 2, "tma": 1, "branch": 1}
    assert width_bits("LDG.E") == 32


def test_spills_stand_at_fixed_offsets_of_the_stack_and_arrays_at_computed_ones() -> None:
    mix = mix_of(function("STL [R1+0x4], R2\nSTL.128 [R1], R4\nLDL R2, [R1+0x4]\nLDL R3, [R5]\nSTL [R5+0x8], R3\nEXIT"))
    assert (mix.spill_stores, mix.spill_loads, mix.array_stores, mix.array_loads) == (2, 1, 1, 1)


def test_16_bit_products_of_fp8_data_are_noticed() -> None:
    mix = mix_of(function("F2FP.F16.E4M3.UNPACK_B R1, R2 x 2\nHGMMA.64x128x16.F32 R24, gdesc[UR4], R24\nEXIT"))
    assert [(use.kind.title, use.count, use.deserves) for use in mix.tensor] == [
        ("HGMMA 64x128x16 fp16", 1,
         "HGMMA for fp8 on sm_90: QGMMA is what the format deserves (2 conversions from fp8 stand beside it)")]


def test_lines_of_a_loop_are_those_of_its_file() -> None:
    one = function(".L_0:\nFADD R0, R0, R1 x 3\n@P0 BRA .L_0\nEXIT")
    lines = [("k.py", 7), ("k.py", 9), ("lib.py", 100), ("k.py", 8), ("k.py", 20)]
    told = replace(one, instructions=tuple(
        replace(i, line=line) for i, line in zip(one.instructions, lines, strict=True)))
    assert loops_of(told, Launch())[0].lines == ("k.py", 7, 9)


# ---- what loops do not show ------------------------------------------------------------------------------------------

def test_a_loop_that_always_calls_has_no_verdict_and_one_that_may_call_has() -> None:
    """What is called may be tensor work, or most of the time: no limit holds."""
    body = "HMMA.16816.F32.BF16 R4, R8, R12, R4\n{}CALL.REL.NOINC $f_sub\nFADD R0, R0, R1"
    always, sometimes = loop(body.format("")), loop(body.format("@P2 "))
    assert (always.binds, always.tensor_limit) == (None, None)
    assert sometimes.binds == "tensor"


SUBROUTINE = """
    .L_0:
    FADD R0, R0, R1
    CALL.REL.NOINC $sub
    @P0 BRA .L_0
    {}
    EXIT
    $sub:
    {}
    RET.REL.NODEC R2 $f
"""
SPILL = "STL [R1+0x8], R0"


@pytest.mark.parametrize(("main", "sub", "unplaced"), [
    (SPILL, "NOP", False), ("NOP", SPILL, True), ("NOP", "NOP", False), ("NOP", "STL [R7], R0", False),
])
def test_spills_of_a_subroutine_that_a_loop_calls_are_not_outside_loops(main: str, sub: str, unplaced: bool) -> None:
    one = function(SUBROUTINE.format(main, sub))
    assert bool(unlisted(one, loops_in(one)).unplaced) is unplaced


def test_what_a_function_of_another_section_spills_is_not_known() -> None:
    """An object of nvcc -rdc=true: its stack is not told either."""
    one = function(".L_0:\nCALL.REL.NOINC `(_Z5heavyf)\n@P0 BRA .L_0\nEXIT")
    assert "_Z5heavyf" in str(unlisted(one, loops_in(one)).unplaced)
    once = function(".L_0:\nFADD R0, R0, R1\n@P0 BRA .L_0\nCALL.REL.NOINC `(_Z5heavyf)\nEXIT")
    assert unlisted(once, loops_in(once)).unplaced is None


def test_a_loop_with_two_entries_is_said_where_there_is_no_other_loop() -> None:
    one = function(f"@P1 BRA .L_1\n.L_0:\nFADD R0, R0, R1\n.L_1:\n{SPILL}\n@P0 BRA .L_0\nEXIT")
    missed = unlisted(one, loops_in(one))
    assert loops_of(one, Launch(warps=8)) == ()
    assert missed.notes == ("1 branch back into the middle of code: no natural loop, not listed",)
    assert missed.unplaced == missed.notes[0]


@pytest.mark.parametrize(("arch", "opcode", "said"), [
    ("sm_80", "HMMA.16816.F32.BF16", False), ("sm_90", "HMMA.16816.F32.BF16", True),
    ("sm_100", "IMMA.16832.S8.S8", True), ("sm_90", "DMMA.884", False), ("sm_90", "HGMMA.64x64x16.F32.BF16", False),
])
def test_mma_sync_may_not_reach_the_peak_that_it_counts_at(arch: str, opcode: str, said: bool) -> None:
    notes = loop(f"{opcode} R4, R8, R12, R4", arch=arch).notes
    assert any("counts at the tensor cores' peak" in note for note in notes) is said
