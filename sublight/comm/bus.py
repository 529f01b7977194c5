"""This file knows about bus bandwidth: what a collective's time says of the links, as nccl-tests defines it."""

from __future__ import annotations

from sublight.work import Message


def bus_bytes(message: Message) -> float | None:
    """The bytes that a rank's link carries one way in a ring-like algorithm; over the time it is the bus bandwidth.

    Factors: 2 (n-1)/n for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for the others
    (nccl-tests, doc/PERFORMANCE.md). With reduction in switches (NVLS) links carry less, so it may exceed their rate.
    None for what nccl-tests has no factor for.

        >>> bus_bytes(Message("all_reduce", 8, 800))
        1400.0
    """
    n = max(message.group, 1)
    factor = {
        "all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n,
        "all_to_all": (n - 1) / n, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0,
    }.get(message.collective)
    return None if factor is None else factor * message.nbytes
