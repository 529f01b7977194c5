"""This file knows about lines of SGLang's log.

Sources: sglang/srt/managers/scheduler_metrics_mixin.py ("Prefill batch", "Decode batch", hybrid models with "full token
usage"), sglang/srt/mem_cache/memory_pool.py and model_executor/model_runner.py (capacity), server_args=ServerArgs(…).
"""

from __future__ import annotations

import re
from typing import Any

from sublight.observe.logs.log import Step
from sublight.observe.logs.text import found, keywords, number

GIB = 2**30
BATCH = re.compile(r"(Prefill|Decode) batch(?: ?\[[^\]]*\])?[.,:]? ?(?P<fields>.*)")
NAMES = {"#running-req": "running", "#queue-req": "waiting", "#token": "tokens", "#full token": "tokens",
         "token usage": "kv_usage", "full token usage": "kv_usage", "gen throughput (token/s)": "generation_rate",
         "input throughput (token/s)": "prompt_rate", "#new-seq": "new_requests", "#new-token": "new_tokens",
         "#cached-token": "cached_tokens", "accept len": "acceptance_length", "#retracted-req": "preempted",
         "est. decode TFLOPS/s (per GPU)": "tera_flops", "est. read BW (GB/s per GPU)": "giga_bytes",
         "#transfer-req": "transferring"}
SCALE = {"tera_flops": 1e12, "giga_bytes": 1e9}
FINAL = {"tera_flops": "flops_per_second", "giga_bytes": "bytes_per_second"}
FACTS: tuple[tuple[str, str, float], ...] = (
    ("kv_tokens", r"(?<!swa_)(?<!full_)max_total_num_tokens=(\d+)", 1), ("kv_tokens", r"#tokens: (\d+), K ", 1),
    ("max_sequences", r"max_running_requests=(\d+)", 1), ("max_length", r"context_len=(\d+)", 1),
    ("weight_bytes", r"Load weight end\..*mem usage=([\d.]+) GB", GIB),
    ("free_bytes", r"available_gpu_mem=([\d.]+) GB", GIB),
)
ARGUMENTS = re.compile(r"server_args=ServerArgs\((.*)")
VERSION = re.compile(r"sglang(?:==|_version['\"]?[:=] ?['\"]?|: )v?(\d+\.\d+[\w.]*)")
PLAIN = re.compile(r"Capture cuda graph|The server is fired up|KV Cache is allocated|Init torch distributed")


def step(line: str) -> Step | None:
    """A batch, by its fields' names: their order changes with versions."""
    match = BATCH.search(line)
    if match is None:
        return None
    values: dict[str, float] = {}
    for field in match["fields"].split(","):
        name, _, text = field.strip().rpartition(":")
        ours, value = NAMES.get(name.strip()), found(r"^\s*([\d.]+)\s*$", text)
        if ours is not None and value is not None:
            values[FINAL.get(ours, ours)] = value * SCALE.get(ours, 1.0)
        elif name.strip().endswith(" graph"):
            values["graph"] = float("True" in text)
    replica = re.search(r"DP(\d+)", line[:match.start()])
    if replica is not None:
        values["replica"] = number(replica[1])
    return Step(match[1].lower(), values)


def facts(line: str) -> dict[str, float]:
    made: dict[str, float] = {}
    for name, pattern, scale in FACTS:
        if (value := found(pattern, line)) is not None:
            made.setdefault(name, value * scale)
    return made


def version(line: str) -> str | None:
    match = VERSION.search(line)
    return None if match is None else match[1].rstrip(".")


def arguments(line: str) -> dict[str, Any]:
    match = ARGUMENTS.search(line)
    return {} if match is None else keywords("sglang", match[1])


def known(line: str) -> bool:
    return PLAIN.search(line) is not None
