"""This file knows about lines of Megatron-LM's log.

Source: megatron/training/training.py, training_log (fields between bars; throughput only with --log-throughput), and
the dump of all arguments at the start ("  name ........ value").
"""

from __future__ import annotations

import re
from typing import Any

from sublight.observe.logs.log import Step
from sublight.observe.logs.text import found, setting

ITERATION = re.compile(r"\biteration\s+(\d+)/\s*\d+ \|(?P<fields>.*)")
FIELDS = {"step_seconds": (r"elapsed time per iteration \(ms\): ([\d.]+)", 1e-3),
          "flops_per_second": (r"(?:throughput|compute) per GPU \(TFLOP/s/GPU\): ([\d.]+)", 1e12),
          "token_rate": (r"okens? per (?:second per )?GPU \((?:tokens|Tok)/s/GPU\): ([\d.]+)", 1.0),
          "gbs": (r"global batch size: +(\d+)", 1.0), "watts": (r"power per GPU \(W/GPU\): ([\d.]+)", 1.0),
          "nan_iterations": (r"number of nan iterations: +(\d+)", 1.0),
          "skipped_iterations": (r"number of skipped iterations: +(\d+)", 1.0)}
OLD_SECONDS = r"elapsed time per iteration \(s\): ([\d.]+)"
ARGUMENT = re.compile(r"^(?:\[?\w+\]?: ?)?\s+(\w+) \.{3,} ?(.*?)\s*$")
VERSION = re.compile(r"megatron[_-]core[= ]=?v?(\d+\.\d+[\w.]*)", re.IGNORECASE)
PLAIN = re.compile(r"-{10,} (end of )?arguments -{10,}|\(min, max\) time across ranks|times across ranks \(ms\)")


def step(line: str) -> Step | None:
    match = ITERATION.search(line)
    if match is None:
        return None
    values = {name: value * scale for name, (pattern, scale) in FIELDS.items()
              if (value := found(pattern, match["fields"])) is not None}
    if (seconds := found(OLD_SECONDS, match["fields"])) is not None:
        values["step_seconds"] = seconds
    return Step("step", {"iteration": float(match[1]), **values})


def facts(line: str) -> dict[str, float]:
    del line
    return {}


def version(line: str) -> str | None:
    match = VERSION.search(line)
    return None if match is None else match[1].rstrip(".")


def arguments(line: str) -> dict[str, Any]:
    """One argument of the dump, where a flag gives it."""
    match = ARGUMENT.match(line)
    return {} if match is None else setting("megatron", match[1], match[2])


def known(line: str) -> bool:
    return PLAIN.search(line) is not None or ARGUMENT.match(line) is not None
