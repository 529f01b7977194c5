"""Constants of serving engines that only end-to-end runs can tell: fits catalog/serving/fitted.toml.

    python bench/serving_fit.py --data DIR [--write]

DIR/silicon/serving.csv.gz: measured TTFT and TPOT. Every row is simulated from its inputs, with and without measured
operator tables; then a few constants by engine (sublight/predict/serving/correction.py) are fitted on all families of
models, and once more without each. Intervals come from errors on families that were left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import serving_rows as sr

from sublight.predict.serving.correction import LOADS

CATALOG = Path(__file__).parent.parent / "sublight" / "catalog" / "serving" / "fitted.toml"
# What is likely before anything is measured (judgement; the pull was chosen on left-out families, 10 to 100 do alike):
# the simulation is right, a first token takes two or three steps more to come out, and 20 ms beside the engine.
SHRINK = 8.0                             # families that a level of 1 counts as
PRIOR, DEVIATION = (1.0, 2.5, 30e-6, 0.02), (0.25, 2.0, 30e-6, 0.03)         # scale, steps, launch, constant
DEVIATION_OF_PROTOCOL = 0.05
PRIOR_POINTS = 30.0
UNKNOWN_DEVICE = 1.5                     # intervals where the engine was not measured on the device: judgement
NEAR = (1.0, 0.3)                        # weights of a load's own errors, and of its neighbours'
WIDER = {"ttft": 1.15, "tpot": 1.1}      # judgement, seen on left-out families
MOST_LOADED = {"ttft": 3.0, "tpot": 1.5}             # intervals beyond the last bound over those before it: judgement
KINDS = {"ttft": ("", "cold", "other", "odd"), "tpot": ("", "cold"), "tpot_other": ("other",), "tpot_odd": ("odd",)}
FEWEST_OF_DEVICE = 30                    # points, for the engine to be known on a device
FEWEST, UNKNOWN_LOAD = 10, (-1.5, 1.5)   # errors for an interval of their own, and the interval without
F64 = Any


@dataclass(frozen=True)
class Point:
    """A measured configuration, repeats merged, beside its simulation. Seconds."""

    family: str
    engine: str
    device: str
    protocol: str                        # of serving_rows.kind_of
    users: int
    sim_ttft: float
    sim_tpot: float
    accepted: float
    calls: int
    ttft: float
    tpot: float


@dataclass(frozen=True)
class Constants:
    """Of one engine."""

    scale: float
    steps: float
    launch: float
    constant: float
    protocols: Mapping[str, float]       # more, where the protocol is another
    level: float
    levels: Mapping[str, float]
    families: int
    points: int

    def predicted(self, p: Point) -> tuple[float, float]:
        """TTFT and TPOT."""
        level = float(np.exp(self.levels.get(p.device, self.level)))
        tpot = p.sim_tpot * level
        ttft = self.scale * p.sim_ttft * level + self.steps * tpot * p.accepted + self.launch * p.calls + self.constant
        ttft += self.protocols.get(p.protocol, 0.0)
        return max(ttft, 0.25 * p.sim_ttft * level), tpot


def fit(points: Sequence[Point]) -> dict[str, Constants]:
    """Constants of each engine. TTFT by least relative error (the measure that is judged), TPOT by medians."""
    out = {}
    for engine in sorted({p.engine for p in points}):
        own = [p for p in points if p.engine == engine]
        level, levels = _levels(own)
        out[engine] = _ttft(own, level, levels)
    return out


def _levels(own: Sequence[Point]) -> tuple[float, dict[str, float]]:
    """ln(measured / simulated) by device: the mean of the families' medians, drawn to 0 as if by SHRINK families."""
    by: dict[tuple[str, str], list[float]] = {}
    for p in own:
        by.setdefault((p.device, p.family), []).append(float(np.log(p.tpot / p.sim_tpot)))
    medians: dict[str, list[float]] = {}
    for (device, _), logs in by.items():
        medians.setdefault(device, []).append(float(np.median(logs)))
    counts = {device: sum(p.device == device for p in own) for device in medians}
    levels = {device: sum(found) / (len(found) + SHRINK) for device, found in sorted(medians.items())
              if counts[device] >= FEWEST_OF_DEVICE}
    every = [value for found in medians.values() for value in found]
    return sum(every) / (len(every) + SHRINK), levels


def _ttft(own: Sequence[Point], level: float, levels: Mapping[str, float]) -> Constants:
    factor = np.exp([levels.get(p.device, level) for p in own])
    step = np.array([p.sim_tpot * p.accepted for p in own]) * factor
    columns = [np.array([p.sim_ttft for p in own]) * factor, step, np.array([p.calls for p in own]), np.ones(len(own))]
    kinds = sorted({p.protocol for p in own} - {""})
    columns += [np.array([float(p.protocol == kind) for p in own]) for kind in kinds]
    found = least_relative(np.stack(columns, 1), np.array([p.ttft for p in own]), weights([p.family for p in own]))
    return Constants(found[0], found[1], found[2], found[3], dict(zip(kinds, found[4:], strict=True)), level, levels,
                     len({p.family for p in own}), len(own))


def weights(families: Sequence[str]) -> F64:
    """Of points: a family with four times the points of another has twice its weight. Their mean is 1."""
    found = np.array([families.count(name) ** -0.5 for name in families])
    return found / found.mean()


def least_relative(columns: F64, measured: F64, weight: F64) -> list[float]:
    """Coefficients with the least weighted mean of |predicted / measured - 1|, by reweighted least squares, drawn to
    the PRIOR as if by PRIOR_POINTS points."""
    count = columns.shape[1]
    prior = np.array([*PRIOR, *([0.0] * count)][:count])
    pull = np.sqrt(PRIOR_POINTS) / np.array([*DEVIATION, *([DEVIATION_OF_PROTOCOL] * count)][:count])
    scaled, found = columns / measured[:, None], prior
    for _ in range(25):
        root = np.sqrt(weight / np.maximum(np.abs(scaled @ found - 1), 1e-3))
        found = np.linalg.lstsq(np.vstack([scaled * root[:, None], np.diag(pull)]),
                                np.concatenate([root, pull * prior]), rcond=None)[0]
    return [float(value) for value in found]


def points_of(rows: Sequence[tuple[sr.Row, sr.Case, sr.Simulated]]) -> list[Point]:
    """Aggregated rows, repeats merged: medians of what was measured of a group."""
    groups: dict[str, list[tuple[sr.Row, sr.Case, sr.Simulated]]] = {}
    for row in rows:
        if row[0]["mode"] == "agg":
            groups.setdefault(row[0]["group"], []).append(row)
    out = []
    for group in groups.values():
        _, one, made = group[0]
        ttft, tpot = (float(np.median([float(row[name]) for row, _, _ in group])) / 1e3
                      for name in ("ttft_ms", "tpot_ms"))
        out.append(Point(one.family, one.backend, one.where.device.key, sr.kind_of(one.recipe),
                         one.traffic.concurrency or 1, made.ttft, made.tpot, made.accepted, made.calls, ttft, tpot))
    return out


@dataclass(frozen=True)
class Miss:
    """ln(measured / predicted) of a point."""

    point: Point
    ttft: float
    tpot: float


def left_out(points: Sequence[Point], without: frozenset[str] = frozenset()) -> list[Miss]:
    """Every point missed by constants that have seen neither its family nor those of `without`, whose own points are
    not among them."""
    out = []
    for name in sorted({p.family for p in points} - without):
        constants = fit([p for p in points if p.family != name and p.family not in without])
        for p in points:
            if p.family == name:
                known = constants.get(p.engine) or next(iter(constants.values()))
                ttft, tpot = known.predicted(p)
                out.append(Miss(p, float(np.log(p.ttft / ttft)), float(np.log(p.tpot / tpot))))
    return out


def spread(misses: Sequence[Miss]) -> dict[str, Any]:
    """The middle of the errors by load, WIDER than their 80 % since another family is further off than the mean, each
    family with the same weight. TPOT: apart where nobody has stated the protocol."""
    out: dict[str, Any] = {"unknown_device": UNKNOWN_DEVICE}
    for name, kept in KINDS.items():
        out[name] = [_bounds([(miss.point.family, getattr(miss, name[:4]), _weight(miss, load, kept))
                              for miss in misses], WIDER[name[:4]]) for load in range(len(LOADS) + 1)]
        # beyond the last bound a few runs with limits that nobody has stated would decide
        out[name][-1] = [round(MOST_LOADED[name[:4]] * bound, 3) for bound in out[name][-2]]
    return out


def _weight(miss: Miss, load: int, kept: tuple[str, ...]) -> float:
    """Of an error for the interval of a load: its neighbours count a little, and so do other protocols for one that
    nobody has stated."""
    apart = abs(load - load_of(miss.point.users))
    near = NEAR[apart] if apart < len(NEAR) else 0.0
    if miss.point.protocol in kept:
        return near
    return NEAR[1] * near if "" not in kept else 0.0


def _bounds(errors: Sequence[tuple[str, float, float]], wider: float) -> list[float]:
    chosen = [error for error in errors if error[2] > 0]
    if len(chosen) < FEWEST:
        return list(UNKNOWN_LOAD)
    return [round(wider * quantile(chosen, q), 3) for q in (0.1, 0.9)]


def load_of(users: int) -> int:
    return sum(users > bound for bound in LOADS)


def quantile(chosen: Sequence[tuple[str, float, float]], q: float) -> float:
    """Of values with weights, where each family has the same in all."""
    totals: dict[str, float] = {}
    for name, _, weight in chosen:
        totals[name] = totals.get(name, 0.0) + weight
    ordered = sorted((value, weight / totals[name]) for name, value, weight in chosen)
    values, weights = np.array(ordered).T
    return float(np.interp(q, (np.cumsum(weights) - weights / 2) / weights.sum(), values))


def written(kind: str, points: Sequence[Point]) -> Iterator[str]:
    """Tables of the catalog: fitted on all, and without each family."""
    families = sorted({p.family for p in points})
    for without in ("", *families):
        kept = [p for p in points if p.family != without]
        head = f"{kind}.all" if not without else f"{kind}.without.{json.dumps(without)}"
        for engine, found in fit(kept).items():
            yield f"[{head}.{engine}]"
            for name in ("scale", "steps", "launch", "constant", "level"):
                yield f"{name} = {getattr(found, name):.5g}"
            for name in ("protocols", "levels"):
                pairs = ", ".join(f"{key} = {value:.4f}" for key, value in getattr(found, name).items())
                yield f"{name} = {{ {pairs} }}"
            yield f"families = {found.families}\npoints = {found.points}\n"
        made = spread(left_out(points, frozenset({without} if without else ())))
        yield f"[{head}.spread]"
        yield from (f"{name} = {json.dumps(value)}" for name, value in made.items())
        yield ""


HEAD = """# Constants of serving engines that only end-to-end runs can tell. Written by bench/serving_fit.py.
# Times in seconds.
# tables: operator times from measured tables; constants: from the shipped constants alone.
# source: fitted on measured TTFT and TPOT of AIConfigurator 0.12.0, systems/silicon_sample.csv (Apache-2.0), parallel
# fields and formats repaired; aggregated serving
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [row for row in sr.read(options.data / "silicon" / "serving.csv.gz") if row["mode"] == "agg"]
    text = HEAD
    for kind, tables in (("tables", True), ("constants", False)):
        points = points_of(sr.all_simulated(rows, tables=tables)[0])
        misses = left_out(points)
        for name in ("ttft", "tpot"):
            off = 100 * np.abs(np.exp([-getattr(miss, name) for miss in misses]) - 1)
            print(f"{kind}: {name.upper()} of left-out families, {len(points)} points: mean {off.mean():.1f} %, "
                  f"median {np.median(off):.1f} %", file=sys.stderr)
        text += "\n" + "\n".join(written(kind, points))
    if options.write:
        CATALOG.write_text(text, "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
