"""This file knows about bounds: the least time that a piece of work can take on a device, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sublight.device import Limits
from sublight.work import Message, Work

# Least traffic that must leave a rank, in units of the message's nbytes, for n ranks. With reduction in the switch
# (NVLS) an all-reduce sends its data once; a ring sends it twice. A lower bound must allow the better one.
LEAST_SENT: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: (n - 1) / n, "reduce_scatter": lambda n: (n - 1) / n, "all_gather": lambda n: 1 / n,
    "all_to_all": lambda n: (n - 1) / n, "broadcast": lambda n: 0.0, "send_recv": lambda n: 0.0,
}
# Least traffic that must enter it.
LEAST_RECEIVED = LEAST_SENT | {"reduce_scatter": lambda n: 1 / n, "all_gather": lambda n: (n - 1) / n}


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds, and the resource that sets them: "tensor bf16", "vector fp32", "memory", "link" or "nothing"."""

    seconds: float
    limiter: str
    terms: Mapping[str, float]           # seconds by resource; they run side by side


def bound(work: Work, limits: Limits, *, sms: int | None = None) -> Bound | None:
    """A true lower bound of the time that `work` takes on a device with these limits.

    Arithmetic at the dense peak of the maximum clock, on `sms` of the SMs (None: all of them; memory and links are
    never scaled, since a fraction of the SMs saturates them). Bytes at the memory's rate on the sheet, after the
    device's whole L2 was taken off: what could have stayed in L2 is not charged. None where the work needs a rate
    that the catalog does not know.

    Formula: max over resources of amount / rate (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009).
    """
    share = 1.0 if sms is None else min(sms, limits.sms) / limits.sms
    terms: dict[str, float] = {}
    for (unit, form), flops in work.flops.items():
        rate = limits.flops_per_second(unit, form)
        if rate is None:
            return None
        terms[f"{unit} {form}"] = flops / (rate * share)
    charged = max(0, work.bytes_total - limits.l2_bytes)
    if charged:
        terms["memory"] = charged / limits.memory_bytes_per_second
    if work.messages:
        if limits.link_bytes_per_second is None:
            return None
        terms["link"] = sum(_link_seconds(m, limits.link_bytes_per_second) for m in work.messages)
    if not terms:
        return Bound(0.0, "nothing", terms)
    limiter = max(terms, key=lambda resource: terms[resource])
    return Bound(terms[limiter], limiter, terms)


def _link_seconds(message: Message, bytes_per_second: float) -> float:
    sent, received = (table.get(message.collective, lambda n: 0.0)(message.group)
                      for table in (LEAST_SENT, LEAST_RECEIVED))
    return message.nbytes * max(sent, received) / bytes_per_second
