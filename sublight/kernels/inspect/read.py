"""This file knows about files and folders with GPU code: which of them are read, and what was left out."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sublight.errors import InputError
from sublight.kernels.inspect import cubin, fatbin, ptx, sass, tools, triton_cache
from sublight.kernels.inspect.code import Function, Launch, Unit
from sublight.kernels.inspect.elf import MAGIC as ELF
from sublight.observe.source import label

LIKELY = {".cubin", ".ptx", ".fatbin", ".so", ".o", ".bin", ""}      # in a folder; a file that is named is always read
EXPECTED = "expected a cubin, PTX, a fatbin, a program or library with CUDA code, or a folder of them"
MOST_FILES = 20_000
LARGEST_LISTING = 1 << 28        # bytes of a .sass file beside a cubin

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """Units in the order of their names, and how many files or entries were left out, by reason."""

    units: tuple[Unit, ...]
    skipped: tuple[tuple[str, int], ...] = ()


def units(path: str | Path) -> tuple[Unit, ...]:
    """The code in a file or a folder, with its instructions where a tool can read them."""
    return found(path).units


def found(path: str | Path, *, instructions: bool = True, progress: Progress | None = None) -> Found:
    """The code in a file or a folder (with all below it).

    instructions: disassemble; without a tool, or with one that cannot, functions say so in `missing`.
    Raises InputError where a named file is none of those or damaged, or a folder has none."""
    place = Path(path)
    if place.is_dir():
        return _folder(place, instructions, progress)
    out: list[Unit] = []
    skipped: Counter[str] = Counter()
    for unit, why in _file(place, label(str(path)), instructions):
        if unit is None:
            skipped[why] += 1
        else:
            out.append(unit)
    if not any(unit.functions for unit in out):
        skipped["without kernels"] += len(out)
        reasons = "; ".join(f"{count} x {why}" for why, count in skipped.items())
        raise InputError(f"{label(str(path))} holds no code that can be read ({reasons}); {EXPECTED}")
    return Found(tuple(out), tuple(sorted(skipped.items())))


def _folder(place: Path, instructions: bool, progress: Progress | None) -> Found:
    files = sorted(file for file in place.rglob("*") if file.is_file())
    if len(files) > MOST_FILES:
        raise InputError(f"{label(str(place))} holds {len(files):,} files; expected at most {MOST_FILES:,}")
    out: list[Unit] = []
    skipped: Counter[str] = Counter()
    for done, file in enumerate(files):
        if progress:
            progress(done, len(files))
        why = _needless(file)
        if why:
            skipped[why] += 1
            continue
        try:
            for unit, reason in _file(file, str(file.relative_to(place)), instructions):
                if unit is None:
                    skipped[reason] += 1
                else:
                    out.append(unit)
        except InputError as error:
            skipped[_shortly(error, file)] += 1
    if not out:
        raise InputError(f"{label(str(place))} holds no GPU code in {len(files):,} files; {EXPECTED}")
    return Found(tuple(out), tuple(sorted(skipped.items())))


def _needless(file: Path) -> str:
    """Why a file of a folder is not opened; empty: it is."""
    if file.suffix in triton_cache.QUIET or (".so." not in file.name and file.suffix not in LIKELY):
        return "no GPU code by its name"
    if file.suffix == ".ptx" and file.with_suffix(".cubin").exists():
        return "PTX of a cubin beside it"
    return ""


def _shortly(error: InputError, file: Path) -> str:
    """A reason without the file's name, so that equal ones can be counted."""
    text = str(error)
    if "damaged or cut short" in text:
        return "damaged or cut short"
    if "AMD" in text:
        return "code for AMD GPUs"
    return "not GPU code" if file.suffix in ("", ".so", ".o", ".bin") or ".so." in file.name else "not readable as such"


def _file(file: Path, name: str, instructions: bool) -> Iterator[tuple[Unit | None, str]]:
    """Units of one file; with None: why one was left out."""
    launch = triton_cache.launch_of(file) or Launch()
    try:
        with file.open("rb") as stream:
            head = stream.read(1 << 16)
            if not head:
                raise InputError(f"{name} is empty; {EXPECTED}")
            if (head[:4] == ELF and not cubin.is_cubin(head)) or fatbin.is_fatbin(head):
                with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole:
                    yield from _entries(whole, name, instructions)
                return
            data = head + stream.read()
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None
    yield replace(_unit(data, name, instructions, file.with_suffix(".sass")), launch=launch), ""


def _entries(whole: mmap.mmap, name: str, instructions: bool) -> Iterator[tuple[Unit | None, str]]:
    """Units of a fatbin, or of those inside a program."""
    entries = fatbin.entries(whole, name) if fatbin.is_fatbin(whole) else fatbin.inside(whole, name)
    for number, entry in enumerate(entries, 1):
        if entry.data is None:
            yield None, f"{entry.kind} entry: {entry.missing}"
            continue
        try:
            unit = _unit(entry.data, f"{name}, {entry.kind} {number}", instructions)
        except InputError:                           # one that is damaged must not cost the others
            yield None, f"{entry.kind} entry that is damaged"
            continue
        if unit.functions:
            yield unit, ""
        else:
            yield None, f"{entry.kind} entry without kernels"


def _unit(data: bytes, name: str, instructions: bool, beside: Path | None = None) -> Unit:
    """A cubin or PTX. beside: where a listing of it may lie, for machines without nvdisasm."""
    if cubin.is_cubin(data):
        unit = cubin.read_cubin(data, name)
        return _with_instructions(unit, data, beside) if instructions else unit
    if ptx.is_ptx(data):
        return ptx.read_ptx(data, name)
    if data[:8] == b"!<arch>\n":
        raise InputError(f"{name} is an archive of objects; expected the objects (ar x {name})")
    if data[:4] == ELF:
        cubin.read_cubin(data, name)                 # says which machine it is for, or how it is damaged
    raise InputError(f"{name} holds no GPU code: it begins with {data[:8]!r}; {EXPECTED}")


def _with_instructions(unit: Unit, image: bytes, beside: Path | None) -> Unit:
    """The unit with its instructions, from nvdisasm, else from a listing beside the file."""
    why = "not in what nvdisasm printed"
    try:
        text = tools.disassembly(image)
    except tools.UnreadableError as error:
        text, why = "", str(error)
        if beside is not None and beside.is_file() and beside.stat().st_size <= LARGEST_LISTING:
            text, why = beside.read_text("utf-8", "replace"), "the listing beside it is of other code"
    return replace(unit, functions=_listed(unit, text, why, cubin.code_bytes(image) if text else {}))


def _listed(unit: Unit, text: str, why: str, sizes: dict[str, int]) -> tuple[Function, ...]:
    """Functions with their instructions, where the listing has as much code of each as the file."""
    listing = sass.disassembled(text)
    functions = []
    for function in unit.functions:
        instructions, labels = listing.get(function.name, ((), ()))
        last = instructions[-1].address if instructions else -1
        step = instructions[1].address - instructions[0].address if len(instructions) > 1 else 16
        if last + step == sizes.get(function.name):
            functions.append(replace(function, instructions=instructions, labels=labels))
        else:
            functions.append(replace(function, missing=why))
    return tuple(functions)
