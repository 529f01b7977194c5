"""This file knows about saying sizes, rates, times and places in the doctor's claims, the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from sublight.comm.doctor.tables import Setting

NAMES = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all", "all_to_all_v": "all-to-all-v", "send_recv": "send/receive", "unnamed": "a test",
}
PROGRAMS = {"all_to_all": "alltoall_perf", "send_recv": "sendrecv_perf", "all_to_all_v": "alltoallv_perf"}


def name(collective: str) -> str:
    return NAMES.get(collective, collective)


def program(collective: str) -> str:
    """The nccl-tests program of a collective."""
    return PROGRAMS.get(collective, f"{'sendrecv' if collective == 'unnamed' else collective}_perf")


def rate(bytes_per_second: float) -> str:
    """23.5 GB/s, 1.09 GB/s, 430 GB/s."""
    gb = bytes_per_second / 1e9
    return f"{gb:,.0f} GB/s" if gb >= 100 else f"{gb:.1f} GB/s" if gb >= 10 else f"{gb:.2f} GB/s"


def time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:,.2f} ms"
    return f"{seconds * 1e6:,.1f} µs"


def size(nbytes: int) -> str:
    """32 MiB, 1.5 GiB, 512 B; 33,554,240 bytes are 32 MiB too."""
    for unit, each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= 0.999 * each:
            value = nbytes / each
            return f"{round(value):,} {unit}" if abs(value - round(value)) < 0.005 * value else f"{value:.1f} {unit}"
    return f"{nbytes:,} B"


def slower(level: float, healthy: float) -> str:
    """37 % slower."""
    return f"{max(0.0, 1 - level / healthy):.0%} slower".replace("%", " %")


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number != 1 else f"1 {what.removesuffix('s')}"


def where(setting: Setting) -> str:
    """at 4 GPUs a node, on rail 3@5d."""
    gpus = f"at {count(setting.gpus_per_node, 'GPUs')} a node"
    return f"{gpus} on rail {setting.rail}" if setting.rail else gpus


def listed(items: Sequence[str], most: int = 12) -> str:
    """a, b and c; or the first few and how many more."""
    if len(items) > most:
        return f"{', '.join(items[:most])} and {len(items) - most:,} more"
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def command(hosts: Sequence[str], gpus: int, collective: str) -> str:
    """What to run again."""
    at = ",".join(f"{f'[{host}]' if ':' in host else host.replace(' ', '-')}:{gpus}" for host in hosts)
    return f"mpirun -np {gpus * len(hosts)} -H {at} {program(collective)} -b 256M -e 4G -f 2"
