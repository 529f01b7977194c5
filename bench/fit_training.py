"""Fit the constants of training steps, framework by framework, with each model family left out once.

    python bench/fit_training.py --data DIR [--framework NAME] [--out sublight/catalog/training/constants.toml]

DIR/training/measured.csv as bench/training_accuracy.py reads it. A framework's constants are what is in PRIORS, each
in logarithms with a mean and a width: least squares of ln(predicted / measured) with a soft loss, each family with the
same weight, and the priors as further residuals. Families that share a framework see each other's rows, not their own.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parent))
from training_rows import Case, case, read

from sublight.errors import InputError
from sublight.predict.training.constants import Constants, tags
from sublight.predict.training.flops import model_flops
from sublight.predict.training.joined import joined
from sublight.predict.training.layout import experts_of
from sublight.predict.training.spent import PassSpent, Pieces, Spent, pieces

# name -> (prior, width): factors and seconds in logarithms around the prior
KERNELS = {"gemm": (1.4, 0.25), "attention": (2.0, 0.4), "small": (1.5, 0.4)}
PRIORS: dict[str, dict[str, tuple[float, float]]] = {
    "llm-foundry": {
        **KERNELS, "quantised": (1.6, 0.3), "launch": (8e-6, 0.5), "fixed": (0.02, 0.7), "gradients": (0.2, 0.7),
        "parameters": (0.2, 0.7), "optimizer": (1.5, 0.4), "replicas": (1.0, 0.3),
        "gemm:ampere": (1.0, 0.15), "attention:ampere": (1.0, 0.3), "small:ampere": (1.0, 0.2),
        "launch:ampere": (1.0, 0.2),
    },
    "megatron-deepspeed": {
        **KERNELS, "launch": (1e-5, 0.5), "fixed": (0.01, 0.7), "gradients": (0.2, 0.7), "tp": (1.5, 0.4),
        "p2p": (1.0, 0.5), "optimizer": (1.5, 0.4), "replicas": (1.0, 0.4),
    },
    # narrow: many of these are met by one family alone, and would take what else is odd about it. gemm:hopper from
    # what H100s reach elsewhere: llm-foundry's factor is 1.5, Megatron-LM's README has 47 % MFU
    "megatron": {
        "gemm": (1.6, 0.3), "attention": (2.0, 0.2), "small": (1.5, 0.25), "quantised": (1.6, 0.25),
        "experts": (2.0, 0.3), "recurrent": (20.0, 0.3), "launch": (5e-6, 0.2), "sync": (2e-3, 0.35),
        "grouped": (3e-5, 0.3), "drift": (0.2, 0.25), "drift:hopper": (0.3, 0.2), "fixed": (0.02, 0.35),
        "gradients": (0.15, 0.35), "parameters": (0.15, 0.35), "tp": (1.2, 0.15), "ep": (1.5, 0.25),
        "p2p": (0.3, 0.25), "optimizer": (1.3, 0.2), "replicas": (1.0, 0.2), "gemm:hopper": (0.7, 0.12),
        "attention:hopper": (1.0, 0.1), "quantised:hopper": (1.0, 0.075), "quantised:mxfp8": (1.0, 0.05),
        "quantised:nvfp4": (1.3, 0.05), "experts:hopper": (1.0, 0.1), "experts:bf16": (1.0, 0.075),
        "sync:partial-graphs": (0.7, 0.15), "sync:full-graphs": (0.15, 0.25), "sync:drop": (0.3, 0.25),
        "grouped:drop": (0.5, 0.2), "experts:nvfp4": (1.7, 0.1), "ep:hybridep": (1.0, 0.15),
        "attention:fp8-attention": (0.75, 0.075), "ep:alltoall": (1.0, 0.15), "small:recipe": (0.9, 0.1),
        "sync:recipe": (1.0, 0.2), "tp exposed": (0.25, 0.2), "ep exposed": (0.5, 0.2),
        "gemm:recipe": (0.75, 0.2),
    },
    # on GPUs capped at 500 W with 2.4 TB/s (benchmarks/*.md): slower than elsewhere from the start
    "torchtitan": {"gemm": (1.8, 0.25), "attention": (2.2, 0.4), "small": (2.0, 0.4), "quantised": (2.4, 0.3),
                   "tp": (1.3, 0.3), "parameters": (0.2, 0.5)},
}
# What no row tells apart: judgement. A graph replays launches for little; whole iterations in one graph leave nothing.
# A100s have no row of Megatron: their products are as far from the peak as Megatron-DeepSpeed's and llm-foundry's.
JUDGED: dict[str, dict[str, float]] = {
    "megatron": {"sharp": 2.0, "gemm:ampere": 0.5, "experts:ampere": 0.7,
                 "launch:partial-graphs": 0.7, "launch:full-graphs": 0.1, "grouped:full-graphs": 0.1},
}
SOFT = 0.1                               # of ln(predicted / measured): beyond it the loss grows linearly


@dataclass(frozen=True)
class Measured:
    """Seconds of a step that a row states, and what a prediction of it is made of."""

    id: str
    seconds: float
    made: Pieces
    case: Case
    tags: tuple[str, ...]


def seconds_of(row: Mapping[str, str], known: Case) -> float | None:
    """Seconds of a step from the row's own metric; None for another metric."""
    value, tokens = float(row["value"]), known.job.gbs * known.job.seq / known.plan.gpus
    match row["metric"]:
        case "iteration_time_ms":
            return value / 1e3
        case "iteration_time_s":
            return value
        case "tokens/s/gpu":
            return tokens / value
        case "model_tflops/gpu":
            return tokens * model_flops(known.counted, known.job.seq, known.definition) / (value * 1e12)
        case "mfu":
            peak = known.where.device.limits.flops_per_second("tensor", "fp8" if "fp8" in known.plan.precision
                                                              else "bf16")
            assert peak is not None
            return tokens * model_flops(known.counted, known.job.seq, known.definition) / (value * peak)
    return None


def measured(rows: Iterable[Mapping[str, str]]) -> dict[str, list[Measured]]:
    """By framework. Rows of one configuration (two metrics of one run) become one, at their geometric mean."""
    groups: dict[tuple[object, ...], list[tuple[str, float, Case]]] = {}
    for row in rows:
        try:
            known = case(dict(row))
        except InputError:
            continue
        seconds = seconds_of(row, known)
        if seconds is not None and seconds > 0:
            key = (known.model.name, known.plan, known.job, known.where.device.key, known.family, row["model"])
            groups.setdefault(key, []).append((row["id"], seconds, known))
    out: dict[str, list[Measured]] = {}
    for found in groups.values():
        name, _, known = found[0]
        mean = math.exp(statistics.fmean(math.log(seconds) for _, seconds, _ in found))
        made = without_shares(pieces(known.model, known.plan, known.job, known.where))
        out.setdefault(known.plan.framework, []).append(
            Measured(name, mean, made, known, tags(known.plan, known.where.device)))
    return out


def without_shares(made: Pieces) -> Pieces:
    """Seconds alone: a fit needs no rates."""
    def plain(part: Spent) -> Spent:
        return Spent(part.seconds, {})

    def passed(one: PassSpent) -> PassSpent:
        return replace(one, by_kind={kind: plain(part) for kind, part in one.by_kind.items()})

    stages = {id(stage): (passed(stage[0]), passed(stage[1]), stage[2]) for stage in made.stages}
    return replace(made, stages=tuple(stages[id(stage)] for stage in made.stages), hop=plain(made.hop),
                   gradients=plain(made.gradients), parameters=plain(made.parameters), optimizer=plain(made.optimizer))


def log_error(one: Measured, known: Constants) -> float:
    return math.log(joined(one.made, one.case.plan, known, one.tags).seconds / one.seconds)


def fit(rows: list[Measured], priors: Mapping[str, tuple[float, float]], start: Mapping[str, float] | None = None,
        ) -> dict[str, float]:
    """Values of the names in `priors`."""
    from scipy.optimize import least_squares

    names = list(priors)
    count: dict[str, int] = {}
    for one in rows:
        count[one.case.family] = count.get(one.case.family, 0) + 1
    weight = [(count[one.case.family] * len(count) / len(rows)) ** -0.5 for one in rows]

    judged = JUDGED.get(rows[0].case.plan.framework, {})

    def residuals(x: list[float]) -> list[float]:
        values = {name: priors[name][0] * math.exp(float(v)) for name, v in zip(names, x, strict=True)}
        known = Constants({**judged, **values}, 0.0, 0.0, "")
        errors = [w * log_error(one, known) / SOFT for w, one in zip(weight, rows, strict=True)]
        soft = [math.copysign(math.sqrt(2 * (math.sqrt(1 + e * e) - 1)), e) for e in errors]
        return soft + [float(v) / priors[name][1] for name, v in zip(names, x, strict=True)]

    first = [math.log(start[name] / priors[name][0]) if start else 0.0 for name in names]
    found = least_squares(residuals, first, method="trf", max_nfev=5 if start else 15, xtol=1e-3,
                          ftol=1e-3)
    return {**judged, **{name: priors[name][0] * math.exp(float(v)) for name, v in zip(names, found.x, strict=True)}}


def thinned(rows: list[Measured], most: int) -> list[Measured]:
    """At most so many rows of each family, by chance (of their ids): many rows of one family teach the same."""
    by_family: dict[str, list[Measured]] = {}
    for one in sorted(rows, key=lambda one: crc32(one.id.encode())):
        by_family.setdefault(one.case.family, []).append(one)
    return [one for found in by_family.values() for one in found[:most]]


@dataclass(frozen=True)
class Fitted:
    values: Mapping[str, float]
    without: Mapping[str, Mapping[str, float]]
    spread: float
    spread_experts: float | None
    rows: int


def fit_framework(framework: str, rows: list[Measured], *, most: int = 30) -> Fitted:
    """All rows, then without each family in turn, from the first's values on."""
    priors, some = PRIORS[framework], thinned(rows, most)
    values = fit(some, priors)
    without: dict[str, dict[str, float]] = {}
    left: dict[bool, list[float]] = {False: [], True: []}
    for family in sorted({one.case.family for one in rows}):
        others = [one for one in some if one.case.family != family]
        without[family] = fit(others, priors, values) if others else {name: mean for name, (mean, _) in priors.items()}
        known = Constants(without[family], 0.0, 0.0, "")
        for one in rows:
            if one.case.family == family:
                left[experts_of(one.case.model)[0] > 0].append(abs(log_error(one, known)))
    return Fitted(values, without, spread_of(left[False]), spread_of(left[True]) if left[True] else None, len(rows))


def spread_of(errors: list[float]) -> float:
    """The standard deviation of a normal variable of which as many lie within the 80 % interval."""
    return sorted(errors)[int(0.8 * len(errors))] / 1.2816


def as_toml(framework: str, made: Fitted) -> str:
    def table(title: str, values: Mapping[str, float]) -> str:
        body = "\n".join(f'"{name}" = {value:.4g}' for name, value in values.items())
        return f"[{title}]\n{body}\n"

    basis = (f"fitted on {made.rows} measured runs of {len(made.without)} model families "
             "(bench/fit_training.py, docs/training-accuracy.md)")
    own = [table(f'"{framework}".without."{family}"', values) for family, values in made.without.items()]
    more = "" if made.spread_experts is None else f"spread_experts = {made.spread_experts:.3f}\n"
    return "\n".join([f'["{framework}"]\nbasis = "{basis}"\nspread = {made.spread:.3f}\n{more}',
                      table(f'"{framework}".values', made.values), *own])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--framework", choices=sorted(PRIORS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measured(read(options.data / "training" / "measured.csv"))
    texts = []
    for framework, rows in found.items():
        if options.framework and framework != options.framework:
            continue
        made = fit_framework(framework, rows)
        print(f"{framework}: {len(rows)} runs, spread {made.spread:.3f}", file=sys.stderr)
        texts.append(as_toml(framework, made))
    text = "# Constants of training steps by framework: see predict/training/constants.py for the names.\n" \
           "# Written by bench/fit_training.py.\n\n" + "\n".join(texts)
    if options.out:
        options.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
