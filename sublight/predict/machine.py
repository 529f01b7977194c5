"""This file knows about the machine of a prediction: a cluster, the library whose kernels run, and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sublight.cluster import Cluster, parse
from sublight.device import Device
from sublight.errors import InputError

# Rates that do not overlap: every second of a predicted step is charged to one of them, or shared between them.
RATES = ("memory", "tensor", "vector", "nvlink", "nic", "fixed")
NAMES = {"hbm": "memory", "memory": "memory", "tensor": "tensor", "vector": "vector", "nvlink": "nvlink",
         "nic": "nic", "fixed": "fixed"}


@dataclass(frozen=True)
class Machine:
    """Where a prediction holds. faster: rate -> factor, of what-ifs: {"memory": 2.0} is twice the HBM bandwidth."""

    cluster: Cluster
    library: str                         # "vllm", "sglang", "trtllm", "torch": whose kernels and constants
    version: str | None = None
    faster: Mapping[str, float] = field(default_factory=dict)
    tables: bool = True                  # measured tables are used where they are installed
    routing: str | tuple[float, ...] = "power_law_1.01"   # how rows fall to experts; a tuple: shares of the experts
    experts: str | None = None           # kernels of experts where a library has several: operators/experts.py, KERNELS
    cold: bool = True                    # caches hold other layers' data when an operator starts, unlike a benchmark's

    @property
    def device(self) -> Device:
        return self.cluster.node.device

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was worked out for this machine: times by operator, constants by name. A what-if starts an empty one."""
        return {}

    def factor(self, rate: str) -> float:
        return self.faster.get(rate, 1.0)


def machine(gpus: str, library: str = "vllm", *, whatif: str = "", version: str | None = None) -> Machine:
    """machine("8xH200", "vllm", whatif="hbm=2x,nvlink=2x")."""
    return Machine(parse(gpus), library, version, faster(whatif))


def faster(text: str) -> dict[str, float]:
    """"hbm=2x,nic=0.5x" -> {"memory": 2.0, "nic": 0.5}. Raises InputError naming what may be given.

    >>> faster("hbm=2x,nic=0.5")
    {'memory': 2.0, 'nic': 0.5}
    """
    out: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            factor = float(value.lower().removesuffix("x"))
        except ValueError:
            factor = 0.0
        if name not in NAMES or not 0 < factor < 1e6:
            raise InputError(f"--whatif {part}: expected RATE=FACTORx with RATE of {', '.join(NAMES)}, as hbm=2x")
        out[NAMES[name]] = factor
    return out


def whatif(where: Machine, rates: Mapping[str, float]) -> Machine:
    """The same machine with other rates."""
    return replace(where, faster={**where.faster, **rates})
