"""This file knows about measured operator tables: those that aiconfigurator-core ships, where it is installed.

    systems/data/<system>/<family>/<backend>/<version>/<name>.parquet        latencies in milliseconds

Only its parquet files are read, never its predictor. Without the package, or without pyarrow to read it, there are no
tables: `available()` is False, `table(...)` is None, and predictions rest on constants.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = "aiconfigurator_core"
# Devices of the catalog by their system folder.
SYSTEMS = {
    "a100-sxm-80": "a100_sxm", "h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server",
}
BACKENDS = ("vllm", "sglang", "trtllm")
MILLISECOND = 1e-3

Columns = Mapping[str, Any]              # column -> numpy array; texts are arrays of str


@cache
def root() -> Path | None:
    """The folder of systems, or None where the package or pyarrow is absent."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "systems" / "data"
        if folder.is_dir():
            return folder
    return None


def available() -> bool:
    """Are there tables to read?"""
    return root() is not None


def system(device: str) -> str | None:
    """The folder of a device of the catalog, None where nobody measured it."""
    return SYSTEMS.get(device)


def versions(folder: str, family: str, backend: str, name: str) -> tuple[str, ...]:
    """Versions of a backend that have the table, newest first."""
    there = root()
    place = there / folder / family / backend if there else None
    if place is None or not place.is_dir():
        return ()
    found = [path.name for path in place.iterdir() if (path / f"{name}.parquet").is_file()]
    return tuple(sorted(found, key=age, reverse=True))


def age(version: str) -> tuple[tuple[int, ...], int, int]:
    """A key that sorts versions.

    >>> sorted(["1.3.0rc20", "0.24.0", "1.3.0", "1.3.0rc10", "0.5.6.post2", "0.5.6"], key=age)
    ['0.5.6', '0.5.6.post2', '0.24.0', '1.3.0rc10', '1.3.0rc20', '1.3.0']
    """
    numbers = re.match(r"[\d.]*", version)
    release = tuple(int(part) for part in (numbers.group() if numbers else "").strip(".").split(".") if part)
    stage = re.search(r"(rc|post|dev)(\d+)", version)
    rank = {"dev": -2, "rc": -1, "post": 1}[stage.group(1)] if stage else 0
    return release, rank, int(stage.group(2)) if stage else 0


@lru_cache(maxsize=24)
def table(
    device: str, family: str, backend: str, name: str, version: str | None = None,
    only: tuple[tuple[str, object], ...] = (),
) -> Columns | None:
    """The columns of a table, of the newest version that has it where none is given; None where there is no such table.

    device: key of the catalog, or a system folder. table("h200", "gemm", "trtllm", "gemm_perf")["latency"] is in ms.
    only: (column, value) of the rows that are wanted, which spares reading a large table's others.
    """
    folder = SYSTEMS.get(device, device)
    found = versions(folder, family, backend, name)
    there = root()
    if there is None or not found or (version is not None and version not in found):
        return None
    import pyarrow.parquet as parquet

    read = parquet.read_table(there / folder / family / backend / (version or found[0]) / f"{name}.parquet",
                              filters=[(column, "==", value) for column, value in only] or None)
    return {column: _array(read.column(column)) for column in read.column_names}


def _array(column: Any) -> Any:
    """Texts through their few distinct values: a table has a hundred thousand rows and a handful of kernels."""
    import pyarrow

    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        return column.to_numpy()
    coded = column.combine_chunks().dictionary_encode()
    if isinstance(coded, pyarrow.ChunkedArray):
        coded = coded.combine_chunks()
    values = np.array([value or "" for value in coded.dictionary.to_pylist()] or [""])
    return values[np.nan_to_num(coded.indices.to_numpy(zero_copy_only=False), nan=0).astype(np.int64)]
