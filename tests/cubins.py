"""Cubins and fatbins: built by hand, kept for the docs, compiled here; and the commands that read them."""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from sublight.cli.kernel import compare, gate, inspect
from sublight.errors import InputError
from sublight.kernels.inspect import tools

EXAMPLES = Path(__file__).parent.parent / "docs/examples"
BEFORE, AFTER, FATBIN = (EXAMPLES / name for name in ("tiles_before.cubin", "tiles_after.cubin", "tiles.fatbin"))

# What cuobjdump -res-usage of CUDA 13.1 prints of the kept cubins: registers, stack, shared, constant bank 0.
RESOURCES = {
    "tiles_before.cubin": {"running_sums": (55, 0, 0, 548), "tile_product": (50, 0, 4096, 556)},
    "tiles_after.cubin": {"running_sums": (32, 208, 0, 548), "tile_product": (50, 0, 4096, 556)},
}


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """A `sublight kernel` command: its exit code, and what it printed or the error it gave."""
    parser = argparse.ArgumentParser()
    below = parser.add_subparsers()
    for command in (inspect, gate, compare):
        command.add(below)
    options = parser.parse_args([str(word) for word in words])
    try:
        code = options.run(options)
    except InputError as error:
        return 2, str(error)
    return code, capsys.readouterr().out


# ---- by hand


def attribute(code: int, *words: int) -> bytes:
    """One of .nv.info, with a sized value of 32-bit words."""
    return struct.pack("<BBH", 4, code, 4 * len(words)) + struct.pack(f"<{len(words)}I", *words)


def cubin(
    *, name: str = "f", flags: int = 0x6005A04, abi: int = 8, info: bytes = b"", own: bytes = b"", shared: int = 0,
    constant: int = 544, code: int = 256, code_info: int = 0, code_flags: int = 6, compat: bytes = b"",
    other: int = 0x10, machine: int = 190,
) -> bytes:
    """A cubin with one kernel, whose symbol has number 1. flags: ABI version 8, sm_90, by default."""
    symbols = b"\0" * 24 + struct.pack("<IBBHQQ", 1, 0x12, other, 5, 0, code)
    sections = [("", 0, 0, b"", 0, 0, 0), (".shstrtab", 3, 0, b"", 0, 0, 0),
                (".strtab", 3, 0, b"\0" + name.encode() + b"\0", 0, 0, 0), (".symtab", 2, 0, symbols, 0, 2, 1),
                (".nv.info", 0x70000000, 0, info, 0, 3, 0),
                (f".text.{name}", 1, code_flags, b"\0" * code, 0, 3, code_info),
                (f".nv.info.{name}", 0x70000000, 0, own, 0, 3, 5), (f".nv.shared.{name}", 8, 3, b"", shared, 0, 5),
                (f".nv.constant0.{name}", 1, 2, b"\0" * constant, 0, 0, 5)]
    if compat:
        sections.append((".nv.compat", 0x70000086, 0, compat, 0, 0, 0))
    return _elf(sections, machine=machine, flags=flags, os_abi=0x41 if abi == 8 else 0x33, abi=abi)


def program(**sections: bytes) -> bytes:
    """An x86-64 library with sections of these names."""
    rows = [("", 0, 0, b"", 0, 0, 0), (".shstrtab", 3, 0, b"", 0, 0, 0)]
    return _elf([*rows, *((name, 1, 2, content, 0, 0, 0) for name, content in sections.items())], machine=62)


Row = tuple[str, int, int, bytes, int, int, int]         # name, kind, flags, bytes, size where it has none, link, info


def _elf(sections: list[Row], *, machine: int, flags: int = 0, os_abi: int = 0, abi: int = 0) -> bytes:
    names, starts = b"", []
    for section in sections:
        starts.append(len(names))
        names += section[0].encode() + b"\0"
    sections[1] = (".shstrtab", 3, 0, names, 0, 0, 0)
    body, rows = b"", []
    for start, (_, kind, how, content, size, link, extra) in zip(starts, sections, strict=True):
        place = (64 + len(body), size or len(content))
        rows.append(struct.pack("<IIQQQQIIQQ", start, kind, how, 0, *place, link, extra, 1, 0))
        body += content
    head = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi]) + b"\0" * 7
    return head + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(rows), 1
                              ) + body + b"".join(rows)


def fatbin(*entries: tuple[int, int, int, bytes, int]) -> bytes:
    """A container. Entries: kind, architecture, flags, bytes, length unpacked (0: not packed)."""
    body = b""
    for kind, sm, flags, data, size in entries:
        padded = data + b"\0" * (-len(data) % 8)
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), len(data) if size else 0, 0, 8, 1, sm, 0,
                            0, flags, 0, size) + padded
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(body)) + body


# ---- compiled here


def nvcc(source: str, folder: Path, *options: str) -> None:
    """Compile CUDA source; the test skips where there is no nvcc."""
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    (folder / "source.cu").write_text(source, "utf-8")
    subprocess.run(["nvcc", "-O3", *options, str(folder / "source.cu")], check=True, capture_output=True, cwd=folder)


def cuobjdump(*options: str | Path, cwd: Path | None = None, check: bool = True) -> str:
    """What it prints; the test skips where there is none."""
    if not tools.places("cuobjdump"):
        pytest.skip("needs cuobjdump: triton brings one")
    done = subprocess.run([tools.find("cuobjdump"), *options], capture_output=True, text=True, check=check, cwd=cwd)
    return done.stdout


def usage(path: Path) -> dict[str, tuple[int, int, int, int]]:
    """Registers, stack, shared and constant bank 0 of each function, as cuobjdump -res-usage tells them."""
    row = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:\d+ (.*)")
    return {name: (int(registers), int(stack), int(shared), _bank(rest))
            for name, registers, stack, shared, rest in row.findall(cuobjdump("-res-usage", path))}


def _bank(rest: str) -> int:
    found = re.search(r"CONSTANT\[0\]:(\d+)", rest)
    return int(found[1]) if found else 0


def arch(path: Path) -> str:
    """As cuobjdump -elf tells it: the newest format, or the old one."""
    found = re.search(r"\bsm=(\d+[af]?)", cuobjdump("-elf", path, check=False))     # fails in 13.5's line tables
    assert found, f"cuobjdump tells no architecture of {path.name}"
    return f"sm_{found[1]}"


def needs_nvdisasm() -> None:
    if not tools.places("nvdisasm"):
        pytest.skip("needs nvdisasm: triton brings one")


