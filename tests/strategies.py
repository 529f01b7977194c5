"""Random small traces, and what they must add up to, worked out the slow way.

`traces()` draws a `Kineto`: some streams, kernels whose names leave no doubt, copies and memsets that may
overlap anywhere, launches that are early, late, shared by a graph or missing, synchronising calls, steps,
overhead. `account()` is the judge: it cuts the time line at every start and end, and looks at each piece
alone. It shares no code with the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from kineto import Event, Kineto, end_ns, start_ns

ADD = "at::native::CUDAFunctor_add<float>"
COMPUTE = (
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
    f"void at::native::vectorized_elementwise_kernel<4, {ADD}, std::array<char*, 3ul> >"
    f"(int, {ADD}, std::array<char*, 3ul>)",
)
TRANSFER = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",)
WAIT = ("void deep_ep::internode::notify_dispatch<false, 8>(int const*)",)
COMMUNICATION = TRANSFER + WAIT
MEMCPY, MEMSET = "memcpy", "memset"
SYNCHRONISE = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")

STREAMS = (7, 20, 24)
ORIGIN, SPREAD = 10_000, 4_000  # ns: activities start in this range, launches before them

Interval = tuple[int, int]


@dataclass(frozen=True)
class Account:
    """One device's window in nanoseconds. Each ns has one owner: compute, else communication, else copies,
    else nobody; `union_ns` counts communication whoever owns the time."""

    window_ns: int
    compute_ns: int
    exposed_ns: int
    copies_ns: int
    idle_ns: int
    union_ns: int
    wait_ns: int  # durations of kernels that only wait, summed

    @property
    def hidden_ns(self) -> int:
        return self.union_ns - self.exposed_ns

    @property
    def busy_ns(self) -> int:
        return self.window_ns - self.idle_ns


def account(trace: Kineto, *, device: int = 0, window: Interval | None = None) -> Account:
    """What `trace` adds up to on a device, within `window` (ns after the base; the span where None)."""
    events = activities(trace, device)
    low, high = window or span(trace, device)
    cuts = sorted({low, high} | {min(max(t, low), high) for e in events for t in interval(e)})
    owned = {"compute": 0, "communication": 0, "copies": 0, "idle": 0}
    union = 0
    for left, right in pairwise(cuts):
        running = {group(e) for e in events if start_ns(e) <= left and right <= end_ns(e)}
        owner = next((g for g in ("compute", "communication", "copies") if g in running), "idle")
        owned[owner] += right - left
        union += (right - left) * ("communication" in running)
    waiting = [interval(e) for e in events if e["name"] in WAIT]
    return Account(
        window_ns=high - low,
        compute_ns=owned["compute"],
        exposed_ns=owned["communication"],
        copies_ns=owned["copies"],
        idle_ns=owned["idle"],
        union_ns=union,
        wait_ns=sum(max(0, min(end, high) - max(start, low)) for start, end in waiting),
    )


def idle_gaps(trace: Kineto, *, device: int = 0) -> list[Interval]:
    """The stretches of the span in which nothing runs on the device."""
    gaps = []
    events = sorted(activities(trace, device), key=start_ns)
    reached = start_ns(events[0])
    for event in events:
        if start_ns(event) > reached:
            gaps.append((reached, start_ns(event)))
        reached = max(reached, end_ns(event))
    return gaps


def step_windows(trace: Kineto, *, device: int = 0) -> dict[str, Interval]:
    """For each step: from the start of the first to the end of the last activity launched within it."""
    launched = {
        e["args"]["correlation"]: start_ns(e) for e in trace.events if e["cat"].startswith(("cuda_", "hip_"))
    }
    windows = {}
    for step in trace.events:
        if step["cat"] != "user_annotation" or not step["name"].startswith("ProfilerStep#"):
            continue
        inside = [
            e
            for e in activities(trace, device)
            if start_ns(step) <= launched.get(e["args"]["correlation"], -1) < end_ns(step)
        ]
        if inside:
            windows[step["name"]] = (min(map(start_ns, inside)), max(map(end_ns, inside)))
    return windows


def span(trace: Kineto, device: int = 0) -> Interval:
    """First to last device activity."""
    events = activities(trace, device)
    return min(map(start_ns, events)), max(map(end_ns, events))


def activities(trace: Kineto, device: int = 0) -> list[Event]:
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return [e for e in trace.events if e.get("cat") in kinds and e["args"]["device"] == device]


def interval(event: Event) -> Interval:
    return start_ns(event), end_ns(event)


def group(event: Event) -> str:
    """compute, communication or copies; only names of this module are known."""
    if event["cat"] != "kernel":
        return "copies"
    assert event["name"] in COMPUTE + COMMUNICATION, event["name"]
    return "compute" if event["name"] in COMPUTE else "communication"


@st.composite
def traces(
    draw: DrawFn,
    *,
    max_activities: int = 12,
    streams: Sequence[int] = STREAMS,
    devices: int = 1,
    steps: bool = True,
    graphs: bool = True,
    unlaunched: bool = True,
) -> Kineto:
    """A trace of one rank with at least one activity, all on device 0 unless `devices` says more.

    steps, graphs, unlaunched: whether there may be steps, graph launches, and activities without a launch.
    """
    trace = Kineto(rank=draw(st.integers(0, 7)), world_size=8, flows=draw(st.booleans()))
    for _ in range(draw(st.integers(1, max_activities))):
        draw(_activity(trace, streams, devices, unlaunched))
    if graphs and draw(st.booleans()):
        draw(_graph(trace, streams))
    for _ in range(draw(st.integers(0, 2))):
        start, end = draw(_interval(longest=2_000))
        trace.call(draw(st.sampled_from(SYNCHRONISE)), start, end, thread=draw(st.integers(1, 2)))
    for _ in range(draw(st.integers(0, 1))):
        trace.overhead("Activity Buffer Request", *draw(_interval(longest=800)))
    if steps:
        draw(_steps(trace))
    return trace


def _interval(*, longest: int = 1_500) -> SearchStrategy[Interval]:
    """Start and end of something that lasts at least 1 ns."""
    starts = st.integers(ORIGIN, ORIGIN + SPREAD)
    return st.tuples(starts, st.integers(1, longest)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def _activity(draw: DrawFn, trace: Kineto, streams: Sequence[int], devices: int, unlaunched: bool) -> None:
    """A kernel, copy or memset, with a launch up to 3 µs before it, an operator around that, or neither."""
    kind = draw(st.sampled_from((*COMPUTE, *COMMUNICATION, MEMCPY, MEMSET)))
    start, end = draw(_interval())
    stream, device = draw(st.sampled_from(streams)), draw(st.integers(0, devices - 1))
    launch, op, thread = None, None, draw(st.integers(1, 2))
    if not unlaunched or draw(st.integers(0, 4)):
        called = start - draw(st.integers(0, 3_000))
        launch = (called, called + draw(st.integers(1, 200)))
        if draw(st.booleans()):
            op = trace.op("aten::mm", launch[0] - 10, launch[1] + 10, thread=thread)
    if kind == MEMCPY:
        trace.memcpy("HtoD", start, end, stream=stream, device=device, launch=launch, thread=thread, op=op)
    elif kind == MEMSET:
        trace.memset(start, end, stream=stream, device=device, launch=launch, thread=thread, op=op)
    else:
        trace.kernel(kind, start, end, stream=stream, device=device, launch=launch, thread=thread, op=op)


@st.composite
def _graph(draw: DrawFn, trace: Kineto, streams: Sequence[int]) -> None:
    """One launch, and one to four kernels that share its correlation."""
    kernels = [
        (draw(st.sampled_from(COMPUTE + COMMUNICATION)), *draw(_interval()), draw(st.sampled_from(streams)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    called = min(start for _, start, _, _ in kernels) - draw(st.integers(0, 3_000))
    trace.graph_launch((called, called + draw(st.integers(1, 200))), kernels)


@st.composite
def _steps(draw: DrawFn, trace: Kineto) -> None:
    """Up to three steps in a row on the main thread, close together or apart."""
    start = ORIGIN - draw(st.integers(0, 3_500))
    for number in range(1, draw(st.integers(0, 3)) + 1):
        end = start + draw(st.integers(200, 3_000))
        trace.step(number, start, end)
        start = end + draw(st.sampled_from((0, 1, 150)))
