"""This file knows about the CSV of `nsys stats`: kernels with how often they ran and how long, without a time line.

    nsys stats --report cuda_gpu_kern_sum --format csv run.nsys-rep > kernels.csv

    Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name

Also by grid (cuda_gpu_kern_gb_sum has GridXYZ and BlockXYZ), in other units (--timeunit), of old versions (Average,
Minimum, Maximum, without medians), and among other reports and lines that nsys prints. Columns are told by their names.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sublight.errors import InputError
from sublight.observe.kernel_name import classify
from sublight.result import Result

TOOL = "nsys stats"
HEAD = re.compile(r'^"?Time ?\(%\)"?,"?Total Time(?: \(([mnuμµ]?s(?:ec)?)\))?"?,"?Instances"?,.*\bName"?\s?$', re.M)
UNIT_NS = {"ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "μs": 10**3, "µs": 10**3, "ms": 10**6, "msec": 10**6,
           "s": 10**9, "sec": 10**9}
MEDIAN, LEAST, MOST = ("Med",), ("Min", "Minimum"), ("Max", "Maximum")
MOST_RUNS, LONGEST_NS = 10**15, 10**18       # of what a file may say


@dataclass(frozen=True, slots=True)
class KernelSum:
    """One kernel of the file. grid: as the file writes it; empty where it does not say."""

    name: str
    runs: int
    total_ns: int
    median_ns: float | None
    least_ns: float | None
    most_ns: float | None
    grid: str = ""

    @property
    def each_ns(self) -> float:
        """Mean of one run."""
        return self.total_ns / self.runs


@dataclass(frozen=True, slots=True)
class KernelSums:
    """Kernels of a file, those that take longest first; notes: what could not be read."""

    rows: tuple[KernelSum, ...]
    notes: tuple[str, ...] = ()

    @property
    def total_ns(self) -> int:
        return sum(row.total_ns for row in self.rows)


def is_kernel_sums(text: str) -> bool:
    """Does a text hold such a table?

    >>> is_kernel_sums("Time (%),Total Time (ns),Instances,Avg (ns),Name"), is_kernel_sums("Time (%),Num Calls,Name")
    (True, False)
    """
    return HEAD.search(text) is not None


def read(text: str) -> KernelSums:
    """All tables of kernel sums in a text. The same kernel in several tables (of several reports, or printed twice) is
    kept apart: what belongs together, nobody says. Raises InputError where there is none, or none of its rows can be
    read."""
    rows, bad, tables = list[KernelSum](), 0, 0
    for head in HEAD.finditer(text):
        tables += 1
        columns = _cells(head[0])
        for cells in _rows(text[head.end():]):
            row = _row(dict(zip(columns, cells, strict=False)), UNIT_NS[head[1] or "ns"]) \
                if len(cells) == len(columns) else None
            bad += row is None
            rows += [row] if row else []
    if not rows:
        raise InputError(f"no row of the kernel sums can be read ({bad} tried); expected what nsys stats --report "
                         "cuda_gpu_kern_sum --format csv writes")
    notes = [f"{bad} rows could not be read; left out"] if bad else []
    notes += [f"{tables} tables of kernel sums in one file: added up"] if tables > 1 else []
    return KernelSums(tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name))), tuple(notes))


def without(text: str) -> str:
    """A text without its tables of kernel sums: what else somebody pasted."""
    out, at = [], 0
    for head in HEAD.finditer(text):
        out.append(text[at : head.start()])
        at = head.end() + 1 + sum(len(line) + 1 for line in _lines(text[head.end():]))
    return "\n".join([*out, text[at:]])


def _rows(text: str) -> Iterator[list[str]]:
    """The cells of a table's lines."""
    return map(_cells, _lines(text))


def _lines(text: str) -> Iterator[str]:
    """Lines up to an empty one or what nsys says next."""
    for line in text.removeprefix("\r").removeprefix("\n").split("\n"):
        if not line.strip() or line.startswith(("Processing [", "Generating SQLite", "Time")):
            return
        yield line


def _cells(line: str) -> list[str]:
    """Of one line; none where it is not CSV."""
    try:
        return next(csv.reader([line.strip()]), [])
    except csv.Error:
        return []


def _row(said: Mapping[str, str], unit_ns: int) -> KernelSum | None:
    """None where a number is none."""
    by_word = {name.split(" (")[0].strip(): value.strip() for name, value in said.items()}
    runs, total = _number(by_word.get("Instances")), _number(by_word.get("Total Time"))
    if not runs or total is None or runs != int(runs) or runs > MOST_RUNS or not by_word.get("Name"):
        return None
    median, least, most = (next((_number(by_word[word]) for word in words if word in by_word), None)
                           for words in (MEDIAN, LEAST, MOST))
    if total * unit_ns > LONGEST_NS:
        return None
    median, least, most = (None if x is None else x * unit_ns for x in (median, least, most))
    return KernelSum(by_word["Name"], int(runs), round(total * unit_ns), median, least, most,
                     " ".join(by_word.get("GridXYZ", "").split()))


def _number(text: str | None) -> float | None:
    """No less than nothing."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def results(sums: KernelSums, source: str) -> list[Result]:
    """Of each kernel the mean time of a run: what two recordings of different length can be compared by."""
    out = []
    for name, rows in _by_name(sums).items():
        runs, total = sum(row.runs for row in rows), sum(row.total_ns for row in rows)
        median = rows[0].median_ns if len(rows) == 1 else None
        what = "collective time" if classify(name).category == "communication" else "kernel time"     # it waits, too
        out.append(Result(what, "s", (total / runs / 1e9,), variant=name, source=source,
                          percentiles={} if median is None else {50.0: median / 1e9},
                          about={"tool": TOOL, "samples": runs}))
    return out


def _by_name(sums: KernelSums) -> dict[str, list[KernelSum]]:
    out: dict[str, list[KernelSum]] = {}
    for row in sums.rows:
        out.setdefault(row.name, []).append(row)
    return out
