"""This file knows about Work: what an operator has to do, whatever machine it runs on.

    >>> a = Work.of(flops={("tensor", "bf16"): 2 * 64 * 64 * 64}, bytes_read=2 * 64 * 64 * 2, bytes_written=64 * 64 * 2)
    >>> (a + a).flops[("tensor", "bf16")], (2 * a).bytes_total
    (1048576, 49152)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Unit = tuple[str, str]       # ("tensor" | "vector", number format): "tensor" is matrix hardware, "vector" the rest

# Bytes of one element.
BYTES = {
    "fp64": 8, "int64": 8, "complex64": 8, "fp32": 4, "tf32": 4, "int32": 4, "bf16": 2, "fp16": 2, "int16": 2,
    "fp8": 1, "int8": 1, "uint8": 1, "bool": 1, "fp4": 0.5, "int4": 0.5,
}


@dataclass(frozen=True, slots=True)
class Message:
    """A collective that this rank takes part in: nbytes is the size of its input buffer (of its output for
    all-gather)."""

    collective: str              # "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
    group: int                   # ranks
    nbytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """Operations by unit and number format, compulsory bytes, messages. Adds and scales; knows no device.

    Compulsory bytes: each input element read once, each output element written once. inferred says that some of it
    was concluded from a kernel's name or grid rather than read from arguments.
    """

    flops: Mapping[Unit, int] = field(default_factory=dict)     # multiply and add count as two
    bytes_read: int = 0
    bytes_written: int = 0
    messages: tuple[Message, ...] = ()
    inferred: bool = False

    @classmethod
    def of(
        cls, *, flops: Mapping[Unit, int] | None = None, bytes_read: int = 0, bytes_written: int = 0,
        messages: tuple[Message, ...] = (), inferred: bool = False,
    ) -> Work:
        """Work without the operations that are zero."""
        return cls({u: int(n) for u, n in (flops or {}).items() if n}, int(bytes_read), int(bytes_written), messages,
                   inferred)

    def __add__(self, other: Work) -> Work:
        """Both, one after the other."""
        units = self.flops.keys() | other.flops.keys()
        return Work(
            {u: self.flops.get(u, 0) + other.flops.get(u, 0) for u in units},
            self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written,
            self.messages + other.messages, self.inferred or other.inferred,
        )

    def __mul__(self, times: int) -> Work:
        """The same work several times."""
        return Work({u: n * times for u, n in self.flops.items()}, self.bytes_read * times,
                    self.bytes_written * times, self.messages * times, self.inferred)

    __rmul__ = __mul__

    @property
    def bytes_total(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def flops_total(self) -> int:
        return sum(self.flops.values())
