"""This file knows about the profilers of engines: which options and variables make a recording that can be explained.

Sources: docs.vllm.ai/en/v0.32.0/contributing/profiling and vllm/config/profiler.py (--profiler-config from 0.13 on,
variables before); sglang's start_profile request (0.5); TensorRT-LLM's docs/source/performance/perf-analysis.md;
megatron/training/arguments.py (core 0.20); torchtitan's Profiler config (0.3: --profiler.…, before: --profiling.…).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sublight.engines import Launch
from sublight.improve.capture import Lack
from sublight.improve.command_line import Line

TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM", "megatron": "Megatron", "torchtitan":
          "torchtitan"}
SIZES = "SL302, SL303, SL306, bounds"
HOST = "SL201 to SL206"
RANKS = "SL103 to SL106"
STEPS = "figures per step, diff's verdict"
EVERYTHING = "everything"
FOLDER = "/profiles"                     # engines want an absolute path
ALL_RANKS_UP_TO = 16                     # a trace a rank: more than these take long to write


@dataclass(frozen=True, slots=True)
class Changed:
    """A command with what it lacked."""

    line: Line
    lacks: tuple[Lack, ...]
    then: tuple[str, ...] = ()


def post() -> str:
    return ("under load: curl -X POST http://localhost:8000/start_profile, a second later …/stop_profile; or vllm "
            "bench serve --profile")


def vllm(given: Line, launch: Launch) -> Changed:
    if _before(launch.version, (0, 13)):
        return _vllm_by_variables(given)
    raw, lacks = given.value("--profiler-config"), list[Lack]()
    dotted = {word.partition("=")[0].removeprefix("--profiler-config."): given.value(word.partition("=")[0])
              for word in given.words if word.startswith("--profiler-config.")}
    held: dict[str, Any] = dict(dotted)
    try:
        held |= json.loads(raw) if raw else {}
    except ValueError:
        lacks.append(Lack("a profiler config that can be read", EVERYTHING, "JSON after --profiler-config"))
    if held.get("profiler") != "torch" or not held.get("torch_profiler_dir"):
        lacks.append(Lack("a profiler", EVERYTHING, '"profiler": "torch" and "torch_profiler_dir", an absolute path'))
    if str(held.get("torch_profiler_record_shapes")).lower() != "true":
        lacks.append(Lack("shapes", SIZES, '"torch_profiler_record_shapes": true'))
    if not held.get("max_iterations"):
        lacks.append(Lack("an end: all steps until /stop_profile are recorded", f"{STEPS}; minutes to write the file",
                          '"max_iterations": 5'))
    if str(held.get("torch_profiler_with_stack", True)).lower() == "true":
        lacks.append(Lack("quiet: stacks are on by default and slow the host", f"{HOST}: host times are inflated",
                          '"torch_profiler_with_stack": false', minor=True))
    wanted = {**held, "profiler": "torch", "torch_profiler_dir": held.get("torch_profiler_dir") or FOLDER,
              "torch_profiler_record_shapes": True, "torch_profiler_with_stack": False,
              "delay_iterations": held.get("delay_iterations") or 20, "max_iterations": held.get("max_iterations") or 5}
    if not given.has("--enforce-eager"):
        lacks.append(_graphs("--enforce-eager"))
    new = given
    for name in dotted:
        new = _dropped(new, f"--profiler-config.{name}")
    complete = all(lack.minor for lack in lacks)
    new = given if complete else new.with_option("--profiler-config", json.dumps(wanted))
    return Changed(new, tuple(lacks), (post(), f"sublight explain {wanted['torch_profiler_dir']}"))


def _dropped(given: Line, name: str) -> Line:
    words, skip = list[str](), False
    for word in given.words:
        if skip and not word.startswith("-"):
            skip = False
            continue
        skip = word == name
        if word.partition("=")[0] != name:
            words.append(word)
    return Line(tuple(words), given.variables)


def _vllm_by_variables(given: Line) -> Changed:
    lacks, new = list[Lack](), given
    for name, value, what, serves in (
        ("VLLM_TORCH_PROFILER_DIR", FOLDER, "a profiler", EVERYTHING),
        ("VLLM_TORCH_PROFILER_RECORD_SHAPES", "1", "shapes", SIZES),
    ):
        if given.variable(name) is None:
            lacks.append(Lack(what, serves, f"{name}={value}"))
            new = new.with_variable(name, value)
    return Changed(new, (*lacks, *([] if given.has("--enforce-eager") else [_graphs("--enforce-eager")])), (post(),))


def _graphs(switch: str) -> Lack:
    return Lack("operators and sizes of kernels inside CUDA graphs", f"SL002; {SIZES}",
                f"a second recording with {switch}; this one is for the times", minor=True)


def sglang(given: Line, launch: Launch) -> Changed:
    lacks, new = list[Lack](), given
    if given.variable("SGLANG_TORCH_PROFILER_DIR") is None:
        lacks.append(Lack("a folder for traces", EVERYTHING, f"SGLANG_TORCH_PROFILER_DIR={FOLDER}"))
        new = new.with_variable("SGLANG_TORCH_PROFILER_DIR", FOLDER)
    if not given.has("--disable-cuda-graph"):
        lacks.append(_graphs("--disable-cuda-graph"))
    asked = json.dumps({"num_steps": 5, "activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": False,
                        "profile_by_stage": True})
    return Changed(new, tuple(lacks), (
        f"under load: curl -X POST http://localhost:{given.value('--port') or 30000}/start_profile -H \"Content-Type: "
        f"application/json\" -d '{asked}' (without record_shapes there are no sizes: {SIZES})",
        f"sublight explain {FOLDER}"))


def trtllm(given: Line, launch: Launch) -> Changed:
    lacks, new = list[Lack](), given
    for name, value, what, serves in (
        ("TLLM_PROFILE_START_STOP", "100-105", "a range of iterations after warm-up", f"{EVERYTHING}; {STEPS}"),
        ("TLLM_TORCH_PROFILE_TRACE", "trace.json.gz", "a trace of the torch profiler", EVERYTHING),
    ):
        if given.variable(name) is None:
            lacks.append(Lack(what, serves, f"{name}={value}"))
            new = new.with_variable(name, value)
    start, _, stop = (given.variable("TLLM_PROFILE_START_STOP") or "").partition("-")
    if start.isdigit() and stop.isdigit() and int(stop) - int(start) < 3:
        lacks.append(Lack(f"steps: {int(stop) - int(start)} are recorded", STEPS, "TLLM_PROFILE_START_STOP=100-105"))
        new = new.with_variable("TLLM_PROFILE_START_STOP", "100-105")
    return Changed(new, tuple(lacks), ("sublight explain trace.json.gz",))


def megatron(given: Line, launch: Launch) -> Changed:
    lacks, new = list[Lack](), given
    if not given.has("--profile") or not given.has("--use-pytorch-profiler"):
        lacks.append(Lack("a profiler", EVERYTHING, "--profile --use-pytorch-profiler"))
    if not given.has("--pytorch-profiler-collect-shapes"):
        lacks.append(Lack("shapes", SIZES, "--pytorch-profiler-collect-shapes"))
    start, stop = (given.value(f"--profile-step-{end}") or "" for end in ("start", "end"))
    steps = int(stop) - int(start) if start.isdigit() and stop.isdigit() else 2        # defaults: 10 to 12
    if steps < 3:
        lacks.append(Lack(f"steps: {steps} are recorded", STEPS, "--profile-step-start 10 --profile-step-end 14"))
        new = new.with_option("--profile-step-start", "10").with_option("--profile-step-end", "14")
    for name in ("--profile", "--use-pytorch-profiler", "--pytorch-profiler-collect-shapes"):
        new = new if new.has(name) else new.with_option(name, None)
    lacks += _megatron_ranks(given, launch.gpus)
    if lacks and lacks[-1].serves.startswith(RANKS):
        ranks = [str(rank) for rank in range(min(launch.gpus or 1, ALL_RANKS_UP_TO))]
        new = Line((*_without_list(new, "--profile-ranks"), "--profile-ranks", *ranks), new.variables)
    if not given.has("--tensorboard-dir"):
        lacks.append(Lack("a place for traces: they go beside --tensorboard-dir", EVERYTHING, "--tensorboard-dir"))
        new = new.with_option("--tensorboard-dir", "run/tensorboard")
    folder = new.value("--tensorboard-dir") or "run/tensorboard"
    beside = folder.rstrip("/").rpartition("/")[0] or "."
    return Changed(new, tuple(lacks), (f"sublight explain {beside}/torch_profile",))


def _megatron_ranks(given: Line, world: int | None) -> list[Lack]:
    """By default rank 0 alone is profiled."""
    words = list(given.words)
    at = words.index("--profile-ranks") + 1 if "--profile-ranks" in words else len(words)
    ranks = 0
    while at + ranks < len(words) and words[at + ranks].isdigit():
        ranks += 1
    ranks = max(ranks, 1)
    if world is None or ranks >= min(world, ALL_RANKS_UP_TO):
        return []
    return [Lack(f"ranks: {ranks} of {world}", f"{RANKS}, waiting inside collectives", "--profile-ranks 0 1 2 …")]


def _without_list(given: Line, name: str) -> tuple[str, ...]:
    words, skip = list[str](), False
    for word in given.words:
        skip = word == name or (skip and word.isdigit())
        if not skip:
            words.append(word)
    return tuple(words)


def torchtitan(given: Line, launch: Launch) -> Changed:
    old = any(word.startswith("--profiling.") for word in given.words) or _before(launch.version, (0, 3))
    group = "--profiling" if old else "--profiler"
    lacks, new = list[Lack](), given
    if not given.has(f"{group}.enable_profiling"):
        lacks.append(Lack("a profiler", EVERYTHING, f"{group}.enable_profiling"))
        new = new.with_option(f"{group}.enable_profiling", None)
    if not old and int(given.value(f"{group}.profiler_active") or "1") < 3:
        lacks.append(Lack("steps: one is recorded by default", STEPS, f"{group}.profiler_active 4"))
        for name, value in (("profile_freq", "20"), ("profiler_warmup", "3"), ("profiler_active", "4")):
            new = new.with_option(f"{group}.{name}", value)
    folder = given.value(f"{group}.save_traces_folder") or "profiling/traces"
    return Changed(new, tuple(lacks), (f"sublight explain outputs/{folder}/iteration_20 (below --job.dump_folder or "
                                       "--dump_folder)",))


def bench(given: Line, engine: str) -> Changed:
    """A benchmark's client can start and stop the server's profiler."""
    lacks, new = list[Lack](), given
    if not given.has("--profile"):
        lacks.append(Lack("--profile: the server's profiler is not started", EVERYTHING, "--profile"))
        new = new.with_option("--profile", None)
    if not given.has("--num-prompts") or int(given.value("--num-prompts") or "0") > 200:
        lacks.append(Lack("an end soon: a trace of hundreds of requests takes minutes to write", STEPS,
                          "--num-prompts 50", minor=True))
    if engine == "vllm" and not given.has("--save-result"):
        lacks.append(Lack("a result to compare with", "sublight diff", "--save-result --save-detailed", minor=True))
    if engine == "sglang" and not given.has("--output-file"):
        lacks.append(Lack("a result to compare with", "sublight diff", "--output-file run.jsonl", minor=True))
    server = "vllm serve" if engine == "vllm" else "python -m sglang.launch_server"
    return Changed(new, tuple(lacks), (f'the server needs its profiler too: sublight doctor "{server} …"',))


def _before(version: str | None, limit: tuple[int, int]) -> bool:
    """A version that is not said is a recent one."""
    numbers = re.findall(r"\d+", version or "")
    return len(numbers) >= 2 and (int(numbers[0]), int(numbers[1])) < limit


RULES: dict[str, Callable[[Line, Launch], Changed]] = {
    "vllm": vllm, "sglang": sglang, "trtllm": trtllm, "megatron": megatron, "torchtitan": torchtitan}
