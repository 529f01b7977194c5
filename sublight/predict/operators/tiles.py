"""This file knows about the form of a matrix product's time: tiles, waves of them, split-K, and what memory must move.

    m, n, k      of the product;  batch, how many of them run as one
    wave         as many tiles as there are SMs; the last one runs as long as a full one

    seconds = fixed + wave·waves + split + (tensor^p + on_chip^p + memory^p)^(1/p)

tensor: the waves' multiplications, padded to whole tiles; on_chip: what an SM must load for its tiles (L2 and shared
memory); memory: compulsory bytes. Of a menu of tiles and of ways to split k, the fastest is taken, as the libraries'
heuristics try to. Efficiencies are shares of the device's own peaks, so that they can be carried to another device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

TILES = ((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 4, 8, 16)
STEP = 64                                # of k, that a tile takes at once
LARGEST_TILE = 128 * 256
LONG = 1e-4                              # seconds of multiplying after which clocks begin to fall
RESULTS = 0.75                           # of the L2, that results may fill before they are written out


@dataclass(frozen=True, slots=True)
class Tiled:
    """Constants of one (device, library, number format). Times in seconds, efficiencies as shares of peaks."""

    fixed: float                         # of a call
    wave: float                          # of each wave: filling and draining its pipeline
    split: float                         # of a split along k: a second kernel, or atomics
    tensor: float                        # share of the peak, of the largest tile
    shrink: float                        # tensor falls with (tile / largest)^shrink
    slowing: float                       # tensor seconds grow by (1 + tensor / LONG)^slowing: clocks under load
    on_chip: float                       # bytes an SM loads, over its share of the memory's rate
    memory: float                        # share of the memory's rate
    p: float
    warm_bytes: float = 0.0              # the benchmark found operands of fewer bytes in the L2 …
    warm_saved: float = 0.0              # … and saved this share of their time; no model's step does
    written_saved: float = 0.0           # likewise of results that stay in the L2
    quantise_fixed: float = 0.0          # of the activations' quantisation, where the measured call includes it
    quantise: float = 0.0                # its bytes over the memory's rate
    quantise_row: float = 0.0            # bytes more of each row


@dataclass(frozen=True, slots=True)
class Product:
    """A product on a device, as the form needs it."""

    m: int
    n: int
    k: int
    batch: int
    a_bytes: float                       # of an element
    b_bytes: float                       # with its scales
    moved: float                         # compulsory bytes
    sms: int
    flops_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds at the catalog's rates."""

    fixed: float
    tensor: float
    on_chip: float
    memory: float


@lru_cache(maxsize=512)
def _menu(constants: Tiled, tall: int, wide: int) -> tuple[tuple[int, int, float], ...]:
    """(rows, columns, operations of a step of k over the share of the tensor peak) of the tiles. A tile twice as tall
    (wide) as the product needs is left out where a smaller one of the same width (height) takes as many."""
    kept = [(rows, columns) for rows, columns in TILES
            if not (rows >= 2 * tall and (rows // 2, columns) in TILES)
            and not (columns >= 2 * wide and (rows, columns // 2) in TILES)]
    return tuple((rows, columns,
                  2 * rows * columns / (constants.tensor * (rows * columns / LARGEST_TILE) ** constants.shrink))
                 for rows, columns in kept)


def _tile(size: int) -> int:
    """The smallest side of a tile that holds it: 64, 128 or 256."""
    return 64 if size <= 64 else 128 if size <= 128 else 256


def parts(constants: Tiled, product: Product) -> Parts:
    """The terms of the tile and split that the form finds fastest."""
    m, n, k, sms, enough = product.m, product.n, product.k, product.sms, 4 * product.sms
    per_flop, per_byte = sms / product.flops_per_second, sms / (constants.on_chip * product.bytes_per_second)
    moved = 1 / (constants.memory * product.bytes_per_second)
    memory = product.moved * moved
    best, found = float("inf"), (0.0, 0.0, 0.0, 0.0)
    depths = [(split, -(-k // (STEP * split)) * STEP) for split in SPLITS]
    written = 4.0 * m * n * product.batch * moved
    for rows, columns, operations in _menu(constants, _tile(m), _tile(n)):
        tiles = -(-m // rows) * -(-n // columns) * product.batch
        multiply = operations * per_flop
        load = (min(rows, m) * product.a_bytes + min(columns, n) * product.b_bytes) * per_byte
        slower = multiply if multiply > load else load
        for split, depth in depths:
            waves = -(-tiles * split // sms)
            fixed, through, inside = constants.fixed + waves * constants.wave, memory, waves * depth * slower
            if split > 1:
                fixed += constants.split
                through += split * written
            seconds = fixed + (through if through > inside else inside)
            if seconds < best:
                best, found = seconds, (fixed, waves * depth * multiply, waves * depth * load, through)
            if depth == STEP or tiles * split >= enough:
                break
    fixed, tensor, on_chip, memory = found
    return Parts(fixed, tensor * (1 + tensor / LONG) ** constants.slowing, on_chip, memory)


class Rows:
    """The same form over a table's shapes, with what only the benchmark had: warm operands, and quantisation.

    rows: arrays m, n, k and moved, numbers a_bytes and b_bytes; results are of 2 bytes. Arrays inside are (tile and
    split, row).
    """

    def __init__(self, rows: Any, sms: int, l2_bytes: int) -> None:
        m, n, k = (np.asarray(rows[name], float) for name in "mnk")
        batch = np.asarray(rows.get("batch", 1.0), float)
        self.m, self.k, self.moved = m, k, np.asarray(rows["moved"], float)
        self.written = 2.0 * m * n * batch
        self.resident = 1 / (1 + (self.written / (RESULTS * l2_bytes)) ** 4)
        waves, depths, loads, areas, partial, splits = [], [], [], [], [], []
        for tall, wide in TILES:
            tiles = np.ceil(m / tall) * np.ceil(n / wide) * batch
            open_ = np.ones_like(m, bool)
            for split in SPLITS:
                depth = np.ceil(k / split / STEP) * STEP
                waves.append(np.where(open_, np.ceil(tiles * split / sms), np.inf))
                depths.append(depth)
                loads.append(np.minimum(tall, m) * rows["a_bytes"] + np.minimum(wide, n) * rows["b_bytes"])
                areas.append(tall * wide)
                partial.append(4.0 * split * m * n * batch if split > 1 else np.zeros_like(m))
                splits.append(split > 1)
                open_ = open_ & (depth > STEP) & (tiles * split < 4 * sms)
        self.waves, self.partial = np.array(waves), np.array(partial)
        deep = self.waves * np.array(depths)
        self.areas, self.splits = np.array(areas, float)[:, None], np.array(splits)[:, None]
        self.flops, self.loads = deep * 2 * self.areas * sms, deep * np.array(loads) * sms

    def seconds(self, constants: Tiled, flops_per_second: float, bytes_per_second: float) -> Any:
        c, moved = constants, 1 / (constants.memory * bytes_per_second)
        tensor = self.flops * (1 / (c.tensor * flops_per_second) * (self.areas / LARGEST_TILE) ** -c.shrink)
        on_chip = self.loads * (1 / (c.on_chip * bytes_per_second))
        read = self.moved - self.written
        warm = c.warm_saved * read / (1 + (read / c.warm_bytes) ** 4) if c.warm_saved else 0.0
        memory = (self.moved + self.partial - warm - c.written_saved * self.written * self.resident) * moved
        fixed = c.fixed + c.wave * self.waves + c.split * self.splits
        pick = np.argmin(fixed + np.maximum(np.maximum(tensor, on_chip), memory), axis=0)
        at = (pick, np.arange(len(pick)))
        tensor, on_chip, memory, fixed = tensor[at], on_chip[at], memory[at], fixed[at]
        tensor = tensor * (1 + tensor / LONG) ** c.slowing
        largest = np.maximum(np.maximum(tensor, on_chip), memory)
        powers = sum((term / largest) ** c.p for term in (tensor, on_chip, memory))
        quantised = self.m * (3 * self.k + c.quantise_row) * c.quantise / bytes_per_second
        return fixed + largest * powers ** (1 / c.p) + c.quantise_fixed + quantised
