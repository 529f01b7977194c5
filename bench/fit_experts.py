"""Fits the constants of experts to the operator tables of aiconfigurator-core, and says how far held-out shapes lie.

    python bench/fit_experts.py [--device h200] [--library vllm] [--kind fp8] [--write]
    python bench/fit_experts.py --vet                              which tables are rejected, and every table's ratios

--write keeps the constants of what was not fitted again, and leaves out those of rejected tables.

Shapes (width, columns, top_k, experts, groups) are split in halves by a hash of their sizes: constants are fitted on
one half, the errors are of the other, and what is written are these constants.
"""

from __future__ import annotations

import argparse
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fitting
import numpy as np

from sublight.device import by_key
from sublight.predict.operators import doubtful, experts, measured, silicon
from sublight.predict.operators.routing import rows
from sublight.work import BYTES

FIRST = {"fixed": 2e-5, "local": 5e-8, "row": 1e-9, "weights": 0.7, "moved": 0.5, "tensor": 0.5, "narrow": 0.3,
         "p": 2.0}
BOUNDS = {"fixed": (2e-6, 1e-3), "local": (1e-10, 1e-5), "row": (1e-12, 1e-7), "weights": (0.05, 1.0),
          "moved": (0.02, 3.0), "tensor": (0.02, 1.0), "narrow": (0.001, 1.0), "p": (1.0, 6.0)}
ROUTINGS = {"power_law_1.01": 1, "power_law_1.2": 2}
OUT = Path(__file__).parents[1] / "sublight/catalog/operators/experts.toml"


def rows_of(device: str, library: str, *, most: int, dice: np.random.Generator) -> list[fitting.Row]:
    versions = experts.all_curves(device, library, None)
    out: dict[tuple[experts.Shape, float], float] = {}
    for curves in reversed(versions):
        for shape, points in curves.items():
            out.update({(shape, tokens): seconds for tokens, seconds in points.items()})
    keys = list(out)
    found = []
    for i in dice.permutation(len(keys)):
        shape, tokens = keys[i]
        op = experts.as_op(shape, tokens)
        if op is None:
            continue
        geometry = (shape.width, shape.inner, shape.top_k, shape.experts, shape.groups)
        held = zlib.crc32(repr(geometry).encode()) % 2 == 1
        found.append(fitting.Row((op, shape, tokens), experts.form_of(op), held, out[keys[i]]))
    limit: dict[str, int] = {}
    kept = []
    for row in found:
        limit[row.kind] = limit.get(row.kind, 0) + 1
        if limit[row.kind] <= most:
            kept.append(row)
    return kept


class Many:
    def __init__(self, part: list[fitting.Row], device: str) -> None:
        loads = []
        for row in part:
            op, shape, tokens = row.op
            fall = rows(tokens, shape.top_k, shape.experts, shape.groups, shape.routing)
            loads.append(experts.load(op, by_key(device).limits, fall, shape.experts // shape.groups))
        for name in ("local", "weights", "moved", "tensor", "narrow", "used", "rows"):
            setattr(self, name, np.array([getattr(load, name) for load in loads]))


Curves = dict[experts.Shape, dict[float, float]]


def few_rows(curves: Curves, form: str, device: str, *, by_memory: bool) -> doubtful.Points:
    """Of one format, at most FEW_ROWS tokens. by_memory: those that spend most of their time on reading weights."""
    rate = by_key(device).limits.memory_bytes_per_second or 1.0
    out: dict[Any, dict[float, float]] = {}
    for shape, points in curves.items():
        if shape.form == form:
            each = shape.width * shape.inner * (2 if "nongated" in form else 3) * BYTES[_weights(form)] / rate
            kept = {tokens: seconds for tokens, seconds in points.items() if tokens <= doubtful.FEW_ROWS and (
                not by_memory or each * rows(tokens, shape.top_k, shape.experts, shape.groups, shape.routing).used
                >= doubtful.MEMORY_BOUND * seconds)}
            if kept:
                out[shape.width, shape.inner, shape.top_k, shape.experts, shape.groups, shape.routing] = kept
    return out


def _weights(form: str) -> str:
    return experts.FORMS[form.removesuffix(" nongated")][1]


def vet(device: str) -> Iterator[dict[str, str]]:
    """The tables that doubtful.slow_format rejects; prints what each was compared by."""
    every = {library: {table.version: experts.curves_of(table) for table in
                       measured.tables(device, "moe", library, "moe_perf", None, experts.KEYS)}
             for library in silicon.BACKENDS}
    newest: dict[str, Curves] = {}
    for library, versions in every.items():
        newest[library] = {}
        for curves in reversed(versions.values()):
            newest[library].update(curves)
    for library, versions in every.items():
        for version, curves in versions.items():
            forms = sorted({shape.form for shape in curves if shape.form.removesuffix(" nongated") in experts.FORMS})
            for form in forms:
                one = few_rows(curves, form, device, by_memory=False)
                wider = {other: few_rows(curves, other, device, by_memory=True) for other in forms
                         if BYTES[_weights(other)] > BYTES[_weights(form)]
                         and other.endswith("nongated") == form.endswith("nongated")}
                siblings = {other: few_rows(newest[other], form, device, by_memory=False)
                            for other in every if other != library}
                told = [f"{name} {ratio:.2f}" for name, points in {**wider, **siblings}.items()
                        if (ratio := doubtful.over(one, points)) is not None]
                reason = doubtful.slow_format(one, wider, siblings)
                print(f"{device:14} {library:7} {version:11} {form:22} {len(one):5} {', '.join(told)}"
                      + (f"  REJECTED: {reason}" if reason else ""))
                if reason:
                    yield {"device": device, "library": library, "version": version, "kind": form, "reason": reason}


def write(report: fitting.Report, found: list[dict[str, str]] | None) -> None:
    """found: tables that are rejected, None to keep the list."""
    before = tomllib.loads(OUT.read_text("utf-8"))
    again = {(line["device"], line["library"], line["kind"]) for line in report.lines}
    report.lines += [
        {"device": device, "library": library, "kind": kind, "rows": row["rows"], "spread": row["spread"],
         "median": row["held_out_median"], "constants": {name: row[name] for name in FIRST}}
        for device, libraries in before.items() if isinstance(libraries, dict)
        for library, kinds in libraries.items() for kind, row in kinds.items()
        if (device, library, kind) not in again and _remains(device, library, kind)]
    order = list(silicon.SYSTEMS)
    report.lines.sort(key=lambda line: (order.index(line["device"]), silicon.BACKENDS.index(line["library"]),
                                        line["kind"]))
    report.write("the tables of aiconfigurator-core 0.12.0 by bench/fit_experts.py; half of the shapes")
    text = ["\n[[rejected]]\n" + "\n".join(f'{name} = "{value}"' for name, value in row.items())
            for row in (before.get("rejected", []) if found is None else found)]
    OUT.write_text(OUT.read_text("utf-8") + "\n".join(text) + ("\n" if text else ""), "utf-8")


def _remains(device: str, library: str, kind: str) -> bool:
    """Is a table left of what the constants were fitted on?"""
    gone = any(key[:2] == (device, library) and key[3] == kind for key in experts.rejected())
    return not gone or any(shape.form == kind for curves in experts.all_curves(device, library, None)
                           for shape in curves)


def _at(x: Any, c: Mapping[str, float]) -> Any:
    return experts.seconds(c, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="append")
    parser.add_argument("--library", action="append")
    parser.add_argument("--kind", action="append")
    parser.add_argument("--vet", action="store_true")
    parser.add_argument("--most", type=int, default=2000, help="rows of a format, sampled")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    dice = np.random.default_rng(5)
    report = fitting.Report("experts", OUT, lambda op: experts.kinds(op[0]))
    every: dict[tuple[str, str], list[fitting.Row]] = {}
    devices = given.device or list(silicon.SYSTEMS)
    if given.vet:
        gone = [row for device in devices for row in vet(device)]
        if given.write and not given.device:
            write(report, gone)
        return
    for device in devices:
        for library in given.library or silicon.BACKENDS:
            rows_here = every[device, library] = rows_of(device, library, most=given.most, dice=dice)
            for kind in sorted({row.kind for row in rows_here if not given.kind or row.kind in given.kind}):
                part = [row for row in rows_here if row.kind == kind]
                x = Many(part, device)
                found = fitting.fit(part, partial(_at, x), FIRST, BOUNDS)
                plain = [fitting.Row(r.op[0], r.kind, r.held, r.seconds) for r in part]
                report.add(device, library, kind, plain, found, np.array([
                    (s.width, s.inner, s.top_k, s.experts, s.groups, tokens, 1 + ROUTINGS.get(s.routing, 0))
                    for _, s, tokens in (row.op for row in part)], float))
    report.show()
    if given.write:
        write(report, None)
    if given.library or given.kind:
        return
    report.transfer(lambda device, library: every[device, library],
                    lambda part, device, c: _at(Many(part, device), c), devices)


if __name__ == "__main__":
    main()
