"""Fits the constants of experts to the operator tables of aiconfigurator-core, and says how far held-out shapes lie.

    python bench/fit_experts.py [--device h200] [--write]

Shapes (width, columns, top_k, experts, groups) are split in halves by a hash of their sizes: constants are fitted on
one half, the errors are of the other, and what is written are these constants.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path

import fitting
import numpy as np

from sublight.device import by_key
from sublight.predict.operators import experts, silicon
from sublight.predict.operators.routing import rows

FIRST = {"fixed": 2e-5, "local": 5e-8, "row": 1e-9, "weights": 0.7, "moved": 0.5, "tensor": 0.5, "narrow": 0.3,
         "p": 2.0}
BOUNDS = {"fixed": (2e-6, 1e-3), "local": (1e-10, 1e-5), "row": (1e-12, 1e-7), "weights": (0.05, 1.0),
          "moved": (0.02, 3.0), "tensor": (0.02, 1.0), "narrow": (0.001, 1.0), "p": (1.0, 6.0)}
ROUTINGS = {"power_law_1.01": 1, "power_law_1.2": 2}
OUT = Path(__file__).parents[1] / "sublight/catalog/operators/experts.toml"


def rows_of(device: str, library: str, *, most: int, dice: np.random.Generator) -> list[fitting.Row]:
    versions = experts.all_curves(device, library, None)
    out: dict[tuple[experts.Shape, float], float] = {}
    for curves in reversed(versions):
        for shape, points in curves.items():
            out.update({(shape, tokens): seconds for tokens, seconds in points.items()})
    keys = list(out)
    found = []
    for i in dice.permutation(len(keys)):
        shape, tokens = keys[i]
        op = experts.as_op(shape, tokens)
        if op is None:
            continue
        geometry = (shape.width, shape.inner, shape.top_k, shape.experts, shape.groups)
        held = zlib.crc32(repr(geometry).encode()) % 2 == 1
        found.append(fitting.Row((op, shape, tokens), experts.form_of(op), held, out[keys[i]]))
    limit: dict[str, int] = {}
    kept = []
    for row in found:
        limit[row.kind] = limit.get(row.kind, 0) + 1
        if limit[row.kind] <= most:
            kept.append(row)
    return kept


class Many:
    def __init__(self, part: list[fitting.Row], device: str) -> None:
        loads = []
        for row in part:
            op, shape, tokens = row.op
            fall = rows(tokens, shape.top_k, shape.experts, shape.groups, shape.routing)
            loads.append(experts.load(op, by_key(device).limits, fall, shape.experts // shape.groups))
        for name in ("local", "weights", "moved", "tensor", "narrow", "used", "rows"):
            setattr(self, name, np.array([getattr(load, name) for load in loads]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--most", type=int, default=2000, help="rows of a format, sampled")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    dice = np.random.default_rng(5)
    report = fitting.Report("experts", OUT, lambda op: experts.kinds(op[0]))
    every: dict[tuple[str, str], list[fitting.Row]] = {}
    devices = given.device or list(silicon.SYSTEMS)
    for device in devices:
        for library in silicon.BACKENDS:
            rows_here = every[device, library] = rows_of(device, library, most=given.most, dice=dice)
            for kind in sorted({row.kind for row in rows_here}):
                part = [row for row in rows_here if row.kind == kind]
                x = Many(part, device)
                found = fitting.fit(part, lambda c, x=x: experts.seconds(c, x), FIRST, BOUNDS)
                plain = [fitting.Row(r.op[0], r.kind, r.held, r.seconds) for r in part]
                report.add(device, library, kind, plain, found, np.array([
                    (s.width, s.inner, s.top_k, s.experts, s.groups, tokens, 1 + ROUTINGS.get(s.routing, 0))
                    for _, s, tokens in (row.op for row in part)], float))
    report.show()
    if given.write:
        report.write("the tables of aiconfigurator-core 0.12.0 by bench/fit_experts.py; half of the shapes")
    report.transfer(lambda device, library: every[device, library],
                    lambda part, device, c: experts.seconds(c, Many(part, device)), devices)


if __name__ == "__main__":
    main()
