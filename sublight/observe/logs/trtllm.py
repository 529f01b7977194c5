"""This file knows about lines of TensorRT-LLM's log (print_iter_log: true).

Source: tensorrt_llm/_torch/pyexecutor/py_executor.py. Two orders of the fields exist, so they are read by name. The
device time of a line is that of the line before; a step that waited for requests counts its idle time.
"""

from __future__ import annotations

import re
from typing import Any

from sublight.observe.logs.log import Step
from sublight.observe.logs.text import found

GIB = 2**30
ITERATION = re.compile(r"\biter = (\d+)\b.*host_step_time")
FIELDS = {"host_seconds": (r"host_step_time = ([\d.]+) ?ms", 1e-3),
          "previous_device_seconds": (r"prev_device_step_time = ([\d.]+) ?ms", 1e-3),
          "scheduled": (r"num_scheduled_requests ?[=:] (\d+)", 1.0), "kv_usage": (r"kv_cache_util = ([\d.]+)", 1.0),
          "context_requests": (r"'num_ctx_requests': (\d+)", 1.0), "context_tokens": (r"'num_ctx_tokens': (\d+)", 1.0),
          "generation_tokens": (r"'num_generation_tokens': (\d+)", 1.0), "iteration": (r"\biter = (\d+)", 1.0),
          "cached_tokens": (r"'cached_kv_tokens': (\d+)", 1.0), "rank": (r"global_rank = (\d+)", 1.0)}
FACTS: tuple[tuple[str, str, float], ...] = (
    ("kv_tokens", r"max tokens in paged KV cache \((\d+)\)", 1),
    ("kv_bytes", r"Allocated ([\d.]+) GiB for max tokens in paged KV cache", GIB),
    ("weight_bytes", r"Memory used (?:inside|after loading) model weights.*?([\d.]+) GiB", GIB),
)
VERSION = re.compile(r"TensorRT[- ]LLM [Vv]ersion: (\d[\w.]*)")
PLAIN = re.compile(r"\[TensorRT-LLM\]|\[TRT-LLM\]")


def step(line: str) -> Step | None:
    if ITERATION.search(line) is None:
        return None
    return Step("iteration", {name: value * scale for name, (pattern, scale) in FIELDS.items()
                              if (value := found(pattern, line)) is not None})


def facts(line: str) -> dict[str, float]:
    return {name: value * scale for name, pattern, scale in FACTS if (value := found(pattern, line)) is not None}


def version(line: str) -> str | None:
    match = VERSION.search(line)
    return None if match is None else match[1]


def arguments(line: str) -> dict[str, Any]:
    del line
    return {}


def known(line: str) -> bool:
    return PLAIN.search(line) is not None
