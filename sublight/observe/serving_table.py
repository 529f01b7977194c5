"""This file knows about the tables that serving benchmarks print: "Serving Benchmark Result" of vLLM and SGLang, and
the lines of `vllm bench throughput` and `vllm bench latency`.

A table is read into the keys of the JSON that the same benchmark writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sublight.observe import serving_results
from sublight.result import Result

ROW = re.compile(r"^[\s>|]*(?P<name>[A-Z][^:|]{2,60}?):\s+(?P<value>[\d.,]+|inf|not set|[\w-]+)\s*\|?\s*$")
HEAD = re.compile(r"=+ ?(?:Serving|Burstiness|Offline Throughput) ?Benchmark Result ?=+")
RULE = re.compile(r"^\s*[=-]{5,}.*[=-]{4,}\s*$")
LONGEST = 160                            # letters of a row of the table
KEYS = {
    "successful requests": "completed", "failed requests": "failed", "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency", "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate", "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens", "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput", "input token throughput (tok/s)": "input_throughput",
    "output token throughput (tok/s)": "output_throughput", "total token throughput (tok/s)": "total_token_throughput",
    "request goodput (req/s)": "request_goodput", "accept length": "accept_length",
    "acceptance length": "spec_decode_acceptance_length",
}
ALSO = {"total generated tokens (retokenized)", "peak output token throughput (tok/s)", "peak concurrent requests",
        "concurrency", "backend", "total input text tokens", "acceptance rate (%)", "drafts", "draft tokens",
        "accepted tokens", "starting request rate"}
METRIC = re.compile(r"(?P<kind>Mean|Median|Std|Max|P\d+(?:\.\d+)?) (?P<name>TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)")
THROUGHPUT = re.compile(r"Throughput: (?P<requests>[\d.]+) requests/s, (?P<total>[\d.]+) (?:total )?tokens/s"
                        r"(?:, (?P<output>[\d.]+) output tokens/s)?")
LATENCY = re.compile(r"Avg latency: (?P<seconds>[\d.]+) seconds")


def read(lines: Sequence[str], source: str) -> tuple[list[list[Result]], list[str], set[int]]:
    """Results of each table, what was left out, and the numbers (from 0) of the lines."""
    made, notes, taken = list[list[Result]](), list[str](), set[int]()
    for run, (raw, numbers) in enumerate(_tables(lines), 1):
        results, more = serving_results.results(raw, source, run)
        made.append(results)
        notes += more
        taken |= numbers
    for number, line in enumerate(lines):
        if (results := _offline(line, source, len(made) + 1)):
            made.append(results)
            taken.add(number)
    return made, notes, taken


def _tables(lines: Sequence[str]) -> Iterator[tuple[dict[str, object], set[int]]]:
    """Keys of each table. A second one begins with a head, or where a key comes again."""
    raw: dict[str, object] = {}
    numbers: set[int] = set()
    for number, line in enumerate(lines):
        if "Benchmark Result" in line and HEAD.search(line):
            if _is_table(raw):
                yield raw, numbers
            raw, numbers = {}, {number}
            continue
        row = ROW.match(line) if ":" in line and len(line) < LONGEST else None
        name = row["name"].strip().lower() if row is not None else ""
        metric = METRIC.fullmatch(row["name"].strip()) if row is not None else None
        key = _metric_key(metric) if metric is not None else KEYS.get(name)
        if row is None or (key is None and name not in ALSO):
            if raw and RULE.match(line):
                numbers.add(number)
            continue
        if key in raw:
            if _is_table(raw):
                yield raw, numbers
            raw, numbers = {}, set()
        numbers.add(number)
        if key is not None:
            raw[key] = row["value"].replace(",", "") if row["value"] != "not set" else None
    if _is_table(raw):
        yield raw, numbers


def _metric_key(match: re.Match[str]) -> str:
    return f"{match['kind'].lower()}_{match['name'].lower().replace(' ', '_')}_ms"


def _is_table(raw: dict[str, object]) -> bool:
    """One line that looks like one is none."""
    return sum(key in raw for key in ("completed", "duration", "request_throughput", "output_throughput",
                                      "mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms")) >= 2


def _offline(line: str, source: str, run: int) -> list[Result]:
    """Of benchmark_throughput and benchmark_latency."""
    about = {"tool": "vllm bench throughput", "run": run}
    if "Throughput: " in line and (match := THROUGHPUT.search(line)) is not None:
        made = [("requests/s", "1/s", match["requests"]), ("total tokens/s", "tokens/s", match["total"]),
                ("tokens/s", "tokens/s", match["output"])]
        return [Result(name, unit, (float(value.rstrip(".")),), source=source, about=about)
                for name, unit, value in made if value]
    if "Avg latency: " in line and (match := LATENCY.search(line)) is not None:
        return [Result("batch latency", "s", (float(match["seconds"].rstrip(".")),), source=source,
                       about={"tool": "vllm bench latency", "run": run})]
    return []
