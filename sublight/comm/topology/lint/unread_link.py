"""SL405: a PCIe link whose speed or width NCCL cannot read, and replaces by its own guess."""

from __future__ import annotations

from collections.abc import Iterable

from sublight.comm.topology.box import Box
from sublight.comm.topology.naming import first_of, gpu_name, lines, port_name, switch_name
from sublight.finding import Finding

CODE, TITLE = "SL405", "PCIe speed or width unread"


def find(box: Box) -> Iterable[Finding]:
    """Fires where link_speed is a text that NCCL does not know, or link_width is 0 or no number. Not where both are
    absent: NCCL then asks the system."""
    named = [*((gpu_name(gpu), gpu.slot.link) for gpu in box.gpus),
             *((port_name(port), port.slot.link) for port in box.ports),
             *((switch_name(switch), switch.link) for switch in box.switches)]
    unread = {name: link for name, link in named
              if link is not None and not link.absent and (link.gt_per_second is None or link.lanes is None)}
    if not unread:
        return
    by_effect: dict[str, list[str]] = {}
    for name, link in unread.items():
        rate = link.gt_per_second
        speed = "takes 8 GT/s for an unknown speed" if rate is None else f"reads {rate:g} GT/s"
        width = "takes x16 for a width of 0 or none" if link.lanes is None else f"reads x{link.lanes}"
        by_effect.setdefault(f"NCCL {speed} and {width}: {link.nccl_gb_per_second:g} GB/s", []).append(name)
    wrong = any(link.gt_per_second is None for link in unread.values())
    yield Finding(
        CODE, TITLE,
        f"{first_of(list(unread))}: the file gives no speed or width that NCCL reads, and NCCL fills in its own",
        lines(f"{effect} ({first_of(names)})" for effect, names in by_effect.items()),
        'Write the real link into the file that NCCL_TOPO_FILE names, in the kernel\'s words: link_speed="32.0 GT/s '
        'PCIe" link_width="16"',
        "high" if wrong else "medium", None,
        ("virtual functions report a width of 0 everywhere; x16 is then usually right",) if not wrong else (),
    )
