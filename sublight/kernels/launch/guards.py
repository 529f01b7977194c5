"""This file knows about guarded buffers: tensors that lie between two zones which nobody may write, or read to any use.

Zones are filled with bytes of ones, which is NaN in every floating-point format and -1 in every integer: what a kernel
reads there shows in its result, and what it writes there is seen afterwards. An access far beyond them is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Tensor: TypeAlias = Any                  # torch.Tensor

ZONE_BYTES = 4096                        # before and after each; a multiple of every alignment that we ask for
FILL = 0xFF


@dataclass(slots=True)
class Guards:
    """Makes guarded tensors, on the CPU or a GPU, and says afterwards which zones were written.

    >>> import torch
    >>> guards = Guards()
    >>> x = guards.copy("x", torch.ones(3))
    >>> x.storage_offset(), guards.broken()
    (1024, ())
    >>> x.as_strided([4], [1])[3] = 0                       # one element beyond the end
    >>> guards.broken()
    ('x: 4 bytes after its end were written, the nearest 0 bytes away',)
    """

    zones: list[tuple[str, str, Tensor]] = field(default_factory=list)

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """The same values between two zones, contiguous."""
        out = self.empty(name, tuple(tensor.shape), tensor.dtype, device=tensor.device)
        out.copy_(tensor)
        return out

    def empty(self, name: str, sizes: Iterable[int], dtype: Any, *, device: Any = "cpu") -> Tensor:
        """A buffer between two zones, itself filled as they are: an element that nobody writes stays NaN or -1."""
        import torch

        sizes = tuple(sizes)
        nbytes = dtype.itemsize * torch.Size(sizes).numel()
        room = torch.full((2 * ZONE_BYTES + -(-nbytes // 16) * 16,), FILL, dtype=torch.uint8, device=device)
        end = ZONE_BYTES + nbytes
        self.zones += [(name, "before its start", room[:ZONE_BYTES]), (name, "after its end", room[end:])]
        return room[ZONE_BYTES:end].view(dtype).view(sizes)

    def broken(self) -> tuple[str, ...]:
        """What was written outside of the buffers, a sentence each; nothing: every zone is intact."""
        return tuple(_sentence(name, side, zone) for name, side, zone in self.zones if bool((zone != FILL).any()))


def _sentence(name: str, side: str, zone: Tensor) -> str:
    touched = (zone != FILL).nonzero().flatten()
    nearest = int(touched.min()) if side.startswith("after") else len(zone) - 1 - int(touched.max())
    return f"{name}: {len(touched)} bytes {side} were written, the nearest {nearest} bytes away"
