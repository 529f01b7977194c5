"""Holds the sum of the operators of a latent attention layer against whole modules that were measured.

    python bench/check_modules.py [--device h200]

Nothing is fitted on modules: projections, norms, rotary, cache, absorbed products, indexer and attention each come from
tables or constants of their own. Prefill modules of SGLang and vLLM with an indexer wait for the host (floors of 0.8 to
1.9 ms): their shapes of less than four times the table's least are left out, as every table's are here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sublight.models.formats import BF16, FP8_BLOCK
from sublight.models.latent import Indexer, LatentAttention
from sublight.models.step import Batch, Split
from sublight.predict.machine import machine
from sublight.predict.operators import op_time, silicon

GPUS = {"h100-sxm": "8xH100", "h200": "8xH200", "b200": "8xB200", "b300": "8xB300"}
TABLES = {"decode": ("mla", "mla_generation_module_perf"), "prefill": ("mla", "mla_context_module_perf"),
          "sparse decode": ("sparse_attention", "dsa_generation_module_perf"),
          "sparse prefill": ("sparse_attention", "dsa_context_module_perf")}
COLUMNS = ("num_heads", "batch_size", "isl", "step", "kv_cache_dtype", "gemm_type", "latency", "op_name", "model")
MANY = 4.0                               # times the least of a table, below which a prefill is the host's
MOST = 250


def block(heads: int, kv: str, form: str, *, sparse: bool) -> LatentAttention:
    """DeepSeek-V3 and V3.2, config.json; the heads of a rank."""
    made = FP8_BLOCK if form == "fp8_block" else BF16
    return LatentAttention(7168, heads, 1536, 512, 128, 64, 128, made, made, made, BF16, made, kv,
                           indexer=Indexer(64, 128, 2048, form=made) if sparse else None)


def ratios(device: str, library: str, kind: str) -> Iterator[float]:
    """Sum of operators over the measured module."""
    family, name = TABLES[kind]
    table = silicon.table(device, family, library, name)
    if table is None:
        return
    where = replace(machine(GPUS[device], library), cold=False)
    least = float(table["latency"].min()) * (MANY if kind.endswith("prefill") else 0.0)
    rows = [row for row in zip(*(table[column].tolist() for column in COLUMNS), strict=True)
            if row[0] >= 8 and row[5] in ("bfloat16", "fp8_block") and row[6] > least and "skip" not in row[7]
            and "DeepSeek" in row[8]]
    for at in np.random.default_rng(0).permutation(len(rows))[:MOST]:
        heads, b, n, step, kv, form, latency = rows[at][:7]
        decode = kind.endswith("decode")
        batch = Batch(b, 1, max(step - 1, 0), decode=True) if decode else Batch(b, n, step if "sparse" in kind else 0)
        layer = block(heads, "fp8" if kv == "fp8" else "bf16", form, sparse="sparse" in kind)
        total = sum(op_time(op, where).seconds for _, op in layer.ops((batch,), Split()))
        yield total / (latency * silicon.MILLISECOND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append", choices=GPUS)
    given = parser.parse_args()
    print(f"{'device':9} {'library':8} {'module':15} {'rows':>5}   sum over measured: 10 %, median, 90 %")
    for device in given.device or GPUS:
        for library in silicon.BACKENDS:
            for kind in TABLES:
                found = np.array(list(ratios(device, library, kind)))
                if len(found) > 20:
                    low, mid, high = np.quantile(found, [0.1, 0.5, 0.9])
                    print(f"{device:9} {library:8} {kind:15} {len(found):5}   {low:.2f} {mid:.2f} {high:.2f}",
                          flush=True)


if __name__ == "__main__":
    main()
