"""This file knows about a predicted step as a Trace, the type that a measurement has: so explaining, comparing and
drawing it are what they are for a recorded run.

    host        … host ┤ launch launch launch …                        runs ahead of the device
    stream 7    ├─ gemm ─┤├ attention ┤├ gemm ┤        ├ gemm ┤        in the order of the step; waits for collectives
    stream 20                                 ├ all-reduce ┤           starts when what is before it has ended

Every kernel is the call of one op, which the operators' table records whole (ops.written), and every collective has its
record. A collective whose label is in `beside` holds up only the next one, and the end of the step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from sublight.bound import bound
from sublight.device import Device, DeviceInfo, find
from sublight.errors import InputError
from sublight.models.block import Labelled
from sublight.ops import Communication
from sublight.ops.op import Op
from sublight.ops.written import PREFIX, recorded
from sublight.predict.kernel_names import kernel_name
from sublight.predict.machine import Machine
from sublight.predict.operators import op_time
from sublight.predict.step import StepTime
from sublight.trace import (
    KERNEL,
    NO_ID,
    Activities,
    Calls,
    Collective,
    OpArgs,
    Ops,
    Quality,
    Ranges,
    Recording,
    Trace,
    in_order,
)

EXPECTED, BOUND = "expected", "bound"
WAYS = ("forward.", "recompute.", "backward.")       # before an operator's label, in steps of training
COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 20
LAUNCH, THREAD = "cudaLaunchKernel", "1/1"
# The host of a predicted step takes no time but StepTime.host: launches are this close, and this far ahead at least.
LAUNCH_NS, LEAD_NS = 100, 4_000
RECORDED = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
            "all_to_all": "all_to_all", "send_recv": "send", "broadcast": "broadcast"}
DTYPES = {"bf16": "BFloat16", "fp16": "Half", "fp32": "Float", "fp8": "Float8_e4m3fn", "uint8": "Byte", "int8": "Char"}


@dataclass(frozen=True, slots=True)
class Event:
    """One kernel in its place. Times in ns after the step's begin."""

    label: str
    op: Op
    stream: int
    start_ns: int
    dur_ns: int
    launch_ns: int


def trace(
    step: StepTime, where: Machine, *, order: Iterable[Labelled] | None = None, at: str = EXPECTED, steps: int = 1,
    beside: Collection[str] = (), world_size: int | None = None,
) -> Trace:
    """A predicted step of one rank, `steps` times.

    order   its operators one by one, as models.ordered_ops or models.backward.training_ops give them; None: as the
            step's run has them, or else its rows, each as often as it counts (unrolled)
    at      "expected": as long as predicted; "bound": at the speed of light, without what the host adds
    beside  labels of collectives that run beside the compute that follows

    Between two steps the device waits for the host as long as the step says. Raises InputError where `at` is neither,
    or an operator has no bound on the device.
    """
    if at not in (EXPECTED, BOUND):
        raise InputError(f"a predicted trace is at '{EXPECTED}' or at '{BOUND}', got '{at}'")
    if steps < 1:
        raise InputError(f"steps expected 1 or more, got {steps}")
    if order is None:
        order = step.run.ordered() if step.run else unrolled(step.rows)
    listed = list(order)
    durations = _durations(step, listed, where, at)
    host_ns = round(step.host * 1e9) if at == EXPECTED else 0
    return _Written(where, world_size).of(list(_placed(listed, durations, host_ns, steps, beside)), steps)


class Counted(Protocol):
    """An operator and how often it is called: a Row of a step, a Call of training's passes."""

    @property
    def label(self) -> str: ...

    @property
    def op(self) -> Op: ...

    @property
    def count(self) -> int: ...


def unrolled(rows: Sequence[Counted]) -> Iterator[Labelled]:
    """Rows as often as they count: of each pass (labels that begin with one of WAYS) those between the first and the
    last that come more than once, in rounds."""
    for _, members in groupby(rows, key=lambda row: row.label.partition(".")[0] if row.label.startswith(WAYS) else ""):
        yield from _rounds(list(members))


def _rounds(rows: Sequence[Counted]) -> Iterator[Labelled]:
    often = [i for i, row in enumerate(rows) if row.count > 1]
    first, last = (often[0], often[-1] + 1) if often else (len(rows), len(rows))
    rounds = max((row.count for row in rows[first:last]), default=0)
    yield from ((row.label, row.op) for row in rows[:first])
    for k in range(rounds):
        for row in rows[first:last]:
            if (k + 1) * row.count // rounds > k * row.count // rounds:
                yield row.label, row.op
    yield from ((row.label, row.op) for row in rows[last:])


def _durations(step: StepTime, listed: Sequence[Labelled], where: Machine, at: str) -> dict[Labelled, int]:
    """Whole ns, one at least; at the bound rounded up."""
    known = {(row.label, row.op): row.time.seconds for row in step.rows}
    out: dict[Labelled, int] = {}
    for label, op in dict.fromkeys(listed):
        if at == BOUND:
            least = bound(op.work(), where.device.limits)
            if least is None:
                raise InputError(f"{label}: {where.device.key} has no bound for it: the catalog lacks a rate")
            out[label, op] = max(1, math.ceil(least.seconds * 1e9))
        else:
            seconds = known[label, op] if (label, op) in known else op_time(op, where).seconds
            out[label, op] = max(1, round(seconds * 1e9))
    return out


def _placed(
    listed: Sequence[Labelled], durations: Mapping[Labelled, int], host_ns: int, steps: int, beside: Collection[str],
) -> Iterator[Event]:
    """Compute waits for the collective before it, a collective for all before it."""
    compute = communication = 0                            # when each stream is free
    starts: list[int] = []
    for number in range(steps):
        compute = communication = max(compute, communication) + (host_ns if number else 0)
        for label, op in listed:
            moves = isinstance(op, Communication)
            starts.append(max(compute, communication) if moves else compute)
            end = starts[-1] + durations[label, op]
            communication = end if moves else communication
            compute = compute if moves and label in beside else end
    together = len(listed) if host_ns else len(starts)      # launches between two looks at the host
    for first in range(0, len(starts), max(1, together)):
        segment = starts[first:first + together]
        begin = min((start - LEAD_NS - LAUNCH_NS * i for i, start in enumerate(segment)), default=0)
        for i, start in enumerate(segment):
            label, op = listed[(first + i) % len(listed)]
            stream = COMMUNICATION_STREAM if isinstance(op, Communication) else COMPUTE_STREAM
            yield Event(label, op, stream, start, durations[label, op], begin + LAUNCH_NS * i)


@dataclass
class _Written:
    """Events become the tables of a Trace."""

    where: Machine
    world_size: int | None
    collectives: dict[Collective, int] = field(default_factory=dict)
    args: dict[OpArgs, int] = field(default_factory=dict)

    def of(self, events: Sequence[Event], steps: int) -> Trace:
        device, labels = self.where.device, [f"{PREFIX}{e.label}" for e in events]
        kernels = [kernel_name(e.label, e.op) for e in events]
        marks = _marks(events, steps)
        names = tuple(sorted({LAUNCH, *labels, *kernels, *(name for name, _, _ in marks)}))
        at = {name: i for i, name in enumerate(names)}
        records = [self._record(e.op) for e in events]
        arguments = [self.args.setdefault(recorded(e.op), len(self.args)) for e in events]
        count, one = len(events), np.ones(len(events), np.int32)
        base = -min((e.launch_ns for e in events), default=0)          # the file begins with the first launch
        ids = np.arange(1, count + 1, dtype=np.int64)
        grid = np.zeros((count, 3), np.int32)

        def column(values: Iterable[int], kind: Any = np.int64) -> Any:
            return np.fromiter(values, kind)

        launch_ns = column(e.launch_ns + base for e in events)
        activities = Activities(
            ts_ns=column(e.start_ns + base for e in events), dur_ns=column(e.dur_ns for e in events),
            name=column((at[name] for name in kernels), np.int32), kind=one * KERNEL, device=one * 0,
            stream=column(e.stream for e in events), correlation=ids, external_id=ids,
            graph_node=np.full(count, NO_ID, np.int64), nbytes=np.zeros(count, np.int64),
            collective=column(records, np.int32), grid=grid, block=grid,
        )
        calls = Calls(launch_ns, one.astype(np.int64) * (LAUNCH_NS // 2), one * at[LAUNCH] if count else one, one * 0,
                      ids)
        ops = Ops(launch_ns, one.astype(np.int64) * (LAUNCH_NS // 2), column((at[name] for name in labels), np.int32),
                  one * 0, ids, column(arguments, np.int32))
        spans = Ranges(column(start + base for _, start, _ in marks), column(end - start for _, start, end in marks),
                       column((at[name] for name, _, _ in marks), np.int32), np.zeros(len(marks), np.int32))
        nothing = Ranges(*(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32),
                           np.zeros(0, np.int32)))
        kept = {"device activities": count, "runtime calls": count, "operators": count, "annotations": len(marks),
                "profiler overhead": 0}
        return Trace(
            rank=0, rank_source="metadata", world_size=self.world_size or self.where.cluster.ranks,
            devices={0: described(device)}, names=names,
            threads=(THREAD,), op_args=tuple(self.args), collectives=tuple(self.collectives),
            activities=in_order(activities), calls=in_order(calls), ops=in_order(ops), annotations=in_order(spans),
            overhead=nothing, recording=Recording(shapes=True, backend="nccl"),
            quality=Quality(files=("predicted",), text_bytes=0, events=sum(kept.values()), kept=kept, ignored={},
                            lost=0, untimed={}, repaired={}, cut_short=False, clock_ns=1),
        )

    def _record(self, op: Op) -> int:
        """Index of a collective's record, -1 for compute and for formats that records have no word for."""
        if not isinstance(op, Communication) or op.form not in DTYPES:
            return -1
        gathers = op.collective == "all_gather"
        scatters = op.collective == "reduce_scatter"
        ranks = max(op.group, 1)
        record = Collective(RECORDED[op.collective], DTYPES[op.form], op.elements // ranks if gathers else op.elements,
                            op.elements // ranks if scatters else op.elements, op.group, "0")
        return self.collectives.setdefault(record, len(self.collectives))


def described(device: Device) -> DeviceInfo:
    """A device as a trace describes it: named as drivers spell it, so that the catalog's entry is found again."""
    dashed = re.sub(r" (SXM\d?|PCIe)", lambda m: f"-{m[1].upper()}", device.title).replace(" GB", "GB")
    turned = re.sub(r" (PCIe) (\d+) GB", r" \2GB \1", device.title)
    names = (device.title, re.sub(r" (\d+GB)", r"-\1", dashed), turned)
    infos = [DeviceInfo(name, device.sms, device.memory_bytes, device.capability) for name in names]
    return next((info for info in infos if find(info) is device), infos[0])


def _marks(events: Sequence[Event], steps: int) -> list[tuple[str, int, int]]:
    """A step's mark on the host: from its first launch to behind its last."""
    each = len(events) // steps
    return [(f"ProfilerStep#{number}", events[number * each].launch_ns - 1,
             events[(number + 1) * each - 1].launch_ns + LAUNCH_NS - 1) for number in range(steps if each else 0)]
