"""This file knows about measurements that cannot be what they say: rules by which tables and rows are rejected.

A table is rejected whole where its floor is more than FLOOR times that of a sibling library's table for the same
operator, number format and GPU (host-bound: the kernel waited for its launch), or where it is another GPU's table under
a new name. A row is rejected where more work of the same kind took much less time: whoever ran the larger one could
have run the smaller one as fast (a kernel compiled during the measurement, or a bad choice of the library).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

FLOOR = 3.0                              # lowest hundredth of a table over that of the fastest sibling
STEP = 1.3                               # a row over the fastest of those with more work
MOST_STEPS = 0.25                        # of rows, that a table may lose before it is rejected whole


def floor(seconds: Any) -> float:
    """The time of the fastest hundredth of the rows."""
    return float(np.quantile(seconds, 0.01))


def host_bound(floors: Mapping[str, float]) -> dict[str, str]:
    """Libraries whose table of one operator, format and GPU is rejected, each with the reason. floors: library -> s.

    >>> host_bound({"vllm": 58e-6, "sglang": 4e-6, "trtllm": 5e-6})
    {'vllm': "floor of 58.0 us, 14.5 times sglang's"}
    """
    if len(floors) < 2:
        return {}
    least = min(floors, key=lambda library: floors[library])
    return {library: f"floor of {value * 1e6:.1f} us, {value / floors[least]:.1f} times {least}'s"
            for library, value in floors.items() if value > FLOOR * floors[least]}


def copied(one: Any, other: Any) -> bool:
    """Are these columns of latencies of two GPUs one measurement? Independent ones differ in the last digits."""
    return len(one) == len(other) and len(one) > 0 and bool(np.mean(one == other) > 0.9)


def steady(group: Any, size: Any, seconds: Any) -> Any:
    """Which rows to keep: those at most STEP times as slow as every row of their group with a larger size.

    >>> steady(np.zeros(4), np.array([1, 2, 3, 4]), np.array([1.0, 5.0, 2.0, 3.0])).tolist()
    [True, False, True, True]
    """
    order = np.lexsort((size, group))
    times = np.asarray(seconds, float)[order][::-1]
    starts = np.flatnonzero(np.diff(np.asarray(group)[order][::-1], prepend=np.nan) != 0)
    least = np.concatenate([np.minimum.accumulate(part) for part in np.split(times, starts[1:])])
    keep = np.empty(len(times), bool)
    keep[order[::-1]] = times <= STEP * least
    return keep
