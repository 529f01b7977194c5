"""This file knows about recordings with Nsight Systems: which options make an export that can be explained, and how
what runs inside starts and stops the range. Source: the Nsight Systems user guide, profile command switches."""

from __future__ import annotations

import re

from sublight.engines import Launch
from sublight.improve.capture import Lack
from sublight.improve.capture_rules import EVERYTHING, HOST, RANKS, SIZES, STEPS, Changed, post
from sublight.improve.command_line import Line

RANKED = ("srun", "mpirun", "mpiexec", "torchrun")       # start what follows them once a rank


def nsys(given: Line, at: int, launch: Launch | None) -> Changed:
    """`at`: the place of "profile" in the command. What it runs is told how to mark its range."""
    options, _ = _split(given, at)
    new, lacks = given, list[Lack]()

    def put(name: str, value: str, *also: str) -> None:
        nonlocal new
        _, end = _split(new, at)
        new = _replaced(new, at, end, name, value, also)

    trace = options.value("-t", "--trace")
    if trace is not None and not {"cuda", "nvtx"} <= set(trace.replace("-sw", "").split(",")):
        lacks.append(Lack("calls, kernels or ranges: --trace has cuda and nvtx", f"{EVERYTHING}; nvtx: {STEPS}",
                          "--trace=cuda,nvtx"))
        put("--trace", ",".join(dict.fromkeys([*trace.split(","), "cuda", "nvtx"])), "-t")
    if not (options.value("--cuda-graph-trace") or "").startswith("node"):
        lacks.append(Lack("kernels inside CUDA graphs: each graph is one row by default",
                          f"idle time, kernels, {HOST}: refused without", "--cuda-graph-trace=node"))
        put("--cuda-graph-trace", "node")
    ranged = options.value("-c", "--capture-range")
    if ranged in (None, "none"):
        lacks.append(Lack("a range: start-up and warm-up are recorded too", f"{STEPS}; a file that can be opened",
                          "--capture-range=cudaProfilerApi, and the run's own start and stop"))
        put("--capture-range", "cudaProfilerApi", "-c")
    if options.value("--capture-range-end") is None:
        put("--capture-range-end", "repeat" if launch is not None and launch.engine == "vllm" else "stop")
    if launch is not None and launch.engine in ("vllm", "sglang", "trtllm") and \
            options.value("--trace-fork-before-exec") is None:
        lacks.append(Lack("processes that the engine forks", "the device itself", "--trace-fork-before-exec=true"))
        put("--trace-fork-before-exec", "true")
    output = options.value("-o", "--output")
    if output is not None and "%" not in output and any(
            word.rsplit("/", 1)[-1] in RANKED for word in given.words[: at - 1]):
        lacks.append(Lack("a file for each rank: all write to one name", RANKS, "-o NAME_%q{RANK}"))
        variable = "SLURM_PROCID" if "srun" in given.words[: at - 1] else "RANK"
        put("--output", f"{output}_%q{{{variable}}}", "-o")
    if options.value("-s", "--sample") not in ("none",):
        lacks.append(Lack("quiet: CPU sampling slows the host", f"{HOST}: host times are inflated", "--sample=none",
                          minor=True))
        put("--sample", "none", "-s")
    lacks.append(Lack("shapes: no nsys option records them", SIZES, "the same steps once more with the torch profiler, "
                      "or explain --model", minor=True))
    new, more, then = _ranged(new, launch)
    report = re.sub(r"%q\{\w+\}|%p", "0", _split(new, at)[0].value("-o", "--output") or "report1")
    report = report.removesuffix(".nsys-rep")
    return Changed(new, (*lacks, *more), (*then, f"nsys export --type sqlite --output {report}.sqlite "
                                          f"{report}.nsys-rep; sublight explain {report}.sqlite"))


def _split(given: Line, at: int) -> tuple[Line, int]:
    """nsys's own options, and the place where the command begins that it runs. Each option has a value."""
    place = at + 1
    while place < len(given.words) and given.words[place].startswith("-"):
        place += 1 if "=" in given.words[place] else 2
    return Line(given.words[at + 1 : place]), place


def _replaced(given: Line, at: int, end: int, name: str, value: str, also: tuple[str, ...]) -> Line:
    options = list(given.words[at + 1 : end])
    for place, word in enumerate(options):
        held, equals, _ = word.partition("=")
        if held in (name, *also):
            options[place : place + (1 if equals else 2)] = [f"{held}={value}"] if equals else [held, value]
            break
    else:
        options.append(f"{name}={value}")
    return Line((*given.words[: at + 1], *options, *given.words[end:]), given.variables)


def _ranged(given: Line, launch: Launch | None) -> tuple[Line, list[Lack], tuple[str, ...]]:
    """How the run itself starts and stops the range."""
    if launch is None:
        return given, [], ("in the program, after warm-up: torch.cuda.synchronize(); "
                           "torch.cuda.cudart().cudaProfilerStart(), four steps, each in "
                           'torch.cuda.nvtx.range(f"step {n}"), synchronise, cudaProfilerStop()',)
    no_range = "a range of the engine's own: nothing starts the recording"
    if launch.engine == "vllm":
        if "cuda" in (given.value("--profiler-config.profiler") or given.value("--profiler-config") or ""):
            return given, [], (post(),)
        new = given.with_option("--profiler-config.profiler", "cuda")
        if given.variable("VLLM_WORKER_MULTIPROC_METHOD") is None:
            new = new.with_variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        return new, [Lack(no_range, EVERYTHING, "--profiler-config.profiler cuda")], (post(),)
    if launch.engine == "sglang":
        return given, [], ('under load: curl -X POST http://localhost:30000/start_profile -H "Content-Type: '
                           'application/json" -d \'{"num_steps": 5, "activities": ["CUDA_PROFILER"]}\'',)
    if launch.engine == "trtllm":
        if given.variable("TLLM_PROFILE_START_STOP") is not None:
            return given, [], ()
        return given.with_variable("TLLM_PROFILE_START_STOP", "100-105"), \
            [Lack(no_range, EVERYTHING, "TLLM_PROFILE_START_STOP=100-105")], ()
    if launch.engine == "megatron":
        new = given
        lacks = [] if given.has("--profile") else [Lack(no_range, EVERYTHING, "--profile --profile-step-start 10 …")]
        if lacks:
            for name, value in (("--profile", None), ("--profile-step-start", "10"), ("--profile-step-end", "14"),
                                ("--nvtx-ranges", None)):
                new = new if new.has(name) else new.with_option(name, value)
        return new.without("--use-pytorch-profiler"), lacks, ()
    return given, [], ("torchtitan starts no range of Nsight Systems: use its torch profiler, "
                       "--profiler.enable_profiling",)
