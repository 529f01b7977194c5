"""This file knows about the parts of a box: what a PCI id is, and how fast NCCL takes a PCIe link to be."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """A device by its PCI id. None: the catalog does not say."""

    title: str                           # "H100 SXM5 80 GB"
    device: str | None = None            # key of catalog/devices.toml
    nvlinks: int | None = None           # 0: none without a bridge
    gt_per_second: float | None = None   # per lane, the fastest that it takes
    lanes: int | None = None
    emulated: bool = False               # a bridge of a hypervisor, or written by hand


@dataclass(frozen=True, slots=True)
class PcieLink:
    """What a topology file says of a link, and what NCCL makes of it."""

    gt_per_second: float | None          # None: no text that NCCL reads
    lanes: int | None                    # None: 0, absent or no number
    absent: bool                         # the file says neither: NCCL asks the system at run time
    nccl_gb_per_second: float            # one direction, 10^9 bytes

    @property
    def raw_gb_per_second(self) -> float | None:
        """The link's own rate after its line code: 8b/10b up to 5 GT/s, 128b/130b above. None where it is not known."""
        if self.gt_per_second is None or self.lanes is None:
            return None
        return self.gt_per_second * self.lanes / 8 * (128 / 130 if self.gt_per_second > 5 else 0.8)

    def __str__(self) -> str:
        speed = "unknown speed" if self.gt_per_second is None else f"{self.gt_per_second:g} GT/s"
        return f"{speed} x{'?' if self.lanes is None else self.lanes}"


# Text at the start of link_speed, its GT/s, and NCCL's rate in 100 Mbit/s a lane; any other text counts as 60.
# NVIDIA/nccl src/graph/topo.cc (kvDictPciGen, ncclTopoAddPci) at 2.30.7.
SPEEDS = (("2.5 GT/s", 2.5, 15), ("5 GT/s", 5.0, 30), ("8 GT/s", 8.0, 60), ("16 GT/s", 16.0, 120),
          ("32 GT/s", 32.0, 240), ("5.0 GT/s PCIe", 5.0, 30), ("8.0 GT/s PCIe", 8.0, 60), ("16.0 GT/s PCIe", 16.0, 120),
          ("32.0 GT/s PCIe", 32.0, 240), ("64.0 GT/s PCIe", 64.0, 480))
OTHER_SPEED, OTHER_WIDTH = 60, 16
# NVIDIA/nccl src/graph/topo.h at 2.30.7: GB/s of one NVLink by compute capability, the first that fits
NVLINK_GB = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
# the same file: GB/s between the CPUs of a box
OTHER_CPU_GB, POWER_GB, ARM_GB, AMD_GB, ZHAOXIN_GB, YONGFENG_GB = 5000.0, 32.0, 6.0, 16.0, 6.0, 9.0
INTEL_GB = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0), (0, 6.0))    # by model of family 6, the first that fits
ID = re.compile(r"0x[0-9a-f]{1,4}", re.IGNORECASE)


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(resources.files("sublight.catalog").joinpath("pci.toml").read_text("utf-8"))


def part(vendor: str, device: str) -> Part | None:
    """The part with these ids, written as in /sys ("0x10de", "0x2330"). None: not in the catalog."""
    if not ID.fullmatch(vendor) or not ID.fullmatch(device):
        return None
    key = f"{int(vendor, 16):04x}:{int(device, 16):04x}"
    return next((Part(**table[key]) for table in _tables().values() if key in table), None)


def pcie_link(attributes: Mapping[str, str]) -> PcieLink:
    """The link of a <pci> element."""
    speed, width = attributes.get("link_speed"), attributes.get("link_width")
    known = next((entry for entry in SPEEDS if (speed or "").startswith(entry[0])), None)
    lanes = _number(width or "")
    per_lane = known[2] if known else OTHER_SPEED
    return PcieLink(known[1] if known else None, lanes or None, speed is None and width is None,
                    (lanes or OTHER_WIDTH) * per_lane / 80)


def _number(text: str) -> int:
    """The number at the start of a text, 0 where there is none: as C's strtol."""
    found = re.match(r"\s*(\d{1,6})", text)
    return int(found[1]) if found else 0


def nvlink_gb_per_second(capability: int) -> float:
    """What NCCL takes one NVLink of a GPU to carry, one direction."""
    return next((rate for least, rate in NVLINK_GB if capability >= least), 20.0)


def between_cpus_gb_per_second(cpu: Mapping[str, str]) -> float:
    """What NCCL takes the link between two CPUs to carry, from the attributes of one."""
    arch, vendor = cpu.get("arch", ""), cpu.get("vendor", "")
    if arch.startswith("ppc64"):
        return POWER_GB
    if arch.startswith("arm64"):
        return ARM_GB
    if not arch.startswith("x86_64"):
        return OTHER_CPU_GB
    family, model = _number(cpu.get("familyid", "")), _number(cpu.get("modelid", ""))
    if vendor.startswith("GenuineIntel"):
        return next(rate for least, rate in INTEL_GB if model >= least) if family == 6 else INTEL_GB[-1][1]
    if vendor.startswith("AuthenticAMD"):
        return AMD_GB
    if vendor.startswith(("CentaurHauls", "  Shanghai  ")):
        return YONGFENG_GB if (family, model) == (7, 0x5B) else ZHAOXIN_GB
    return OTHER_CPU_GB
