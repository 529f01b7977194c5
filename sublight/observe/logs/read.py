"""This file knows about logs in a text: which lines are of which engine, and their Results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from sublight.observe.logs import megatron, sglang, torchtitan, trtllm, vllm
from sublight.observe.logs.log import Log, Step
from sublight.observe.logs.text import COLOURS
from sublight.result import Result

Samples = Iterator[tuple[str, str, str, list[float]]]
SERVES = ("vllm", "sglang", "trtllm")
LEAST = ("kv_tokens", "kv_bytes", "kv_blocks", "full_requests", "free_bytes")     # of ranks, the one with least counts


class Reader(Protocol):
    """A module that reads lines of one engine."""

    step: Callable[[str], Step | None]
    facts: Callable[[str], dict[str, float]]
    version: Callable[[str], str | None]
    arguments: Callable[[str], dict[str, Any]]
    known: Callable[[str], bool]


ENGINES: dict[str, Any] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm, "megatron": megatron,
                           "torchtitan": torchtitan}
# A line of an engine has one of these; the others are not tried. A log has millions of lines of other things.
HINTS = {
    "vllm": ("throughput: ", "Iteration(", "KV cache", "Maximum concurrency", "blocks:", "took ", "ersion", "config",
             "args: ", "Prefix cache", "SpecDecoding", "MFU: ", "is preempted by", "CUDA graph", "Application startup",
             "Automatically det"),
    "sglang": (" batch", "max_total_num_tokens", "#tokens", "server_args", "Load weight", "sglang", "cuda graph",
               "fired up", "KV Cache", "Init torch dist"),
    "trtllm": ("TRT-LLM", "TensorRT", "iter = "),
    "megatron": ("iteration", "...", "----------", "across ranks", "egatron", "MEGATRON"),
    "torchtitan": ("titan", "step:", "FLOPS", "CUDA capacity", "device mesh", "Training starts"),
}


@dataclass
class _Gathered:
    """What is known so far of one engine."""

    steps: list[Step] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    lines: int = 0


def read(lines: Sequence[str]) -> tuple[tuple[Log, ...], set[int]]:
    """The logs of a text, one for each engine that wrote in it, and the numbers (from 0) of the lines they are of."""
    made: dict[str, _Gathered] = {}
    taken: set[int] = set()
    for number, coloured in enumerate(lines):
        line = COLOURS.sub("", coloured) if "\x1b" in coloured else coloured
        for engine, reader in ENGINES.items():
            if _line(line, reader, made, engine):
                taken.add(number)
                break
    logs = tuple(Log(engine, held.version, tuple(_joined(held.steps)), held.facts, held.arguments, held.lines)
                 for engine, held in made.items())
    return logs, taken


def _line(line: str, reader: Any, made: dict[str, _Gathered], engine: str) -> bool:
    """Take what a line of this engine says; False where it is none."""
    if not any(hint in line for hint in HINTS[engine]):
        return False
    try:
        step = reader.step(line)
    except ValueError:                   # "1.2.3" where a number stands: a damaged line
        return False
    facts, version, arguments = ({}, None, {}) if step is not None and step.kind != "also" else (
        reader.facts(line), reader.version(line), reader.arguments(line))
    if step is None and not facts and version is None and not arguments:
        if reader.known(line) and engine in made:
            made[engine].lines += 1
            return True
        return bool(reader.known(line))
    held = made.setdefault(engine, _Gathered())
    held.lines += 1
    held.version = held.version or version
    held.arguments = {**arguments, **held.arguments}
    if step is not None:
        held.steps.append(step)
    for name, value in facts.items():
        known = held.facts.get(name)
        held.facts[name] = value if known is None else min(known, value) if name in LEAST else max(known, value)
    return True


def _joined(steps: list[Step]) -> Iterator[Step]:
    """Lines that say more of the interval before ("also") are part of it."""
    last: Step | None = None
    for step in steps:
        if step.kind == "also" and last is not None:
            last = Step(last.kind, {**step.values, **last.values})
            continue
        if last is not None:
            yield last
        last = step
    if last is not None:
        yield last


# ---- Results


def results(log: Log, source: str) -> tuple[list[Result], list[str]]:
    """Samples by line: what a log can be compared by."""
    about: dict[str, Any] = {"tool": f"{log.engine} log", "run": 1, "model": log.arguments.get("model"),
                             "version": log.version}
    about |= {name: log.facts[name] for name in ("kv_tokens", "seq", "gbs") if name in log.facts}
    about = {name: value for name, value in about.items() if value is not None}
    notes: list[str] = []
    sampled = _serving if log.engine in SERVES else _training
    made = [Result(name, unit, tuple(samples), variant=variant, source=source, about=about)
            for name, unit, variant, samples in sampled(log, notes) if samples]
    made += [Result(name, unit, (log.facts[key],), source=source, about=about)
             for key, name, unit in (("kv_tokens", "KV cache", "tokens"), ("kv_bytes", "KV cache memory", "bytes"))
             if key in log.facts]
    return made, notes


def _serving(log: Log, notes: list[str]) -> Samples:
    steps = busy_steps(log)
    if (idle := len(log.steps) - len(steps)) > 0:
        notes.append(f"{idle} lines of an idle engine are left out")
    busy = [step.values for step in steps]
    yield "tokens/s", "tokens/s", "", [held["generation_rate"] for held in busy if "generation_rate" in held]
    yield "input tokens/s", "tokens/s", "", [held["prompt_rate"] for held in busy if "prompt_rate" in held]
    yield "running requests", "", "", [held["running"] for held in busy if "running" in held]
    yield "waiting requests", "", "", [held["waiting"] for held in busy if "waiting" in held]
    yield "KV cache usage", "1", "", [held["kv_usage"] for held in busy if "kv_usage" in held]
    yield "acceptance length", "tokens", "", [v["acceptance_length"] for v in busy if "acceptance_length" in v]
    for variant, held in step_times(log).items():
        yield "step time", "s", variant, held
    if log.engine == "trtllm":
        pairs = host_and_device(log)
        yield "host step time", "s", "", [host for host, _ in pairs]
        yield "device step time", "s", "", [device for _, device in pairs]


def busy_steps(log: Log) -> list[Step]:
    """Steps while requests run: an idle engine prints zeros."""
    return [step for step in log.steps if step.values.get("running", 1.0) or step.values.get("prompt_rate")]


def step_times(log: Log) -> dict[str, list[float]]:
    """Of vLLM's iterations: "decode", "prefill", "mixed"."""
    out: dict[str, list[float]] = {}
    for step in log.steps:
        if "step_seconds" in step.values and step.kind == "iteration":
            prompts, answers = step.values.get("context_requests", 0), step.values.get("generation_requests", 0)
            kind = "mixed" if prompts and answers else "prefill" if prompts else "decode"
            out.setdefault(kind, []).append(step.values["step_seconds"])
    return out


def host_and_device(log: Log) -> list[tuple[float, float]]:
    """Host and device seconds of TensorRT-LLM's iterations: the device time of a line is that of the line before. Steps
    without requests, or of other ranks than the first that logs, are left out."""
    ranks = [step.values.get("rank", 0.0) for step in log.steps]
    own = [step.values for step, rank in zip(log.steps, ranks, strict=True) if rank == min(ranks)]
    return [(first["host_seconds"], second["previous_device_seconds"]) for first, second in pairwise(own)
            if "host_seconds" in first and "previous_device_seconds" in second and first.get("scheduled", 1.0) > 0]


def _training(log: Log, notes: list[str]) -> Samples:
    steps = [step.values for step in log.steps]
    first = min((held.get("iteration", 0.0) for held in steps), default=0.0)
    later = [held for held in steps if held.get("iteration", 0.0) != first] or steps
    if len(later) < len(steps):
        notes.append(f"the first line (iteration {first:.0f}) holds the start-up and is left out")
    for what, name in (("nan_iterations", "NaN"), ("skipped_iterations", "skipped")):
        if (bad := sum(held.get(what, 0.0) for held in steps)) > 0:
            notes.append(f"{bad:.0f} {name} iterations")
    for key, name, unit in (("step_seconds", "step time", "s"), ("flops_per_second", "model FLOP/s/GPU", "FLOP/s"),
                            ("token_rate", "tokens/s/GPU", "tokens/s"), ("mfu", "MFU", "1"),
                            ("memory_bytes", "memory", "bytes")):
        yield name, unit, "", [held[key] for held in later if key in held]
