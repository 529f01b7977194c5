"""Tensor-core instructions: shape, formats and who issues one; from the opcode, or from tcgen05's descriptor.

Opcodes: as nvcc 13.0 compiled mma.sync, wgmma and tcgen05.mma of these shapes. Descriptors: PTX ISA 9.0, tables
"Instruction descriptor format": N / 8 at bit 17, M / 16 at bit 24, formats of A and B at bits 7 and 10.
"""

from __future__ import annotations

import pytest
from sass import function

from sublight.kernels.inspect.tensor import TensorKind, fallback, of_opcode, tensor_kinds


@pytest.mark.parametrize(("opcode", "shape", "a", "b", "issued_by"), [
    ("HMMA.16816.F32.BF16", (16, 8, 16), "bf16", "bf16", "warp"),
    ("HMMA.16816.F32", (16, 8, 16), "fp16", "fp16", "warp"),
    ("HMMA.16816.F16", (16, 8, 16), "fp16", "fp16", "warp"),
    ("HMMA.1688.F32.TF32", (16, 8, 8), "tf32", "tf32", "warp"),
    ("HMMA.SP.16832.F32.BF16", (16, 8, 32), "bf16", "bf16", "warp"),
    ("IMMA.16832.S8.S8", (16, 8, 32), "int8", "int8", "warp"),
    ("DMMA.884", (8, 8, 4), "fp64", "fp64", "warp"),
    ("DMMA.8x8x4", (8, 8, 4), "fp64", "fp64", "warp"),
    ("QMMA.16832.F32.E4M3.E4M3", (16, 8, 32), "fp8", "fp8", "warp"),
    ("QMMA.16832.F16.E4M3.E5M2", (16, 8, 32), "fp8", "fp8", "warp"),
    ("QMMA.SF.16832.F32.E4M3.E4M3.E8", (16, 8, 32), "fp8", "fp8", "warp"),
    ("QMMA.16832.F32.E2M1.E3M2", (16, 8, 32), "fp4", "fp6", "warp"),
    ("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X", (16, 8, 64), "fp4", "fp4", "warp"),
    ("HGMMA.64x256x16.F32.BF16", (64, 256, 16), "bf16", "bf16", "warpgroup"),
    ("HGMMA.64x8x16.F32", (64, 8, 16), "fp16", "fp16", "warpgroup"),
    ("HGMMA.64x8x8.F32.TF32", (64, 8, 8), "tf32", "tf32", "warpgroup"),
    ("QGMMA.64x128x32.F32.E5M2.E4M3", (64, 128, 32), "fp8", "fp8", "warpgroup"),
    ("IGMMA.64x8x32.S8.U8", (64, 8, 32), "int8", "int8", "warpgroup"),
])
def test_an_opcode_says_it_all(opcode: str, shape: tuple[int, int, int], a: str, b: str, issued_by: str) -> None:
    kind = of_opcode(opcode)
    assert (kind.shape, kind.a, kind.b, kind.issued_by, kind.unknown) == (shape, a, b, issued_by, None)
    assert kind.flops == 2 * shape[0] * shape[1] * shape[2]
    assert kind.sparse == ("SP" in opcode)


def test_a_shape_that_is_not_spelled_is_unknown() -> None:
    assert of_opcode("HMMA.FROB.F32.BF16").flops is None
    assert of_opcode("HMMA.FROB.F32.BF16").unknown


def tcgen05(opcode: str, *before: str) -> TensorKind:
    lines = [*before, f"{opcode} gdesc[UR6], gdesc[UR4], tmem[UR9], tmem[UR36], idesc[UR37], UPT", "EXIT"]
    (kind,) = tensor_kinds(function("\n".join(lines), arch="sm_100")).values()
    return kind


@pytest.mark.parametrize(("opcode", "descriptor", "title", "blocks"), [
    ("UTCHMMA", 256 // 8 << 17 | 128 // 16 << 24 | 1 << 4 | 1 << 7 | 1 << 10, "UTCHMMA 128x256x16 bf16", 1),
    ("UTCHMMA", 64 // 8 << 17 | 128 // 16 << 24 | 1 << 4, "UTCHMMA 128x64x16 fp16", 1),
    ("UTCHMMA", 128 // 8 << 17 | 64 // 16 << 24 | 1 << 4 | 2 << 7 | 2 << 10, "UTCHMMA 64x128x8 tf32", 1),
    ("UTCHMMA.2CTA", 256 // 8 << 17 | 256 // 16 << 24 | 1 << 4, "UTCHMMA 256x256x16 fp16", 2),
    ("UTCQMMA", 128 // 8 << 17 | 128 // 16 << 24 | 1 << 4, "UTCQMMA 128x128x32 fp8", 1),
    ("UTCQMMA", 128 // 8 << 17 | 128 // 16 << 24 | 1 << 4 | 5 << 10, "UTCQMMA 128x128x32 fp8 x fp4", 1),
    ("UTCQMMA", 256 // 8 << 17 | 1 << 23 | 128 // 128 << 27, "UTCQMMA 128x256x32 fp8", 1),          # block scales
    ("UTCIMMA", 128 // 8 << 17 | 128 // 16 << 24 | 2 << 4 | 1 << 7 | 1 << 10, "UTCIMMA 128x128x32 int8", 1),
    ("UTCOMMA", 256 // 8 << 17 | 1 << 23 | 128 // 128 << 27 | 1 << 7 | 1 << 10, "UTCOMMA 128x256x64 fp4", 1),
])
def test_a_descriptor_says_it_all(opcode: str, descriptor: int, title: str, blocks: int) -> None:
    kind = tcgen05(opcode, "UMOV UR36, 0x0", f"UMOV UR37, {descriptor:#x}")
    assert (kind.title, kind.blocks, kind.issued_by, kind.unknown) == (title, blocks, "thread", None)


@pytest.mark.parametrize("before", [
    (),                                                              # whatever the caller left
    ("R2UR UR37, R5",),                                              # from a register
    ("UMOV UR37, 0x8410490", "UIADD3 UR37, UR37, 0x1, URZ"),         # changed since
    ("UMOV UR37, 0x8410490", "LDCU.64 UR36, c[0x0][0x380]"),         # overwritten by the half of a pair
    ("UMOV UR37, 0x8410490", "@UP0 UMOV UR37, 0x8200490"),           # perhaps changed
    ("UMOV UR37, 0x8410490", "@P0 BRA .L_0", "UMOV UR37, 0x8200490", ".L_0:"),     # another one on each path
    ("@P0 BRA .L_0", "UMOV UR37, 0x8200490", ".L_0:"),               # set on one path alone
    (".L_0:", "@P0 BRA .L_1", "UMOV UR37, 0x8200490", "BRA .L_0", ".L_1:"),        # set by an iteration, if any
    ("UMOV UR37, 0x0",),                                             # no descriptor that PTX defines
])
def test_a_descriptor_that_is_not_one_constant_is_unknown(before: tuple[str, ...]) -> None:
    kind = tcgen05("UTCHMMA", *before)
    assert (kind.shape, kind.flops, kind.rate) == (None, None, None)
    assert kind.unknown



def test_one_constant_on_every_path_is_read() -> None:
    kind = tcgen05("UTCHMMA", "UMOV UR37, 0x8400490", "@P0 BRA .L_0", "UMOV UR37, 0x8400490", "UMOV UR38, 0x1", ".L_0:")
    assert kind.title == "UTCHMMA 128x256x16 bf16"


@pytest.mark.parametrize(("opcode", "arch", "form", "expected"), [
    ("HMMA.16816.F32.BF16", "sm_80", None, None),
    ("HMMA.16816.F32.BF16", "sm_90a", None, "HMMA for bf16 on sm_90: HGMMA is what the format deserves"),
    ("HGMMA.64x256x16.F32.BF16", "sm_90a", None, None),
    ("HGMMA.64x256x16.F32", "sm_90a", "fp8", "HGMMA for fp8 on sm_90: QGMMA is what the format deserves"),
    ("IMMA.16832.S8.S8", "sm_100a", None, "IMMA for int8 on sm_100: UTCIMMA is what the format deserves"),
    ("IMMA.16832.S8.S8", "sm_103a", None, None),                     # its tcgen05 takes no int8
    ("QMMA.16832.F32.E2M1.E2M1", "sm_120a", None, "QMMA for fp4 on sm_120: OMMA is what the format deserves"),
    ("QMMA.16832.F32.E4M3.E2M1", "sm_120a", None, None),             # the wider one decides
    ("HMMA.16816.F32.BF16", "sm_75", None, None),                    # not in the catalog
])
def test_a_fallback_is_less_than_a_format_deserves(opcode: str, arch: str, form: str | None,
                                                   expected: str | None) -> None:
    assert fallback(of_opcode(opcode), arch, form) == expected
