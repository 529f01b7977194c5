"""Predict the rows of measured training results, each from constants fitted without its model family.

    python bench/training_accuracy.py --data DIR --out FILE.csv

Reads DIR/training/measured.csv (columns: training_rows.py), writes id, value in the row's own metric and unit, and says
on standard error which rows it leaves out and why. docs/training-accuracy.md has the figures.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from training_rows import Case, case, read

from sublight.errors import InputError
from sublight.predict.training import estimate, model_flops

GIB = 2**30


def predicted(row: Mapping[str, str], known: Case) -> float:
    """The row's value. Raises InputError for a metric that is none of training."""
    metric = row["metric"]
    if metric.endswith("_gib"):
        return memory(metric, row, known)
    made = estimate(known.model, known.plan, known.job, known.where, without=known.family)
    seconds, rate = made.value("step time"), made.value("tokens/s/GPU")
    flops = rate * model_flops(known.counted, known.job.seq, known.definition)
    match metric:
        case "iteration_time_ms":
            return seconds * 1e3
        case "iteration_time_s":
            return seconds
        case "tokens/s/gpu":
            return rate
        case "model_tflops/gpu":
            return flops / 1e12
        case "mfu":
            return flops * made.value("MFU") / made.value("model FLOP/s/GPU")
    raise InputError(f"no prediction of the metric '{metric}'")


def memory(metric: str, row: Mapping[str, str], known: Case) -> float:
    """Of the fullest stage; papers' figures are of the first."""
    from sublight.predict.training.memory import allocated, peak, training_memory

    plan = known.plan
    if plan.framework == "megatron-deepspeed":       # dropout, and attention's scores kept: as papers of 2022 train
        plan = replace(plan, framework="megatron", extra=(*plan.extra, ("dropout", "yes")))
    first = training_memory(known.model, plan, known.job, known.where, stage=0)
    fullest = peak(known.model, plan, known.job, known.where)
    match metric:
        case "peak_alloc_gib":
            return allocated(fullest) / GIB
        case "peak_mem_gib":
            return (fullest.used - fullest.parts["runtime"]) / GIB
        case "activation_mem_gib":
            return first.parts["activations"] / GIB
        case "param+optimizer_mem_gib":
            return sum(first.parts[name] for name in ("parameters", "gradients", "optimizer")) / GIB
    raise InputError(f"no prediction of the metric '{metric}'")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = read(options.data / "training" / "measured.csv")
    out, left = [], Counter[str]()
    for row in rows:
        try:
            value = predicted(row, case(row))
        except InputError as error:
            left[f"{row['source'].split(' ')[0]}: {row['model']}: {error}"] += 1
        else:
            out.append((row["id"], f"{value:.6g}"))
    with options.out.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "value"), *out])
    print(f"{len(out)} of {len(rows)} rows predicted", file=sys.stderr)
    for reason, count in left.most_common():
        print(f"  {count} left out, {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
