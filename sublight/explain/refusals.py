"""This file knows about what a trace cannot tell, by name, and what to capture instead."""

from __future__ import annotations

from sublight.explain.links import Links
from sublight.explain.steps import Steps
from sublight.explain.view import Refusal
from sublight.explain.words import number, percent
from sublight.trace import WHOLE_GRAPHS, Trace

FEW_LINKS = 0.05             # share of the window's activities without a launch
OTHER_DEVICES = frozenset({"mtia_ccp_events", "mtia_runtime", "xpu_runtime", "privateuse1_runtime", "hpu_op"})
MANY_UNDER_GRAPHS = 0.10
LOST_LAUNCHES = 0.01
# What to capture instead, in the words of the tool that made the file.
CAPTURES = {
    "torch.profiler": {
        "calls": "ProfilerActivity.CPU beside ProfilerActivity.CUDA",
        "links": "schedule=torch.profiler.schedule(wait=1, warmup=1, active=3), and synchronise before it starts",
        "lost": "a fresh process, fewer steps (active=3), and torch.cuda.synchronize() before the profiler stops",
        "replays": "a fresh process and fewer steps, so that the profiler's buffers hold",
        "operators": "ProfilerActivity.CPU beside CUDA",
        "steps": "profiler.step() after each step, with schedule=torch.profiler.schedule(...)",
        "empty steps": "fewer active steps in a fresh process, so that the profiler's buffers hold",
        "shapes": "record_shapes=True",
    },
    "nsys": {
        "calls": "nsys profile --trace=cuda,nvtx, all processes",
        "links": "nsys profile --capture-range=cudaProfilerApi, and torch.cuda.synchronize() before cudaProfilerStart",
        "lost": "nsys profile --capture-range=cudaProfilerApi, and torch.cuda.synchronize() before cudaProfilerStop",
        "replays": "nsys profile --cuda-graph-trace=node over fewer steps",
        "operators": "torch.autograd.profiler.emit_nvtx() around the steps, with nsys profile --trace=cuda,nvtx",
        "steps": 'torch.cuda.nvtx.range(f"step {n}") around each step, with nsys profile --trace=cuda,nvtx',
        "empty steps": "nsys profile --capture-range=cudaProfilerApi over whole steps",
        "shapes": "the same steps with torch.profiler and record_shapes=True",
    },
}


def refusals(
    trace: Trace, links: Links | None, known: Steps, *, unlinked: int, activities: int, undivided_ns: int,
    ranks: int,
) -> tuple[Refusal, ...]:
    """Every verdict that is refused for this trace. `unlinked` of `activities` in the window have no launch; `ranks`
    traces of the run were read."""
    out = []
    capture = CAPTURES[trace.recording.tool]
    if graphs := trace.quality.kept.get(WHOLE_GRAPHS):
        out.append(Refusal(
            "how idle the device is, and which kernels ran how often", f"{number(graphs, 'CUDA graph')} "
            f"{'was' if graphs == 1 else 'were'} recorded as a whole: the kernels inside and the gaps between them are "
            "not in the file", "nsys profile --cuda-graph-trace=node",
        ))
    others = sorted(c for c in trace.quality.ignored if c in OTHER_DEVICES)
    if links is None and others:
        out.append(Refusal(
            "device time", f"this version does not read the file's kind of device activity ({', '.join(others)})",
            "nothing else: only the host's side is accounted for",
        ))
    elif links is None:
        out.append(Refusal(
            "device time", "the file holds no kernels, copies or memsets: it is a CPU-only recording",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] in torch.profiler.profile, on a machine "
            "whose driver allows profiling",
        ))
    elif len(trace.calls.ts_ns) == 0:
        out.append(Refusal(
            "causes of idle time", "the file holds no runtime calls, so no launch can be compared with the idle "
            "time that it ended", capture["calls"],
        ))
    elif unlinked > FEW_LINKS * activities:
        out.append(Refusal(
            "causes of all idle time", f"{unlinked} of {activities} device activities in the window have no launch in "
            "the file",
            capture["links"],
        ))
    if links is not None and links.launches and links.launches_without_activity > LOST_LAUNCHES * links.launches:
        out.append(Refusal(
            "how idle the device is", f"{links.launches_without_activity} of {links.launches} launches have no "
            "kernel in the file: what looks idle may have been busy",
            capture["lost"],
        ))
    if links is not None and links.partial_replays:
        out.append(Refusal(
            "how idle the device is", f"{links.partial_replays} of {links.graph_launches} CUDA-graph launches show "
            "under half of the kernels that others like them have: what looks idle may have been busy",
            capture["replays"],
        ))
    if links is not None and links.kernel_ns and links.graph_ns > MANY_UNDER_GRAPHS * links.kernel_ns:
        out.append(Refusal(
            "operators behind kernels", f"{percent(links.graph_ns / links.kernel_ns)} of kernel time runs under "
            "CUDA-graph launches, which carry no operator", "a second recording with graphs off (vLLM: "
            "--enforce-eager; SGLang: --disable-cuda-graph) for names and shapes; keep this one for times",
        ))
    elif links is not None and not len(trace.ops.ts_ns):
        out.append(Refusal(
            "operators behind kernels", "the file holds no operators", capture["operators"],
        ))
    if links is not None and links.captured_launches > links.launches:
        out.append(Refusal(
            "how long a step takes", f"{links.captured_launches} launches were recorded into CUDA graphs, which runs "
            "nothing: this is a recording of graph capture", "a recording that starts after capture and warm-up",
        ))
    steps = known.steps
    if not steps:
        out.append(Refusal("figures per step", known.words, capture["steps"]))
    elif not known.found and any(s.window is None for s in steps):
        out.append(Refusal(
            "figures per step", f"{sum(s.window is None for s in steps)} of {len(steps)} marked steps have no "
            "activity in the file", capture["empty steps"],
        ))
    if undivided_ns and ranks < 2:                 # several ranks tell it together, or say why not
        out.append(Refusal(
            "waiting inside collectives", "one rank cannot tell waiting for peers from moving data in "
            "kernels that do both",
            "the same steps on every rank, with the rank in the file's name",
        ))
    if trace.recording.shapes is False:
        out.append(Refusal("sizes of operators", "shapes were not recorded", capture["shapes"]))
    return tuple(out)
