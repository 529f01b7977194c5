"""This file knows about the bytes that a collective sends over a domain's ports and over a GPU's NVLink, by algorithm.

                  ports of the busiest domain                 NVLink of a GPU, of n in a domain
    ring          bus bytes                                   the same: each rank hands on as much
    tree          twice the size; two domains once,           2 (n-1)/n x size: up and down a chain
                  three 1.5 times
    NVLS tree     as a tree                                   (1 + 1/n) x size: all it has, and its part of the sums

    >>> from sublight.work import Message
    >>> message = Message("all_reduce", 16, 800)
    >>> wire_bytes(message, 2, ring=True), wire_bytes(message, 2, ring=False), wire_bytes(message, 4, ring=False)
    (1500.0, 800.0, 1600.0)
"""

from __future__ import annotations

from sublight.comm.bus import bus_bytes
from sublight.work import Message


def wire_bytes(message: Message, domains: int, *, ring: bool) -> float:
    """Bytes that the busiest of several domains sends over all its ports.

    A double binary tree sends half the message in each tree. Of four domains or more, one sends half up and two halves
    down in the first, and half up in the second. Of three, a half each way, and a half. Of two, a half up, and a half
    down (NVIDIA/nccl issue 812). Public rates agree: two nodes of 8 H800 with 8 x 100 Gbit/s had 161 GB/s of bus
    bandwidth (NVIDIA/nccl-tests issue 153), and on three domains of 8 GB200 the tree was 1.23 times as fast as the ring
    (NVIDIA/nccl issue 1801).
    """
    if ring:
        return bus_bytes(message) or 0.0
    return {2: 1.0, 3: 1.5}.get(domains, 2.0) * message.nbytes


def least_wire_bytes(message: Message, domains: int) -> float:
    """The same of ring or tree, whichever sends less."""
    ring = wire_bytes(message, domains, ring=True)
    return min(ring, wire_bytes(message, domains, ring=False)) if message.collective == "all_reduce" else ring


def inside_bytes(message: Message, gpus: int, algorithm: str) -> float:
    """Bytes that a GPU sends over NVLink, of so many in a domain; algorithm as NCCL names it."""
    if gpus == 1:
        return 0.0
    if algorithm == "NVLSTree":
        return message.nbytes * (1 + 1 / gpus)
    if algorithm == "Tree":
        return 2.0 * (gpus - 1) / gpus * message.nbytes
    return bus_bytes(message) or 0.0
