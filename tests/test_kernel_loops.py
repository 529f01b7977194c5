"""Loop verdicts of real kernels against a count that knows nothing of our code: lines of the listing, and arithmetic.

The table of docs/kernel-loops.md is that count. Here each kernel is compiled again; what the table counts is counted in
the listing's text between the loop's addresses, its arithmetic is done, and the verdict must say the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from sublight.errors import InputError
from sublight.kernels.inspect import tools
from sublight.kernels.inspect.binding import LoopVerdict, loops_of
from sublight.kernels.inspect.code import Function, Launch
from sublight.kernels.inspect.mix import mix_of
from sublight.kernels.inspect.sass import disassembled

pytestmark = pytest.mark.heavy

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "kernel-loops.md"
CUDA = HERE / "loop_kernels.cu"
TRITON, NVCC = "3.7.1", "13.0"                                       # that the page was counted with


class Row(NamedTuple):
    """A row of the page's table."""

    kernel: str
    arch: str
    compiler: str
    warps: int
    start: int
    end: int
    instructions: int
    cells: tuple[str, ...]               # tensor, issue, another pipe: "4 HGMMA · 524288 · 8 / 4 / 4096 = 1024"
    binds: str
    limit: str


def page_rows() -> list[Row]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"^\| `\w+` \| sm_", line)]
    out = []
    for line in lines:
        kernel, arch, compiler, warps, span, count, *cells, binds, limit = map(str.strip, line.strip("| ").split("|"))
        start, end = (int(part, 16) for part in span.split(" to "))
        out.append(Row(kernel.strip("`"), arch, compiler, int(warps), start, end, int(count), tuple(cells), binds,
                       limit))
    return out


ROWS = page_rows()


# ---- compiled here ---------------------------------------------------------------------------------------------------

@cache
def listing(kernel: str, arch: str, compiler: str) -> str:
    """What nvdisasm prints of one kernel."""
    image = triton_image(kernel, arch) if compiler == "Triton" else nvcc_image(arch)
    text = nvdisasm(image)
    return next(part for part in re.split(r"(?=^\s*\.section\s)", text, flags=re.MULTILINE)
                if part.lstrip().startswith(f".section\t.text.{kernel},"))


def triton_image(kernel: str, arch: str) -> bytes:
    triton = pytest.importorskip("triton")
    if triton.__version__ != TRITON:
        pytest.skip(f"counted with Triton {TRITON}, this is {triton.__version__}")
    import loop_kernels

    return loop_kernels.cubin(kernel, int(arch.removeprefix("sm_")))


@cache
def nvcc_image(arch: str) -> bytes:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    if f"release {NVCC}" not in said:
        pytest.skip(f"counted with nvcc {NVCC}")
    suffix = {"sm_90": "a", "sm_100": "a", "sm_120": "a"}.get(arch, "")
    done = subprocess.run([nvcc, f"-arch={arch}{suffix}", "-O3", "-cubin", "-o", "/dev/stdout", str(CUDA)],
                          capture_output=True, check=True)
    return done.stdout


def nvdisasm(image: bytes) -> str:
    try:
        tools.find("nvdisasm")
    except InputError:
        pytest.skip("no nvdisasm here")
    return tools.disassembly(image)


def function(row_kernel: str, arch: str, compiler: str) -> Function:
    found = disassembled(listing(row_kernel, arch, compiler))[row_kernel]
    return Function(row_kernel, arch, None, found.instructions, found.labels)


# ---- counted in the text ---------------------------------------------------------------------------------------------

CODE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@\S+\s+)?([A-Z][A-Za-z0-9_.]*)(.*)$")


class Counted(NamedTuple):
    """Opcodes between two addresses, and those of them that a forward branch may skip."""

    always: list[str]
    behind: list[str]                    # of skipped stretches with tensor-core instructions


def counted(text: str, start: int, end: int) -> Counted:
    lines: list[tuple[int, str, str]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if found := CODE.match(line):
            address = int(found[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting = []
            if start <= address <= end:
                lines.append((address, found[3], found[4]))
        elif found := re.match(r"^(\.L_\w+):", line):
            waiting.append(found[1])
    skipped: set[int] = set()
    for address, opcode, rest in lines:
        to = re.search(r"`\((\.L_\w+)\)", rest)
        if opcode.startswith("BRA") and to and address < labels[to[1]] <= end:
            skipped |= {a for a, _, _ in lines if address < a < labels[to[1]]}
    behind = [opcode for address, opcode, _ in lines if address in skipped]
    with_tensor = behind if any("MMA" in opcode for opcode in behind) else []
    return Counted([opcode for address, opcode, _ in lines if address not in skipped], with_tensor)


def matches(opcode: str, wanted: str) -> bool:
    """HGMMA, or with modifiers: HGMMA.64x64x16."""
    return opcode == wanted or opcode.startswith(f"{wanted}.")


def arithmetic(cell: str, count: Counted) -> float:
    """The value of a cell's expression, after every count in it was found in the listing."""
    pipe, _, rest = cell.rpartition(": ")
    expression, _, value = rest.rpartition(" = ")
    both = [*count.always, *count.behind]
    for number, word in re.findall(r"(\d+) ([A-Za-z][\w.]*)", expression):
        found = {"instructions": len(count.always), "behind": len(count.behind)}.get(
            word, sum(1 for opcode in both if matches(opcode, word)))
        assert int(number) == found, f"{pipe}: {word}"
    plain = re.sub(r"(\d+) [A-Za-z][\w.]*", r"\1", expression).replace("·", "*")
    assert re.fullmatch(r"[\d+*/(). ]+", plain), plain
    result = float(eval(plain))
    assert result == float(value), cell
    return result


def verdict_of(row: Row) -> LoopVerdict:
    verdicts = loops_of(function(row.kernel, row.arch, row.compiler), Launch(warps=row.warps))
    return next(verdict for verdict in verdicts if verdict.start == row.start)


def test_the_page_counts_kernels_enough() -> None:
    assert len(ROWS) >= 6
    assert len({row.arch for row in ROWS}) >= 3
    assert {row.binds for row in ROWS} >= {"tensor", "issue"}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.kernel}-{row.arch}" for row in ROWS])
def test_a_verdict_says_what_the_count_by_hand_says(row: Row) -> None:
    count = counted(listing(row.kernel, row.arch, row.compiler), row.start, row.end)
    verdict = verdict_of(row)
    assert (verdict.start, verdict.end) == (row.start, row.end)
    assert verdict.instructions == row.instructions == len(count.always)
    clocks = {}
    for pipe, cell in zip(("tensor", "issue", None), row.cells, strict=True):
        if cell != "none":
            name = pipe or cell.split(":")[0]
            clocks[name] = arithmetic(cell, count)
            assert verdict.clocks_of(name) == clocks[name], name
    assert verdict.binds == row.binds == max(clocks, key=lambda name: clocks[name])
    limit = None if "tensor" not in clocks else clocks["tensor"] / max(clocks.values())
    assert verdict.tensor_limit == limit
    assert row.limit == ("none" if limit is None else f"{100 * limit:.0f} %")


# ---- what stands in the listing and what the kernel's author meant ---------------------------------------------------

def test_spills_are_in_the_loop_that_spills_and_a_stack_array_is_told_apart() -> None:
    spills = [v for v in loops_of(function("spilling_loop", "sm_90", "nvcc"), Launch(warps=32)) if v.mix.spill_loads]
    assert len(spills) == 1
    assert spills[0].spill_stores > 20
    array = mix_of(function("stack_array", "sm_90", "nvcc"))
    assert (array.array_loads, array.array_stores) == (1, 1)


@pytest.mark.parametrize(("arch", "kind", "deserves"), [
    ("sm_90", "HMMA 16x8x16 fp16", "QGMMA"), ("sm_100", "HMMA 16x8x16 fp16", "UTCQMMA"),
    ("sm_120", "QMMA 16x8x32 fp8", None),
])
def test_mma_sync_of_fp8_is_a_fallback_where_tensor_cores_take_fp8_otherwise(arch: str, kind: str,
                                                                            deserves: str | None) -> None:
    (use,) = mix_of(function("mma_fp8", arch, "nvcc")).tensor
    assert use.kind.title == kind
    assert (use.deserves is None) if deserves is None else (f"{deserves} is what" in str(use.deserves))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.kernel}-{row.arch}" for row in ROWS])
def test_every_opcode_of_these_kernels_is_known(row: Row) -> None:
    assert mix_of(function(row.kernel, row.arch, row.compiler)).unknown == ()
