"""This file knows about the architectures that our Triton kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture as far as the choice of a tile asks.

    Shared memory and SMs: CUDA C++ Programming Guide, technical specifications per compute capability (163, 227, 227
    and 99 KiB a block); data sheets of the cards named.
    """

    name: str                            # "sm_90"
    capability: int                      # 90, as Triton's GPUTarget has it
    shared_bytes: int                    # a block may use
    sms: int                             # of `card`, for grids of persistent kernels that are only compiled
    card: str
    fp8: bool                            # e4m3 is converted and multiplied
    descriptors: bool                    # tensor memory accelerator that Triton's descriptors map to without spills
    tensor: tuple[tuple[str, str], ...]  # number format -> SASS name of its tensor-core instruction


TARGETS = (
    Target("sm_80", 80, 163 * 1024, 108, "A100", fp8=False, descriptors=False,
           tensor=(("bf16", "HMMA"), ("fp16", "HMMA"), ("int8", "IMMA"))),
    Target("sm_90", 90, 227 * 1024, 132, "H100 SXM", fp8=True, descriptors=True,
           tensor=(("bf16", "HGMMA"), ("fp16", "HGMMA"), ("fp8", "QGMMA"), ("int8", "IGMMA"))),
    Target("sm_100", 100, 227 * 1024, 148, "B200", fp8=True, descriptors=True,
           tensor=(("bf16", "UTCHMMA"), ("fp16", "UTCHMMA"), ("fp8", "UTCQMMA"), ("int8", "UTCIMMA"))),
    Target("sm_120", 120, 99 * 1024, 188, "RTX PRO 6000", fp8=True, descriptors=False,
           tensor=(("bf16", "HMMA"), ("fp16", "HMMA"), ("fp8", "QMMA"), ("int8", "IMMA"))),
)


def target(capability: int) -> Target:
    """The target whose code runs on a device of a compute capability (90 for 9.0); the nearest below where none is its
    own. Raises ValueError below 8.0.

    >>> target(90).card, target(89).name, target(103).name
    ('H100 SXM', 'sm_80', 'sm_100')
    """
    found = [one for one in TARGETS if one.capability <= capability]
    if not found:
        raise ValueError(f"our Triton kernels need compute capability 8.0 or more; got {capability / 10}")
    return found[-1]


def here() -> Target:
    """The target of the current CUDA device, with its own number of SMs."""
    from dataclasses import replace

    import torch

    major, minor = torch.cuda.get_device_capability()
    return replace(target(10 * major + minor), sms=torch.cuda.get_device_properties().multi_processor_count)
