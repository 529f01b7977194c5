"""This file knows about measurements that cannot be what they say: rules by which tables and rows are rejected.

A table is rejected whole where its floor is more than FLOOR times that of a sibling library's table for the same
operator, number format and GPU (host-bound: the kernel waited for its launch), or where it is another GPU's table under
a new name. A row is rejected where more work of the same kind took much less time: whoever ran the larger one could
have run the smaller one as fast (a kernel compiled during the measurement, or a bad choice of the library).

A table of a number format (of experts) is rejected where few rows take longer than they may: more than NARROW times
the same library's time in a wider format, where that one reads weights for most of its time (a kernel that nobody
tuned: fewer bytes cannot take longer), or more than SIBLING times what a sibling library takes in the same format.
A row is rejected where it is faster than the bound of the work that its name says (its benchmark drew fewer experts).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

FLOOR = 3.0                              # lowest hundredth of a table over that of the fastest sibling
STEP = 1.3                               # a row over the fastest of those with more work
MOST_STEPS = 0.25                        # of rows, that a table may lose before it is rejected whole
NARROW = 1.2                             # a narrower format over a wider one, median over shapes
SIBLING = 3.0                            # a library over its fastest sibling in the same format, median over shapes
FEW_ROWS = 64                            # tokens, up to which experts read weights rather than multiply
MEMORY_BOUND = 0.5                       # of a wider format's time, that reading its weights at the peak rate takes
FEWEST_SHAPES = 10                       # in common, below which tables are not compared

Points = Mapping[Any, Mapping[float, float]]          # shape -> tokens -> seconds


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


def over(one: Points, other: Points) -> float | None:
    """How many times as long, in the median over shapes; None where too few are in common.

    >>> over({i: {1: 3.0, 8: 6.0} for i in range(10)}, {i: {1: 2.0, 8: 2.0, 64: 9.0} for i in range(10)})
    2.25
    """
    ratios = [median(one[shape][tokens] / other[shape][tokens] for tokens in one[shape].keys() & other[shape].keys())
              for shape in one.keys() & other.keys() if one[shape].keys() & other[shape].keys()]
    return median(ratios) if len(ratios) >= FEWEST_SHAPES else None


def slow_format(one: Points, wider: Mapping[str, Points], siblings: Mapping[str, Points]) -> str | None:
    """Why a library's table of one format is rejected, or None. wider: its own tables of formats with more bytes, where
    memory bounds them; siblings: other libraries' tables of the same format. All of at most FEW_ROWS tokens.

    >>> fast, slow = ({i: {8: seconds} for i in range(10)} for seconds in (1e-4, 4e-4))
    >>> slow_format(slow, {"bfloat16": fast}, {})
    "4.00 times the library's bfloat16"
    >>> slow_format(slow, {}, {"trtllm": fast, "sglang": slow}), slow_format(fast, {"bfloat16": slow}, {})
    ("4.00 times trtllm's", None)
    """
    found = [(ratio, f"the library's {name}") for name, points in wider.items()
             if (ratio := over(one, points)) is not None and ratio > NARROW]
    found += [(ratio, f"{name}'s") for name, points in siblings.items()
              if (ratio := over(one, points)) is not None and ratio > SIBLING]
    return " and ".join(f"{ratio:.2f} times {whose}" for ratio, whose in found) or None
