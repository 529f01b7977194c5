"""Write the topology files of the pages: a healthy box, a virtual machine, and one small box for each check.

    python docs/examples/make_topologies.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
INVISIBLE = "fffffff:ffff:ff"


@dataclass(frozen=True)
class Element:
    """An element of the file; with_ changes attributes, and drops those that are None."""

    name: str
    attributes: dict[str, str]
    children: tuple[Element, ...] = field(default=())

    def with_(self, **changes: str | None) -> Element:
        kept = {key: value for key, value in (self.attributes | changes).items() if value is not None}
        return replace(self, attributes=kept)

    def holding(self, *children: Element) -> Element:
        return replace(self, children=children)

    def lines(self, depth: int = 0) -> Iterator[str]:
        start = "  " * depth + f"<{self.name}" + "".join(f' {k}="{v}"' for k, v in self.attributes.items())
        if not self.children:
            yield f"{start}/>"
            return
        yield f"{start}>"
        for child in self.children:
            yield from child.lines(depth + 1)
        yield "  " * depth + f"</{self.name}>"


def pci(bus: str, kind: str, vendor: str, device: str, *children: Element, speed: str = "32.0 GT/s PCIe") -> Element:
    return Element("pci", {"busid": bus, "class": kind, "vendor": vendor, "device": device, "link_speed": speed,
                           "link_width": "16"}, children)


def nvlink(target: str, count: int) -> Element:
    return Element("nvlink", {"target": target, "count": str(count), "tclass": "0x068000"})


SWITCHES = (nvlink("0000:05:00.0", 5), nvlink("0000:06:00.0", 5), nvlink("0000:07:00.0", 4), nvlink("0000:08:00.0", 4))


def gpu(bus: str, number: int, *links: Element, speed: str = "32.0 GT/s PCIe") -> Element:
    inside = Element("gpu", {"dev": str(number), "sm": "90", "rank": str(number), "gdr": "1"}, links or SWITCHES)
    return pci(bus, "0x030200", "0x10de", "0x2335", inside, speed=speed)


def nic(bus: str, number: int, link: str = "32.0 GT/s PCIe", **changes: str | None) -> Element:
    port = Element("net", {"name": f"mlx5_{number}", "dev": str(number), "speed": "400000", "port": "1",
                           "latency": "0.000000", "guid": f"0x{number + 1:x}", "maxconn": "131072", "gdr": "1"})
    return pci(bus, "0x020700", "0x15b3", "0x1021", Element("nic", {}, (port.with_(**changes),)), speed=link)


def switch(bus: str, *below: Element) -> Element:
    return pci(bus, "0x060400", "0x1000", "0xc030", *below)


def cpu(numa: int, *below: Element) -> Element:
    return Element("cpu", {"numaid": str(numa), "affinity": "ffffffff", "arch": "x86_64", "vendor": "GenuineIntel",
                           "familyid": "6", "modelid": "143"}, below)


def system(*cpus: Element) -> Element:
    return Element("system", {"version": "1"}, cpus)


def below(number: int, the_gpu: Element | None = None, the_nic: Element | None = None) -> Element:
    """A switch with a GPU and its port: 0000:10, 0000:20, …"""
    bus = f"0000:{number + 1:x}"
    return switch(f"{bus}0:00.0", the_gpu or gpu(f"{bus}1:00.0", number), the_nic or nic(f"{bus}2:00.0", number))


def h200() -> Element:
    """A healthy box with eight GPUs."""
    return system(*(cpu(numa, *(below(4 * numa + i) for i in range(4))) for numa in (0, 1)))


def vm_h200() -> Element:
    """A virtual machine with all of it passed through, flat: traits of NVIDIA/nccl-tests issue 256."""
    devices = []
    for i in range(8):
        devices.append(gpu(f"0000:{i + 1:02x}:00.0", i, nvlink(INVISIBLE, 18), speed="16.0 GT/s PCIe"))
        devices.append(nic(f"0000:{i + 9:02x}:00.0", i, link="16.0 GT/s PCIe"))
    return system(cpu(-1, *devices))


# ---- two GPUs and one fault each


def pair(first: Element, second: Element) -> Element:
    return system(cpu(0, first), cpu(1, second))


def sl401() -> Element:
    return system(cpu(0, below(0), switch("0000:30:00.0", nic("0000:31:00.0", 1))),
                  cpu(1, switch("0000:20:00.0", gpu("0000:21:00.0", 1))))


def sl402() -> Element:
    return system(cpu(0, gpu("0000:11:00.0", 0), nic("0000:12:00.0", 0)),
                  cpu(1, gpu("0000:21:00.0", 1), nic("0000:22:00.0", 1)))


def sl403() -> Element:
    return system(cpu(0, below(0)), cpu(-1, below(1)))


def sl404() -> Element:
    return pair(below(0), below(1, gpu("0000:21:00.0", 1).with_(link_width="8")))


def sl405() -> Element:
    return pair(below(0), below(1).with_(link_speed="32.0 GT/s"))


def sl406() -> Element:
    narrow = {"vendor": "0x104c", "device": "0x8232", "link_speed": "2.5 GT/s PCIe", "link_width": "1"}
    return pair(below(0).with_(**narrow), below(1).with_(**narrow))


def sl407() -> Element:
    return pair(below(0), below(1, gpu("0000:21:00.0", 1, nvlink(INVISIBLE, 18))))


def sl408() -> Element:
    return pair(below(0), below(1, gpu("0000:21:00.0", 1, *SWITCHES[:3], nvlink("0000:08:00.0", 2))))


def sl409() -> Element:
    bare = gpu("0000:21:00.0", 1)
    return pair(below(0), below(1, bare.holding(bare.children[0].holding())))


def sl410() -> Element:
    crossed = (switch("0000:11:00.0", gpu("0000:12:00.0", 0), nic("0000:16:00.0", 1)),
               switch("0000:14:00.0", gpu("0000:15:00.0", 1), nic("0000:13:00.0", 0)))
    return system(cpu(0, switch("0000:10:00.0", *crossed)))


def sl411() -> Element:
    return pair(below(0), below(1, None, nic("0000:22:00.0", 1, gdr="0")))


def sl412() -> Element:
    return pair(below(0), below(1, None, nic("0000:22:00.0", 1, speed="200000")))


def sl413() -> Element:
    return system(cpu(0, switch("0000:10:00.0", gpu("0000:11:00.0", 0), gpu("0000:13:00.0", 1),
                                nic("0000:12:00.0", 0))))


def sl414() -> Element:
    return pair(below(0), below(1, None, nic("0000:22:00.0", 1, dev="0")))


def sl415() -> Element:
    second = gpu("0000:21:00.0", 1)
    return pair(below(0), below(1, second.holding(second.children[0].with_(rank="0"))))


FILES: tuple[Callable[[], Element], ...] = (
    h200, vm_h200, sl401, sl402, sl403, sl404, sl405, sl406, sl407, sl408, sl409, sl410, sl411, sl412, sl413, sl414,
    sl415,
)


def main(folder: Path = HERE) -> None:
    for build in FILES:
        (folder / f"{build.__name__}.xml").write_text("\n".join(build().lines()) + "\n", "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
