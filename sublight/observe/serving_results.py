"""This file knows about results of serving benchmarks: JSON of `vllm bench serve` (one document, or one a line where it
appends) and JSONL of `python -m sglang.bench_serving`.

Keys: vllm/benchmarks/serve.py and sglang/bench_serving.py. Both name metrics {mean,median,std,p99 …}_{ttft,tpot,itl,
e2el}_ms (SGLang: e2e_latency), and keep lists of requests where they are asked to (--save-detailed, --output-details).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sublight.observe.json_values import Values, model_name
from sublight.result import Result

METRIC = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "latency", "e2e_latency": "latency"}
RATES = {"request_throughput": ("requests/s", "1/s"), "output_throughput": ("tokens/s", "tokens/s"),
         "input_throughput": ("input tokens/s", "tokens/s"), "total_token_throughput": ("total tokens/s", "tokens/s"),
         "total_throughput": ("total tokens/s", "tokens/s"), "request_goodput": ("goodput", "1/s")}
ACCEPTED = ("spec_decode_acceptance_length", "accept_length")
# Of SGLang's server_info, which holds everything the server was started with, keys among it: these alone are read.
SERVER = ("version", "tp_size", "dp_size", "pp_size", "ep_size", "mem_fraction_static", "max_running_requests",
          "max_total_num_tokens", "chunked_prefill_size", "attention_backend", "kv_cache_dtype", "quantization",
          "disable_cuda_graph", "disable_radix_cache", "enable_dp_attention", "speculative_algorithm",
          "speculative_num_draft_tokens", "moe_a2a_backend", "context_length", "page_size")
SGLANG_ONLY = {"server_info", "random_input_len", "random_range_ratio", "sharegpt_output_len", "total_throughput",
               "total_output_tokens_retokenized", "accept_length", "mean_e2e_latency_ms"}


def is_serving(raw: Mapping[str, Any]) -> bool:
    """A result of one of the two, of any version."""
    return any(METRIC.fullmatch(key) for key in raw) or (
        "request_throughput" in raw and "duration" in raw and not isinstance(raw["request_throughput"], dict))


def results(raw: Mapping[str, Any], source: str, run: int) -> tuple[list[Result], list[str]]:
    """Results of one run and what was left out."""
    values = Values(raw)
    sglang = bool(SGLANG_ONLY & raw.keys())
    about = _about(values, "sglang bench_serving" if sglang else "vllm bench serve", run)
    lists, notes = requests(values)
    completed, failed = about.get("completed"), about.get("failed")
    if failed:
        notes.append(f"{failed} of {(completed or 0) + failed} requests failed; they are in no figure")
    failure = f"none of {failed or about.get('requests', '?')} requests completed" if completed == 0 else None
    made = []
    for name, (marks, mean) in _metrics(values).items():
        samples = lists.get(name) or (() if mean is None else (mean,))
        if failure or samples:
            made.append(Result(name, "s", () if failure else tuple(samples), failure=failure, source=source,
                               percentiles={} if failure else marks, about=about))
    made += [Result(name, unit, () if failure else (value,), failure=failure, source=source, about=about)
             for key, (name, unit) in RATES.items() if (value := values.number(key)) is not None]
    accepted = next((value for key in ACCEPTED if (value := values.number(key)) is not None), None)
    if accepted is not None:
        made.append(Result("acceptance length", "tokens", (accepted,), source=source, about=about))
    missing = [name for name in ("TTFT", "TPOT", "tokens/s") if name not in {result.name for result in made}]
    if missing:
        notes.append(f"the file says no {', '.join(missing)}")
    return made, [*notes, *values.notes()]


def _about(values: Values, tool: str, run: int) -> dict[str, Any]:
    """Workload and environment, by names of our own."""
    raw = values.raw
    said: dict[str, Any] = {"tool": tool, "run": run, "model": model_name(raw.get("model_id") or raw.get("model")),
                            "backend": values.word("backend") or values.word("endpoint_type"),
                            "requests": values.whole("num_prompts"), "concurrency": values.whole("max_concurrency"),
                            "completed": values.whole("completed"), "failed": values.whole("failed"),
                            "duration": values.number("duration"), "dataset": values.word("dataset_name"),
                            "started": values.moment("date")}
    rate = raw.get("request_rate")
    said["rate"] = values.number("request_rate") if rate not in ("inf", float("inf"), -1) else None
    if rate in ("inf", float("inf"), -1):
        said["all_at_once"] = True
    done = said["completed"] or 0
    for name, keys in (("isl", ("total_input_tokens",)), ("osl", ("total_output_tokens",))):
        total = next((values.number(key) for key in keys if key in raw), None)
        if total is not None and done > 0:
            said[name] = total / done
    said |= {name: values.whole(key) for name, key in (("nominal_isl", "random_input_len"),
                                                       ("nominal_osl", "random_output_len")) if key in raw}
    server = values.part("server_info")
    held = {key: value for key in SERVER if (value := _setting(server.raw.get(key))) is not None}
    if held:
        said["server"] = held
    return {name: value for name, value in said.items() if value is not None}


def _setting(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return value if isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,40}", value) else None


def _metrics(values: Values) -> dict[str, tuple[dict[float, float], float | None]]:
    """By name: percentiles and the mean, in seconds."""
    out: dict[str, tuple[dict[float, float], float | None]] = {}
    for key in values.raw:
        match = METRIC.fullmatch(key)
        value = values.number(key) if match else None
        if match is None or value is None:
            continue
        marks, mean = out.get(NAMES[match[2]], ({}, None))
        if match[1] == "mean":
            mean = value / 1e3
        else:
            marks[50.0 if match[1] == "median" else float(match[1][1:])] = value / 1e3
        out[NAMES[match[2]]] = marks, mean
    return out


def requests(values: Values) -> tuple[dict[str, list[float]], list[str]]:
    """Samples of requests by name, where the file has lists of them; failed requests are left out and counted."""
    ttfts, outputs = values.numbers("ttfts"), values.numbers("output_lens")
    errors, gaps = values.raw.get("errors"), values.raw.get("itls")
    latencies = values.numbers("latencies")
    count = len(ttfts)
    if not count:
        return {}, []
    lists: dict[str, list[float]] = {"TTFT": [], "TPOT": [], "ITL": [], "latency": []}
    failed = 0
    for at in range(count):
        error = errors[at] if isinstance(errors, list) and at < len(errors) else ""
        tokens = outputs[at] if at < len(outputs) else None
        first = ttfts[at]
        if error or tokens == 0 or first is None:
            failed += 1
            continue
        steps = _finite_list(gaps[at]) if isinstance(gaps, list) and at < len(gaps) else []
        latency = latencies[at] if at < len(latencies) else first + sum(steps) if steps else None
        lists["TTFT"].append(first)
        lists["ITL"] += steps
        if latency is not None:
            lists["latency"].append(latency)
            if tokens is not None and tokens > 1:
                lists["TPOT"].append((latency - first) / (tokens - 1))
    notes = [f"{failed} of {count} listed requests failed or say no time; left out of the samples"] if failed else []
    lengths = {len(held) for held in (ttfts, outputs, latencies) if held}
    if len(lengths) > 1:
        notes.append(f"lists of requests have different lengths ({min(lengths)} to {max(lengths)}): a cut file?")
    return {name: held for name, held in lists.items() if held}, notes


def _finite_list(held: Any) -> list[float]:
    if not isinstance(held, list):
        return []
    return [float(value) for value in held
            if isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e9]
