"""Fit the floor and the memory share of small kernels from the measured quantisation of activations; print the error.

    pip install "sublight[silicon]" scipy
    python bench/fit_small.py [--write]

The kernel that scales m x k values of bf16 to fp8 is what was measured of all kernels that only move data, so it stands
for the rest of them (catalog/operators/small.toml, [kinds]). Fitted on the even k, scored on the odd ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sublight.device import Device, by_key
from sublight.predict.operators.doubtful import floor, host_bound
from sublight.predict.operators.silicon import BACKENDS, MILLISECOND, SYSTEMS, table, versions
from sublight.predict.operators.small import Moving, moving_seconds

HERE = Path(__file__).parent.parent / "sublight" / "catalog" / "operators" / "small-devices.toml"
HEAD = '''# Floor and memory share of kernels that only move data, by device and library. By bench/fit_small.py --write.
#
# fixed_us      of a kernel, launched by a CUDA graph behind another
# memory        share of the memory's rate, of data that the L2 does not hold
# warm          share of the time that the L2 saves, of data far smaller than it
# median        error in per cent on the sizes left out
'''
BYTES = 3.0                              # of a value: two read, one written


def rows(device: str, library: str) -> tuple[Any, Any, Any] | None:
    """(bytes, seconds, k) of the scaling kernel."""
    columns = table(device, "quantize", library, "scale_matrix_perf")
    if columns is None:
        return None
    keep = columns["latency"] > 0
    m, k, ms = (columns[name][keep].astype(float) for name in ("m", "k", "latency"))
    return m * k * BYTES, ms * MILLISECOND, k


def fit(device: Device, nbytes: Any, seconds: Any) -> Moving:
    from scipy.optimize import least_squares

    def made(x: Any) -> Moving:
        return Moving(float(np.exp(x[0])), float(x[1]), float(x[2]))

    best = least_squares(lambda x: np.log(moving_seconds(made(x), nbytes, device.limits) / seconds),
                         [np.log(2e-6), 0.8, 0.3], bounds=([np.log(3e-7), 0.2, 0.0], [np.log(2e-5), 1.0, 0.95]),
                         loss="soft_l1", f_scale=0.1)
    return made(best.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write catalog/operators/small-devices.toml")
    options = parser.parse_args()
    text = HEAD
    for key, folder in SYSTEMS.items():
        found = {library: r for library in BACKENDS if (r := rows(key, library)) is not None}
        bad = host_bound({library: floor(seconds) for library, (_, seconds, _) in found.items()})
        for library, (nbytes, seconds, k) in found.items():
            if library in bad:
                print(f"{key:14} {library:7} rejected: {bad[library]}")
                continue
            fitted = np.searchsorted(np.unique(k), k) % 2 == 0
            device = by_key(key)
            moving = fit(device, nbytes[fitted], seconds[fitted])
            off = np.abs(moving_seconds(moving, nbytes[~fitted], device.limits) / seconds[~fitted] - 1)
            line = (nbytes[~fitted] / (device.limits.memory_bytes_per_second or 1.0)) / seconds[~fitted]
            print(f"{key:14} {library:7} {len(k):5} rows  roofline {100 * np.median(1 - line):5.1f}  "
                  f"ours {100 * np.median(off):5.1f}  fixed {moving.fixed * 1e6:.2f} us  memory {moving.memory:.2f}")
            version = versions(folder, "quantize", library, "scale_matrix_perf")[0]
            text += (f'\n[{key}.{library}]\nfixed_us = {moving.fixed * 1e6:.3g}\nmemory = {moving.memory:.3g}\n'
                     f"warm = {moving.warm:.3g}\nmedian = {100 * np.median(off):.3g}\n"
                     f'source = "fitted on aiconfigurator-core 0.12.0, quantize, {library} {version}"\n')
    if options.write:
        HERE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
