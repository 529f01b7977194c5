"""This file knows about how often kernels ran in two sums without a time line: which counts differ from what the
lengths of the two recordings explain.

    A   flash 68   gemm 240   cast 34        most kernels ran 0.88 times as often in B; cast twice as often as that:
    B   flash 60   gemm 212   cast 60        its count changed
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from sublight.observe.kernel_sums import TOOL
from sublight.result import Result

AS_OFTEN = 0.10                          # of the ratio of most kernels: what is less may be cut ends of the recordings
LISTED = 6


def words(a: Sequence[Result], b: Sequence[Result]) -> tuple[str, ...]:
    """What differs, a line each; empty where a side is no sum of kernels."""
    of_a, of_b = _runs(a), _runs(b)
    both = [name for name in of_a if name in of_b]
    if not both:
        return ()
    usual = median(of_b[name] / of_a[name] for name in both)
    out = [f"most kernels ran {usual:.3g} times as often in B as in A: one recording is longer, or has more steps; "
           "means of one run are compared"] if abs(usual - 1) > AS_OFTEN / 10 else []
    moved = [name for name in both if abs(of_b[name] / of_a[name] / usual - 1) > AS_OFTEN]
    if moved:
        said = [f"{_short(name)} {of_a[name]:,} → {of_b[name]:,}" for name in moved[:LISTED]]
        out.append(f"other counts: {', '.join(said)}{_more(len(moved))}")
    for side, here, there in (("A", of_a, of_b), ("B", of_b, of_a)):
        if alone := [name for name in here if name not in there]:
            said = [f"{_short(name)} ×{here[name]:,}" for name in alone[:LISTED]]
            out.append(f"{side} alone ran {', '.join(said)}{_more(len(alone))}")
    return tuple(out)


def _runs(results: Sequence[Result]) -> dict[str, int]:
    """By kernel, in the order of the file, over all its files."""
    out: dict[str, int] = {}
    for result in results:
        if result.about.get("tool") == TOOL:
            out[result.variant] = out.get(result.variant, 0) + int(result.about["samples"])
    return out


def _short(name: str) -> str:
    from sublight.explain.words import cut
    from sublight.observe.kernel_name import classify

    return cut(classify(name).short, 60)


def _more(count: int) -> str:
    return f" and {count - LISTED} more" if count > LISTED else ""
