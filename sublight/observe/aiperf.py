"""This file knows about results of AIPerf and GenAI-Perf: profile_export_aiperf.json (metric -> unit, avg,
percentiles) and profile_export.jsonl (a request a line).

Both define inter_token_latency of a request as (latency - time to first token) / (tokens - 1), so it is a "TPOT" here.
Schema: ai-dynamo/aiperf, docs of exports, and GenAI-Perf's JSON, which has the same names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sublight.observe.json_values import Values, finite, model_name
from sublight.result import Result

NAMES = {"time_to_first_token": "TTFT", "inter_token_latency": "TPOT", "request_latency": "latency",
         "time_to_second_token": "time to second token", "request_throughput": "requests/s",
         "output_token_throughput": "tokens/s", "output_token_throughput_per_user": "tokens/s/user",
         "total_token_throughput": "total tokens/s", "goodput": "goodput"}
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
UNITS = {"requests/s": "1/s", "goodput": "1/s", "tokens/s": "tokens/s", "tokens/s/user": "tokens/s",
         "total tokens/s": "tokens/s"}


def is_aiperf(raw: Mapping[str, Any]) -> bool:
    """The summary of a run."""
    return any(isinstance(raw.get(name), dict) and "avg" in raw[name] for name in NAMES)


def is_record(raw: Mapping[str, Any]) -> bool:
    """A line of profile_export.jsonl."""
    return isinstance(raw.get("metadata"), dict) and isinstance(raw.get("metrics"), dict)


def results(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """Results of one summary, means with percentiles, and what was left out."""
    values, notes, made = Values(raw), list[str](), list[Result]()
    about = _about(values, run)
    if about.get("failed"):
        notes.append(f"{about['failed']} requests failed; they are in no figure")
    if raw.get("was_cancelled") is True or raw.get("is_complete") is False:
        notes.append("the run was cancelled or is not complete")
    for key, name in NAMES.items():
        held = values.part(key)
        if not held.raw:
            continue
        scale, unit = _scale(name, held.raw.get("unit"))
        mean = held.number("avg")
        marks = {float(mark[1:]): value * scale for mark in held.raw
                 if re.fullmatch(r"p\d+", mark) and (value := held.number(mark)) is not None}
        notes += [f"{name}: {note}" for note in held.notes()]
        if mean is not None and scale:
            made.append(Result(name, unit, (mean * scale,), source=source, percentiles=marks, about=about))
        else:
            notes.append(f"{name}: no mean, or a unit that is not known; left out")
    return made, notes


def _scale(name: str, unit: Any) -> tuple[float, str]:
    if name in UNITS:
        return 1.0, UNITS[name]
    return SECONDS.get(str(unit or "ms"), 0.0), "s"


def _about(values: Values, run: int) -> dict[str, Any]:
    """Workload; of input_config, which holds headers and paths, only these."""
    config = values.part("input_config")
    endpoint, load = config.part("endpoint"), config.part("loadgen")
    stimulus = config.part("perf_analyzer").part("stimulus")
    names = endpoint.raw.get("model_names") or config.raw.get("model_names")
    said = {"tool": "aiperf", "run": run, "model": model_name(names),
            "concurrency": load.whole("concurrency") or stimulus.whole("concurrency"),
            "rate": load.number("request_rate"), "version": values.word("aiperf_version"),
            "isl": values.part("input_sequence_length").number("avg"),
            "osl": values.part("output_sequence_length").number("avg"),
            "completed": values.part("request_count").whole("avg"),
            "failed": values.part("error_request_count").whole("avg")}
    return {name: value for name, value in said.items() if value is not None}


def of_records(rows: Sequence[Mapping[str, Any]], source: str) -> tuple[list[Result], list[str]]:
    """Results with a sample a request, from lines of profile_export.jsonl. Errors and warm-up are left out, counted."""
    samples: dict[str, list[float]] = {}
    lengths: dict[str, list[float]] = {"isl": [], "osl": []}
    failed = warm = 0
    for row in rows:
        if row.get("error") or row["metadata"].get("was_cancelled"):
            failed += 1
        elif row["metadata"].get("benchmark_phase") == "warmup":
            warm += 1
        else:
            _one(row["metrics"], samples, lengths)
    about: dict[str, Any] = {"tool": "aiperf", "run": 1, "completed": len(rows) - failed - warm, "failed": failed}
    about |= {name: sum(held) / len(held) for name, held in lengths.items() if held}
    notes = [f"{failed} of {len(rows)} requests failed or were cancelled; left out"] if failed else []
    notes += [f"{warm} requests of the warm-up are left out"] if warm else []
    return [Result(name, UNITS.get(name, "s"), tuple(held), source=source, about=about)
            for name, held in samples.items()], notes


def _one(metrics: Mapping[str, Any], samples: dict[str, list[float]], lengths: dict[str, list[float]]) -> None:
    for key, held in metrics.items():
        value = finite(held.get("value")) if isinstance(held, dict) else None
        if value is None:
            continue
        if key in NAMES:
            scale, _ = _scale(NAMES[key], held.get("unit"))
            if scale:
                samples.setdefault(NAMES[key], []).append(value * scale)
        elif key in ("input_sequence_length", "output_sequence_length"):
            lengths["isl" if key.startswith("input") else "osl"].append(value)
