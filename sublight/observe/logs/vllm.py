"""This file knows about lines of vLLM's log.

Sources: vllm/v1/metrics/loggers.py (0.8 to 0.33), vllm/engine/metrics.py (before: "Pending", "Swapped"),
vllm/v1/core/kv_cache_utils.py (capacity), vllm/v1/worker/gpu_worker.py, vllm/engine/llm_engine.py (config).
"""

from __future__ import annotations

import re
from typing import Any

from sublight.observe.logs.log import Step
from sublight.observe.logs.text import found, keywords, number

GIB = 2**30
INTERVAL = re.compile(r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: "
                      r"(?P<generation>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs")
ITERATION = re.compile(r"Iteration\(\d+\): (?P<context_requests>\d+) context requests, (?P<context_tokens>\d+) context "
                       r"tokens, (?P<generation_requests>\d+) generation requests, (?P<generation_tokens>\d+) "
                       r"generation tokens, iteration elapsed time: (?P<ms>[\d.]+) ms")
# By name: what a line must have in it, and where the number is.
ALSO = {"waiting": ("ing: ", r"(?:Waiting|Pending): (\d+)"), "preempted": ("Preemptions", r"Preemptions: (\d+)"),
        "kv_usage": ("KV cache usage", r"(?<!CPU )KV cache usage: ([\d.]+)%"),
        "prefix_hit": ("Prefix cache", r"Prefix cache hit rate: (?:GPU: )?([\d.]+)%"),
        "tera_flops": ("MFU", r"MFU: ([\d.]+) TF/s/device"),
        "giga_bytes": ("MFU", r"MFU: [\d.]+ TF/s/device ([\d.]+) GB/s/device"),
        "acceptance_length": ("acceptance", r"Mean acceptance length: ([\d.]+)")}
SCALE = {"kv_usage": 0.01, "prefix_hit": 0.01, "tera_flops": 1e12, "giga_bytes": 1e9}
NAMES = {"tera_flops": "flops_per_second", "giga_bytes": "bytes_per_second"}
FACTS: tuple[tuple[str, str, float], ...] = (
    ("kv_bytes", r"Available KV cache memory: (-?[\d.]+) GiB", GIB),
    ("kv_tokens", r"GPU KV cache size: ([\d,]+) tokens", 1),
    ("max_length", r"Maximum concurrency for ([\d,]+) tokens per request", 1),
    ("full_requests", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", 1),
    ("kv_blocks", r"# (?:GPU|cuda) blocks: (\d+)", 1),
    ("weight_bytes", r"(?:Model loading|[Ll]oading model weights) took ([\d.]+) Gi?B", GIB),
    ("graph_bytes", r"Graph capturing finished in \d+ secs?, took ([\d.]+) GiB", GIB),
)
VERSION = re.compile(r"vLLM API server version v?(\d[\w.+]*)|LLM engine \(v?(\d[\w.+]*)\)|"
                     r"vLLM Version\s*: v?(\d[\w.+]*)")
CONFIG = re.compile(r"LLM engine \(v?\S+\) with config: (?P<text>.*)|non-default args: (?P<dict>\{.*)|"
                    r"args: Namespace\((?P<namespace>.*)")
SIGNS = {"default_moe": "Using default MoE config", "preempted_at_all": "is preempted by"}
PLAIN = re.compile(r"SpecDecoding metrics:|torch\.compile took|init engine \(|CUDA graph|Application startup complete|"
                   r"Automatically detected platform")


def step(line: str) -> Step | None:
    """Means of an interval of seconds, or one iteration (--enable-logging-iteration-details)."""
    values = {NAMES.get(name, name): value * SCALE.get(name, 1.0) for name, (hint, pattern) in ALSO.items()
              if hint in line and (value := found(pattern, line)) is not None}
    if (match := INTERVAL.search(line)) is not None:
        return Step("interval", {"prompt_rate": number(match["prompt"]), "generation_rate": number(match["generation"]),
                                 "running": number(match["running"]), **values})
    if (match := ITERATION.search(line)) is not None:
        held = {name: number(text) for name, text in match.groupdict().items()}
        return Step("iteration", {**held, "step_seconds": held.pop("ms") / 1e3, **values})
    return Step("also", values) if values else None


def facts(line: str) -> dict[str, float]:
    """Numbers of the start."""
    made = {name: value * scale for name, pattern, scale in FACTS if (value := found(pattern, line)) is not None}
    return made | {name: 1.0 for name, text in SIGNS.items() if text in line}


def version(line: str) -> str | None:
    match = VERSION.search(line)
    return None if match is None else next(group for group in match.groups() if group)


def arguments(line: str) -> dict[str, Any]:
    """Settings that the engine prints at its start, those alone that a flag gives."""
    match = CONFIG.search(line)
    return {} if match is None else keywords("vllm", next(group for group in match.groups() if group))


def known(line: str) -> bool:
    """A line of vLLM that says nothing that is read."""
    return PLAIN.search(line) is not None
