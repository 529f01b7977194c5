"""This file knows about files of results: which benchmark or log wrote one, told by its content, and its Results.

    read_results(path)   the Results of a file: of a benchmark (JSON, JSONL, the table it prints) or of an engine's log
    read(path)           the same, with what was repaired or left out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublight.errors import InputError
from sublight.observe import aiperf, benchmarks, guidellm, kernel_sums, serving_results, serving_table, trtllm_bench
from sublight.observe.json_values import documents
from sublight.observe.logs import read as logs_of
from sublight.observe.source import Damage, label, open_bytes
from sublight.result import Result

MOST_BYTES = 2 << 30                     # of text in one file
EXPECTED = ("expected JSON of vllm bench serve, sglang bench_serving (JSONL), AIPerf, GenAI-Perf, GuideLLM, trtllm-"
            "bench, pytest-benchmark or Google Benchmark, the table that a serving benchmark prints, the CSV of kernel "
            "sums of nsys stats, or a log of vLLM, SGLang, TensorRT-LLM, Megatron or torchtitan")
Reader = Callable[[Mapping[str, Any], str, int], tuple[list[Result], list[str]]]
READERS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Reader], ...] = (
    (guidellm.is_guidellm, guidellm.results), (benchmarks.is_pytest, benchmarks.of_pytest),
    (benchmarks.is_google, benchmarks.of_google),
    (aiperf.is_aiperf, aiperf.results), (trtllm_bench.is_trtllm_bench, trtllm_bench.results),
    (serving_results.is_serving, serving_results.results),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Results of one file or text, with what was repaired or left out, in words."""

    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()


def read_results(path: str | Path) -> tuple[Result, ...]:
    """The Results of a file, gzip, zstd or zip packed or not; - is standard input.

    Raises InputError where nothing of it is known: it says what was expected.
    """
    return read(path).results


def read(path: str | Path) -> Reading:
    """As read_results, with notes."""
    name = label(str(path))
    text, damage = text_of(str(path))
    found = from_text(text, source=name)
    if damage.cut_short:
        found = Reading(found.results, (*found.notes, "the packed file is cut or damaged; what can be had was read"))
    return found


def text_of(path: str) -> tuple[str, Damage]:
    """A file's text. Raises InputError where it cannot be opened, is empty, or holds bytes that are no text."""
    damage, blocks, size = Damage(), list[bytes](), 0
    try:
        for block in open_bytes(path, damage):
            size += len(block)
            if size > MOST_BYTES:
                raise InputError(f"{label(path)} has more than {MOST_BYTES >> 30} GiB of text; name a part of it")
            blocks.append(block)
    except InputError as error:
        if "is empty" in str(error):
            raise InputError(f"{label(path)} is empty; {EXPECTED}") from None
        raise
    data = b"".join(blocks)
    if b"\0" in data[:4096]:
        raise InputError(f"{label(path)} is no text; {EXPECTED}")
    return data.decode("utf-8", errors="replace").removeprefix("\ufeff"), damage


def from_text(text: str, *, source: str = "text") -> Reading:
    """The Results of a text. Raises InputError where nothing of it is known."""
    if kernel_sums.is_kernel_sums(text):
        sums = kernel_sums.read(text)
        return Reading(tuple(kernel_sums.results(sums, source)), sums.notes)
    found = of_json(text, source) if text.lstrip()[:1] in ("{", "[") else None
    if found is None:
        found = _of_lines(text, source)
    if not found.results:
        raise InputError(f"{source}: nothing that is known in it; {EXPECTED}")
    return found


def of_json(text: str, source: str) -> Reading | None:
    """Of JSON documents; None where they are of no benchmark that is known."""
    rows, broken, cut = documents(text)
    held = [row for row in rows if isinstance(row, dict)]
    notes = [f"{broken} lines are no JSON; left out"] if broken else []
    notes += ["the file ends in the middle; what was whole before is read"] if cut else []
    records = [row for row in held if aiperf.is_record(row)]
    if records:
        made, more = aiperf.of_records(records, source)
        return Reading(tuple(made), (*notes, *more))
    results, unknown = list[Result](), 0
    several = len(held) > 1
    for run, row in enumerate(held, 1):
        reader = next((read_one for fits, read_one in READERS if fits(row)), None)
        if reader is None:
            unknown += 1
            continue
        made, more = reader(row, source, run)
        results += made
        notes += [f"run {run}: {note}" if several else note for note in more]
    notes += [f"{unknown} of {len(held)} documents are of no benchmark that is known; left out"] if unknown else []
    notes += _versions(results)
    return Reading(tuple(results), tuple(notes)) if results else None


def _versions(results: list[Result]) -> list[str]:
    """A file that was appended to by different versions says so."""
    tools = sorted({f"{r.about.get('tool')} {r.about.get('server', r.about).get('version', '')}".strip()
                    for r in results if r.about.get("tool")})
    return [f"runs of different tools or versions in one file: {', '.join(tools)}"] if len(tools) > 1 else []


def _of_lines(text: str, source: str) -> Reading:
    """Of the tables and log lines of a text."""
    lines = text.splitlines()
    tables, notes, taken = serving_table.read(lines, source)
    logs, more = logs_of.read(lines)
    made = [result for table in tables for result in table]
    for log in logs:
        found, said = logs_of.results(log, source)
        made += found
        notes += said
    if made and (rest := sum(bool(line.strip()) for line in lines) - len(taken | more)) > 0:
        notes.append(f"{rest} other lines say nothing that is read here")
    return Reading(tuple(made), tuple(notes))
