"""This file knows about what a trace cannot tell, by name, and what to capture instead."""

from __future__ import annotations

from sublight.explain.links import Links
from sublight.explain.steps import Step
from sublight.explain.view import Refusal
from sublight.explain.words import percent
from sublight.trace import Trace

FEW_LINKS = 0.95
MANY_UNDER_GRAPHS = 0.10
LOST_LAUNCHES = 0.01


def refusals(
    trace: Trace, links: Links | None, steps: tuple[Step, ...], step_kind: str | None, undivided_ns: int,
    copies: bool,
) -> tuple[Refusal, ...]:
    """Every verdict that is refused for this trace."""
    out = []
    if links is None:
        out.append(Refusal(
            "device time", "the file holds no kernels, copies or memsets: it is a CPU-only recording",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] in torch.profiler.profile, on a machine "
            "whose driver allows profiling",
        ))
    elif len(trace.calls.ts_ns) == 0:
        out.append(Refusal(
            "causes of idle time", "the file holds no runtime calls, so no launch can be compared with the idle "
            "time that it ended", "ProfilerActivity.CPU beside ProfilerActivity.CUDA",
        ))
    elif links.linked < FEW_LINKS * links.activities:
        out.append(Refusal(
            "causes of all idle time", f"{links.activities - links.linked} of {links.activities} device "
            "activities have no launch in the file (launched before the recording began?)",
            "schedule=torch.profiler.schedule(wait=1, warmup=1, active=3), and synchronise before it starts",
        ))
    if links is not None and links.launches and links.launches_without_activity > LOST_LAUNCHES * links.launches:
        out.append(Refusal(
            "how idle the device is", f"{links.launches_without_activity} of {links.launches} launches have no "
            "kernel in the file: what looks idle may have been busy",
            "a fresh process, fewer steps (active=3), and torch.cuda.synchronize() before the profiler stops",
        ))
    if links is not None and links.partial_replays:
        out.append(Refusal(
            "how idle the device is", f"{links.partial_replays} of {links.graph_launches} CUDA-graph launches show "
            "under half of the kernels that others like them have: what looks idle may have been busy",
            "a fresh process and fewer steps, so that the profiler's buffers hold",
        ))
    if links is not None and links.kernel_ns and links.graph_ns > MANY_UNDER_GRAPHS * links.kernel_ns:
        out.append(Refusal(
            "operators behind kernels", f"{percent(links.graph_ns / links.kernel_ns)} of kernel time runs under "
            "CUDA-graph launches, which carry no operator", "a second recording with graphs off (vLLM: "
            "--enforce-eager; SGLang: --disable-cuda-graph) for names and shapes; keep this one for times",
        ))
    if not steps:
        out.append(Refusal(
            "figures per step", "no step is marked in the file",
            "profiler.step() after each step, with schedule=torch.profiler.schedule(...)",
        ))
    elif any(s.window is None for s in steps):
        out.append(Refusal(
            "figures per step", f"{sum(s.window is None for s in steps)} of {len(steps)} marked steps have no "
            "activity in the file", "fewer active steps in a fresh process, so that the profiler's buffers hold",
        ))
    if undivided_ns:
        out.append(Refusal(
            "waiting inside collectives", "one rank cannot tell waiting for peers from moving data in "
            "kernels that do both", "the same steps on every rank, with the rank in the file's name",
        ))
    if trace.recording.shapes is False:
        out.append(Refusal("sizes of operators", "shapes were not recorded", "record_shapes=True"))
    return tuple(out)
