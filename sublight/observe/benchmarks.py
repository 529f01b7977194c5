"""This file knows about results of micro-benchmarks: JSON of pytest-benchmark and of Google Benchmark.

pytest-benchmark: --benchmark-json (with --benchmark-save-data every round is there); times are seconds.
Google Benchmark: --benchmark_format=json; times in time_unit; with --benchmark_repetitions one row a repetition, and
rows of aggregates, which are read only where the repetitions are not there (--benchmark_report_aggregates_only).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sublight.observe.json_values import Values, plain
from sublight.result import Result

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
QUANTILES = {"min": 0.0, "q1": 25.0, "median": 50.0, "q3": 75.0, "max": 100.0}


def is_pytest(raw: Mapping[str, Any]) -> bool:
    rows = raw.get("benchmarks")
    return isinstance(rows, list) and any(isinstance(row, dict) and "stats" in row for row in rows)


def is_google(raw: Mapping[str, Any]) -> bool:
    rows = raw.get("benchmarks")
    return isinstance(rows, list) and any(isinstance(row, dict) and ("real_time" in row or "error_occurred" in row)
                                          for row in rows)


def of_pytest(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """One Result a test: all rounds, or the mean with quartiles."""
    machine = Values(raw).part("machine_info")
    about = _present({"tool": "pytest-benchmark", "run": run, "version": Values(raw).word("version"),
                      "python": machine.word("python_version"), "cpu": machine.part("cpu").word("brand_raw"),
                      "started": Values(raw).moment("datetime")})
    made, notes = list[Result](), list[str]()
    for number, row in enumerate(held for held in raw["benchmarks"] if isinstance(held, dict)):
        stats, name = Values(row).part("stats"), plain(row.get("name")) or f"benchmark {number + 1}"
        marks = {mark: value for key, mark in QUANTILES.items() if (value := stats.number(key)) is not None}
        rounds = tuple(value for value in stats.numbers("data") if value is not None)
        mean = stats.number("mean")
        samples = rounds or (() if mean is None else (mean,))
        more = _present({"rounds": stats.whole("rounds"), "iterations": stats.whole("iterations")})
        made.append(Result("time", "s", samples, variant=name, source=source, percentiles=marks if samples else {},
                           failure=None if samples else "no time in the file", about={**about, **more}))
        notes += [f"{name}: {note}" for note in stats.notes()]
    return made, notes


def of_google(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """One Result a benchmark: a sample a repetition."""
    context = Values(raw).part("context")
    about = _present({"tool": "google benchmark", "run": run, "cpus": context.whole("num_cpus"),
                      "version": context.word("library_version"), "build": context.word("library_build_type"),
                      "started": context.moment("date")})
    notes = ["the benchmark library was built for debugging: its times are no measure"] \
        if about.get("build") == "debug" else []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(held for held in raw["benchmarks"] if isinstance(held, dict)):
        name = plain(row.get("run_name") or row.get("name")) or f"benchmark {number + 1}"
        groups.setdefault(name, []).append(row)
    made = []
    for name, rows in groups.items():
        result, more = _google(name, rows, source, about)
        made.append(result)
        notes += more
    return made, notes


def _google(name: str, rows: list[Mapping[str, Any]], source: str, about: dict[str, Any]) -> tuple[Result, list[str]]:
    single = [row for row in rows if row.get("run_type") != "aggregate"]
    failed = sum(bool(row.get("error_occurred")) for row in rows)
    times = [_time(row) for row in single if not row.get("error_occurred")]
    samples = tuple(value for value in times if value is not None)
    whole = {str(row.get("aggregate_name")): _time(row) for row in rows if row.get("run_type") == "aggregate"}
    if not samples and (mean := whole.get("mean")) is not None:
        samples = (mean,)
    median = whole.get("median")
    notes = [f"{name}: {failed} repetitions failed; left out"] if failed else []
    lost = len(times) - sum(value is not None for value in times)
    notes += [f"{name}: {lost} repetitions say no time, or an unknown unit; left out"] if lost else []
    iterations = Values(single[0]).whole("iterations") if single else None
    return Result("time", "s", samples, variant=name, source=source, failure=None if samples else "no time in the file",
                  percentiles={} if median is None else {50.0: median},
                  about=about | _present({"iterations": iterations})), notes


def _time(row: Mapping[str, Any]) -> float | None:
    value, unit = Values(row).number("real_time"), UNITS.get(str(row.get("time_unit", "ns")))
    return None if value is None or unit is None or value < 0 else value * unit


def _present(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
