"""Fits the constants of attention to the operator tables of aiconfigurator-core, and says how far held-out shapes lie.

    python bench/fit_attention.py [--device h200] [--write]

Geometries (heads, key heads, width, window, formats) are split in halves by a hash of their sizes: constants are fitted
on one half, the errors are of the other, and what is written are these constants. Beside them: the pure roofline, and
the measured time of the nearest point of a fitted geometry.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fitting
import numpy as np

from sublight.device import by_key
from sublight.ops.attention import Attention
from sublight.predict.operators import attention, latent, measured, silicon

KINDS = {"attention": attention.kinds, "latent": latent.kinds}
PHASES = {True: ("generation_attention_perf", "step"), False: ("context_attention_perf", "isl")}
FIRST = {"fixed": 8e-6, "tile": 2e-6, "long": 4e-6, "kept": 0.6, "memory": 0.8, "tensor": 0.6, "vector": 0.5, "p": 2.0}
BOUNDS = {"fixed": (1e-6, 1e-3), "tile": (1e-8, 1e-4), "long": (1e-8, 1e-4), "kept": (0.01, 0.9),
          "memory": (0.1, 1.0), "tensor": (0.03, 1.0), "vector": (0.02, 20.0), "p": (1.0, 6.0)}
OUT = Path(__file__).parents[1] / "sublight/catalog/operators"
SOURCE = "the tables of aiconfigurator-core 0.12.0 by bench/fit_attention.py; half of the shapes"


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


def latent_rows(device: str, library: str, kind: str) -> list[fitting.Row]:
    """Few geometries were measured (heads, format of the cache): here batch and heads together are held out."""
    found = []
    for (heads, kv), points in latent.measured_points(device, library, None, kind).items():
        for (b, x), seconds in points.items():
            op = latent.as_op(kind, heads, kv, int(b), int(x))
            if latent.phase(op) == kind:
                held = zlib.crc32(f"{heads} {b}".encode()) % 2 == 1
                found.append(fitting.Row(op, latent.kinds(op)[0], held, seconds))
    return found


def _at(x: Any, c: Mapping[str, float]) -> Any:
    return attention.seconds(c, x)


def seconds(rows: list[fitting.Row], device: str, c: Mapping[str, float]) -> np.ndarray:
    """Of rows of one kind, with constants of any device."""
    decode = attention.is_decode(rows[0].op)
    return np.asarray(_at(Many(features([row.op for row in rows], device), decode=decode), c))


def _of(every: Mapping[tuple[str, str], list[fitting.Row]], device: str, library: str) -> list[fitting.Row]:
    return every[device, library]


def add(report: fitting.Report, device: str, library: str, rows: list[fitting.Row]) -> None:
    for kind in sorted({row.kind for row in rows}):
        part = [row for row in rows if row.kind == kind]
        decode = kind.startswith("decode")
        x = Many(features([row.op for row in part], device), decode=decode)
        names = [n for n in FIRST if n not in (("vector",) if decode else ("long",))]
        report.add(device, library, kind, part, fitting.fit(
            part, partial(_at, x), {n: FIRST[n] for n in names}, {n: BOUNDS[n] for n in names}),
            np.array([(o.heads, o.kv_heads, o.d_qk, o.sequences, o.q_tokens, o.kv_tokens, o.window or 1 << 17)
                      for o in (row.op for row in part)], float))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--most", type=int, default=4000, help="rows of a table, sampled")
    parser.add_argument("--family", choices=("attention", "latent"), action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    dice = np.random.default_rng(5)
    for family in given.family or ("attention", "latent"):
        report = fitting.Report(family, OUT / f"{family}.toml", KINDS[family])
        every: dict[tuple[str, str], list[fitting.Row]] = {}
        devices = given.device or list(silicon.SYSTEMS)
        for device in devices:
            for library in silicon.BACKENDS:
                rows = every[device, library] = (
                    [row for kind in latent.TABLES for row in latent_rows(device, library, kind)]
                    if family == "latent" else
                    [row for decode in (False, True)
                     for row in rows_of(device, library, decode=decode, most=given.most, dice=dice)])
                add(report, device, library, rows)
        report.show()
        if given.write:
            report.write(SOURCE)
        report.transfer(partial(_of, every), seconds, devices)


if __name__ == "__main__":
    main()
