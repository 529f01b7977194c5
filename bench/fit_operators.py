"""Score the constants of matrix products on AIConfigurator's measured tables, or fit them again (--write).

    pip install "sublight[silicon]" scipy
    python bench/fit_operators.py [--write] [--report] [--only h200,b200] [--forms nvfp4]

For each (device, library, number format): rows of the table; median error on held-out (n, k) shapes of the pure
roofline, of the nearest measured neighbour (its share of the roofline, at the same m) and of the constants; 90th
percentile; with the tables, the same shapes through their neighbours' ratios. Then each device through constants
carried over from the others. Constants are fitted on the shapes that are not held out, and shipped so. --report: tables
and rows that are rejected.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sublight.device import by_key
from sublight.predict.operators import constants as shipped
from sublight.predict.operators import curves
from sublight.predict.operators.curves import FORMS, rates
from sublight.predict.operators.doubtful import MOST_STEPS, copied, floor, host_bound, steady
from sublight.predict.operators.silicon import BACKENDS, MILLISECOND, SYSTEMS, table, versions
from sublight.predict.operators.tiles import Rows, Tiled

HERE = Path(__file__).parent.parent / "sublight" / "catalog" / "operators" / "dense.toml"
FITTED, SCORED, THROUGH = 1200, 5000, 500      # rows of a table
PREDICTORS = ("roofline", "neighbour", "ours", "tables")
FEWEST = 50                              # (n, k) shapes of a table that is used
# name: (lower bound, upper bound, start, logarithmic). A smaller p or a larger shrink would fit half a point better,
# but charge memory's time to the tensor cores where a few rows are multiplied: what-ifs would be wrong.
BOUNDS = {
    "fixed": (0.5e-6, 40e-6, 2.5e-6, True), "wave": (1e-8, 2e-5, 5e-7, True), "split": (1e-7, 1e-4, 2e-6, True),
    "tensor": (0.15, 1.0, 0.75, False), "shrink": (0.0, 0.35, 0.1, False), "slowing": (0.0, 0.2, 0.05, False),
    "on_chip": (0.5, 30.0, 5.0, True), "memory": (0.3, 1.0, 0.8, False), "p": (3.0, 8.0, 3.5, False),
    "warm_bytes": (1e5, 1e8, 1e7, True), "warm_saved": (0.0, 0.95, 0.4, False),
    "written_saved": (0.0, 0.95, 0.2, False),
    "quantise": (0.0, 6.0, 0.3, False), "quantise_row": (1.0, 3e4, 300.0, True),
}
# In fp8 the terms of few-row products overlap all but fully (asynchronous copies): p of 1.5 to 8 fits to half a point.
# fp4 is multiplied so fast that its few-row products never wait for the tensor cores, and its tiles want to be large.
BOUNDS_FP8 = BOUNDS | {"p": (6.0, 8.0, 6.5, False)}
BOUNDS_FP4 = BOUNDS | {"shrink": (0.0, 0.7, 0.4, False), "p": (2.0, 8.0, 2.5, False)}
WEIGHTS_ALONE = ("bf16", "int4_weights", "int8_weights")     # nothing quantises their activations
HEAD = '''# Constants of dense matrix products, by device, library and number format (form: predict/operators/tiles.py).
# Written by bench/fit_operators.py --write; fitted on three fifths of the (n, k) shapes of each table.
#
# fixed_us, wave_us, split_us        of a call, of each wave of tiles, of a split along k
# tensor, memory, on_chip            shares of the device's peaks; on_chip over the memory's rate
# shrink, slowing, p                 see tiles.py
# warm_mb, warm_saved, written_saved    operands and results that the benchmark had in the L2; no model's step does
# quantise_us, quantise, quantise_row_bytes    of the activations, inside the measured call
# median, p90                        error in per cent on the shapes left out; spread_*: of ln(measured / predicted),
#                                    half of its middle 68 %, for at most 128 rows and for more
# rejected                           why the measured table is not used
'''


@dataclass(frozen=True)
class Table:
    """One measured table, of one number format."""

    device: str
    library: str
    form: str
    version: str
    m: Any
    n: Any
    k: Any
    seconds: Any
    keep: Any                            # rows that no larger product took less time than

    def rows(self, pick: Any) -> Rows:
        limits = by_key(self.device).limits
        return Rows(self.shapes(pick), limits.sms, limits.l2_bytes)

    def shapes(self, pick: Any) -> dict[str, Any]:
        _, a, b, _ = FORMS[self.form]
        m, n, k = (side[pick].astype(float) for side in (self.m, self.n, self.k))
        return {"m": m, "n": n, "k": k, "moved": m * k * a + n * k * b + 2 * m * n, "a_bytes": a, "b_bytes": b}

    @property
    def rates(self) -> tuple[float, float]:
        return rates(by_key(self.device), FORMS[self.form][3])

    def roofline(self, pick: Any) -> Any:
        shapes, (flops, memory) = self.shapes(pick), self.rates
        return np.maximum(2 * shapes["m"] * shapes["n"] * shapes["k"] / flops, shapes["moved"] / memory)


def held_out(n: Any, k: Any) -> Any:
    """Two fifths of the shapes, chosen by their numbers."""
    return (n.astype(np.int64) * 1000003 + k.astype(np.int64) * 7919) * 2654435761 % 2**32 < 0.4 * 2**32


def picked(mask: Any, count: int) -> Any:
    """At most so many of the rows, the same ones each time."""
    return np.random.default_rng(0).permutation(np.flatnonzero(mask))[:count]


def tables(only: tuple[str, ...]) -> Iterator[Table]:
    for device, folder in SYSTEMS.items():
        for library in BACKENDS:
            columns = table(device, "gemm", library, "gemm_perf") if not only or device in only else None
            if columns is None:
                continue
            version = versions(folder, "gemm", library, "gemm_perf")[0]
            for form, (name, *_) in FORMS.items():
                mine = columns["gemm_dtype"] == name
                if mine.any():
                    m, n, k, ms = (columns[column][mine] for column in ("m", "n", "k", "latency"))
                    seconds = ms * MILLISECOND
                    yield Table(device, library, form, version, m, n, k, seconds,
                                steady(n.astype(np.int64) * (1 << 20) + k, m, seconds))


def fit(one: Table) -> Tiled:
    """On the shapes that are not held out."""
    from scipy.optimize import least_squares

    pick = picked(~held_out(one.n, one.k) & one.keep, FITTED)
    rows, target, (flops, memory) = one.rows(pick), one.seconds[pick], one.rates
    bounds = {"nvfp4": BOUNDS_FP4, "fp8": BOUNDS_FP8, "fp8_block": BOUNDS_FP8}.get(one.form, BOUNDS)
    names = [name for name in bounds if one.form not in WEIGHTS_ALONE or not name.startswith("quantise")]

    def made(x: Any) -> Tiled:
        return Tiled(**{name: float(np.exp(value) if bounds[name][3] else value)
                        for name, value in zip(names, x, strict=True)})

    def coded(which: int) -> list[float]:
        return [float(np.log(bounds[name][which]) if bounds[name][3] else bounds[name][which]) for name in names]

    lower, upper, start = coded(0), coded(1), coded(2)
    scale = [max((high - low) / 10, 1e-3) for low, high in zip(lower, upper, strict=True)]
    starts = [start, [0.7 * s + 0.3 * u for s, u in zip(start, upper, strict=True)]]
    found = [least_squares(lambda x: np.log(rows.seconds(made(x), flops, memory) / target), begin,
                           bounds=(lower, upper), loss="soft_l1", f_scale=0.08, max_nfev=70, diff_step=3e-3,
                           x_scale=scale) for begin in (starts if one.form == "nvfp4" else starts[:1])]
    return made(min(found, key=lambda tried: float(tried.cost)).x)


def error(modelled: Any, measured: Any) -> Any:
    return np.abs(modelled / measured - 1)


def spread(modelled: Any, measured: Any) -> float:
    low, high = np.quantile(np.log(measured / modelled), (0.16, 0.84))
    return float((high - low) / 2)


def neighbour(one: Table, pick: Any) -> Any:
    """The nearest fitted shape's share of the roofline, at the row with the nearest m."""
    known = ~held_out(one.n, one.k)
    points = np.log(np.stack([one.n[known], one.k[known], one.m[known]], axis=1).astype(float))
    share = one.seconds[known] / one.roofline(known)
    wanted = np.log(np.stack([one.n[pick], one.k[pick], one.m[pick]], axis=1).astype(float))
    from scipy.spatial import cKDTree

    _, at = cKDTree(points).query(wanted)
    return share[at] * one.roofline(pick)


def between(one: Table, found: shipped.Dense, pick: Any) -> Any:
    """Held-out shapes through the ratios of the shapes that are known: what tables give where (n, k) is unseen."""
    known = ~held_out(one.n, one.k)
    columns = {"gemm_dtype": np.full(int(known.sum()), FORMS[one.form][0]), "m": one.m[known], "n": one.n[known],
               "k": one.k[known], "latency": one.seconds[known] / MILLISECOND}
    found_curves = curves.Curves(found, columns)
    ratio = [found_curves.ratio(int(m), int(n), int(k))[0]
             for m, n, k in zip(one.m[pick], one.n[pick], one.k[pick], strict=True)]
    return np.array(ratio) * one.rows(pick).seconds(found.tiled, *one.rates)


def quantise_floor(one: Table) -> float:
    """Seconds of the fixed part that are quantisation's: for TensorRT-LLM's per-tensor fp8, whose call scales in
    kernels that were measured by themselves, those; no other table tells."""
    if (one.library, one.form) != ("trtllm", "fp8"):
        return 0.0
    parts = [table(one.device, "quantize", "trtllm", f"{name}_perf") for name in ("computescale", "scale_matrix")]
    if None in parts:
        return 0.0
    lows = [float(np.median(part["latency"][(part["m"] <= 16) & (part["k"] <= 8192)])) for part in parts if part]
    return sum(lows) * MILLISECOND


def scored(one: Table, tiled: Tiled) -> tuple[dict[str, float], dict[str, Any]]:
    """Figures, and errors by predictor, on held-out shapes, all of their rows."""
    pick = picked(held_out(one.n, one.k), SCORED)
    measured, modelled = one.seconds[pick], one.rows(pick).seconds(tiled, *one.rates)
    small = one.m[pick] <= shipped.SMALL
    found = shipped.Dense(tiled, 0, 0, "constants", "", one.device, one.library, one.form)
    through = picked(held_out(one.n, one.k), THROUGH)
    errors = {"roofline": error(one.roofline(pick), measured), "neighbour": error(neighbour(one, pick), measured),
              "ours": error(modelled, measured), "tables": error(between(one, found, through), one.seconds[through])}
    return {
        "median": percent(errors["ours"]), "p90": 100 * float(np.quantile(errors["ours"], 0.9)),
        "spread_small": spread(modelled[small], measured[small]),
        "spread_large": spread(modelled[~small], measured[~small]),
    }, errors


def percent(errors: Any) -> float:
    """Their median."""
    return 100 * float(np.median(errors))


def columns_of(errors: Mapping[str, Any]) -> str:
    return "".join(f"{percent(errors[name]):9.1f}" for name in PREDICTORS)


def rejections(found: list[Table]) -> dict[tuple[str, str, str], str]:
    """(device, library, form) -> why its table is not used."""
    out = {}
    for device, form in {(one.device, one.form) for one in found}:
        same = {one.library: one for one in found if (one.device, one.form) == (device, form)}
        shapes = set.intersection(*({*zip(t.n.tolist(), t.k.tolist(), strict=True)} for t in same.values()))
        common = {library: floor(t.seconds[[pair in shapes for pair in zip(t.n.tolist(), t.k.tolist(), strict=True)]])
                  - quantise_floor(t) for library, t in same.items()} if shapes else {}
        reasons = host_bound(common)
        for library, t in same.items():
            if (count := len({*zip(t.n.tolist(), t.k.tolist(), strict=True)})) < FEWEST:
                reasons.setdefault(library, f"only {count} shapes")
            if (lost := 1 - float(t.keep.mean())) > MOST_STEPS:
                reasons.setdefault(library, f"{lost:.0%} of rows slower than larger products")
        out.update({(device, library, form): reason for library, reason in reasons.items()})
    return out


# Tables of traffic: (name, column of times, columns that make a row's key).
TRAFFIC = (
    ("wideep_deepep_normal_perf", "dispatch_transmit_us", ("node_num", "hidden_size", "num_token", "dispatch_sms")),
    ("wideep_deepep_ll_perf", "dispatch_avg_t_us", ("node_num", "hidden_size", "num_token", "num_experts")),
    ("custom_allreduce_perf", "latency", ("num_gpus", "message_size", "kernel_source")),
)


def traffic_report() -> Iterator[str]:
    """Tables of traffic that are another GPU's or another version's, and those that mix graph and eager launches."""
    for name, column, key in TRAFFIC:
        seen: list[tuple[str, Any]] = []
        for device, folder in SYSTEMS.items():
            for library in BACKENDS:
                for version in versions(folder, "comm", library, name):
                    columns = table(device, "comm", library, name, version)
                    if columns is None or column not in columns:
                        continue
                    order = np.lexsort([columns[part] for part in key if part in columns])
                    times, title = columns[column][order], f"{device} {library} {version}"
                    same = [other for other, theirs in seen if copied(times, theirs)]
                    seen.append((title, times))
                    eager = np.char.find(columns["kernel_source"], "eager") >= 0
                    if same:
                        yield f"{name}: {title} is {same[0]}'s measurement"
                    if 0 < eager.mean() < 1:
                        yield f"{name}: {title}: {eager.mean():.0%} of rows launched eagerly, kept apart"


def line(tiled: Tiled, score: Mapping[str, float]) -> str:
    """One inline table of TOML."""
    values = {
        "fixed_us": tiled.fixed * 1e6, "wave_us": tiled.wave * 1e6, "split_us": tiled.split * 1e6,
        "tensor": tiled.tensor, "shrink": tiled.shrink, "slowing": tiled.slowing, "on_chip": tiled.on_chip,
        "memory": tiled.memory, "p": tiled.p, "warm_mb": tiled.warm_bytes / 1e6, "warm_saved": tiled.warm_saved,
        "written_saved": tiled.written_saved,
    }
    if tiled.quantise > 0 or tiled.quantise_fixed > 0:
        values |= {"quantise_us": tiled.quantise_fixed * 1e6, "quantise": tiled.quantise,
                   "quantise_row_bytes": tiled.quantise_row}
    values |= {name: score[name] for name in ("median", "p90", "spread_small", "spread_large")}
    return ", ".join(f"{name} = {_short(value)}" for name, value in values.items())


def _short(value: float) -> str:
    text = f"{0.0 if abs(value) < 1e-6 else value:.3g}"
    return text if "." in text or "e" in text else f"{text}.0"


def rounded(tiled: Tiled) -> Tiled:
    """As the file will have it."""
    return replace(tiled, **{name: float(f"{getattr(tiled, name):.3g}") for name in Tiled.__slots__})


def carried(one: Table) -> tuple[Any, Any]:
    """(modelled, measured) of a sample of rows, by the constants of other devices."""
    pick = picked(one.keep, 2000)
    found = shipped.dense(by_key(one.device), one.library, one.form, without=one.device)
    return one.rows(pick).seconds(found.tiled, *one.rates), one.seconds[pick]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write catalog/operators/dense.toml")
    parser.add_argument("--report", action="store_true", help="only tables and rows that are rejected")
    parser.add_argument("--only", default="", help="devices, separated by commas")
    parser.add_argument("--forms", default="", help="number formats, separated by commas")
    options = parser.parse_args()
    found = list(tables(tuple(filter(None, options.only.split(",")))))
    if not found:
        raise SystemExit("no tables: pip install aiconfigurator-core==0.12.0 pyarrow")
    bad = rejections(found)
    if options.report:
        for one in found:
            lost, reason = 1 - one.keep.mean(), bad.get((one.device, one.library, one.form))
            print(f"{one.device:14} {one.library:7} {one.form:13} {len(one.m):6} rows, {lost:5.1%} slower than a larger"
                  f" product{'   REJECTED: ' + reason if reason else ''}")
        print("\n".join(traffic_report()))
        return
    forms = tuple(filter(None, options.forms.split(",")))
    found = [one for one in found if not forms or one.form in forms]
    lines = {(one.device, one.library, one.form): "" for one in found}
    by_device: dict[tuple[str, str], list[dict[str, Any]]] = {}
    print("median error in per cent on held-out shapes")
    print(f"{'device':14} {'library':7} {'format':13} {'rows':>6}" + "".join(f"{name:>9}" for name in PREDICTORS)
          + "      p90 of ours")
    for one in found:
        key = (one.device, one.library, one.form)
        if key in bad:
            lines[key] = f'rejected = "{bad[key]}"'
            print(f"{one.device:14} {one.library:7} {one.form:13} {len(one.m):6} rejected: {bad[key]}")
            continue
        tiled = fresh(one) if options.write else shipped.dense(by_key(one.device), one.library, one.form).tiled
        figures, errors = scored(one, tiled)
        lines[key] = line(tiled, figures)
        by_device.setdefault((one.device, "bf16" if one.form == "bf16" else "quantised"), []).append(errors)
        print(f"{one.device:14} {one.library:7} {one.form:13} {len(one.m):6}{columns_of(errors)}{figures['p90']:9.1f}",
              flush=True)
    if options.write:
        write(found, lines)
    print("\nall libraries of a device")
    for (device, kind), all_errors in by_device.items():
        together = {name: np.concatenate([errors[name] for errors in all_errors]) for name in PREDICTORS}
        print(f"{device:14} {kind:21} {'':6}{columns_of(together)}")
    held_out_devices(found, bad)


def fresh(one: Table) -> Tiled:
    """Fitted, as the file will have it, with what quantisation costs taken out of the fixed part."""
    tiled = fit(one)
    held = max(0.0, min(quantise_floor(one), tiled.fixed - 1.5e-6))
    return rounded(replace(tiled, fixed=tiled.fixed - held, quantise_fixed=held))


def write(found: list[Table], lines: Mapping[tuple[str, str, str], str]) -> None:
    """Into the file, in place of what it says of these tables."""
    sections: dict[tuple[str, str], dict[str, str]] = {}
    for text in HERE.read_text("utf-8").splitlines():
        if text.startswith("["):
            device, library = text.strip("[]").split(".")
            section = sections.setdefault((device, library), {})
        elif " = " in text and not text.startswith("#"):
            name, _, value = text.partition(" = ")
            section[name] = value
    for one in found:
        section = sections.setdefault((one.device, one.library), {})
        section["source"] = f'"fitted on aiconfigurator-core 0.12.0, gemm, {one.library} {one.version}"'
        section[one.form] = f"{{ {lines[one.device, one.library, one.form]} }}"
    HERE.write_text(HEAD + "".join(
        f"\n[{device}.{library}]\n" + "".join(f"{name} = {value}\n" for name, value in section.items())
        for (device, library), section in sections.items()), "utf-8")
    shipped._files.cache_clear()
    shipped._own.cache_clear()


def held_out_devices(found: list[Table], bad: Mapping[tuple[str, str, str], str]) -> None:
    """Each device by the constants of the others."""
    print("\none device held out, its times by constants carried over from the others (median error in per cent)")
    pooled = []
    for device in {one.device: 0 for one in found}:
        mine = [(one, *carried(one)) for one in found
                if one.device == device and (one.device, one.library, one.form) not in bad]
        pooled += [error(modelled, measured) for _, modelled, measured in mine]
        print(f"{device:14} {percent(np.concatenate([error(a, b) for _, a, b in mine])):5.1f}   " + "  ".join(
            f"{one.library} {one.form} {percent(error(a, b)):.1f}" for one, a, b in mine))
    print(f"all            {percent(np.concatenate(pooled)):5.1f}")


if __name__ == "__main__":
    main()
