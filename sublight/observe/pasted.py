"""This file knows about pasted text: an issue, a log, a command, a benchmark's summary, in any mix: what it contains.

    >>> held = recognise("vllm serve Qwen/Qwen3-8B -tp 2\\nwe use 2xH100 and get 900 tok/s")
    >>> held.launches[0].launch.plan.tp, held.gpus[0].count, held.figures[0].value, held.unread
    (2, 2, 900.0, ())
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublight.observe import pasted_commands, pasted_names, results, serving_table
from sublight.observe.logs import read as logs_of
from sublight.observe.logs.log import Log
from sublight.observe.logs.text import COLOURS
from sublight.observe.pasted_commands import Asked, Found
from sublight.observe.pasted_names import Figure, GpuName
from sublight.result import Result

MOST_BYTES = 64 << 20
VERSIONS = {"vllm": r"\bvllm(?:[- ](?:openai|version))?\s*(?:==|:v|[:=]|\bv)?\s*v?(\d+\.\d+(?:\.\d+)+[\w.]*)",
            "sglang": r"\bsglang(?:[- ]version)?\s*(?:==|:v|[:=]|\bv)?\s*v?(\d+\.\d+(?:\.\d+)+[\w.]*)",
            "trtllm": r"\btensorrt[-_ ]llm(?:[- ]version)?\s*(?:==|:v?|=)?\s*v?(\d+\.\d+(?:\.\d+)*[\w.]*)"}
NAMED = {"vllm": ("vllm", "vLLM", "VLLM"), "sglang": ("sglang", "SGLang", "SGLANG"),
         "trtllm": ("ensorrt", "ensorRT", "TENSORRT")}
TRAINS = re.compile(r"\b(?:megatron|torchtitan|nanogpt|nanochat|pre-?train\w*|train(?:s|ed|ing)?|MFU)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Pasted:
    """What a text contains. lines: those with something in them; unread: numbers (from 1) of those that say nothing
    that is read here.

    tables: Results of each benchmark summary, with the line where it begins (-1: the whole text is one file).
    """

    launches: tuple[Found, ...] = ()
    asked: tuple[Asked, ...] = ()
    logs: tuple[Log, ...] = ()
    tables: tuple[tuple[int, tuple[Result, ...]], ...] = ()
    gpus: tuple[GpuName, ...] = ()
    models: tuple[str, ...] = ()
    lengths: tuple[int | None, int | None] = (None, None)
    layout: Mapping[str, tuple[int, ...]] = field(default_factory=dict)     # that prose names: {"tp": (1, 2)}
    figures: tuple[Figure, ...] = ()
    trains: bool = False                 # it speaks of training
    lines: int = 0
    unread: tuple[int, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def empty(self) -> bool:
        """Nothing in it that an answer could be about."""
        return not (self.launches or self.asked or self.logs or self.tables or self.figures
                    or (self.gpus and self.models))


def recognise(text: str) -> Pasted:
    """What a text contains. It raises nothing: what is not known is counted."""
    if text.lstrip()[:1] in ("{", "["):
        reading = results.of_json(text, "standard input")
        if reading is not None:
            runs: dict[int, list[Result]] = {}
            for result in reading.results:
                runs.setdefault(result.about.get("run", 1), []).append(result)
            return Pasted(tables=tuple((-1, tuple(run)) for run in runs.values()), notes=reading.notes,
                          lines=sum(bool(line.strip()) for line in text.splitlines()))
    return _of_lines([COLOURS.sub("", line) for line in text.splitlines()])


def _of_lines(lines: Sequence[str]) -> Pasted:
    versions = _versions(lines)
    launches, asked, notes, taken = pasted_commands.commands(lines, versions)
    made, more, in_tables = serving_table.read(lines, "standard input")
    tables = _placed(made, in_tables)
    for number, line in enumerate(lines):        # JSON of a benchmark on one line, between other text
        reading = results.of_json(line, "standard input") if line.lstrip().startswith("{\"") else None
        if reading is not None:
            tables.append((number, reading.results))
            in_tables = in_tables | {number}
    tables.sort(key=lambda table: table[0])
    rest = [("" if number in taken or number in in_tables else line) for number, line in enumerate(lines)]
    logs, in_logs = logs_of.read(rest)
    gpus, named = pasted_names.all_gpus([line if number not in in_tables else "" for number, line in enumerate(lines)])
    prose = [(number, line) for number, line in enumerate(rest) if number not in in_logs and line.strip()]
    words = _prose(prose)
    versioned = {number for number, line in enumerate(lines) if any(_version_in(line, engine) for engine in VERSIONS)}
    known = taken | in_tables | in_logs | named | words.taken | versioned
    busy = [number for number, line in enumerate(lines) if re.search(r"\w", line) and "```" not in line]
    return Pasted(tuple(launches), tuple(asked), logs, tuple(tables), tuple(gpus), tuple(words.models),
                  words.lengths, {name: tuple(values) for name, values in words.layout.items()}, tuple(words.figures),
                  any(_trains(line) for line in lines), len(busy),
                  tuple(number + 1 for number in busy if number not in known), (*notes, *more))


def _trains(line: str) -> bool:
    return any(word in line for word in ("rain", "MFU", "egatron", "nano")) and TRAINS.search(line) is not None


def _placed(made: list[list[Result]], numbers: set[int]) -> list[tuple[int, tuple[Result, ...]]]:
    """Tables with the line where each begins: runs of neighbouring lines, in order."""
    starts = [number for number in sorted(numbers) if number - 1 not in numbers and number - 2 not in numbers]
    starts += [starts[-1] if starts else 0] * (len(made) - len(starts))
    return [(start, tuple(results)) for start, results in zip(starts, made, strict=False)]


def _versions(lines: Sequence[str]) -> dict[str, str]:
    """The first version that a text says of each engine."""
    out: dict[str, str] = {}
    for line in lines:
        for engine in VERSIONS:
            if engine not in out and (version := _version_in(line, engine)) is not None:
                out[engine] = version
    return out


def _version_in(line: str, engine: str) -> str | None:
    if not any(word in line for word in NAMED[engine]):
        return None
    match = re.search(VERSIONS[engine], line, re.IGNORECASE)
    return None if match is None else match[1].rstrip(".")


@dataclass
class _Words:
    """What prose names."""

    models: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    lengths: tuple[int | None, int | None] = (None, None)
    layout: dict[str, list[int]] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


def _prose(lines: Sequence[tuple[int, str]]) -> _Words:
    """Models, figures, sizes and lengths of what is neither command nor log."""
    out = _Words()
    for number, line in lines:
        models, figures = pasted_names.models(line), list(pasted_names.figures(line))
        isl, osl = pasted_names.lengths(line)
        layout = pasted_names.layout(line)
        out.models += [name for name in models if name not in out.models]
        out.figures += figures
        out.lengths = out.lengths[0] or isl, out.lengths[1] or osl
        for name, values in layout.items():
            out.layout.setdefault(name, []).extend(value for value in values if value not in out.layout.get(name, []))
        if models or figures or isl or osl or layout:
            out.taken.add(number)
    return out
