"""This file knows about the report of `trtllm-bench … --report_json FILE`.

    {"engine": {…}, "world_info": {"tp_size": …}, "request_info": {"avg_input_length": …}, "performance":
     {"system_output_throughput_tok_s": …, "request_latency_percentiles_ms": {"p50": …}}, "streaming_metrics":
     {"avg_ttft_ms": …, "avg_tpot_ms": …}}

Keys: tensorrt_llm/bench/dataclasses/reporting.py. Without --streaming there is neither TTFT nor TPOT.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sublight.observe.json_values import Values, model_name
from sublight.result import Result

# part, key -> name, unit, scale, key of the percentiles
FIGURES = {
    ("streaming_metrics", "avg_ttft_ms"): ("TTFT", "s", 1e-3, "ttft_percentiles"),
    ("streaming_metrics", "avg_tpot_ms"): ("TPOT", "s", 1e-3, "tpot_percentiles"),
    ("performance", "avg_request_latency_ms"): ("latency", "s", 1e-3, "request_latency_percentiles_ms"),
    ("performance", "request_throughput_req_s"): ("requests/s", "1/s", 1.0, None),
    ("performance", "system_output_throughput_tok_s"): ("tokens/s", "tokens/s", 1.0, None),
    ("performance", "system_total_throughput_tok_s"): ("total tokens/s", "tokens/s", 1.0, None),
}
SERVER = ("tp_size", "pp_size", "ep_size", "max_batch_size", "max_num_tokens", "kv_cache_percentage")
ENGINE = ("version", "backend", "dtype", "kv_cache_dtype", "quantization")


def is_trtllm_bench(raw: Mapping[str, Any]) -> bool:
    """A report of any backend."""
    held = raw.get("performance")
    return isinstance(held, dict) and "system_output_throughput_tok_s" in held


def results(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """Results of one report, means with percentiles, and what was left out."""
    values, made, notes = Values(raw), list[Result](), list[str]()
    about = _about(values, run)
    parts = {part: values.part(part) for part, _ in FIGURES}
    for (part, key), (name, unit, scale, marks) in FIGURES.items():
        mean = parts[part].number(key)
        if mean is None:
            if parts[part].raw:
                notes.append(f"the file says no {name}")
            continue
        held = parts[part].part(marks) if marks else Values({})
        percentiles = {float(mark[1:]): value * scale for mark in held.raw
                       if re.fullmatch(r"p\d+", mark) and (value := held.number(mark)) is not None}
        notes += [f"{name}: {note}" for note in held.notes()]
        made.append(Result(name, unit, (mean * scale,), source=source, percentiles=percentiles, about=about))
    for held in parts.values():
        notes += held.notes()
    return made, notes


def _about(values: Values, run: int) -> dict[str, Any]:
    """Load and settings; paths of the engine and of the dataset are not read."""
    requests, world, engine = (values.part(name) for name in ("request_info", "world_info", "engine"))
    held: list[tuple[str, str | float | None]] = [(name, engine.word(name)) for name in ENGINE]
    held += [(name, world.number(name)) for name in SERVER]
    server = {name: value for name, value in held if value is not None}
    said = {"tool": "trtllm-bench", "run": run, "model": model_name(engine.raw.get("model")), "server": server or None,
            "requests": requests.whole("num_requests"), "isl": requests.number("avg_input_length"),
            "osl": requests.number("avg_output_length")}
    return {name: value for name, value in said.items() if value is not None}
