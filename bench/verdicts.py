"""How often verdicts are right: on pairs of the same thing, on a shift of known size, with noise that was measured.

    python bench/verdicts.py --serving serving.csv.gz --traces run.sqlite trace.json.gz …      # a minute

Noise: residuals of repeated measurements (aggregated rows of `serving.csv.gz`, grouped by its column `group`; exact
copies of a row are one measurement), and of the steps of recorded runs about each run's median. Pairs are drawn from
the pooled residuals, with replacement.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sublight.guard.judge import judge
from sublight.guard.noise import Allowance, allowance

Draw = Callable[[np.random.Generator, int], np.ndarray]
SEED, TRIALS = 6, 4_000
SIZES = ((3, 3), (5, 5), (5, 10), (10, 10), (50, 50))


class Shares(NamedTuple):
    """Of verdicts, over all trials."""

    better: float
    same: float
    worse: float
    cannot_tell: float


def repeats(path: Path) -> dict[str, list[np.ndarray]]:
    """Logarithms of distinct repeated measurements, a group each, by quantity."""
    groups: dict[str, set[tuple[float, float]]] = defaultdict(set)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            if row["mode"] == "agg":
                groups[row["group"]].add((float(row["ttft_ms"]), float(row["tpot_ms"])))
    held = [np.log(np.array(sorted(rows))) for rows in groups.values() if len(rows) > 1]
    return {name: [rows[:, column] for rows in held] for column, name in enumerate(("TTFT", "TPOT"))}


def residuals(groups: Iterable[np.ndarray]) -> np.ndarray:
    """About each group's mean, made as wide as single values are."""
    return np.concatenate([(g - g.mean()) * math.sqrt(len(g) / (len(g) - 1)) for g in groups])


def step_residuals(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """Logarithms of the steps of recorded runs about each run's median, by file."""
    from sublight.guard.typical import typical
    from sublight.observe.read import read_all

    out = {}
    for path in paths:
        windows = [m.kept.windows for m in typical(read_all([path])).members]
        logs = [np.log([float(end - start) for start, end in rows]) for rows in windows if len(rows) > 2]
        if logs:
            out[path.name] = np.concatenate([rows - np.median(rows) for rows in logs])
    return out


def pooled(values: np.ndarray) -> Draw:
    return lambda rng, n: rng.choice(values, n)


def normal(share: float) -> Draw:
    return lambda rng, n: rng.normal(0.0, share, n)


def heavy(share: float) -> Draw:
    """Student's t with three degrees of freedom, made as wide as `share`."""
    return lambda rng, n: rng.standard_t(3, n) * share / math.sqrt(3)


def shares(
    draw: Draw, m: int, n: int, *, shift: float = 0.0, trials: int = TRIALS, paired: bool = False,
    one_run: bool = False, allowed: Allowance | None = None, drift: float = 0.0,
) -> Shares:
    """Verdicts over trials of m runs against n, B slower by `shift`. drift: of what both of a pair share."""
    rng = np.random.default_rng(SEED)
    states: dict[str, int] = defaultdict(int)
    for _ in range(trials):
        a, b = draw(rng, m), draw(rng, n) + math.log1p(shift)
        if drift:
            common = np.cumsum(rng.normal(0, drift, m))
            a, b = a + common, b + common
        states[judge(np.exp(a), np.exp(b), paired=paired, one_run=one_run, allowed=allowed).state] += 1
    return Shares(*(states[s] / trials for s in ("better", "same", "worse", "cannot tell")))


def same_pairs(groups: Sequence[np.ndarray], name: str) -> list[tuple[int, int, float]]:
    """Single runs against each other, the allowance from one half of the groups and the pairs of the other: pairs,
    of them called better or worse, the allowance."""
    rng, out = np.random.default_rng(SEED), []
    order = rng.permutation(len(groups))
    halves = [[groups[i] for i in order[k::2]] for k in (0, 1)]
    for fit, held in (halves, halves[::-1]):
        apart = [abs(x - y) for g in fit for x, y in itertools.combinations(g, 2)]
        allowed = Allowance(name, float(np.quantile(apart, 0.98)), "bench")
        pairs = [(x, y) for g in held for x, y in itertools.combinations(g, 2)]
        told = sum(judge([math.exp(x)], [math.exp(y)], one_run=True, allowed=allowed).state != "cannot tell"
                   for x, y in pairs)
        out.append((len(pairs), told, allowed.log_ratio))
    return out


def row(what: str, got: Shares) -> None:
    print(f"{what:<58}" + "".join(f"{share:>9.2%}" for share in got))


def main() -> None:
    parser = argparse.ArgumentParser(description="How often verdicts are right.")
    parser.add_argument("--serving", type=Path, help="serving.csv.gz")
    parser.add_argument("--traces", type=Path, nargs="*", default=[], help="recorded runs with steps")
    parser.add_argument("--trials", type=int, default=TRIALS)
    args = parser.parse_args()
    print(f"{'A against B, ' + format(args.trials, ',') + ' pairs each':<58}"
          + "".join(f"{name:>9}" for name in ("better", "same", "worse", "no tell")))
    noises: dict[str, Draw] = {"normal, 2 %": normal(0.02), "Student's t (3), 2 %": heavy(0.02)}
    if args.serving:
        for name, groups in repeats(args.serving).items():
            held = residuals(groups)
            wide = float(np.std(held))
            print(f"# {name}: {len(held)} residuals of {len(groups)} points, standard deviation {wide:.1%}")
            noises[f"{name} residuals"] = pooled(held)
            noises[f"{name} residuals, scaled to 2 %"] = pooled(held * 0.02 / wide)
            apart = np.concatenate([[abs(x - y) for x, y in itertools.combinations(g, 2)] for g in groups])
            far = float(np.quantile(apart, 0.98))
            print(f"# {name}: 98 % of {len(apart)} pairs lie within a factor of {math.exp(far):.2f} (log {far:.2f})")
            for count, told, used in same_pairs(groups, name):
                print(f"# {name}: single runs, allowance {used:.2f} from the other half: {told} of {count} pairs told")
    for name, held in step_residuals(args.traces).items():
        print(f"# steps of {name}: {len(held)} residuals, standard deviation {np.std(held):.2%}")
        noises[f"steps of {name}"] = pooled(held)
    print("the same thing twice")
    for name, draw in noises.items():
        for m, n in SIZES:
            row(f"  {name}, {m} runs against {n}", shares(draw, m, n, trials=args.trials))
        row(f"  {name}, 10 pairs", shares(draw, 10, 10, trials=args.trials, paired=True))
        row(f"  {name}, one run each of 50 steps",
            shares(draw, 50, 50, trials=args.trials, one_run=True, allowed=allowance("step time")))
    print("a shift of 5 %, 10 runs each")
    for name, draw in noises.items():
        if "2 %" in name:
            row(f"  {name}", shares(draw, 10, 10, shift=0.05, trials=args.trials))
    row("  normal, 2 %, a drift of 2 % a pair, as runs",
        shares(normal(0.02), 10, 10, shift=0.05, trials=args.trials, drift=0.02))
    row("  normal, 2 %, a drift of 2 % a pair, as pairs",
        shares(normal(0.02), 10, 10, shift=0.05, trials=args.trials, drift=0.02, paired=True))
    print("a shift of 2 %, 5 runs each")
    for wide in (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05):
        row(f"  normal, {wide:.2%}", shares(normal(wide), 5, 5, shift=0.02, trials=args.trials))
    for name, draw in noises.items():
        row(f"  {name}", shares(draw, 5, 5, shift=0.02, trials=args.trials))
    print("a shift of 1 %, what matters and no more, 5 runs each")
    for wide in (0.001, 0.002, 0.005):
        row(f"  normal, {wide:.2%}", shares(normal(wide), 5, 5, shift=0.01, trials=args.trials))


if __name__ == "__main__":
    main()
