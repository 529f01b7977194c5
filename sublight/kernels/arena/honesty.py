"""This file knows about whether a kernel's process told the truth about its time, by what the system saw from outside.

    the exchange      a call cannot take longer than the exchange that holds it; and what the exchange takes besides is
                      measured in each round with a process that has no kernel, with caches in the same state
    the CPU           one thread cannot run longer than its call takes; threads that run beside it show as more
    making ready      what runs just before each call, to bring the caches to their state, takes as long as in a process
                      without a kernel: who hooks into it works ahead
    light             no call takes less than its bound
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from sublight.bound import Bound, bound
from sublight.device import Limits
from sublight.kernels.arena.process import Call
from sublight.work import Work

TIMES_NULL = 3.0                         # what an exchange may take besides, of one without a kernel (caches are cold)
SLACK_NS, SLACK_SHARE = 60_000, 0.02     # and on top, of the call
WALL_NS = 150_000                        # by the wall: with 3 benches on 2 CPUs honest kernels were seen at 110
MORE_THREADS, LONG_NS = 1.2, 1_000_000   # of the threads that are allowed; in calls that are long enough to tell
TIMES_READY, READY_NS = 1.5, 60_000      # what making caches ready may take, of a process without a kernel
LIGHT = 0.8                              # of the bound: ceilings that neighbours slowed may be as much too low


def clock_tolerance(nulls: Sequence[Call], calls: Sequence[Call]) -> float:
    """By how many nanoseconds a process could misstate its calls without being noticed."""
    return (TIMES_NULL * max(0.0, median(call.hidden_ns for call in nulls)) + WALL_NS
            + SLACK_SHARE * median(call.wall_ns for call in calls))


def untruths(nulls: Sequence[Call], calls: Sequence[Call], *, threads: int) -> tuple[str, ...]:
    """What in the times of a kernel's calls cannot be, in words."""
    said = []
    if any(call.ns > call.wall_ns or call.ns < 0 for call in calls):
        said.append("its clock says more than the whole exchange took")
    if (hidden := median(call.hidden_ns for call in calls)) > clock_tolerance(nulls, calls):
        said.append(f"its clock says {hidden / 1e3:.0f} µs less than the exchange took; without a kernel it is "
                    f"{median(call.hidden_ns for call in nulls) / 1e3:.0f} µs")
    ran = [(c.cpu_ns, c) for c in calls if c.cpu_ns is not None]
    if ran and threads == 1:
        idle = [c.cpu_ns - c.ns for c in nulls if c.cpu_ns is not None]
        allowed = TIMES_NULL * max(0.0, median(idle)) + SLACK_NS + SLACK_SHARE * median(cpu for cpu, _ in ran)
        if (hidden := median(cpu - call.ns for cpu, call in ran)) > allowed:
            said.append(f"it ran {hidden / 1e3:.0f} µs longer on the CPU than its clock says")
    if ran and median(c.wall_ns for c in calls) > LONG_NS:
        at_once = median(cpu / call.wall_ns for cpu, call in ran)
        if at_once > MORE_THREADS * threads:
            said.append(f"it ran on {at_once:.1f} CPUs at once, and {threads} were stated")
    return tuple(said)


def worked_ahead(readied: Sequence[int], without: Sequence[int]) -> str | None:
    """Whether a process worked while it made its caches ready, in words; without: times of one without a kernel."""
    if not readied or not without:
        return None
    took, allowed = median(readied), TIMES_READY * median(without) + READY_NS
    return None if took <= allowed else (f"worked for {took / 1e6:.2f} ms while it made its caches ready; a process "
                                         f"without a kernel takes {median(without) / 1e6:.2f} ms")


def least(work: Work, limits: Limits, *, cold: bool, cache_bytes: int) -> Bound | None:
    """The bound of one call. Cold: inputs come from memory, results may stay in the last-level cache."""
    if cold:
        work = Work.of(flops=work.flops, bytes_read=work.bytes_read,
                       bytes_written=max(0, work.bytes_written - cache_bytes))
    return bound(work, limits)


def faster_than_light(seconds: float, lowest: Bound | None) -> str | None:
    """Why a median cannot be; None where it can."""
    if lowest is None or seconds >= LIGHT * lowest.seconds:
        return None
    return (f"faster than light: {seconds * 1e6:.3g} µs, and {lowest.limiter} alone takes "
            f"{lowest.seconds * 1e6:.3g} µs at the highest rate that was measured in this run")
