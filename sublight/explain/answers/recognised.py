"""This file knows about how what was recognised is said: kinds, counts and settings, no text of the paste itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sublight.engines.flags import table
from sublight.explain.answers.answer import Case
from sublight.observe.logs.log import Log
from sublight.observe.pasted import Pasted
from sublight.plan import Serving, Training

MOST_RANGES = 8


def recognised(pasted: Pasted, cases: Sequence[Case]) -> tuple[str, ...]:
    """One line a thing."""
    return tuple(_all(pasted, cases))


def _all(pasted: Pasted, cases: Sequence[Case]) -> Iterator[str]:
    for found in pasted.launches:
        launch = found.launch
        version = f" {launch.version}" if launch.version else ", no version said"
        flags = [name for name, _ in launch.unknown if re.fullmatch(r"--?[A-Za-z][\w.-]{0,60}", name)]
        unknown = f"; not understood and not counted: {', '.join(flags[:8])}" if flags else ""
        yield f"a command of {table(launch.engine).title}{version}: {plan_words(launch.plan)}{unknown}"
    for asked in pasted.asked:
        settings = ", ".join(f"{name} {value:,.6g}" for name, value in asked.settings.items())
        yield f"a run of {asked.tool}" + (f": {settings}" if settings else "")
    for log in pasted.logs:
        yield _log(log)
    for _, results in pasted.tables:
        names = ", ".join(dict.fromkeys(result.name for result in results))
        about = results[0].about if results else {}
        yield f"a benchmark summary ({about.get('tool', 'benchmark')}): {names}"
    for gpu in pasted.gpus:
        count = "" if gpu.count is None else f"{gpu.count} x "
        yield f"GPUs: {count}{gpu.title}" + ("" if gpu.key else " (not in the catalog)")
    if pasted.figures:
        words = {"tokens/s": ("tokens/s", 1.0), "TFLOP/s": ("TFLOP/s", 1e12), "MFU": ("% MFU", 0.01),
                 "utilisation": ("% utilisation", 0.01), "quotient above": ("TFLOP/s over", 1e12),
                 "quotient below": ("TFLOP/s", 1e12)}
        said = [f"{figure.value / words[figure.what][1]:,.6g} {words[figure.what][0]}" for figure in pasted.figures[:8]]
        yield f"figures in prose: {', '.join(said)}"
    for case in cases:
        if case.sources:
            yield f"{case.name}: " + "; ".join(
                f"{what} {source}" if source.startswith("assumed") else f"{what} from {source}"
                for what, source in case.sources.items())


def plan_words(plan: Serving | Training) -> str:
    """What is not 1 or the default."""
    names = ("tp", "pp", "dp", "ep", "cp", "vpp", "replicas", "token_budget", "max_sequences", "max_length",
             "memory_fraction", "kv", "drafts", "mbs", "precision")
    said = [f"{name.replace('_', ' ')} {value}" for name in names
            if (value := getattr(plan, name, None)) not in (None, 1, 0)]
    said += [] if getattr(plan, "cuda_graphs", True) or isinstance(plan, Training) else ["CUDA graphs off"]
    return ", ".join(said) or "tp 1"


def _log(log: Log) -> str:
    kinds: dict[str, int] = {}
    for step in log.steps:
        kinds[step.kind] = kinds.get(step.kind, 0) + 1
    steps = ", ".join(f"{count} {'other' if kind == 'also' else kind}" for kind, count in kinds.items())
    facts = ", ".join(_fact(name, value) for name, value in log.facts.items() if value != 1.0)
    version = f" {log.version}" if log.version else ""
    lines = "1 log line" if log.lines == 1 else f"{log.lines} log lines"
    return (f"{lines} of {table(log.engine).title}{version}" + (f": {steps}" if steps else "")
            + (f"; start-up: {facts}" if facts else ""))


def _fact(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {value / 2**30:,.4g} GiB"
    return f"{name.replace('_', ' ')} {value:,.6g}"


def unread(pasted: Pasted) -> str:
    """Which lines say nothing that is read here, by number; nothing of them is repeated."""
    if not pasted.unread:
        return ""
    ranges: list[list[int]] = []
    for number in pasted.unread:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:MOST_RANGES])
    more = f" and {len(ranges) - MOST_RANGES} more places" if len(ranges) > MOST_RANGES else ""
    return f"not recognised: {len(pasted.unread)} of {pasted.lines} lines (line {shown}{more})"
