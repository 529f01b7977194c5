"""This file knows about waves: how many rounds of blocks a grid takes on a device, and what the last one wastes.

Every tile is taken to last equally long, a block that has an SM for itself no shorter, and blocks to be given out as
room appears: the share that is lost is what the shape costs in that picture, not a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sublight.errors import InputError


@dataclass(frozen=True, slots=True)
class Waves:
    """A grid of tiles on a device. slots: blocks that run at once."""

    tiles: int                   # blocks of the grid: (M / tile) x (N / tile) x split
    slots: int
    rounds: int                  # waves, the last one counted whole
    last: int                    # blocks in the last one
    lost: float                  # share of slot x time that stands idle in the last wave
    padded: float                # share of the arithmetic that lies outside M x N, in tiles at its edges
    fills: tuple[int, int]       # grid sizes next to this one, at most and at least as large, that fill their waves


def waves(
    m: int, n: int, *, tile_m: int, tile_n: int, sms: int, blocks_per_sm: int, split: int = 1, cluster: int = 1,
) -> Waves:
    """Of an M x N result in tiles, each in `split` parts along K, on `sms` SMs with `blocks_per_sm` blocks each.

    cluster: blocks that start together; a cluster lies inside one GPC, so a few SMs of a real device stay without one:
    the number of slots is then an upper limit. Raises InputError for sizes below 1."""
    sizes = {"m": m, "n": n, "tile_m": tile_m, "tile_n": tile_n, "sms": sms, "blocks_per_sm": blocks_per_sm,
             "split": split, "cluster": cluster}
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} {size}: expected 1 or more")
    rows, columns = math.ceil(m / tile_m), math.ceil(n / tile_n)
    tiles = math.ceil(rows * columns * split / cluster) * cluster
    slots = sms * blocks_per_sm // cluster * cluster
    if not slots:
        raise InputError(f"a cluster of {cluster} blocks does not fit {sms} SMs with {blocks_per_sm} blocks each")
    rounds = math.ceil(tiles / slots)
    return Waves(tiles, slots, rounds, tiles - (rounds - 1) * slots, 1 - tiles / (rounds * slots),
                 1 - m * n / (rows * tile_m * columns * tile_n), (tiles // slots * slots, rounds * slots))
