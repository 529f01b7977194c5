"""Fit how much slower batched products are than one of the same tiles, from latent attention's absorbed projections.

    pip install "sublight[silicon]" scipy
    python bench/fit_batched.py [--write]

Measured: heads products of (tokens, 128)·(128, 512) and (tokens, 512)·(512, 128). Fitted: seconds = fixed + slower x
the form of catalog/operators/dense.toml. Fitted on every second number of heads, scored on the others. slower is kept
so large that no product falls below its bound.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sublight.device import by_key
from sublight.ops import Gemm
from sublight.predict.machine import Machine, machine
from sublight.predict.operators import constants
from sublight.predict.operators.gemm import single
from sublight.predict.operators.silicon import BACKENDS, MILLISECOND, SYSTEMS, table, versions

HERE = Path(__file__).parent.parent / "sublight" / "catalog" / "operators" / "batched.toml"
HEAD = '''# Batched matrix products by device and library: seconds = fixed + slower x those of one of the same tiles.
# By bench/fit_batched.py --write. median: error in per cent on the numbers of heads left out; before: the form alone.
'''


def rows(device: str, library: str, where: Machine) -> tuple[Any, Any, Any] | None:
    """(modelled, measured, heads) of the bf16 rows."""
    columns = table(device, "mla_bmm", library, "mla_bmm_perf")
    if columns is None:
        return None
    pick = np.flatnonzero((columns["bmm_dtype"] == "bfloat16") & (columns["latency"] > 0))
    shapes = ((128, 512), (512, 128))
    modelled = [single(Gemm(int(tokens), *shapes[name == "mla_gen_pre"], batch=int(heads)), where).seconds
                for name, tokens, heads in zip(columns["op_name"][pick], columns["num_tokens"][pick],
                                               columns["num_heads"][pick], strict=True)]
    return np.array(modelled), columns["latency"][pick] * MILLISECOND, columns["num_heads"][pick]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write catalog/operators/batched.toml")
    options = parser.parse_args()
    from scipy.optimize import least_squares

    text = HEAD
    for key, folder in SYSTEMS.items():
        for library in BACKENDS:
            found = rows(key, library, machine(f"1x1x{by_key(key).key}", library))
            if found is None or constants.rejected(key, library, "bf16"):
                continue
            modelled, measured, heads = found
            fitted = np.searchsorted(np.unique(heads), heads) % 2 == 0

            def off(x: Any, at: Any, made: Any = modelled, real: Any = measured) -> Any:
                return np.log((x[0] * 1e-6 + x[1] * made[at]) / real[at])

            x = least_squares(off, [1.0, 1.0], args=(fitted,), bounds=([0.0, 0.88], [20.0, 5.0]), loss="soft_l1",
                              f_scale=0.1).x
            before, after = (100 * float(np.median(abs(np.expm1(off(y, ~fitted))))) for y in ([0.0, 1.0], x))
            print(f"{key:14} {library:7} {len(heads):5} rows  form alone {before:5.1f}  ours {after:5.1f}  "
                  f"fixed {x[0]:.2f} us  slower {x[1]:.2f}", flush=True)
            version = versions(folder, "mla_bmm", library, "mla_bmm_perf")[0]
            text += (f"\n[{key}.{library}]\nfixed_us = {x[0]:.3g}\nslower = {x[1]:.3g}\nmedian = {after:.3g}\n"
                     f'before = {before:.3g}\nsource = "fitted on aiconfigurator-core 0.12.0, mla_bmm, {library} '
                     f'{version}"\n')
    if options.write:
        HERE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
