"""This file knows about measurement files of communication: which format a file has, told by its content, and how many
files become one tuple of Results.

Names of hosts are the point of these files and are kept where they are plain (letters, digits, dots, dashes and colons,
at most 64); any other becomes "node 3". Nothing else of a file's free text leaves a reader.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sublight.errors import InputError
from sublight.observe import deepep_log, nccl_inspector, nccl_tests, nccl_tests_json, pairwise
from sublight.observe.source import Damage, label, open_bytes
from sublight.result import Placement, Result

MOST_BYTES = 1 << 30                     # of text in one file
MOST_FILES = 100_000
PLAIN = re.compile(r"[A-Za-z0-9._:-]{1,64}")
Reader = Callable[[str, str], tuple[Result, ...]]
FORMATS: tuple[tuple[Callable[[str], bool], Reader], ...] = (
    (nccl_inspector.looks_like, nccl_inspector.read_inspector),
    (nccl_tests_json.looks_like, nccl_tests_json.read_json),
    (pairwise.looks_like, pairwise.read_pairwise),
    (nccl_tests.looks_like, nccl_tests.read_text),
    (deepep_log.looks_like, deepep_log.read_deepep),
)
EXPECTED = ("text or -J JSON of nccl-tests, NCCL Inspector JSON, output of DeepEP's tests, or a CSV of pairwise "
            "results (test,N,G,nodes,…,avg_bus_bw_GBs)")


@dataclass(frozen=True, slots=True)
class Measurements:
    """Results of all files, with how many were read and how many of a folder or archive were something else."""

    results: tuple[Result, ...]
    files: int
    not_read: int


def read_measurements(paths: Sequence[str]) -> Measurements:
    """Every Result of these files, folders, archives, or standard input (`-`). A file that is named and is of no known
    format is an error; in a folder or a zip of several it is counted and passed over. Raises InputError."""
    out: list[Result] = []
    files = not_read = 0
    for path in paths:
        alone = True
        found = 0
        for name, text, alone in _texts(path):
            results = read_one(text, name, must=alone)
            found += results is not None
            not_read += results is None
            out.extend(results or ())
        files += found
        if not found and not alone:
            raise InputError(f"{label(path)} holds no measurements; expected {EXPECTED}")
    if not out:
        raise InputError(f"no measurements in {', '.join(label(p) for p in paths[:3])}; expected {EXPECTED}")
    return Measurements(_plain_hosts(_once(out)), files, not_read)


def read_one(text: str, name: str, *, must: bool = True) -> tuple[Result, ...] | None:
    """The Results of one file's text; None for an unknown format unless it must be known."""
    for looks_like, reader in FORMATS:
        if looks_like(text):
            return reader(text, name)
    if not must:
        return None
    if not text.strip():
        raise InputError(f"{name} is empty; expected {EXPECTED}")
    raise InputError(f"{name} is of no known format; expected {EXPECTED}")


def _texts(path: str) -> Iterator[tuple[str, str, bool]]:
    """(name, text, whether it was named by itself) of what a path stands for."""
    place = Path(path)
    if path != "-" and place.is_dir():
        inside = [p for p in sorted(place.rglob("*"))[:MOST_FILES] if p.is_file() and not p.name.startswith(".")]
        for file in inside:
            for name, text, _ in _file(str(file), must=False):
                folder = file.parent.relative_to(place)        # tells rail0/a_b.log from rail1/a_b.log
                yield (folder / name).as_posix(), text, False
        if not inside:
            raise InputError(f"{label(path)} is an empty folder; expected {EXPECTED}")
        return
    yield from _file(path, must=True)


def _file(path: str, *, must: bool) -> Iterator[tuple[str, str, bool]]:
    name = label(path)
    if path != "-" and Path(path).is_file() and Path(path).stat().st_size == 0:
        if must:
            raise InputError(f"{name} is empty; expected {EXPECTED}")
        yield name, "", False
    elif path != "-" and Path(path).is_file() and zipfile.is_zipfile(path):
        yield from _archive(path, name, must=must)
    else:
        try:
            yield name, _whole(path, name), must
        except InputError as error:
            if must:
                raise InputError(str(error).replace("expected a PyTorch profiler "
                                                    "trace", f"expected {EXPECTED}")) from None
            yield name, "", False


def _whole(path: str, name: str) -> str:
    blocks, size = io.BytesIO(), 0
    for block in open_bytes(path, Damage()):
        size += len(block)
        if size > MOST_BYTES:
            raise InputError(f"{name} holds more than {MOST_BYTES >> 30} GiB of text; split it by communicator or by "
                             f"time")
        blocks.write(block)
    return blocks.getvalue().decode("utf-8", "replace")


def _archive(path: str, name: str, *, must: bool) -> Iterator[tuple[str, str, bool]]:
    """The files of a zip; of one that holds a single file, that file stands for it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [m for m in archive.infolist() if not m.is_dir() and "__MACOSX" not in m.filename
                       and not Path(m.filename).name.startswith(".")][:MOST_FILES]
            alone = must and len(members) == 1
            above = os.path.commonpath([Path("/", m.filename).parent for m in members]) if members else "/"
            left = MOST_BYTES
            for member in members:
                with archive.open(member) as file:
                    data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise InputError(f"{name} unpacks to more than {MOST_BYTES >> 30} GiB; name the files in it")
                inside = Path("/", member.filename).relative_to(above).as_posix()
                yield inside, data.decode("utf-8", "replace"), alone
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise InputError(f"{name} is a zip that cannot be read: {type(error).__name__}; unpack it first") from None


def _once(results: list[Result]) -> list[Result]:
    """A summary beside the logs that it sums up says nothing new: its rows go where a log has the same test."""
    def key(r: Result) -> tuple[object, ...]:
        assert r.message is not None
        assert r.placement is not None
        return r.message.collective, r.placement.gpus_per_node, frozenset(r.placement.hosts)

    logs = {key(r) for r in results if r.name == "time" and r.message and r.placement}
    logs |= {key(r) for r in results if r.failure and r.message and r.placement and r.placement.library}
    return [r for r in results if r.name != "average bus bandwidth" or not r.message or not r.placement
            or r.placement.library or key(r) not in logs]


def _plain_hosts(results: list[Result]) -> tuple[Result, ...]:
    """Host names that are not plain become numbers, the same for the same name."""
    names = dict.fromkeys(host for r in results if r.placement for host in r.placement.hosts)
    shown = {name: name if PLAIN.fullmatch(name) else f"node {i}" for i, name in enumerate(names)}
    kept: dict[Placement, Placement] = {}

    def plain(placement: Placement) -> Placement:
        if placement not in kept:
            kept[placement] = replace(placement, hosts=tuple(shown[host] for host in placement.hosts))
        return kept[placement]

    return tuple(replace(r, placement=plain(r.placement)) if r.placement and r.placement.hosts else r for r in results)
