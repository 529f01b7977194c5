"""SASS as text: what nvdisasm and cuobjdump print becomes instructions and labels.

Lines are as nvdisasm 13.1 and 13.5 and cuobjdump 13.0 print them; the code is ours.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublight.kernels.inspect.code import Instruction
from sublight.kernels.inspect.sass import disassembled

NVDISASM = """\
\t.headerflags\t@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
\t.elftype\t@"ET_EXEC"


//--------------------- .text.first             --------------------------
\t.section\t.text.first,"ax",@progbits
\t.sectionflags\t@"SHF_BARRIERS=1"
\t.align\t128
        .global         first
        .type           first,@function
        .size           first,(.L_x_5 - first)
        .other          first,@"STO_CUDA_ENTRY STV_DEFAULT"
first:
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/              @!P2 LDG.E.128 R8, desc[UR6][R6.64+0x10] ;
        /*0020*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24].tnspB, R24, gsb0 ;
        /*0030*/             @!UP1 UIADD3 UR16, UP1, UPT, UR32, 0x80, URZ ;
        /*0040*/              @!P0 BRA P1, `(.L_x_2) ;
        /*0050*/                   EXIT ;
.L_x_5:


//--------------------- .nv.shared.first          --------------------------
\t.section\t.nv.shared.first,"aw",@nobits
\t.align\t16

//--------------------- .text._Z6secondPf         --------------------------
\t.section\t.text._Z6secondPf,"ax",@progbits
_Z6secondPf:
.text._Z6secondPf:
\t//## File "/home/someone/kernels/second.cu", line 12
        /*0000*/                   BRX R4 -0x10                (*"BRANCH_TARGETS .L_x_0,.L_x_1"*);
\t//## File "/home/someone/kernels/inner.cuh", line 7 inlined at "/home/someone/kernels/second.cu", line 13
.L_x_0:
        /*0010*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div) ;
.L_x_1:
        /*0020*/                   EXIT ;
        .weak           $__internal_0_$__cuda_sm20_div
        .type           $__internal_0_$__cuda_sm20_div,@function
$__internal_0_$__cuda_sm20_div:
        /*0030*/                   RET.REL.NODEC R2 `(_Z6secondPf) ;
"""


def test_instructions_have_predicate_opcode_and_operands() -> None:
    code = disassembled(NVDISASM)["first"].instructions
    assert code[0] == Instruction(0, None, "LDC", ("R1", "c[0x0][0x28]"))
    assert code[1] == Instruction(0x10, "@!P2", "LDG.E.128", ("R8", "desc[UR6][R6.64+0x10]"))
    assert code[2].operands == ("R24", "gdesc[UR24].tnspB", "R24", "gsb0")
    assert code[3] == Instruction(0x30, "@!UP1", "UIADD3", ("UR16", "UP1", "UPT", "UR32", "0x80", "URZ"))
    assert code[4] == Instruction(0x40, "@!P0", "BRA", ("P1", "`(.L_x_2)"))
    assert code[2].name == "HGMMA"


def test_labels_stand_at_the_next_instruction_and_the_last_at_the_end() -> None:
    found = disassembled(NVDISASM)
    assert found["first"].labels == ((".L_x_2", 0x10), (".L_x_5", 0x60))
    assert found["_Z6secondPf"].labels == (
        (".L_x_0", 0x10), (".L_x_1", 0x20), ("$__internal_0_$__cuda_sm20_div", 0x30))


def test_functions_are_sections_of_text_and_nothing_else() -> None:
    assert list(disassembled(NVDISASM)) == ["first", "_Z6secondPf"]


def test_an_indirect_branch_keeps_its_targets() -> None:
    code = disassembled(NVDISASM)["_Z6secondPf"].instructions
    assert code[0].operands == ("R4 -0x10", '(*"BRANCH_TARGETS .L_x_0,.L_x_1"*)')


def test_lines_are_the_innermost_and_without_folders() -> None:
    code = disassembled(NVDISASM)["_Z6secondPf"].instructions
    assert [one.line for one in code] == [("second.cu", 12), *[("inner.cuh", 7)] * 3]
    assert disassembled(NVDISASM)["first"].instructions[0].line is None


def test_encodings_are_not_code() -> None:
    text = """\
\t.section\t.text.f,"ax",@progbits
        /*0000*/                   MOV R1, c[0x0][0x28] ;                        /* 0x00000a0000017a02 */
                                                                                 /* 0x000fe40000000f00 */
        /*0010*/              @!PT LDS RZ, [RZ] ;                                /* 0x00000000fffff984 */
                                                                                 /* 0x000fe20000000800 */
"""
    code = disassembled(text)["f"].instructions
    assert [(one.address, one.predicate, one.opcode, one.operands) for one in code] == [
        (0, None, "MOV", ("R1", "c[0x0][0x28]")), (0x10, "@!PT", "LDS", ("RZ", "[RZ]"))]


def test_cuobjdump_says_function_and_addresses() -> None:
    text = """\
\tcode for sm_90
\t\tFunction : _Z1fPf
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;       /* 0x00000a00ff017b82 */
                                                                /* 0x000fc00000000800 */
        /*0010*/              @P0 BRA 0x0 ;                     /* 0xfffffffc00fc0947 */
\t\t..........
\t\tFunction : _Z1gPf
        /*0000*/                   EXIT ;                       /* 0x000000000000794d */
"""
    found = disassembled(text)
    assert list(found) == ["_Z1fPf", "_Z1gPf"]
    assert found["_Z1fPf"].instructions[1] == Instruction(0x10, "@P0", "BRA", ("0x0",))


@pytest.mark.parametrize("text", ["", "\n\n", "nvdisasm fatal : Invalid elf header", "\t.section\t.text.f,\"ax\"",
                                  '.section .text.f,"ax"\n/*zz*/ MOV ;\n/*0000*/ ;\n.L_x_0:\n'])
def test_text_without_code_has_none(text: str) -> None:
    assert all(not listing.instructions for listing in disassembled(text).values())


@given(st.text(alphabet=st.sampled_from("/*0af:. \t@!PRUL_x,;()[]{}`\"\n-MOV"), max_size=400))
def test_any_text_is_read_or_left(text: str) -> None:
    for listing in disassembled('\t.section\t.text.f,"ax"\n' + text).values():
        assert all(one.opcode for one in listing.instructions)
