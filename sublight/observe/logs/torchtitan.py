"""This file knows about lines of torchtitan's log.

Source: torchtitan/components/metrics.py (step lines, with or without colours) and train.py (what a run starts with).
"""

from __future__ import annotations

import re
from typing import Any

from sublight.observe.logs.log import Step
from sublight.observe.logs.text import found

GIB = 2**30
STEP = re.compile(r"\bstep:\s*(\d+)\s+loss:")
FIELDS = {"memory_bytes": (r"memory:\s*([\d.]+)GiB", float(GIB)), "memory_share": (r"GiB\(([\d.]+)%\)", 0.01),
          "token_rate": (r"\btps:\s*([\d,]+)", 1.0), "flops_per_second": (r"tflops:\s*([\d.,]+)", 1e12),
          "mfu": (r"mfu:\s*([\d.]+)%", 0.01)}
FACTS: tuple[tuple[str, str, float], ...] = (
    ("peak_flops", r"[Pp]eak FLOPS used for computing MFU: ([\d.e+]+)", 1.0),
    ("seq", r"sequence length (\d+)", 1.0), ("gbs", r"global batch size (\d+)", 1.0),
    ("mbs", r"local batch size (\d+)", 1.0),
)
PLAIN = re.compile(r"\[titan\]|CUDA capacity: |Building \d-D device mesh|Training starts at step")


def step(line: str) -> Step | None:
    match = STEP.search(line)
    if match is None:
        return None
    return Step("step", {"iteration": float(match[1]), **{
        name: value * scale for name, (pattern, scale) in FIELDS.items()
        if (value := found(pattern, line)) is not None}})


def facts(line: str) -> dict[str, float]:
    return {name: value * scale for name, pattern, scale in FACTS if (value := found(pattern, line)) is not None}


def version(line: str) -> str | None:
    match = re.search(r"torchtitan(?:==| version:? )v?(\d+\.\d+[\w.]*)", line)
    return None if match is None else match[1].rstrip(".")


def arguments(line: str) -> dict[str, Any]:
    del line
    return {}


def known(line: str) -> bool:
    return PLAIN.search(line) is not None
