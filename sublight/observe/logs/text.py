"""This file knows about the text of log lines: numbers, colours, and settings that an engine prints about itself.

Only settings that a flag of the engine gives are read, and of those only numbers, switches and plain words: a dump of
arguments holds keys and paths too.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from sublight.engines import Launch, parse
from sublight.engines.flags import Flag, table
from sublight.errors import InputError

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PAIR = re.compile(r"""['"]?(?P<name>[A-Za-z_]\w*)['"]?\s*[=:]\s*(?:'(?P<one>[^']*)'|"(?P<two>[^"]*)"|"""
                  r"""(?P<bare>True|False|None|-?\d[\d.e+-]*))(?=[\s,)}\]]|$)""")
WORD = re.compile(r"[A-Za-z0-9][\w./:+-]{0,120}")
MODEL = {"vllm": ("model", "model_tag", "model_name"), "sglang": ("model_path",), "megatron": (), "trtllm": ("model",),
         "torchtitan": ()}
PROGRAM = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server", "trtllm": "trtllm-serve serve",
           "megatron": "torchrun pretrain_gpt.py", "torchtitan": "run_train.sh"}
DRAFTS = re.compile(r"num_speculative_tokens['\"]?\s*[=:]\s*(\d+)|num_spec_tokens=(\d+)")


def number(text: str) -> float:
    """Of digits with thousands separators. Raises ValueError where it is none, or is too large to be one."""
    value = float(text.replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(f"a number expected, got {text[:20]}")
    return value


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def found(pattern: str, line: str) -> float | None:
    """The number of the pattern's group; None where it is not there, or no number."""
    match = _compiled(pattern).search(line)
    try:
        return None if match is None else number(match[1])
    except ValueError:                   # "1.2.3"
        return None


def keywords(engine: str, text: str) -> dict[str, Any]:
    """Settings of name=value or 'name': value pairs, however deep, those alone that a flag of the engine gives."""
    out: dict[str, Any] = {}
    for match in PAIR.finditer(text):
        quoted = match["one"] if match["one"] is not None else match["two"]
        for name, value in setting(engine, match["name"], quoted if quoted is not None else match["bare"]).items():
            out.setdefault(name, value)
    drafts = DRAFTS.search(text)
    if engine == "vllm" and drafts is not None:
        out.setdefault("drafts", int(drafts[1] or drafts[2]))
    return out


def setting(engine: str, name: str, text: str) -> dict[str, Any]:
    """One setting as {name: value}; {} where no flag gives it, or its value is none that we show."""
    if name in MODEL[engine]:
        from sublight.observe.json_values import model_name

        model = model_name(text)
        return {} if model is None else {"model": model}
    row = flag(engine, name)
    if row is None or text in ("None", ""):
        return {}
    if text in ("True", "False"):
        return {name: text == "True"}
    if re.fullmatch(r"-?\d[\d.e+-]*", text):
        return {name: text}
    return {name: text} if WORD.fullmatch(text) and "/" not in text else {}


def flag(engine: str, name: str) -> Flag | None:
    """The flag that a setting's name is of: tensor_parallel_size of --tensor-parallel-size."""
    row = table(engine).named("--" + name.replace("_", "-"))
    return row if row is not None and row.sets not in (None, "model", "options") else None


def launch(engine: str, said: Mapping[str, Any], version: str | None = None) -> Launch | None:
    """The launch that such settings describe, as if a command had given them; None where they cannot be one."""
    words = PROGRAM[engine].split()
    if "model" in said:
        words += [str(said["model"])] if engine in ("vllm", "trtllm") else ["--model-path", str(said["model"])]
    for name, value in said.items():
        row = None if name in ("model", "drafts") else flag(engine, name)
        if row is None:
            continue
        spelled = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [spelled] if value else [row.negative] if row.negative and "=" not in row.negative else []
        else:
            words += [spelled, str(value)]
    if said.get("drafts"):
        words += ["--speculative-config", json.dumps({"num_speculative_tokens": said["drafts"]})]
    try:
        return parse(shlex.join(words), version=version)
    except InputError:
        return None
