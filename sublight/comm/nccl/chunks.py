"""This file knows about chunks: a transfer in steps, each with a fixed cost beside its time on the wire.

    >>> fixed = fixed_seconds(128 << 10, 13.1e9, link=49e9)
    >>> round(fixed * 1e6, 2)
    7.33
    >>> chunk_for(0.9, fixed, link=49e9)                 # bytes: 25 times as large
    3232776
"""

from __future__ import annotations

from sublight.errors import InputError


def fixed_seconds(chunk_bytes: int, rate: float, *, link: float) -> float:
    """What a step costs beside the wire, where a transfer in chunks reaches `rate` on a link of `link` bytes a second.

    A step takes chunk / rate, of which chunk / link is the wire, where the two do not overlap. Raises InputError for a
    rate that the link cannot carry: then not all bytes went over it, or the number counts something else.
    """
    if chunk_bytes < 1 or rate <= 0 or link <= 0:
        raise InputError(f"expected a chunk, a rate and a link above 0, got {chunk_bytes}, {rate:g}, {link:g}")
    if rate > link:
        raise InputError(f"{rate / 1e9:.1f} GB/s in chunks of {chunk_bytes:,} B is more than the link's "
                         f"{link / 1e9:.1f} GB/s: the bytes did not all cross it, or both directions were added; check "
                         "the data")
    return chunk_bytes / rate - chunk_bytes / link


def step_seconds(chunk_bytes: int, rate: float) -> float:
    """How long one step takes, whatever it is made of."""
    return chunk_bytes / rate


def chunk_for(share: float, fixed: float, *, link: float) -> int:
    """The chunk that reaches this share of the link, where the fixed cost and the wire follow each other."""
    _check(share)
    return round(share / (1 - share) * fixed * link)


def chunk_for_overlapped(share: float, step: float, *, link: float) -> int:
    """The same where steps overlap so far that a step takes the longer of the two: its fixed cost is then `step`."""
    _check(share)
    return round(share * step * link)


def rate_at(chunk_bytes: int, fixed: float, *, link: float) -> float:
    """Bytes a second in chunks of this size."""
    return chunk_bytes / (fixed + chunk_bytes / link)


def _check(share: float) -> None:
    if not 0 < share < 1:
        raise InputError(f"expected a share of the link between 0 and 1, got {share:g}")
