"""This file knows about bounds: the least time that a piece of work can take on a device, and what limits it.

    >>> from sublight.device import by_key
    >>> gemm = Work.of(flops={("tensor", "bf16"): 2 * 8192**3}, bytes_read=4 * 8192**2, bytes_written=2 * 8192**2)
    >>> least = bound(gemm, by_key("h100-sxm").limits)
    >>> least.limiter, round(least.seconds * 1e6, 1)
    ('tensor bf16', 1027.1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublight.device import Limits
from sublight.work import Message, Work


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds, and the resource that sets them: "tensor bf16", "vector fp32", "memory", "link" or "nothing"."""

    seconds: float
    limiter: str
    terms: Mapping[str, float]           # seconds by resource; they run side by side


def bound(work: Work, limits: Limits, *, sms: int | None = None) -> Bound | None:
    """A true lower bound of the time that the work of one operator takes on a device with these limits.

    Formula: the largest of amount / rate over all resources, since they run side by side (Williams, Waterman,
    Patterson: Roofline, CACM 52(4), 2009). The terms:

    - arithmetic, for each unit and number format: FLOPs / (FLOPs per clock and SM x SMs x maximum clock), dense.
      `sms` is how many SMs the operator has (None: all); formats do not add up, since they may have pipes of their own;
    - memory: see `charged_bytes`. Never scaled by SMs, since a fraction of them saturates it;
    - link: see `link_bytes`. Never scaled either.

    It is the bound of one operator. Of a sum of Work it is one too only if the parts do not read what others of them
    wrote: an intermediate may stay in L2, so for a chain of operators add their bounds. None where the work needs a
    rate that the catalog does not know. Raises ValueError for less than one SM.
    """
    if sms is not None and sms < 1:
        raise ValueError(f"sms: expected at least 1, got {sms}")
    share = 1.0 if sms is None else min(sms, limits.sms) / limits.sms
    terms: dict[str, float] = {}
    for (unit, form), flops in work.flops.items():
        rate = _vector_rate(limits) if (unit, form) == ("vector", "fp32") else limits.flops_per_second(unit, form)
        if rate is None:
            return None
        terms[f"{unit} {form}"] = flops / (rate * share)
    charged = charged_bytes(work, limits)
    if charged:
        if limits.memory_bytes_per_second is None:
            return None
        terms["memory"] = charged / limits.memory_bytes_per_second
    if work.messages:
        moved = link_bytes(work.messages)
        if moved is None or limits.link_bytes_per_second is None:
            return None
        terms["link"] = moved / limits.link_bytes_per_second
    if not terms:
        return Bound(0.0, "nothing", terms)
    limiter = max(terms, key=lambda resource: terms[resource])
    return Bound(terms[limiter], limiter, terms)


def _vector_rate(limits: Limits) -> float | None:
    """Operators on 16-bit tensors may do their arithmetic in packed halves: a lower bound allows the fastest format."""
    rates = [limits.flops_per_second("vector", form) for form in ("fp32", "fp16", "bf16")]
    return max((rate for rate in rates if rate is not None), default=None)


def charged_bytes(work: Work, limits: Limits) -> int:
    """The bytes that must cross the memory's pins while the operator runs: max(0, read - L2) + max(0, written - L2).

    An L2 full of inputs may be there at the start, and an L2 full of results, not yet written back, at the end: the
    results replace inputs that were used. So the L2 is taken off twice; taken off once, of reads and writes together,
    a copy of 40 MB within a 50 MB L2 would get a bound that it can beat. Memory that is kept compressed (A100: only if
    it was allocated so) is not allowed for.
    """
    return max(0, work.bytes_read - limits.l2_bytes) + max(0, work.bytes_written - limits.l2_bytes)


# (leaves a rank, enters it, leaves or enters it: the file does not say which) at least, in units of the message's
# nbytes, for n ranks, with reduction and multicast in the switch (NVLS): every value that this rank contributes must
# leave once unless it is reduced here, and then the result must leave. So an all-reduce moves its data once each way,
# not the 2 (n-1)/n times of a ring (Patarasuk, Yuan: JPDC 69(2), 2009), and an all-gather sends each piece once.
def _least(collective: str, n: int) -> tuple[float, float, float] | None:
    if n < 2:
        return 0.0, 0.0, 0.0
    others = (n - 1) / n
    return {
        "all_reduce": (1.0, 1.0, 0.0),
        "reduce_scatter": (others, 1 / n, 0.0),        # nbytes: of the input
        "all_gather": (1 / n, others, 0.0),            # nbytes: of the output
        "all_to_all": (others, others, 0.0),
        "broadcast": (0.0, 0.0, 1.0), "reduce": (0.0, 0.0, 1.0), "send_recv": (0.0, 0.0, 1.0),
        "barrier": (0.0, 0.0, 0.0),
    }.get(collective)


def link_bytes(messages: tuple[Message, ...]) -> float | None:
    """The bytes that must cross this rank's links in the busier direction; None for a collective that is not known.

    Links are full duplex, so what leaves and what enters run side by side: max(out, in). Of what goes one way, we do
    not know which: all of it in one direction or half in each, so max(out, in, (out + in + either) / 2), and at least
    the largest single one. The links of the catalog are taken to be the only way out: data that went over NVLink, PCIe
    and network cards at once could go faster by the rate of the last two.
    """
    out = into = either = largest = 0.0
    for message in messages:
        least = _least(message.collective, message.group)
        if least is None:
            return None
        leaves, enters, one_way = (part * message.nbytes for part in least)
        out, into, either, largest = out + leaves, into + enters, either + one_way, max(largest, one_way)
    return max(out, into, (out + into + either) / 2, largest)
