"""Fit the constants of custom all-reduces, and of DeepEP on one node, from AIConfigurator's tables; print how well they
describe them.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip aiconfigurator_core-*.whl -d aic      (Apache-2.0)
    python bench/fit_custom.py aic/aiconfigurator_core/systems/data [--write]

Needs pyarrow and scipy. One version of each library and device is read, so that copies of a table under several names
(H200's of H100, L40S's of itself) count once. message_size is in elements of 2 bytes. Times of graphs are fitted up to
4 MiB; the lower of one-shot and two-shot stands for what the libraries choose. Eager rows give the host's floor.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sublight.cluster import Cluster, parse
from sublight.comm.expect.custom import LARGEST, Shots, parts
from sublight.comm.expect.deepep import Inside, inside
from sublight.comm.expect.experts import Exchange

TABLES = {
    "a100-sxm-80": ("a100_sxm", ("vllm/0.14.0", "sglang/0.5.10", "trtllm/1.0.0")),
    "h100-sxm": ("h100_sxm", ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
    "h200": ("h200_sxm", ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
    "b200": ("b200_sxm", ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
    "b300": ("b300_sxm", ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
    "gb200": ("gb200", ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
    "gb300": ("gb300", ("vllm/0.27.0", "sglang/0.5.14", "trtllm/1.3.0rc20")),
}
SOURCE = ("custom all-reduces of vLLM, SGLang and TensorRT-LLM under CUDA graphs, bf16, up to 4 MiB (AIConfigurator, "
          "aiconfigurator-core 0.12.0)")
NVLS = '''[nvls]
# base: NCCL 2.30.7, src/sym_kernels.cc, its model of multicast kernels (7.8 us Hopper, 8.5 to 19.5 Blackwell)
# share: S / time over the link rate of NCCL's own NVLS all-reduce: 8 H100 275 GB/s of 450 at 16 GiB
# (xxrjun/nccl-tests-cluster, 455de4f8), 8 B200 401 GB/s of 900 at 512 MiB (AIConfigurator, b200_sxm)
source = "NCCL 2.30.7's stated base, rate of NCCL's own NVLS all-reduce on 8 H100 and 8 B200"
base_us = { hopper = 7.8, blackwell = 13.0 }
share = { hopper = 0.61, blackwell = 0.45 }
'''


def rows_of(folder: Path, system: str, versions: Sequence[str]) -> list[tuple[int, float, float, bool]]:
    """(ranks, bytes, seconds, eager) of the tables, up to 8 ranks, and 4 where a tray has no more."""
    import pyarrow.parquet as parquet

    found = []
    for version in versions:
        table = parquet.read_table(folder / system / "comm" / version / "custom_allreduce_perf.parquet").to_pylist()
        most = 4 if system.startswith("gb") else 8
        found += [(row["num_gpus"], 2.0 * row["message_size"], row["latency"] * 1e-3, "eager" in row["kernel_source"])
                  for row in table if row["num_gpus"] <= most]
    return found


def fit(rows: Sequence[tuple[int, float, float, bool]]) -> tuple[Shots, Any]:
    """Constants of a device, and the logarithms of fitted over measured."""
    from scipy.optimize import least_squares

    graphs = [(n, b, s) for n, b, s, eager in rows if not eager and b <= LARGEST]
    ranks, nbytes, seconds = (np.array([row[at] for row in graphs]) for at in range(3))
    eager = [s for _, b, s, is_eager in rows if is_eager and b <= 65536]

    def made(x: Any) -> Any:
        shots = Shots(x[0] * 1e-6, x[1] * 1e9, (x[0] + x[2]) * 1e-6, x[3] * 1e9, 0, 0, 0)
        sizes = list(zip(ranks.tolist(), nbytes.tolist(), strict=True))
        both = [np.array([sum(parts(shots, kind=kind, ranks=int(n), nbytes=b)) for n, b in sizes])
                for kind in ("one-shot", "two-shot")]
        return np.log(np.minimum(*both) / seconds)

    tries = [least_squares(made, [4, 300, more, 250], bounds=([0.5, 50, 0.5, 50], [40, 900, 40, 900]), loss="soft_l1",
                           f_scale=0.1) for more in (2, 5, 10)]
    x = min(tries, key=lambda found: float(found.cost)).x
    error = made(x)
    return Shots(x[0] * 1e-6, x[1] * 1e9, (x[0] + x[2]) * 1e-6, x[3] * 1e9, float(np.median(eager)),
                 round(float(np.quantile(np.abs(error), 0.8)), 3), int(ranks.max())), error


# ---- DeepEP on one node

NODES = {"h200": ("h200_sxm", "8xH200"), "b200": ("b200_sxm", "8xB200"), "gb200": ("gb200", "4xGB200")}
DEEPEP = "comm/sglang/0.5.12"
NVLINK_SHARE = 0.7775                    # DeepEP docs/legacy.md: 153 and 158 of an H800's 200 GB/s


def deepep_rows(folder: Path, system: str, phase: str, mode: str, ranks: int) -> list[tuple[Exchange, float]]:
    """Exchanges and seconds of a table."""
    import pyarrow.parquet as parquet

    name, column = ("ll", f"{phase}_avg_t_us") if mode == "low-latency" else ("normal", f"{phase}_transmit_us")
    found = []
    for row in parquet.read_table(folder / system / DEEPEP / f"wideep_deepep_{name}_perf.parquet").to_pylist():
        if row["num_experts"] % ranks == 0 and row["num_experts"] >= 64:
            exchange = Exchange(phase, row["num_token"], row["num_topk"], row["hidden_size"], row["num_experts"], ranks,
                                ranks, mode=mode, sms=row.get(f"{phase}_sms"))
            found.append((exchange, row[column] * 1e-6))
    return found


def fit_inside(rows: Sequence[tuple[Exchange, float]], where: Cluster, mode: str) -> tuple[Inside, float, float]:
    """Constants, and the median and 90th percentile of the error on hidden sizes that were left out in turn."""
    from scipy.optimize import least_squares

    def solved(some: Sequence[tuple[Exchange, float]]) -> Inside:
        def make(x: Any) -> Inside:
            copy, share = (x[1] * 1e-12, NVLINK_SHARE) if mode == "normal" else (0.0, x[1] / 100)
            return Inside(x[0] * 1e-6, copy, share, 0.1, 0.1, where.ranks, "")

        def residuals(x: Any) -> list[float]:
            constants = make(x)
            return [math.log(inside(e, where, constants).seconds / s) for e, s in some]

        return make(least_squares(residuals, [30, 60], bounds=([2, 3], [200, 600]), loss="soft_l1", f_scale=0.05).x)

    made, errors = [], []
    for hidden in sorted({e.hidden for e, _ in rows}):
        others = solved([row for row in rows if row[0].hidden != hidden])
        for exchange, seconds in (row for row in rows if row[0].hidden == hidden):
            made.append(inside(exchange, where, others))
            errors.append(abs(math.log(made[-1].seconds / seconds)))
    share, error = np.array([p.base_s / p.seconds for p in made]), np.array(errors)
    best = (math.inf, 0.0, 0.0)
    for ratio in (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0):
        half = np.hypot(ratio * share, 1 - share)
        scale = float(np.quantile(error / half, 0.8))
        best = min(best, (float(half.mean()) * scale, scale, ratio * scale))
    found = replace(solved(rows), width=round(best[1], 3), base_width=round(best[2], 3))
    return found, float(np.median(error)), float(np.quantile(error, 0.9))


def board_inside(folder: Path) -> str:
    """Print each device's fit; the text of catalog/comm/experts-inside.toml."""
    lines = ["# DeepEP on one node. Written by bench/fit_custom.py.", "# Model: sublight/comm/expect/deepep.py.", "",
             "[source]"]
    lines += [f'{key} = "DeepEP on one node, hidden 2048 to 7168, top-k 1 to 22 (AIConfigurator, {system} sglang '
              '0.5.12, aiconfigurator-core 0.12.0)"' for key, (system, _) in NODES.items()]
    for mode in ("normal", "low-latency"):
        for phase in ("dispatch", "combine"):
            for key, (system, text) in NODES.items():
                where = parse(text)
                rows = deepep_rows(folder, system, phase, mode, where.ranks)
                found, median, p90 = fit_inside(rows, where, mode)
                print(f"{mode:<12} {phase:<9} {key:<6} n {len(rows):4}  hidden sizes left out: median {median:.1%}  "
                      f"p90 {p90:.1%}")
                lines += ["", f"[{mode}.{phase}.{key}]", f"base_s = {found.base_s:.4g}",
                          f"copy_s = {found.copy_s:.4g}",
                          f"share = {found.share:.4g}", f"width = {found.width}", f"base_width = {found.base_width}",
                          f"ranks = {found.ranks}"]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each device's fit; write catalog/comm/custom.toml if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="systems/data of aiconfigurator_core")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    lines = ["# Custom all-reduces inside an NVLink domain. Written by bench/fit_custom.py.",
             "# Model: sublight/comm/expect/custom.py.", f'source = "{SOURCE}"', "", NVLS]
    for key, (system, versions) in TABLES.items():
        shots, error = fit(rows_of(options.data, system, versions))
        error = 100 * np.abs(np.expm1(error))
        print(f"{key:<12} n {len(error)}  median {np.median(error):4.1f} %  p90 {np.quantile(error, 0.9):4.1f} %")
        one, two = (f"{{ base_us = {base * 1e6:.2f}, gb_per_second = {rate / 1e9:.1f} }}" for base, rate in (
            (shots.one_base_s, shots.one_rate), (shots.two_base_s, shots.two_rate)))
        lines += [f"[shots.{key}]", f"one_shot = {one}", f"two_shot = {two}", f"eager_us = {shots.eager_s * 1e6:.1f}",
                  f"width = {shots.width}", f"largest_group = {shots.largest_group}", ""]
    exchanges = board_inside(options.data)
    if options.write:
        catalog = Path(__file__).parent.parent / "sublight/catalog/comm"
        (catalog / "custom.toml").write_text("\n".join(lines), "utf-8")
        (catalog / "experts-inside.toml").write_text(exchanges, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
