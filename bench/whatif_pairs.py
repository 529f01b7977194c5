"""Is a what-if true? H200 is an H100 with 1.43 times the memory rate: the same operators, measured on both.

    python bench/whatif_pairs.py [--data FOLDER]

For each family and size: the change of the time that was measured from H100 to H200, and the change that a what-if of
the memory rate predicts for H100, with the compact constants of H100 alone. Both as elasticities to the memory rate:
ln(time ratio) / ln(rate ratio). Medians. Measured tables: aiconfigurator-core 0.12.0 (extra `silicon`). --data: a
folder with silicon/serving.csv.gz; then whole runs too, TPOT of equal settings on both GPUs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log, log10
from pathlib import Path
from statistics import median
from typing import Any

from sublight.device import by_key
from sublight.ops import Attention, Gemm, ScaledGemm
from sublight.ops.op import Op
from sublight.predict.machine import machine, whatif
from sublight.predict.operators import op_time, silicon

LIBRARIES = ("trtllm", "sglang", "vllm")
MOST_ROWS = 60                           # of a bucket
Rows = dict[tuple[Any, ...], float]


def rate() -> float:
    """Memory rate of H200 over that of H100."""
    one, other = (by_key(key).limits.memory_bytes_per_second for key in ("h100-sxm", "h200"))
    assert one is not None
    assert other is not None
    return other / one


def products(form: str) -> Callable[[tuple[Any, ...]], Op]:
    def made(key: tuple[Any, ...]) -> Op:
        m, n, k = (int(size) for size in key)
        if form == "fp8_block":
            return ScaledGemm(m, n, k, "fp8", "fp8", 4096)
        return Gemm(m, n, k, a="fp8" if form == "fp8" else "bf16", b="fp8" if form == "fp8" else "bf16")
    return made


def decode(key: tuple[Any, ...]) -> Op:
    b, length, heads, kv_heads, d = (int(size) for size in key)
    return Attention(pairs=b * length, q_tokens=b, kv_tokens=b * length, heads=heads, kv_heads=kv_heads, d_qk=d, d_v=d,
                     sequences=b)


def table(device: str, library: str, form: str) -> Rows:
    """Seconds by (m, n, k), or by (batch, length, heads, kv heads, width)."""
    attention = form == "decode attention"
    columns = silicon.table(device, *(("attention", library, "generation_attention_perf") if attention
                                      else ("gemm", library, "gemm_perf")))
    if columns is None:
        return {}
    out: Rows = {}
    listed = {name: column.tolist() for name, column in columns.items()}
    for index, milliseconds in enumerate(listed["latency"]):
        if attention:
            kinds = {listed[name][index] for name in ("attn_dtype", "kv_cache_dtype") if name in listed}
            if kinds != {"bfloat16"} or listed.get("window_size", [0] * (index + 1))[index]:
                continue
            heads = listed["num_heads"][index]
            key: tuple[Any, ...] = (listed["batch_size"][index], listed["step"][index] + 1, heads,
                                    listed["num_key_value_heads"][index] or heads, listed["head_dim"][index])
        else:
            if listed["gemm_dtype"][index] != {"bf16": "bfloat16"}.get(form, form):
                continue
            key = (listed["m"][index], listed["n"][index], listed["k"][index])
        out[key] = min(milliseconds / 1e3, out.get(key, float("inf")))
    return out


def rows() -> Iterator[tuple[str, str, str, int, float, float]]:
    """(form, library, size, n, measured elasticity, predicted elasticity)."""
    stretch = log(rate())
    for form in ("bf16", "fp8", "fp8_block", "decode attention"):
        for library in LIBRARIES:
            one, other = table("h100-sxm", library, form), table("h200", library, form)
            make = decode if form == "decode attention" else products(form)
            buckets: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
            for key in sorted(one.keys() & other.keys()):
                op = make(key)
                if form == "decode attention" or key[0] <= 64:
                    buckets[f"1e{int(log10(max(1, op.work().bytes_read)))} B"].append(key)
            before = replace(machine("1xH100", library), tables=False)
            after = whatif(before, {"memory": rate()})
            for size, keys in sorted(buckets.items()):
                kept = keys[::max(1, len(keys) // MOST_ROWS)]
                said = [log(op_time(make(k), before).seconds / op_time(make(k), after).seconds) for k in kept]
                seen = [log(one[k] / other[k]) for k in keys]
                yield form, library, size, len(keys), median(seen) / stretch, median(said) / stretch


def runs(folder: Path) -> Iterator[tuple[str, int, float]]:
    """(model and engine, pairs of equal settings, measured elasticity of TPOT)."""
    same: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = ("backend", "model", "precision", "isl", "osl", "concurrency", "tp", "pp", "attention_dp", "moe_tp",
             "moe_ep")
    with gzip.open(folder / "silicon/serving.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "agg" and row["system"] in ("h100_sxm", "h200_sxm"):
                same[tuple(row[name] for name in names)][row["system"]].append(float(row["tpot_ms"]))
    found: dict[str, list[float]] = defaultdict(list)
    for key, systems in same.items():
        if len(systems) == 2:
            ratio = median(systems["h100_sxm"]) / median(systems["h200_sxm"])
            found[f"{key[1]} {key[2]}, {key[0]}"].append(log(ratio) / log(rate()))
    yield from ((name, len(values), median(values)) for name, values in sorted(found.items()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    asked = options.parse_args()
    print(f"{'operator':18}{'library':9}{'bytes':8}{'pairs':>6}{'measured':>10}{'predicted':>11}")
    for form, library, size, count, measured, predicted in rows():
        print(f"{form:18}{library:9}{size:8}{count:6}{measured:10.2f}{predicted:11.2f}", flush=True)
    for name, count, measured in runs(asked.data) if asked.data else ():
        print(f"{name}: {count} pairs of runs, measured elasticity of TPOT {measured:.2f}")


if __name__ == "__main__":
    main()
