"""A big Nsight Systems export from a small one: its rows again and again, each copy later and with ids of its own.

    python bench/repeat_nsys.py IN.sqlite OUT.sqlite KERNELS

Copies are made until the file holds at least KERNELS kernels. Times move by whole nanoseconds, correlation and event
ids do not meet between copies, so each launch still finds its own kernel: every figure of the big file is a whole
multiple of the small one's. What holds no events (names, streams, the session) is there once; indexes are not copied.
"""

from __future__ import annotations

import argparse
import math
import sqlite3
import sys
from pathlib import Path

GAP_NS = 100_000                       # from the end of one copy to the start of the next
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
TIMES = ("start", "end", "timestamp")
IDS = ("correlationId", "eventSyncId", "rangeId")


def tables(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Columns by table, of every table that has rows."""
    names = [name for (name,) in db.execute("SELECT name FROM small.sqlite_master WHERE type = 'table'")]
    columns = {name: tuple(row[1] for row in db.execute(f'PRAGMA small.table_info("{name}")')) for name in names}
    return {name: cols for name, cols in columns.items()
            if db.execute(f'SELECT 1 FROM small."{name}" LIMIT 1').fetchone()}


def moves(columns: tuple[str, ...]) -> bool:
    """Is this a table of events?"""
    return ("start" in columns and "end" in columns) or ("timestamp" in columns)


def largest(db: sqlite3.Connection, found: dict[str, tuple[str, ...]], among: tuple[str, ...], what: str) -> int:
    values = [db.execute(f'SELECT {what}("{column}") FROM small."{table}"').fetchone()[0]
              for table, columns in found.items() if moves(columns) for column in columns if column in among]
    return int((min if what == "min" else max)(value for value in values if isinstance(value, int)))


def repeat(small: Path, big: Path, kernels: int) -> int:
    """Write the big file; the number of copies. Raises ValueError where there is no kernel to repeat."""
    big.unlink(missing_ok=True)
    db = sqlite3.connect(f"file:{big}", uri=True, isolation_level=None)
    try:
        db.execute("ATTACH DATABASE ? AS small", (f"file:{small}?mode=ro&immutable=1",))
        db.execute("PRAGMA main.journal_mode = OFF")
        db.execute("PRAGMA main.synchronous = OFF")
        found = tables(db)
        if KERNELS not in found:
            raise ValueError(f"{small.name} has no kernel to repeat")
        count: int = math.ceil(kernels / db.execute(f"SELECT count(*) FROM small.{KERNELS}").fetchone()[0])
        for (statement,) in db.execute("SELECT sql FROM small.sqlite_master WHERE type = 'table'").fetchall():
            db.execute(statement)
        first = largest(db, found, TIMES, "min")
        stride_ns = largest(db, found, TIMES, "max") - first + GAP_NS
        stride_ids = largest(db, found, IDS, "max") + 1
        db.execute("BEGIN")
        for table, columns in found.items():
            _fill(db, table, columns, count if moves(columns) else 1, stride_ns, stride_ids)
        db.execute("COMMIT")
        return count
    finally:
        db.close()


def _fill(db: sqlite3.Connection, table: str, columns: tuple[str, ...], count: int, ns: int, ids: int) -> None:
    def moved(column: str) -> str:
        if column in TIMES:
            return f'"{column}" + :ns'
        if column in IDS:
            return f'CASE WHEN "{column}" > 0 THEN "{column}" + :ids ELSE "{column}" END'
        return f'"{column}"'

    text = f'INSERT INTO main."{table}" SELECT {", ".join(map(moved, columns))} FROM small."{table}"'
    for copy in range(count):
        db.execute(text, {"ns": copy * ns, "ids": copy * ids})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("small", type=Path, metavar="IN", help="an export: nsys export --type sqlite")
    parser.add_argument("big", type=Path, metavar="OUT", help="the export to write")
    parser.add_argument("kernels", type=int, metavar="KERNELS", help="the copy that gets there is the last")
    args = parser.parse_args()
    count = repeat(args.small, args.big, args.kernels)
    print(f"{count} copies, {args.big.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
