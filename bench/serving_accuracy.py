"""Predicted TTFT and TPOT, with 80 % intervals, of measured serving points.

    python bench/serving_accuracy.py --data DIR --out FILE.csv [--without-tables]

DIR/silicon/serving.csv.gz: only what a row says of its inputs is read (INPUTS of serving_rows.py), never a measured
value and never a column of a peer. Constants that were fitted end to end are the shipped ones
(catalog/serving/fitted.toml) that have seen no model of the row's family. Columns written: id, ttft_ms, tpot_ms,
ttft_lo_ms, ttft_hi_ms, tpot_lo_ms, tpot_hi_ms. Rows that cannot be predicted are counted, with reasons, on standard
error.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from math import exp
from pathlib import Path

import serving_rows as sr

from sublight.predict.operators import silicon
from sublight.predict.serving.correction import correction

COLUMNS = ("id", "ttft_ms", "tpot_ms", "ttft_lo_ms", "ttft_hi_ms", "tpot_lo_ms", "tpot_hi_ms")


def predicted(one: sr.Case, made: sr.Simulated, *, tables: bool) -> list[str]:
    """A line of the answer."""
    fixes = correction(one.backend, one.where.device.key, users=one.traffic.concurrency or 1, tables=tables,
                       family=one.family, protocol=sr.kind_of(one.recipe))
    tpot = fixes.level * made.tpot
    ttft = fixes.corrected(fixes.level * made.ttft, tpot * made.accepted, made.calls)
    bounds = [(value * exp(log)) for value, logs in ((ttft, fixes.ttft), (tpot, fixes.tpot)) for log in logs]
    return [one.id, *(f"{1e3 * value:.4g}" for value in (ttft, tpot, *bounds))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that has silicon/serving.csv.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--without-tables", action="store_true", help="operator times from shipped constants alone")
    options = parser.parse_args()
    tables = silicon.available() and not options.without_tables
    start = time.perf_counter()
    rows = [{name: row.get(name, "") for name in sr.INPUTS}
            for row in sr.read(options.data / "silicon" / "serving.csv.gz")]
    made, refused = sr.all_simulated(rows, tables=tables)
    with options.out.open("w", encoding="utf-8", newline="") as text:
        out = csv.writer(text)
        out.writerow(COLUMNS)
        out.writerows(predicted(one, run, tables=tables) for _, one, run in made)
    print(f"{len(made)} of {len(rows)} rows predicted in {time.perf_counter() - start:.0f} s, operator times from "
          f"{'measured tables' if tables else 'constants'}", file=sys.stderr)
    for reason, count in refused.most_common():
        print(f"  {count} not: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
