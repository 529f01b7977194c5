"""This file knows about a table of measured collectives inside one box: times on a grid, absent where not measured.

    axes     system x collective x number format x ranks x size; log_us is NaN where there is no row
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sublight.cluster import catalog as nodes
from sublight.device import by_key
from sublight.errors import InputError

F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
REDUCING = 2                             # the first two do arithmetic: only there the number format can matter
FORMS = ("half", "int8")                 # a format that a switch can reduce (NVLS), and one that it cannot
COLUMNS = {"system", "op_name", "nccl_dtype", "num_gpus", "bytes", "us"}


@dataclass(frozen=True, slots=True)
class Box:
    """What is known of a system without measuring: its link, and whom it should resemble."""

    device: str
    nvlink: bool
    link_bytes_per_second: float         # one direction, all links of a GPU
    family: str                          # same link, same generation of GPU
    board: str                           # same family, same kind of domain

    @classmethod
    def of(cls, key: str) -> Box:
        """From the catalog's device and its usual node. Raises InputError where the catalog has no link rate."""
        device = by_key(key)
        node = next((node for node in nodes() if node.device.key == key), None)
        nvlink = node.links > 0 if node else "-pcie" not in key and "sxm" in key
        rate = device.limits.link_bytes_per_second
        if rate is None:
            raise InputError(f"{key}: the catalog has no link rate of {device.title}")
        major = device.capability[0] if device.capability else 0
        family = f"nvlink sm{major}" if nvlink else f"pcie {key}"
        trays = node is not None and node.domain > node.gpus
        return cls(key, nvlink, rate, family, f"{family} {'trays' if trays else 'board'}")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Measured times. ranks and sizes (bytes) ascend."""

    systems: tuple[str, ...]             # keys of catalog/devices.toml
    versions: Mapping[str, str]          # of NCCL, by system
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    log_us: F64                          # (system, collective, form, ranks, size), natural logarithm of microseconds

    def without(self, held_out: Mask) -> Table:
        """The same with places that were not measured."""
        return replace(self, log_us=np.where(held_out, np.nan, self.log_us))

    def of(self, chosen: Mask) -> Table:
        """Some of the systems."""
        systems = tuple(key for key, keep in zip(self.systems, chosen, strict=True) if keep)
        return replace(self, systems=systems, log_us=self.log_us[chosen])


def read_table(path: Path, devices: Mapping[str, str]) -> Table:
    """A CSV with the columns system, nccl, op_name, nccl_dtype, num_gpus, bytes, us. devices: the catalog's key of each
    system. Raises InputError for a file that is none, or that has a system, a collective or a format we do not know."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if not set(reader.fieldnames or ()) >= COLUMNS:
            raise InputError(f"{path.name}: expected the columns {', '.join(sorted(COLUMNS))}, "
                             f"got {', '.join(reader.fieldnames or ())}")
        return tabled(reader, devices, path.name)


def tabled(rows: Iterable[Mapping[str, str]], devices: Mapping[str, str], where: str) -> Table:
    """The same from rows; several rows of one place are averaged (of their logarithms)."""
    listed = list(rows)
    names = {"alltoall": "all_to_all"}
    try:
        systems = tuple(dict.fromkeys(devices[row["system"]] for row in listed))
        ranks, sizes = ({int(row[name]) for row in listed} for name in ("num_gpus", "bytes"))
        places = [(systems.index(devices[row["system"]]), COLLECTIVES.index(names.get(row["op_name"], row["op_name"])),
                   FORMS.index(row["nccl_dtype"]), sorted(ranks).index(int(row["num_gpus"])), int(row["bytes"]))
                  for row in listed]
        values = np.log([float(row["us"]) for row in listed])
    except (KeyError, ValueError) as bad:
        raise InputError(f"{where}: {bad} is no system, collective ({', '.join(COLLECTIVES)}), format "
                         f"({', '.join(FORMS)}) or number that can be read") from None
    order = {size: i for i, size in enumerate(sorted(sizes))}
    shape = (len(systems), len(COLLECTIVES), len(FORMS), len(ranks), len(sizes))
    sums, counts = np.zeros(shape), np.zeros(shape)
    index = tuple(np.array([(*place[:4], order[place[4]]) for place in places]).T)
    np.add.at(sums, index, values)
    np.add.at(counts, index, 1)
    versions = {devices[row["system"]]: row.get("nccl", "?") for row in listed}
    return Table(systems, versions, tuple(sorted(ranks)), tuple(sorted(sizes)),
                 np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))
