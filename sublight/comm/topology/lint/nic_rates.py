"""SL412: network ports of unequal rate, or without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sublight.comm.topology.box import DEFAULT_PORT_MBIT, Box
from sublight.comm.topology.naming import first_of, lines, port_name
from sublight.finding import Finding

CODE, TITLE = "SL412", "network ports of unequal rate"


def find(box: Box) -> Iterable[Finding]:
    """Fires where listed ports differ in rate, or have none that NCCL reads."""
    ports = [port for port in box.ports if port.listed]
    rates = Counter(port.gb_per_second * 8 for port in ports)
    unread = [port for port in ports if port.gbit is None]
    if len(rates) < 2 and not unread:
        return
    usual = max(rates, key=lambda rate: (rates[rate], rate))
    odd = [port for port in ports if port.gb_per_second * 8 != usual or port.gbit is None]
    serving = {port for gpu in box.gpus for port in box.nearest(gpu)[:1]} & set(odd)
    yield Finding(
        CODE, TITLE,
        f"{first_of([port_name(port) for port in odd])}: "
        + (f"no rate that NCCL reads: it takes {DEFAULT_PORT_MBIT / 1000:g} Gbit/s" if unread else
           f"{odd[0].gb_per_second * 8:g} Gbit/s where most ports have {usual:g}"),
        lines((*(f"{port_name(port)}: {port.gb_per_second * 8:g} Gbit/s" for port in odd),
               f"{len(serving)} of these are the nearest of a GPU")),
        "If it is for storage or management, keep it out of NCCL (NCCL_IB_HCA). Otherwise look at the cable and at the "
        "switch's port: a link trained low (ibstat, mlxlink, ethtool)",
        "medium" if serving else "low", None,
        ("NCCL looks at bandwidth before distance: a faster port far away wins over a slow one close by",),
    )
