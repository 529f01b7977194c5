"""Fits the constants of recurrent layers and of indexers to the operator tables of aiconfigurator-core.

    python bench/fit_recurrent.py [--device h200] [--write]

Geometries (heads, batch) are split in halves by a hash: constants are fitted on one half, the errors are of the other,
and what is written are these constants.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fitting
import numpy as np

from sublight.device import by_key
from sublight.models.step import Batch
from sublight.ops.index import IndexScores
from sublight.ops.recurrent import Recurrence, ShortConvolution
from sublight.predict.operators import index, recurrent, silicon

OUT = Path(__file__).parents[1] / "sublight/catalog/operators"
SOURCE = "the tables of aiconfigurator-core 0.12.0 by bench/fit_recurrent.py; half of the shapes"
RECURRENT = {"fixed": (3e-6, 1e-7, 1e-3), "tile": (1e-7, 1e-9, 1e-4), "chunk": (1e-6, 1e-9, 1e-4),
             "memory": (0.5, 0.02, 1.0), "kept": (0.5, 0.01, 0.95), "tensor": (0.2, 0.005, 1.0),
             "vector": (0.5, 0.01, 20.0), "p": (1.5, 1.0, 6.0)}
SCORES = {"fixed": (3e-6, 1e-7, 1e-3), "tile": (1e-7, 1e-9, 1e-4), "tensor": (0.5, 0.01, 1.0),
          "memory": (0.5, 0.02, 1.0), "p": (1.5, 1.0, 6.0)}
CHOICE = {"fixed": (5e-6, 1e-7, 1e-3), "tile": (1e-6, 1e-9, 1e-4), "scores": (0.5, 0.01, 10.0)}
# Kernels of the recurrence that engines run by themselves, by the family and phase that they stand for.
KERNELS = {
    "chunk_gated_delta_rule": "gdn prefill", "chunk_gated_delta_rule_flashinfer": "gdn prefill",
    "chunk_gated_delta_rule_triton": "gdn prefill", "fused_recurrent_gated_delta_rule": "gdn decode",
    "fused_recurrent_gated_delta_rule_packed_decode": "gdn decode", "flashkda_fwd": "kda prefill",
    "chunk_kda": "kda prefill", "chunk_kda_with_fused_gate": "kda prefill",
    "fused_recurrent_kda_packed_decode": "kda decode", "causal_conv1d_fn": "convolution prefill",
    "causal_conv1d_fn_qkv3": "convolution prefill", "causal_conv1d_update": "convolution decode",
}
LARGE = 512                              # tokens from which the size of a convolution shows
INDEX_HEADS, INDEX_WIDTH, CHOSEN = 32, 128, 2048     # GLM-5: config.json, index_n_heads, index_head_dim, index_topk
PAGED_HEADS, RATIO = 64, 4                           # DeepSeek-V4-Flash: index_n_heads; keys stand for four tokens


def recurrent_rows(device: str, library: str) -> Iterator[fitting.Row]:
    for family, name in (("linear_attention", "gdn_perf"), ("kda", "kda_perf"), ("linear_attention", "mamba2_perf")):
        table = silicon.table(device, family, library, name)
        if table is None or name == "mamba2_perf":
            continue
        names = ("kernel_source", "phase", "batch_size", "seq_len", "num_k_heads", "num_v_heads", "head_k_dim",
                 "head_v_dim", "d_conv", "latency")
        for kernel, phase, b, n, k, v, dk, dv, conv, latency in zip(*(table[c].tolist() for c in names), strict=True):
            kind = KERNELS.get(kernel)
            if kind is None or phase == "verify" or latency <= 0:
                continue
            n = 1 if phase == "generation" else n
            gates = 2 * v if name == "gdn_perf" else v * dk + v
            op: Recurrence | ShortConvolution = ShortConvolution(b * n, b, 2 * k * dk + v * dv, conv)
            if not kind.startswith("conv"):
                op = Recurrence(b * n, b, v, k, dk, dv, gates=gates,
                                chunk=None if phase == "generation" else recurrent.CHUNK)
            held = zlib.crc32(f"{k} {v} {b}".encode()) % 2 == 1
            yield fitting.Row(op, recurrent.kinds(op)[0], held, latency * silicon.MILLISECOND)


def one_size(rows: list[fitting.Row]) -> set[str]:
    """Kinds whose times do not grow with the heads: one size was measured under many names."""
    found = set()
    for kind in {row.kind for row in rows if row.kind.startswith("convolution")}:
        by_tokens: dict[tuple[int, int], dict[int, float]] = {}
        for row in rows:
            if row.kind == kind and row.op.tokens >= LARGE:
                by_tokens.setdefault((row.op.sequences, row.op.tokens), {})[row.op.channels] = row.seconds
        growth = [at[max(at)] / at[min(at)] for at in by_tokens.values() if max(at) >= 1.5 * min(at)]
        if growth and np.median(growth) < 1.1:
            found.add(kind)
    return found


def index_rows(device: str, library: str) -> Iterator[fitting.Row]:
    def table_rows(name: str) -> Iterator[tuple[int, int, int, float]]:
        table = silicon.table(device, "sparse_attention", library, name)
        if table is not None:
            flat = table.get("score_mode", np.full(len(table["latency"]), "flat")) == "flat"     # scores without peaks
            columns = (table[c][flat].tolist() for c in ("batch_size", "isl", "step", "latency"))
            yield from (row for row in zip(*columns, strict=True) if row[3] > 0)

    for b, n, step, latency in table_rows("glm5_mqa_logits_module_perf"):
        if n > index.DRAFTS:
            yield _index_row("prefill", Batch(b, n, step), INDEX_HEADS, latency)
    for b, n, step, latency in table_rows("dsv4_paged_mqa_logits_module_perf"):
        if n == 1 and step >= 2 * RATIO:
            yield _index_row("decode", Batch(b, 1, step // RATIO - 1, decode=True), PAGED_HEADS, latency)
    for b, n, step, latency in table_rows("glm5_topk_module_perf"):
        batch = Batch(b, n, step)
        if batch.pairs() > batch.rows * CHOSEN:
            yield _index_row("choice", batch, INDEX_HEADS, latency)


def _index_row(kind: str, batch: Batch, heads: int, latency: float) -> fitting.Row:
    op = IndexScores(batch.rows, batch.seen, batch.pairs(), heads, INDEX_WIDTH, CHOSEN)
    held = zlib.crc32(f"{batch.sequences} {batch.tokens}".encode()) % 2 == 1
    return fitting.Row(op, kind, held, latency * silicon.MILLISECOND)


class Many:
    def __init__(self, loads: list[Any], names: tuple[str, ...]) -> None:
        for name in names:
            setattr(self, name, np.array([getattr(load, name) for load in loads]))


def _at(form: Any, x: Any, c: Mapping[str, float]) -> Any:
    return form(c, x)


def add(report: fitting.Report, device: str, library: str, rows: list[fitting.Row], of: Callable[[str], Any]) -> None:
    dice = np.random.default_rng(5)
    for kind in sorted({row.kind for row in rows}):
        part = [row for row in rows if row.kind == kind]
        part = [part[i] for i in dice.permutation(len(part))[:1500]]
        load, names, form, constants = of(kind)
        x = Many([load(row.op, by_key(device).limits) for row in part], names)
        report.add(device, library, kind, part, fitting.fit(
            part, partial(_at, form, x), {n: v[0] for n, v in constants.items()},
            {n: v[1:] for n, v in constants.items()}), np.array([_sizes(row.op) for row in part], float))


def _sizes(op: Any) -> tuple[int, ...]:
    if isinstance(op, IndexScores):
        return op.queries, op.keys, op.pairs, op.heads
    return op.tokens, op.sequences, op.channels if isinstance(op, ShortConvolution) else op.heads, 1


def of_recurrent(kind: str) -> Any:
    drop = () if kind.endswith("prefill") and "conv" not in kind else ("chunk", "tensor")
    constants = {n: v if n not in drop else (v[0], v[0] * 0.999, v[0] * 1.001) for n, v in RECURRENT.items()}
    return recurrent.load, ("tensor", "memory", "vector", "blocks", "chunks", "kept"), recurrent.seconds, constants


def of_index(kind: str) -> Any:
    names = ("tensor", "memory", "scores", "blocks")
    return (index.load, names, index.choice_seconds, CHOICE) if kind == "choice" else (
        index.load, names, index.seconds, SCORES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", action="append")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--family", choices=("recurrent", "index"), action="append")
    given = parser.parse_args()
    for family, rows, of in (("recurrent", recurrent_rows, of_recurrent), ("index", index_rows, of_index)):
        if given.family and family not in given.family:
            continue
        report = fitting.Report(family, OUT / f"{family}.toml", lambda op: ())
        for device in given.device or silicon.SYSTEMS:
            for library in silicon.BACKENDS:
                every = list(rows(device, library))
                doubted = one_size(every)
                if doubted:
                    print(f"{device} {library}: {', '.join(sorted(doubted))} rejected, one size under many names")
                add(report, device, library, [row for row in every if row.kind not in doubted], of)
        report.show()
        if given.write:
            report.write(SOURCE)


if __name__ == "__main__":
    main()
