"""Fits the constants of attention to the operator tables of aiconfigurator-core, and says how far held-out shapes lie.

    python bench/fit_attention.py [--device h200] [--write]

Geometries (heads, key heads, width, window, formats) are split in halves by a hash of their sizes: constants are fitted
on one half, the errors are of the other, and what is written are these constants. Beside them: the pure roofline, and
the measured time of the nearest point of a fitted geometry.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import fitting
import numpy as np

from sublight.device import by_key
from sublight.ops.attention import Attention
from sublight.predict.operators import attention, measured, silicon

PHASES = {True: ("generation_attention_perf", "step"), False: ("context_attention_perf", "isl")}
FIRST = {"fixed": 8e-6, "tile": 2e-6, "long": 4e-6, "kept": 0.6, "memory": 0.8, "tensor": 0.6, "vector": 0.5, "p": 2.0}
BOUNDS = {"fixed": (1e-6, 1e-3), "tile": (1e-8, 1e-4), "long": (1e-8, 1e-4), "kept": (0.01, 0.9),
          "memory": (0.1, 1.0), "tensor": (0.03, 1.0), "vector": (0.02, 20.0), "p": (1.0, 6.0)}
OUT = Path(__file__).parents[1] / "sublight/catalog/operators/attention.toml"


def rows_of(device: str, library: str, *, decode: bool, most: int, dice: np.random.Generator) -> list[fitting.Row]:
    name, axis = PHASES[decode]
    out: dict[tuple[attention.Geometry, int, int], float] = {}
    for table in list(measured.tables(device, "attention", library, name, None, attention.KEYS))[:1]:
        for (h, k, d, w, kv, q), rows in table.groups.items():
            g = attention.Geometry(h, k, d, w, attention.FORMS.get(kv, kv), attention.FORMS.get(q, q))
            for (b, x), value in table.points(rows, "batch_size", axis).items():
                out[g, int(b), int(x) + decode] = value
    keys = list(out)
    chosen = dice.permutation(len(keys))[:most]
    found = []
    for i in chosen:
        g, b, x = keys[i]
        op = attention.as_op(g, b, x, decode=decode)
        if attention.is_decode(op) == decode:
            held = zlib.crc32(repr(g).encode()) % 2 == 1
            found.append(fitting.Row(op, attention.kinds(op)[0], held, out[keys[i]]))
    return found


def features(ops: list[Attention], device: str) -> dict[str, np.ndarray]:
    loads = [attention.load(op, by_key(device).limits) for op in ops]
    names = ("sequences", "length", "tensor", "serial", "memory", "vector", "blocks", "kept")
    return {name: np.array([getattr(load, name) for load in loads]) for name in names}


class Many:
    """Loads of many operators, column by column: the form of the product takes it as it takes one."""

    def __init__(self, columns: dict[str, np.ndarray], *, decode: bool) -> None:
        self.__dict__.update(columns)
        self.decode = decode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--most", type=int, default=6000, help="rows of a table, sampled")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    dice = np.random.default_rng(5)
    report = fitting.Report("attention", OUT)
    for device in given.device or silicon.SYSTEMS:
        for library in silicon.BACKENDS:
            for decode in (False, True):
                rows = rows_of(device, library, decode=decode, most=given.most, dice=dice)
                for kind in sorted({row.kind for row in rows}):
                    part = [row for row in rows if row.kind == kind]
                    x = Many(features([row.op for row in part], device), decode=decode)
                    names = [n for n in FIRST if n not in (("vector",) if decode else ("long",))]
                    report.add(device, library, kind, part, fitting.fit(
                        part, lambda c, x=x: attention.seconds(c, x),
                        {n: FIRST[n] for n in names}, {n: BOUNDS[n] for n in names}))
    report.show()
    if given.write:
        report.write("the tables of aiconfigurator-core 0.12.0 by bench/fit_attention.py; half of the geometries")


if __name__ == "__main__":
    main()
