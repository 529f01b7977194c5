"""This file knows about compute beside a collective: what the SMs that it holds and the bytes that it moves take away.

    held SMs      compute has the others: (SMs - held) / SMs, if its kernels can be spread over fewer
    memory        a collective reads and writes what it moves: its share of the memory rate is not there for compute

Together they are a range, for how far kernels feel either depends on what limits them. Public evidence: matrix products
under NCCL's collectives ran 30 to 40 % slower on 8 H100 (pytorch/pytorch pull request 179937), which this range holds
for NCCL's 16 channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from sublight.device import Device
from sublight.errors import InputError

MEASURED_LOW, MEASURED_HIGH = 1.30, 1.40         # pytorch/pytorch pull request 179937, 8 H100, NCCL
NCCL_CHANNELS = 16                               # twice the 8 of its search on several such nodes; one SM each


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Factors on the time of compute while a collective runs beside it."""

    held_sms: int
    of_sms: int
    low: float                           # only the held SMs are missed
    high: float                          # and waves, memory and clocks suffer as publicly measured

    @property
    def note(self) -> str:
        return (f"holds {self.held_sms} of {self.of_sms} SMs: compute beside it takes {self.low:.2f} to "
                f"{self.high:.2f} times as long")


def beside(sms: int, device: Device, *, moved_bytes_per_second: float = 0.0) -> Slowdown:
    """How much slower compute runs beside a kernel that holds some SMs and moves bytes through memory.

    Low: SMs / (SMs - held), of compute that memory does not limit. High: low x 1.23, which is 1.40 as measured over the
    132 / (132 - 16) = 1.14 of NCCL's 16 channels, if it ran with so many there (not said): what waves, memory and
    clocks add; or 1 / what is left of the memory rate where that is more. Raises InputError for SMs that are not there.
    """
    if not 0 <= sms < device.sms:
        raise InputError(f"expected fewer SMs than the {device.sms} of {device.title}, got {sms}")
    held = device.sms / (device.sms - sms)
    memory = device.limits.memory_bytes_per_second
    left = 1.0 if memory is None else max(0.05, 1 - moved_bytes_per_second / memory)
    beyond = MEASURED_HIGH / (132 / (132 - NCCL_CHANNELS)) if sms else 1.0
    return Slowdown(sms, device.sms, held, max(held * beyond, 1 / left))
