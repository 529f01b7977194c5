"""This file knows about the expected time of a collective inside one NVLink domain, or inside one PCIe box.

    >>> from sublight.work import Message
    >>> time = in_domain(Message("all_reduce", 8, 64 * 2**20), device="h100-sxm")
    >>> time.low < time.seconds < time.high
    True
"""

from __future__ import annotations

import math

from sublight.comm.expect.surface import Surface, System, at, shipped
from sublight.comm.expected import Expected
from sublight.device import by_key
from sublight.errors import InputError
from sublight.work import Message

TABLES = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
          "all_to_all": "alltoall", "send_recv": "alltoall", "broadcast": "all_gather", "reduce": "reduce_scatter"}


def in_domain(message: Message, *, device: str, dtype: str = "bf16", nvlink: bool = True) -> Expected:
    """What a collective should take among the ranks of one domain: seconds with an 80 % interval.

    device: key of the catalog. dtype decides whether the switch can reduce (NVLS: 16 and 32 bit floats). nvlink=False:
    the ranks reach each other over PCIe though the device has links. Raises InputError for a collective, a group or a
    size that the constants do not support.
    """
    surface = shipped()
    found = by_key(device)
    if message.collective not in TABLES:
        raise InputError(f"no expected time of '{message.collective}'; expected one of {', '.join(TABLES)}")
    if message.group < 2 or message.nbytes < 1:
        raise InputError(f"{message.collective}: expected 2 or more ranks and at least one byte, got {message.group} "
                         f"ranks and {message.nbytes} bytes")
    system = surface.systems.get(found.key)
    if system is None:
        raise InputError(f"no measured collectives of {found.title} yet")
    log_us, width, notes = _read(surface, system, message, "int8" if dtype in ("int8", "uint8") else "half")
    seconds = math.exp(log_us) * 1e-6
    return Expected(seconds, seconds * math.exp(-width), seconds * math.exp(width), {"domain": seconds}, "domain",
                    f"{system.source}, NCCL {system.version}", notes)


def _read(surface: Surface, system: System, message: Message, form: str) -> tuple[float, float, tuple[str, ...]]:
    ranks = min((n for n in (2, 4, 8)), key=lambda n: abs(math.log(n / message.group)))
    size = min(max(message.nbytes, surface.knots[0]), surface.knots[-1])
    log_us, width = at(surface, system, (TABLES[message.collective], form, ranks), size)
    if message.nbytes > size:
        log_us += math.log(message.nbytes / size)
    return log_us, width, ()
