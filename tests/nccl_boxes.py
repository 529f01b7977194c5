"""Topologies of our own, as texts: boxes of many kinds for NCCL's graph search. See data/nccl/README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Links = Callable[[int], Sequence[tuple[str, int, str]]]      # of a GPU: target, how many, PCI class of the target

SWITCH = ('class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x15d9" subsystem_device="0x1d25"')
NVSWITCH, GPU = "0x068000", "0x030200"
GEN3, GEN4, GEN5, GEN6 = (f"{rate}.0 GT/s PCIe" for rate in (8, 16, 32, 64))
X86 = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid='
CPUS = {
    "broadwell": X86 + '"79"', "skylake": X86 + '"85"', "ice lake": X86 + '"106"', "sapphire": X86 + '"143"',
    "emerald": X86 + '"207"', "amd": 'arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1"',
    "arm": 'arch="arm64"', "power": 'arch="ppc64"',
    "zhaoxin": 'arch="x86_64" vendor="CentaurHauls" familyid="7" modelid="91"',
}


def bus(one: int, other: int, function: int = 0) -> str:
    return f"0000:{one:02x}:{other:02x}.{function}"


def card(address: str, kind: str, inside: str, *, speed: str = GEN5, width: int = 16) -> str:
    ids = kind if kind.startswith("class") else f'class="{kind}"'
    return f'<pci busid="{address}" {ids} link_speed="{speed}" link_width="{width}">{inside}</pci>'


def gpu(address: str, number: int, sm: int, links: Sequence[tuple[str, int, str]] = (), *, rank: int | None = None,
        gdr: int = 1, more: str = "", speed: str = GEN5, width: int = 16) -> str:
    tags = "".join(f'<nvlink target="{to}" count="{count}" tclass="{kind}"/>' for to, count, kind in links)
    rank = number if rank is None else rank
    inside = f'<gpu dev="{number}" sm="{sm}" rank="{rank}" gdr="{gdr}">{tags}{more}</gpu>'
    return card(address, GPU, inside, speed=speed, width=width)


def port(number: int, *, megabits: int = 400_000, place: int = 1, guid: int | None = None, gdr: int = 1,
         latency: str = "0.000000", more: str = "") -> str:
    return (f'<net name="mlx5_{number}" dev="{number}" speed="{megabits}" port="{place}" latency="{latency}" '
            f'guid="{(number + 1 if guid is None else guid):#x}" maxconn="131072" gdr="{gdr}" {more}/>')


def nic(address: str, *ports: str, speed: str = GEN5, width: int = 16) -> str:
    return card(address, "0x020000", f"<nic>{''.join(ports)}</nic>", speed=speed, width=width)


def cpu(number: int | str, kind: str, inside: str, host: str = "") -> str:
    return f'<cpu {host} numaid="{number}" affinity="ffffffff" {CPUS[kind]}>{inside}</cpu>'


def system(*cpus: str) -> str:
    return f'<system version="1">{"".join(cpus)}</system>\n'


def slot(number: int, each: int) -> str:
    """Address of a GPU in `box`."""
    return bus(0x10 + number // each * 8, number % each + 1)


def box(kind: str, sm: int, gpus: int = 8, *, each: int = 4, speed: str = GEN4, nics: int = 2, megabits: int = 200_000,
        sockets: int = 2, links: Links = lambda number: (), where: str = "spread", gdr: int = 1,
        latency: str = "0.000000") -> str:
    """GPUs evenly under CPUs; `each` to a switch, 0 without switches; NICs spread over the switches or at one CPU."""
    rows: list[list[str]] = [[] for _ in range(sockets)]
    groups = max(1, gpus // each) if each else gpus
    ports = [nic(bus(0x11 + group * 8, number) if where == "spread" else bus(0xe0 + number, 0),
                 port(number, megabits=megabits, latency=latency, gdr=gdr), speed=speed)
             for number in range(nics) for group in [number * groups // nics]]
    for group in range(groups):
        inside = "".join(gpu(slot(number, each or 1), number, sm, links(number), gdr=gdr, speed=speed)
                         for number in range(gpus) if number // (each or 1) == group)
        if where == "spread":
            inside += "".join(text for number, text in enumerate(ports) if number * groups // nics == group)
        rows[group * sockets // groups].append(
            card(bus(0x0f + group * 8, 0), SWITCH, inside, speed=speed) if each else inside)
    if where != "spread":
        rows[0 if where == "first" else -1] += ports
    return system(*(cpu(number, kind, "".join(row)) for number, row in enumerate(rows)))


def switched(switches: int, count: int) -> Links:
    return lambda number: [(bus(0xf0 + switch, 0), count, NVSWITCH) for switch in range(switches)]


def joined(pairs: dict[int, dict[int, int]], each: int = 1) -> Links:
    """Direct NVLinks: from a GPU to others, how many."""
    return lambda number: [(slot(other, each), count, GPU) for other, count in pairs[number].items()]


# eight GPUs in two squares with diagonals, each joined to its twin: single and double links
CUBE = {
    0: {1: 1, 2: 1, 3: 2, 4: 2}, 1: {0: 1, 2: 2, 3: 1, 5: 2}, 2: {0: 1, 1: 2, 3: 2, 6: 1}, 3: {0: 2, 1: 1, 2: 2, 7: 1},
    4: {0: 2, 5: 1, 6: 1, 7: 2}, 5: {1: 2, 4: 1, 6: 2, 7: 1}, 6: {2: 1, 4: 1, 5: 2, 7: 2}, 7: {3: 1, 4: 2, 5: 1, 6: 2},
}
SINGLE = {one: dict.fromkeys(others, 1) for one, others in CUBE.items()}
SQUARES = {one: {other: 4 for other in range(one // 4 * 4, one // 4 * 4 + 4) if other != one} for one in range(8)}
BRIDGES = {one: {one ^ 1: 12} for one in range(8)}
ALL_FOUR = {one: {other: 4 for other in range(4) if other != one} for one in range(4)}


def flat(sm: int, links: int, kind: str = "sapphire", megabits: int = 400_000) -> str:
    """A virtual machine that shows no switches, no NUMA node, no speed of the bus."""
    hardware = [(bus(0xf0, 0), links, NVSWITCH)] if links else []
    inside = "".join(gpu(bus(0x20 + i, 0), i, sm, hardware, speed="Unknown", width=0) for i in range(8))
    inside += "".join(nic(bus(0x60 + i, 0), port(i, megabits=megabits), speed="Unknown", width=0) for i in range(8))
    return system(cpu(-1, kind, inside))


def tray(sm: int = 100, *, host: int | None = None, gpus: int = 4, megabits: int = 400_000) -> list[str]:
    """Two Arm CPUs with GPUs by C2C and NICs at the CPU; host: which of a domain of several."""
    rows, first = [], (host or 0) * gpus
    for socket in range(2):
        half = range(socket * gpus // 2, (socket + 1) * gpus // 2)
        inside = "".join(
            card(f"{8 + i:04x}:00:00.0", SWITCH, gpu(f"{8 + i:04x}:01:00.0", i, sm, [(bus(0xf0, 0), 18, NVSWITCH)],
                                                     rank=first + i, more='<c2c bw="44712" count="10"/>'))
            for i in half)
        inside += "".join(card(f"{i:04x}:00:00.0", SWITCH, nic(
            f"{i:04x}:03:00.0", port(i, megabits=megabits, guid=0x100 + (host or 0) * 16 + i))) for i in half)
        rows.append(cpu(socket, "arm", inside, "" if host is None else f'host_hash="{host + 1:#x}"'))
    return rows


def two_levels(upper: str, lower: str, sm: int, speed: str, kind: str) -> str:
    """Switches below switches: two GPUs and a NIC on each of the lower ones."""
    def half(socket: int, part: int) -> str:
        base, number = 0x11 + 0x40 * socket + 4 * part, 4 * socket + 2 * part
        inside = gpu(bus(base + 1, 0), number, sm, speed=speed) + gpu(bus(base + 1, 4), number + 1, sm, speed=speed)
        inside += nic(bus(base + 2, 0), port(2 * socket + part, megabits=200_000), speed=speed)
        return card(bus(base, 0), lower, inside, speed=speed)

    return system(*(cpu(socket, kind, card(bus(0x10 + 0x40 * socket, 0), upper, half(socket, 0) + half(socket, 1),
                                           speed=speed)) for socket in range(2)))


def beside(ports: Callable[[int], Sequence[str]]) -> str:
    """Eight GPUs behind NVSwitch, each on a switch with one NIC card of these ports."""
    def one(i: int) -> str:
        inside = gpu(bus(0x11 + 8 * i, 0), i, 90, [(bus(0xf0, 0), 18, NVSWITCH)])
        return card(bus(0x10 + 8 * i, 0), SWITCH, inside + nic(bus(0x12 + 8 * i, 0), *ports(i)))

    return system(*(cpu(s, "sapphire", "".join(one(4 * s + k) for k in range(4))) for s in range(2)))


def halves() -> str:
    """Two GPUs, each in two partitions with a rank of its own."""
    def one(number: int) -> str:
        tags = "".join(
            f'<gpu dev="{number}" sm="103" rank="{2 * number + part}" gdr="1" mlopart="{part}"><nvlink '
            f'target="{bus(0xf0, 0)}" count="18" tclass="{NVSWITCH}"/><c2c bw="44712" count="10"/></gpu>'
            for part in range(2))
        inside = card(bus(0x10 * number + 1, 0), SWITCH, card(bus(0x10 * number + 2, 0), GPU, tags))
        return cpu(number, "arm", inside + card(bus(0x10 * number + 8, 0), SWITCH,
                                                nic(bus(0x10 * number + 9, 0), port(number))))

    return system(one(0), one(1))


def _power() -> str:
    """GPUs that reach their CPU by NVLink."""
    def socket(s: int) -> str:
        inside = "".join(gpu(bus(0x10 + 4 * s + k, 0), 2 * s + k, 70, [
            (bus(0, 0), 3, "0x068001"), (bus(0x10 + 4 * s + 1 - k, 0), 3, GPU)], speed=GEN3) for k in range(2))
        return cpu(s, "power", inside + nic(bus(0x40 + s, 0), port(s, megabits=100_000), speed=GEN3))

    return system(socket(0), socket(1))


GEN4_FLAT = 'class="0x060400" vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="0xa024"'
GEN5_UPPER = 'class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x0001"'
GEN5_LOWER = 'class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x1001"'
HOPPER = switched(1, 18)

BOXES = {
    "cube-v100": box("broadwell", 70, each=1, speed=GEN3, nics=4, megabits=100_000, links=joined(CUBE)),
    "cube-p100": box("broadwell", 60, each=1, speed=GEN3, nics=4, megabits=100_000, links=joined(SINGLE)),
    "cube-nic-at-cpu": box("skylake", 70, each=1, speed=GEN3, nics=1, megabits=100_000, links=joined(CUBE),
                           where="first"),
    "switched-v100": box("skylake", 70, each=2, speed=GEN3, nics=4, megabits=100_000, links=switched(6, 1)),
    "a100": box("amd", 80, each=2, nics=8, links=switched(6, 2)),
    "a100-4-nics": box("ice lake", 80, each=2, nics=4, links=switched(6, 2)),
    "a100-1-nic": box("amd", 80, each=2, nics=1, megabits=100_000, links=switched(6, 2)),
    "a100-mesh": box("amd", 80, 4, each=1, nics=4, links=joined(ALL_FOUR)),
    "h100": box("sapphire", 90, each=1, speed=GEN5, nics=8, megabits=400_000, links=HOPPER),
    "h100-2-nics": box("sapphire", 90, each=1, speed=GEN5, nics=2, megabits=400_000, links=HOPPER),
    "h100-4-nics": box("sapphire", 90, each=1, speed=GEN5, nics=4, megabits=400_000, links=HOPPER),
    "h100-16-nics": box("sapphire", 90, each=1, speed=GEN5, nics=16, megabits=400_000, links=HOPPER),
    "h100-nics-at-cpu": box("sapphire", 90, each=1, speed=GEN5, nics=8, megabits=400_000, links=HOPPER, where="first"),
    "h100-no-gdr": box("sapphire", 90, each=1, speed=GEN5, nics=8, megabits=400_000, links=HOPPER, gdr=0),
    "h100-amd": box("amd", 90, each=1, speed=GEN5, nics=8, megabits=400_000, links=HOPPER, latency="1.500000"),
    "h800": box("sapphire", 90, each=1, speed=GEN5, nics=8, megabits=400_000, links=switched(4, 2)),
    "h100-two-ports": beside(lambda i: [port(2 * i, megabits=200_000, guid=64 + i),
                                        port(2 * i + 1, megabits=200_000, place=2, guid=64 + i)]),
    "h100-rails": beside(lambda i: [port(i, more=f'rail="{i % 4}" plane="{i % 2}"')]),
    "b200": box("emerald", 100, each=1, speed=GEN5, nics=8, megabits=400_000, links=switched(2, 9)),
    "b200-2-nics": box("emerald", 100, each=1, speed=GEN5, nics=2, megabits=400_000, links=switched(2, 9)),
    "b300": box("emerald", 103, each=1, speed=GEN6, nics=8, megabits=800_000, links=switched(2, 9)),
    "rtx-pro": box("sapphire", 120, speed=GEN5, megabits=400_000),
    "rtx-pro-amd": box("amd", 120, speed=GEN5, megabits=400_000),
    "l40s": box("ice lake", 89), "l40s-nic-at-cpu-1": box("sapphire", 89, 4, each=2, nics=1, where="last"),
    "l40s-at-cpu": box("ice lake", 89, each=0, megabits=100_000, where="first"),
    "l40s-at-cpu-amd": box("amd", 89, each=0, nics=1, megabits=100_000, where="last"),
    "a100-bridges": box("amd", 80, links=joined(BRIDGES, 4)),
    "h100-bridges": box("sapphire", 90, speed=GEN5, nics=4, megabits=400_000, links=joined(BRIDGES, 4)),
    "squares": box("skylake", 80, each=2, links=joined(SQUARES, 2)),
    "two-amd": box("amd", 86, 2, each=0, nics=1, megabits=25_000, sockets=1, where="first"),
    "four-amd": box("amd", 86, 4, each=0, nics=1, megabits=25_000, sockets=1, where="first"),
    "two-bridged": box("skylake", 86, 2, each=0, nics=1, megabits=10_000, sockets=1, where="first",
                       links=joined({0: {1: 4}, 1: {0: 4}})),
    "one": box("sapphire", 90, 1, each=1, speed=GEN5, nics=1, megabits=400_000, sockets=1),
    "nic-a-gpu": box("sapphire", 90, each=1, speed=GEN5, nics=8, megabits=400_000),
    "nic-a-pair": box("skylake", 80, each=2, nics=4), "zhaoxin": box("zhaoxin", 80, megabits=100_000),
    "speed-unknown": box("ice lake", 80, each=2, nics=1, megabits=-1, where="first", links=switched(6, 2)),
    "slow-nic": box("ice lake", 80, each=2, nics=1, megabits=1_000, where="first", links=switched(6, 2)),
    "flat-h100": flat(90, 18), "flat-no-nvlink": flat(90, 0), "flat-a100": flat(80, 12, "amd", 200_000),
    "tray-gb200": system(*tray()), "tray-two": system(*tray(gpus=2)),
    "tray-gb300": system(*tray(103, megabits=800_000)),
    "two-trays": system(*tray(host=0), *tray(host=1)),
    "four-trays": system(*(text for host in range(4) for text in tray(host=host))),
    "flattened-4": two_levels(GEN4_FLAT, GEN4_FLAT, 80, GEN4, "amd"),
    "flattened-5": two_levels(GEN5_UPPER, GEN5_LOWER, 90, GEN5, "sapphire"),
    "two-levels": two_levels(SWITCH, SWITCH, 80, GEN4, "ice lake"),
    "power": _power(), "halves": halves(),
    "collnet": box("ice lake", 80, each=2, nics=4, links=switched(6, 2)).replace('gdr="1" />', 'gdr="1" coll="1"/>'),
}
