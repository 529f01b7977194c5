"""This file knows about Triton's cache: beside name.cubin lies name.json, which says how the kernel is launched."""

from __future__ import annotations

import json
from pathlib import Path

from sublight.kernels.inspect.code import Launch

LARGEST = 1 << 20                # bytes of name.json; real ones have two thousand
QUIET = {".ttir", ".ttgir", ".llir", ".source", ".json", ".sass", ".ttadapter", ".amdgcn"}    # no code


def launch_of(code: Path) -> Launch | None:
    """Warps, dynamic shared memory and cluster of a cubin or PTX of the cache; None where nothing beside it says so.

    Triton 3.x: num_warps, shared, num_ctas (cluster_dims in older ones) and tmem_size."""
    beside = code.with_suffix(".json")
    try:
        if beside.stat().st_size > LARGEST:
            return None
        said = json.loads(beside.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not {"num_warps", "shared"} <= said.keys():
        return None
    return Launch(_count(said["num_warps"], 64), _count(said["shared"], 1 << 24), _cluster(said),
                  tensor_columns=_count(said.get("tmem_size"), 512))


def _count(value: object, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def _cluster(said: dict[str, object]) -> int | None:
    """Blocks of a cluster."""
    dims = said.get("cluster_dims")
    if not isinstance(dims, list | tuple) or len(dims) != 3:
        return _count(said.get("num_ctas"), 64)
    product = 1
    for size in dims:
        product *= _count(size, 64) or 1
    return product
