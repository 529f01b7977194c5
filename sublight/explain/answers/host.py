"""This file knows about whether a log's steps wait for the host: host times beside device times."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from sublight.explain.answers.answer import Judged, Point
from sublight.explain.answers.figures import HOST
from sublight.explain.answers.load import moment
from sublight.explain.words import number
from sublight.observe.logs.read import host_and_device, step_times
from sublight.plan import Serving

BOUND = 1.15                             # host over device: above, the device waits
LAUNCH_SECONDS = 5e-6                    # judgement: least cost of launching a kernel from Python, without a graph


def points(found: Judged) -> Iterator[Point]:
    case = found.case
    if case.log is not None and case.log.engine == "trtllm":
        yield from _pairs(found)
    if case.log is not None and case.log.engine == "vllm":
        yield from _iterations(found)
    if isinstance(case.plan, Serving):
        yield from _eager(found, case.plan)
        yield from _graphs(found)


def _pairs(found: Judged) -> Iterator[Point]:
    """TensorRT-LLM says both times of each step."""
    pairs = host_and_device(found.case.log) if found.case.log else []
    if not pairs:
        return
    host, device = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    waits = sum(first > BOUND * second for first, second in pairs)
    evidence = (f"host_step_time {host * 1e3:.3g} ms, prev_device_step_time {device * 1e3:.3g} ms (medians of "
                f"{number(len(pairs), 'step')})", f"the host is longer in {waits} of {number(len(pairs), 'step')}")
    if host > BOUND * device:
        yield Point("host", f"host-bound: each step takes {host * 1e3:.3g} ms on the host for {device * 1e3:.3g} ms of "
                    f"device work, so the device idles about {1 - device / host:.0%} of the time", evidence,
                    "CUDA graphs for these batch sizes (cuda_graph_config), the overlap scheduler on, fewer and larger "
                    "steps; record a few steps (TLLM_PROFILE_START_STOP) to see what the host does")
    else:
        yield Point("host", f"not host-bound: the device works {device * 1e3:.3g} ms of a step of {host * 1e3:.3g} ms",
                    evidence)


def _iterations(found: Judged) -> Iterator[Point]:
    """vLLM's iteration times beside what the device should need for a decode step."""
    times = step_times(found.case.log) if found.case.log else {}
    held = times.get("decode", [])
    device = sum(term.seconds for term in found.terms if term.name != HOST)
    if not held or device <= 0:
        return
    step = median(held)
    claim = (f"a decode iteration takes {step * 1e3:.3g} ms; the device's work of one is expected to be "
             f"{device * 1e3:.3g} ms")
    if step > 1.5 * device:
        yield Point("host", f"{claim}: the rest is the host's or waiting", (f"median of {len(held)} iterations",),
                    "record a few steps with --profiler-config and explain them: the trace says what fills the gaps")
    else:
        yield Point("host", claim, (f"median of {len(held)} iterations",))


def _eager(found: Judged, plan: Serving) -> Iterator[Point]:
    """Without graphs every operator is launched from Python."""
    if plan.cuda_graphs or not found.terms:
        return
    calls = sum(term.calls for term in found.terms)
    device = sum(term.seconds for term in found.terms if term.name != HOST)
    launches = calls * LAUNCH_SECONDS
    more = " and with the custom all-reduce" if plan.all_reduce_kind == "nccl" else ""
    yield Point("host", f"CUDA graphs are off: a step launches {calls:,} operators or more one by one, "
                f"{launches * 1e3:.2g} ms at the least, for {device * 1e3:.2g} ms of device work",
                (f"{LAUNCH_SECONDS * 1e6:.0f} µs a launch (judgement; Python often takes two to four times that)",),
                f"run with CUDA graphs (without --enforce-eager or --disable-cuda-graph){more}")


def _graphs(found: Judged) -> Iterator[Point]:
    """SGLang says of each decode batch whether a graph carried it."""
    log = found.case.log
    held = log.values("graph", "decode") if log is not None else []
    if held and sum(held) < 0.5 * len(held):
        now = moment(log, found.case.plan, found.case.model, found.case.where)
        batch = f" of about {now.running:,.0f} requests" if now is not None else ""
        yield Point("host", f"{len(held) - sum(held):.0f} of {len(held)} decode batches{batch} ran without a CUDA "
                    "graph", ("\"cuda graph: False\" in the log",), "raise --cuda-graph-max-bs above the running "
                    "batch, or leave graphs on")

