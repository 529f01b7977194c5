"""Expected times of collectives in one domain: fits the catalog to a table of measurements, and scores the method.

    python bench/fit_collectives.py --score CSV        errors and coverage on what was hidden, beside simpler methods
    python bench/fit_collectives.py --write CSV        sublight/catalog/comm/nccl-node.toml anew, from all rows

CSV: system, nccl, op_name, nccl_dtype, num_gpus, bytes, us; bytes is what nccl-tests prints as size. AIConfigurator's
nccl_perf tables with message_size (elements) times the element's size are of this form.

Each system in turn is the target. Of it alone, rows are hidden, both number formats together, and predicted by the
same `complete` that makes the catalog; the factors of its intervals come from the other systems.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from sublight.cluster import catalog as nodes
from sublight.cluster import parse
from sublight.comm.expect.fit import complete, left_out
from sublight.comm.expect.intervals import Scales, hiding, scales, widths
from sublight.comm.expect.measured import COLLECTIVES, F64, Box, Mask, Table, read_table
from sublight.comm.expect.surface import written
from sublight.comm.expect.transfer import fitted
from sublight.comm.nccl.choice import choose, function_of, model
from sublight.comm.nccl.graph import graphs
from sublight.comm.topology.from_cluster import system_of

# the catalog's key of a system in AIConfigurator's tables
DEVICES = {
    "a100_sxm": "a100-sxm-80", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000",
}
SPLITS = {"a": "beyond", "b": "ranks", "c": "gap"}
TITLES = {"a": "above 16 MiB hidden", "b": "one GPU count hidden", "c": "one size hidden"}
SOURCE = "AIConfigurator systems/data/*/comm/nccl/{2.27.3,2.29.2}/nccl_perf (Apache-2.0), one node"
CATALOG = Path(__file__).parent.parent / "sublight" / "catalog" / "comm" / "nccl-node.toml"

Method = Callable[[Table, int], F64]     # (table with holes, system) -> log us: (collective, form, ranks, size)


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Of every measured place: log error of the prediction made with it hidden, and half the interval's width."""

    error: F64
    width: F64


def scored(table: Table, split: str, by_system: Sequence[Scales]) -> Score:
    """Predictions of the method that ships, for every place of a split."""
    error, width = (np.full(table.log_us.shape, np.nan) for _ in range(2))
    for system, hidden, log_us, deviation in predicted(table, split):
        own = hidden[system]
        error[system][own] = (log_us - table.log_us[system])[own]
        width[system][own] = widths(table.without(hidden), system, deviation, by_system[system])[own]
    return Score(error, width)


def predicted(table: Table, split: str) -> Iterator[tuple[int, Mask, F64, F64]]:
    """(system, what was hidden, log us, deviation): by a fit without it; for NVLink by `left_out`, which gives the
    same to rounding in one inversion (a test holds it to that)."""
    nvlink = tuple(i for i, key in enumerate(table.systems) if Box.of(key).nvlink)
    at_once = [case for case in cases(table, split) if case[0] in nvlink]
    for (system, hidden), (log_us, deviation) in zip(at_once, left_out(table, nvlink, at_once), strict=True):
        yield system, hidden, log_us, deviation
    for system, hidden in cases(table, split):
        if system not in nvlink:
            found = complete(table.without(hidden), only=system)
            yield system, hidden, found.log_us[system], found.deviation[system]


def errors(table: Table, split: str, method: Method) -> F64:
    """The same of a simpler method, errors only."""
    error = np.full(table.log_us.shape, np.nan)
    for system, hidden in cases(table, split):
        own = hidden[system]
        error[system][own] = (method(table.without(hidden), system) - table.log_us[system])[own]
    return error


def cases(table: Table, split: str) -> Iterator[tuple[int, Mask]]:
    for system in range(len(table.systems)):
        for hidden in hiding(table, system, SPLITS[split]):
            yield system, hidden


# ---- simpler methods, each on a system's own rows


def alpha_beta(table: Table, system: int) -> F64:
    """start-up + bytes / rate by least squares of relative errors, for each curve; over ranks as `over_ranks`."""
    def line(sizes: F64, log_us: F64, at: F64) -> F64:
        us = np.exp(log_us)
        (alpha, beta), *_ = np.linalg.lstsq(np.column_stack([1 / us, sizes / us]), np.ones_like(us), rcond=None)
        return np.asarray(np.log(np.maximum(alpha + beta * at, 1e-3)))

    return by_curve(table, system, line)


def log_log(table: Table, system: int) -> F64:
    """Straight lines between the logarithms; beyond, on with the last one."""
    def line(sizes: F64, log_us: F64, at: F64) -> F64:
        x, y = np.log(sizes), np.log(at)
        slope = (log_us[-1] - log_us[-2]) / (x[-1] - x[-2])
        first = (log_us[1] - log_us[0]) / (x[1] - x[0])
        inside = np.interp(y, x, log_us)
        return np.where(y > x[-1], log_us[-1] + slope * (y - x[-1]),
                        np.where(y < x[0], log_us[0] + first * (y - x[0]), inside))

    return by_curve(table, system, line)


def last_two(table: Table, system: int) -> F64:
    """The line through the last two sizes, from the last on; before it as `log_log`."""
    def line(sizes: F64, log_us: F64, at: F64) -> F64:
        us = np.exp(log_us)
        slope = max((us[-1] - us[-2]) / (sizes[-1] - sizes[-2]), 0.0)
        inside = np.interp(np.log(at), np.log(sizes), log_us)
        return np.where(at > sizes[-1], np.log(us[-1] + slope * np.maximum(at - sizes[-1], 0)), inside)

    return by_curve(table, system, line)


def by_curve(table: Table, system: int, line: Callable[[F64, F64, F64], F64]) -> F64:
    measured, sizes = table.log_us[system], np.array(table.sizes, float)
    out = np.full(measured.shape, np.nan)
    for place in np.ndindex(*measured.shape[:-1]):
        seen = ~np.isnan(measured[place])
        if seen.sum() > 1:
            out[place] = line(sizes[seen], measured[place][seen], sizes)
    return over_ranks(table, out)


def over_ranks(table: Table, log_us: F64) -> F64:
    """Curves that are missing, from those of the nearest ranks: straight over log2(ranks)."""
    x, out = np.log2(table.ranks), log_us.copy()
    have = [i for i in range(len(x)) if not np.isnan(log_us[:, :, i]).any()]
    for i in range(len(x)):
        if i in have or not have:
            continue
        near = sorted(have, key=lambda j: abs(x[j] - x[i]))[:2]
        first = log_us[:, :, near[0]]
        slope = 0.0 if len(near) == 1 else (log_us[:, :, near[1]] - first) / (x[near[1]] - x[near[0]])
        out[:, :, i] = first + slope * (x[i] - x[near[0]])
    return out


def nccl_model(table: Table, system: int) -> F64:
    """What NCCL's own tuning model says, unfitted, of the usual node of each device; NaN for all-to-all, which is not
    in it."""
    curves = [_nccl_times(table.systems[system], ranks, table.sizes) for ranks in table.ranks]
    return np.stack(curves, 2)


@cache
def _nccl_times(key: str, ranks: int, sizes: tuple[int, ...]) -> F64:
    """(collective, form, size)"""
    node, out = next(node for node in nodes() if node.device.key == key), np.full((4, 2, len(sizes)), np.nan)
    if ranks <= node.gpus:
        found = model(graphs(system_of(parse(f"1x{ranks}x{node.key}")), gpus=ranks, environment={}), {})
        for c, name in enumerate(COLLECTIVES[:3]):
            for f, form in enumerate(("fp16", "int8")):
                best = [choose(found, function_of(name), size, dtype=form).best.time_us for size in sizes]
                out[c, f] = np.log([time or np.nan for time in best])
    return out


SIMPLER: dict[str, Method] = {"alpha-beta": alpha_beta, "log-log lines": log_log, "line of the last two": last_two,
                              "NCCL 2.30.7's model": nccl_model}


# ---- the scoreboard


def classes(table: Table) -> dict[str, F64]:
    nvlink = np.array([Box.of(key).nvlink for key in table.systems])
    return {"all": np.ones_like(nvlink), "NVLink": nvlink, "PCIe": ~nvlink}


def typical(error: F64) -> tuple[float, float]:
    """(median, 90th percentile) of the absolute error, percent."""
    percent = 100 * np.abs(np.expm1(error[~np.isnan(error)]))
    return float(np.median(percent)), float(np.percentile(percent, 90))


def interval(error: F64, width: F64) -> tuple[float, float]:
    """(share inside the interval, mean width over the constant width that holds the same share)."""
    off, half = np.abs(error[~np.isnan(error)]), width[~np.isnan(error)]
    inside = float(np.mean(off <= half))
    return inside, float(half.mean() / np.quantile(off, inside))


def board(table: Table, more: Mapping[str, Method]) -> Iterator[str]:
    """The lines of the scoreboard. more: other methods to print beside, by name (NCCL's own model)."""
    yield "split                  systems   method                 median %   p90 %   inside   width / constant"
    by_system = [scales(table, system) for system in range(len(table.systems))]
    for split, title in TITLES.items():
        score = scored(table, split, by_system)
        simpler = {name: errors(table, split, method) for name, method in {**SIMPLER, **more}.items()
                   if split == "a" or method is not last_two}
        for systems, chosen in classes(table).items():
            head = f"({split}) {title:<22}{systems:<8}"
            if np.isnan(score.error[chosen]).all():
                continue
            inside, ratio = interval(score.error[chosen], score.width[chosen])
            yield f"{head}{'this':<22}{_pair(score.error[chosen])}{inside:>8.0%}{ratio:>11.2f}"
            for name, error in simpler.items():
                yield f"{'':<36}{name:<22}{_pair(error[chosen])}"


def _pair(error: F64) -> str:
    median, p90 = typical(error)
    return f"{median:>10.2f}{p90:>9.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--score", action="store_true", help="print the scoreboard")
    parser.add_argument("--write", action="store_true", help=f"write {CATALOG.name}")
    arguments = parser.parse_args()
    table = read_table(arguments.csv, DEVICES)
    if arguments.score:
        for line in board(table, {}):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    if arguments.write:
        surface = fitted(table, SOURCE)
        CATALOG.write_text(written(surface), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
