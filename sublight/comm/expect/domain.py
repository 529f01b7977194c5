"""This file knows about the expected time of a collective inside one NVLink domain, or inside one PCIe box.

    >>> from sublight.work import Message
    >>> time = in_domain(Message("all_reduce", 8, 64 * 2**20), device="h100-sxm")
    >>> time.low < time.seconds < time.high
    True
"""

from __future__ import annotations

import math
from dataclasses import replace

from sublight.cluster import catalog as nodes
from sublight.comm.expect.measured import COLLECTIVES, Box
from sublight.comm.expect.surface import OCTAVES_BEYOND, Surface, System, shipped
from sublight.comm.expect.transfer import Reading, link_of, moved, nearest, reading
from sublight.comm.expected import Expected
from sublight.device import by_key
from sublight.errors import InputError
from sublight.work import Message

# what stands in for a collective without curves (of as many ranks, or of so many), the fastest of them: of send_recv a
# pair that exchanges halves, which is quick to start, and a ring, which fills the link
STANDS_IN: dict[str, tuple[tuple[str, int | None], ...]] = {
    "send_recv": (("all_to_all", 2), ("all_gather", 8)), "broadcast": (("all_gather", None),),
    "reduce": (("reduce_scatter", None),),
}
STAND_IN = 0.2                           # what that adds to half an interval: a judgement
# What another machine of the same kind adds: on the one that was seen (docs/comm-accuracy.md) the fitted intervals hold
# 54 of 60 sizes of the reductions and gathers, but 6 of 20 of all-to-all, half of them 11 % off.
ANOTHER_MACHINE = {"all_to_all": 0.12}
# formats that the NVLink switch reduces (NVLS); others go round a ring
SWITCH_FORMS = ("fp64", "fp32", "tf32", "bf16", "fp16")
OTHER_FORMS = ("int64", "int32", "int16", "int8", "uint8", "fp8", "fp4", "bool", "complex64")
RANKS_MEASURED = 8                       # in one box, where the catalog has no node of a device


def in_domain(message: Message, *, device: str, dtype: str = "bf16", nvlink: bool = True) -> Expected:
    """What a collective should take among the ranks of one domain: seconds with an 80 % interval.

    device: key of the catalog. nbytes is what nccl-tests prints as size. dtype decides whether the switch can reduce.
    nvlink=False: the ranks reach each other over PCIe though the device has links. Times are of NCCL kernels back to
    back on an idle machine. Raises InputError for a collective, format, group or size that the constants do not
    support.
    """
    box = _box(device, nvlink)
    form = _checked(message, dtype, box)
    if message.group == 1:
        return Expected(0.0, 0.0, 0.0, {}, "nothing", "one rank has nobody to talk to")
    surface = shipped()
    if message.nbytes > (most := surface.knots[-1] << OCTAVES_BEYOND):
        raise InputError(f"{message.nbytes} bytes: expected at most {most} bytes, since nothing above "
                         f"{surface.knots[-1]} was measured")
    system = surface.systems.get(box.device) if nvlink or not Box.of(device).nvlink else None
    source = system or nearest(surface, box)
    if source is None:
        raise InputError(f"no measured system joins its GPUs over {link_of(box)}, as {device} does")
    found = _read(surface, source, message, form, box)
    found = replace(found, width=math.hypot(found.width, ANOTHER_MACHINE.get(message.collective, 0.0)))
    if system is None:
        found = _transferred(surface, found, box, source)
    elif message.nbytes < surface.knots[0]:
        found = replace(found, notes=(*found.notes, f"less than {surface.knots[0]} bytes were not measured: as those"))
    return _expected(found, _read(surface, source, replace(message, nbytes=1), form, box), box,
                     f"{surface.source}; {source.key}, NCCL {source.version}")


def _box(device: str, nvlink: bool) -> Box:
    box = Box.of(by_key(device).key)
    if nvlink or not box.nvlink:
        return box
    node = next((node for node in nodes() if node.device.key == box.device), None)
    if node is None or node.pcie_bytes_per_second <= 0:
        raise InputError(f"{device} without NVLink: expected a node of the catalog that says its PCIe rate, got none")
    return Box(box.device, False, node.pcie_bytes_per_second, f"pcie {box.device}", f"pcie {box.device} board")


def _checked(message: Message, dtype: str, box: Box) -> str:
    """The format of the curves to read."""
    if message.collective not in (*COLLECTIVES, *STANDS_IN):
        raise InputError(f"no expected time of '{message.collective}'; expected one of "
                         f"{', '.join((*COLLECTIVES, *STANDS_IN))}")
    if message.group < 1 or message.nbytes < 1:
        raise InputError(f"{message.collective}: expected at least one rank and one byte, got {message.group} ranks "
                         f"and {message.nbytes} bytes")
    if dtype not in (*SWITCH_FORMS, *OTHER_FORMS):
        raise InputError(f"no number format '{dtype}'; expected one of {', '.join((*SWITCH_FORMS, *OTHER_FORMS))}")
    most = max((node.domain for node in nodes() if node.device.key == box.device), default=RANKS_MEASURED)
    if message.group > most:
        raise InputError(f"{message.group} ranks in one domain: {box.device} has {most} at most; say the cluster "
                         "(2x8x…) to cross nodes")
    return "half" if dtype in SWITCH_FORMS else "int8"


def _read(surface: Surface, system: System, message: Message, form: str, box: Box) -> Reading:
    """The system's curve at the size that keeps its link busy as long as the message does the box's."""
    collective, group, nbytes = message.collective, message.group, moved(box, system, message.nbytes)
    if collective not in STANDS_IN:
        return reading(surface, system, collective, form, group, nbytes)
    options = [_stand_in(surface, system, collective, stand_in, ranks or group, nbytes, form)
               for stand_in, ranks in STANDS_IN[collective]]
    return min(options, key=lambda option: option.log_us)


def _stand_in(
    surface: Surface, system: System, collective: str, stand_in: str, ranks: int, nbytes: float, form: str,
) -> Reading:
    """Another collective with as many bytes on each link: a ring of n ranks carries (n-1)/n of its size."""
    found = reading(surface, system, stand_in, form, ranks, nbytes * ranks / (ranks - 1))
    return Reading(found.log_us, math.hypot(found.width, STAND_IN), (
        *found.notes, f"{collective} was not measured: as {stand_in} of {ranks} ranks with as many bytes on a link"))


def _transferred(surface: Surface, found: Reading, box: Box, source: System) -> Reading:
    kin = Box.of(source.key).family == box.family
    extra = (surface.kin if kin else surface.stranger)[link_of(box)]
    rate = box.link_bytes_per_second / Box.of(source.key).link_bytes_per_second
    return Reading(found.log_us, math.hypot(found.width, extra), (
        *found.notes, f"{box.device} was not measured: {source.key} with {rate:.3g} times its link rate"))


def _expected(found: Reading, least: Reading, box: Box, basis: str) -> Expected:
    seconds = math.exp(found.log_us) * 1e-6
    start = min(math.exp(least.log_us) * 1e-6, seconds)
    terms = {"base latency": start, link_of(box): seconds - start}
    limiter = max(terms, key=lambda term: terms[term])
    return Expected(seconds, seconds * math.exp(-found.width), seconds * math.exp(found.width), terms, limiter, basis,
                    found.notes)
