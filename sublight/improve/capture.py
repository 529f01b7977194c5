"""This file knows about what a recording lacks, for which findings, and how to record it next time.

    lacks(traces)    of a run that was read
    Checkup          the same of a command, from capture_command.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sublight.explain import View, views_of
from sublight.explain.refusals import CAPTURES
from sublight.explain.words import number
from sublight.observe.kernel_sums import TOOL as KERNEL_SUMS
from sublight.result import Result
from sublight.trace import Trace

RUNS_THAT_TELL = 5                       # of each side: fewer never are a verdict by themselves (shift.py)
FEW_STEPS = 3                            # fewer say nothing of how they scatter

# What each refused verdict of explain is for.
SERVES = {
    "device time": "everything but the host's side",
    "causes of idle time": "SL201 to SL206, what-ifs",
    "causes of all idle time": "SL201 to SL206, what-ifs",
    "how idle the device is": "SL201 to SL206, idle time",
    "how idle the device is, and which kernels ran how often": "SL201 to SL206, kernel counts, diff",
    "operators behind kernels": "SL302, SL303, SL305, SL306: operators and sizes",
    "how long a step takes": "figures per step, diff",
    "figures per step": "SL004, figures per step, diff",
    "waiting inside collectives": "SL103 to SL106, SL108",
    "sizes of operators": "SL302, SL303, SL306, bounds (else: explain --model)",
}


@dataclass(frozen=True, slots=True)
class Lack:
    """what: that is not there. serves: findings and figures that it is for. do: next time."""

    what: str
    serves: str
    do: str
    minor: bool = False                  # nothing is refused without it


@dataclass(frozen=True, slots=True)
class Checkup:
    """Of a recording or of a command that makes one. command: corrected; None where nothing needs to change, or it is
    no command. then: what to do besides, in order."""

    subject: str
    has: tuple[str, ...]
    lacks: tuple[Lack, ...]
    command: str | None = None
    then: tuple[str, ...] = ()


def of_traces(traces: Sequence[Trace]) -> Checkup:
    """What the traces of one run lack."""
    views = views_of(traces)
    found: dict[str, Lack] = {}
    for view in views:
        for refusal in view.refusals:
            found.setdefault(refusal.what, Lack(f"{refusal.what}: {refusal.why}", SERVES[refusal.what],
                                                refusal.capture))
    more = [*_shapes(traces), *_ranks(traces), *_steps(views), *_events(views), *_collectives(views),
            *_damage(traces), *_stacks(traces)]
    files = list(dict.fromkeys(name for trace in traces for name in trace.quality.files))
    tool = "Nsight Systems" if traces[0].recording.tool == "nsys" else "torch.profiler"
    subject = f"{files[0] if len(files) == 1 else number(len(files), 'file')}, recorded with {tool}"
    return Checkup(subject, _has(traces, views), (*found.values(), *more))


def _shapes(traces: Sequence[Trace]) -> list[Lack]:
    """A file that does not say whether shapes were recorded, and has none."""
    first = traces[0]
    if first.recording.shapes is not None or not len(first.ops.name) or any(row.dims for row in first.op_args):
        return []
    what = "sizes of operators"
    return [Lack(f"{what}: no operator has shapes", SERVES[what], CAPTURES[first.recording.tool]["shapes"])]


def _ranks(traces: Sequence[Trace]) -> list[Lack]:
    world = max((trace.world_size or 1 for trace in traces), default=1)
    out = []
    if world > len(traces) > 1:
        out.append(Lack(f"{world - len(traces)} of {world} ranks", "SL103 to SL106: a rank that is not read may be the "
                        "one that all wait for", "record the same steps on every rank, a file each"))
    nsys = traces[0].recording.tool == "nsys"        # whose processes are numbered by their devices
    if len(traces) > 1 and not nsys and (unknown := sum(trace.rank_source == "order" for trace in traces)):
        out.append(Lack(f"the rank of {number(unknown, 'file')}: neither its metadata nor its name says it",
                        "SL104: which rank is slow", "put the rank into the name: rank0.json.gz, rank1.json.gz"))
    return out


def _steps(views: Sequence[View]) -> list[Lack]:
    counts = [len(view.steps) for view in views if view.steps]
    if not counts or min(counts) >= FEW_STEPS:
        return []
    do = "schedule(wait=1, warmup=3, active=4)" if views[0].trace.recording.tool == "torch.profiler" else \
        "cudaProfilerStart and Stop around four steps or more"
    return [Lack(f"steps: {min(counts)} of {FEW_STEPS} that tell how steps scatter", "diff's verdict, SL004", do)]


def _events(views: Sequence[View]) -> list[Lack]:
    """Without records of events a replay orders streams by time alone."""
    out = []
    for view in views:
        if view.links is None or not len(view.trace.calls.name):
            continue
        streams = len(np.unique(view.trace.activities.stream[view.trace.activities.device == view.device]))
        names = {view.trace.names[i] for i in np.unique(view.trace.calls.name).tolist()}
        waits = any("WaitEvent" in name or "EventRecord" in name for name in names)
        if streams > 1 and not waits and not view.links.graph_ns:
            out.append(Lack(
                f"calls that order its {streams} streams (cudaEventRecord, cudaStreamWaitEvent)",
                "gains by replay, --whatif: without them they are upper limits",
                "ProfilerActivity.CPU beside CUDA, and no filter on runtime calls" if
                view.trace.recording.tool == "torch.profiler" else "nsys profile --trace=cuda,nvtx of all processes"))
    return out[:1]


def _collectives(views: Sequence[View]) -> list[Lack]:
    talk = [view for view in views if not view.cpu_only and view.communication_kernels]
    if not talk or any(view.trace.collectives for view in talk):
        return []
    return [Lack("sizes and groups of collectives", "SL107, SL108: how fast the fabric is",
                 "torch.profiler with ProfilerActivity.CPU, PyTorch 2.2 or later (it writes NCCL's arguments); or "
                 "explain --exchange for expert exchanges")]


def _damage(traces: Sequence[Trace]) -> list[Lack]:
    bad = [trace for trace in traces if trace.quality.cut_short or trace.quality.lost]
    return [Lack(f"the end, or parts, of {number(len(bad), 'file')}", "SL001: figures are of what is left",
                 "let the profiler stop and the file be written before the process ends")] if bad else []


def of_results(results: Sequence[Result], name: str) -> Checkup:
    """What results of a benchmark lack to be compared with others."""
    runs: dict[tuple[str, str], int] = {}
    for result in results:
        runs[result.name, result.variant] = runs.get((result.name, result.variant), 0) + 1
    fewest, wanted = min(runs.values()), RUNS_THAT_TELL
    lacks = [Lack(f"runs: {fewest} of {wanted} that tell how far runs lie apart", "diff's verdicts: one run tells "
                  "large changes only", f"{wanted} runs of each side, in turns (A B A B …), appended to one file")] \
        if fewest < wanted else []
    tools = sorted({str(result.about.get("tool", "")) for result in results} - {""})
    if KERNEL_SUMS in tools:
        lacks.insert(0, Lack("a time line: sums do not say when a kernel ran, nor beside what",
                             "idle time, exposed communication, steps, SL101 to SL306, diff of steps",
                             "the report itself: nsys export --type sqlite --output run.sqlite run.nsys-rep"))
    if any("vllm bench serve" in tool or "sglang" in tool for tool in tools) and all(
            len(r.samples) < 2 for r in results):
        lacks.append(Lack("samples of single requests", "how exact a run's mean is",
                          "--save-detailed (vLLM), --output-details (SGLang)", minor=True))
    has = (f"{number(len(runs), 'quantity')} of {', '.join(tools) or 'a benchmark'}",)
    return Checkup(f"{name}, results", has, tuple(lacks))


def _stacks(traces: Sequence[Trace]) -> list[Lack]:
    if traces[0].recording.tool != "torch.profiler" or traces[0].recording.stacks is not False:
        return []
    return [Lack("Python stacks", "which line of the program launches what", "with_stack=True in a recording of its "
                 "own: it slows the host", minor=True)]


def _has(traces: Sequence[Trace], views: Sequence[View]) -> tuple[str, ...]:
    first, view = traces[0], views[0]
    counts = sorted({len(v.steps) for v in views})
    said = [
        number(len(traces), "rank") if len(traces) > 1 or (first.world_size or 1) > 1 else "",
        "device activities" if view.links is not None else "operators of the host",
        "runtime calls" if len(first.calls.name) else "",
        "operators" if len(first.ops.name) and view.links is not None else "",
        "shapes" if first.recording.shapes else "",
        "stacks" if first.recording.stacks else "",
        f"{number(counts[-1], 'step')} ({view.step_kind})" if view.steps else "",
        "collectives with their sizes" if first.collectives else "",
        "kernels inside CUDA graphs" if view.links is not None and view.links.graph_ns else "",
    ]
    return tuple(part for part in said if part)
