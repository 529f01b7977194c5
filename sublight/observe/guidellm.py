"""This file knows about results of GuideLLM: benchmarks.json, one benchmark for each load of a sweep.

    {"metadata": {"guidellm_version": …}, "benchmarks": [{"config": {"strategy": {"type_": "concurrent", "streams": 8}},
     "metrics": {"time_to_first_token_ms": {"successful": {"mean": …, "percentiles": {"p50": …}}}, …}}]}

Schema: guidellm 0.8.1, guidellm/benchmark/schemas. Its inter_token_latency_ms of a request leaves the first token out,
so it is a "TPOT" here; its time_per_output_token_ms counts the first token's wait, and is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.observe.json_values import Values
from sublight.result import Result

NAMES = {                                # what it calls them -> name, unit, scale, whether percentiles are of requests
    "time_to_first_token_ms": ("TTFT", "s", 1e-3, True), "inter_token_latency_ms": ("TPOT", "s", 1e-3, True),
    "request_latency": ("latency", "s", 1.0, True), "requests_per_second": ("requests/s", "1/s", 1.0, False),
    "output_tokens_per_second": ("tokens/s", "tokens/s", 1.0, False),
    "tokens_per_second": ("total tokens/s", "tokens/s", 1.0, False),
}
MARKS = {"p001": 0.1, "p01": 1.0, "p05": 5.0, "p10": 10.0, "p25": 25.0, "p50": 50.0, "p75": 75.0, "p90": 90.0,
         "p95": 95.0, "p99": 99.0, "p999": 99.9}


def is_guidellm(raw: Mapping[str, Any]) -> bool:
    """A whole report."""
    held = raw.get("benchmarks")
    return isinstance(held, list) and any(
        isinstance(one, dict) and isinstance(one.get("metrics"), dict) and not NAMES.keys().isdisjoint(one["metrics"])
        for one in held)


def results(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """Results of every benchmark of a report, means over successful requests, and what was left out."""
    version = Values(raw).part("metadata").word("guidellm_version")
    made, notes = list[Result](), list[str]()
    several = len(raw["benchmarks"]) > 1
    for number, one in enumerate(raw["benchmarks"]):
        found, said = _one(Values(one if isinstance(one, dict) else {}), version, source, run + number)
        made += found
        notes += [f"benchmark {number + 1}: {note}" for note in said] if several else said
    return made, notes


def _one(values: Values, version: str | None, source: str, run: int) -> tuple[list[Result], list[str]]:
    metrics, made, notes = values.part("metrics"), list[Result](), list[str]()
    about = _about(values, version, run)
    if about.get("failed"):
        notes.append(f"{about['failed']} requests failed; they are in no figure")
    for key, (name, unit, scale, of_requests) in NAMES.items():
        held = metrics.part(key).part("successful")
        mean = held.number("mean")
        marks = held.part("percentiles")
        notes += [f"{name}: {note}" for note in held.notes()]
        if mean is None or not held.number("count"):
            notes.append(f"the file says no {name}")
            continue
        percentiles = {at: value * scale for mark, at in MARKS.items() if (value := marks.number(mark)) is not None}
        made.append(Result(name, unit, (mean * scale,), source=source, about=about,
                           percentiles=percentiles if of_requests else {}))
    return made, notes


def _about(values: Values, version: str | None, run: int) -> dict[str, Any]:
    """Load and counts; targets, keys and data of the scenario are not read."""
    metrics = values.part("metrics")
    config = values.part("config")
    strategy = (config if config.raw else values.part("args")).part("strategy")          # args: of older versions
    totals = metrics.part("request_totals")
    kind = strategy.word("type_")
    said = {
        "tool": "guidellm", "version": version, "run": run,
        "concurrency": 1 if kind == "synchronous" else strategy.whole("streams"),
        "all_at_once": True if kind == "throughput" else None, "rate": strategy.number("rate"),
        "isl": metrics.part("prompt_token_count").part("successful").number("mean"),
        "osl": metrics.part("output_token_count").part("successful").number("mean"),
        "completed": totals.whole("successful"), "failed": totals.whole("errored"),
        "started": values.number("start_time"), "duration": values.number("duration"),
    }
    return {name: value for name, value in said.items() if value is not None}
