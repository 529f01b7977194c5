"""How long `sublight explain` takes on an Nsight Systems export, against plain sqlite3 queries for the same columns.

    python bench/plain_sqlite.py EXPORT.sqlite [ROUNDS]

The two take turns, each in a process of its own, so that other load on the machine meets both. CPU seconds are user and
system time of the process, its start included; memory is its highest resident size. `bench/repeat_nsys.py` writes a
big export.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
from pathlib import Path

CUPTI = "CUPTI_ACTIVITY_KIND_"
PLACE = "start end deviceId streamId correlationId globalPid graphNodeId"
GRID = "gridX gridY gridZ blockX blockY blockZ"
# What sublight/observe/nsys_events.py reads, table by table.
COLUMNS = {
    f"{CUPTI}KERNEL": f"{PLACE} {GRID} demangledName",
    f"{CUPTI}MEMCPY": f"{PLACE} bytes copyKind srcKind dstKind",
    f"{CUPTI}MEMSET": f"{PLACE} bytes memKind",
    f"{CUPTI}RUNTIME": "start end globalTid correlationId nameId",
    "PROFILER_OVERHEAD": "start end globalTid nameId",
    "NVTX_EVENTS": "start end eventType globalTid text textId",
}
PLAIN, EXPLAIN = "plain", "explain"


def read_plainly(path: str) -> None:
    """Every row as a tuple, and nothing done with it."""
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    for table, wanted in COLUMNS.items():
        there = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")') if row[1] in wanted.split()]
        if there:
            for _ in db.execute(f'SELECT {", ".join(there)} FROM "{table}"'):
                pass
    db.close()


def measured(command: list[str]) -> tuple[float, float]:
    """(CPU seconds, MB at most) of a process."""
    child = os.posix_spawn(command[0], command, os.environ,
                           file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command[1:])} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6      # Linux counts KiB


def compare(path: Path, rounds: int) -> None:
    """Measure both by turns, and print each turn and the medians."""
    commands = {PLAIN: [sys.executable, __file__, "--read-plainly", str(path)],
                EXPLAIN: [sys.executable, "-m", "sublight", "explain", str(path)]}
    seconds: dict[str, list[float]] = {what: [] for what in commands}
    most_mb = 0.0
    for i in range(rounds):
        for what, command in commands.items():
            cpu_s, mb = measured(command)
            seconds[what].append(cpu_s)
            most_mb = max(most_mb, mb if what == EXPLAIN else 0.0)
        plain, explain = seconds[PLAIN][i], seconds[EXPLAIN][i]
        print(f"round {i + 1}: plain {plain:.1f} s, explain {explain:.1f} s of CPU, ratio {explain / plain:.2f}",
              flush=True)
    plain, explain = statistics.median(seconds[PLAIN]), statistics.median(seconds[EXPLAIN])
    file_mb = path.stat().st_size / 1e6
    print(f"medians: plain {plain:.1f} s, explain {explain:.1f} s, ratio {explain / plain:.2f}; "
          f"explain peaks at {most_mb:.0f} MB, {most_mb / file_mb:.2f} times the file's {file_mb:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("export", type=Path, metavar="EXPORT", help="an export: nsys export --type sqlite")
    parser.add_argument("rounds", type=int, nargs="?", default=5, metavar="ROUNDS")
    parser.add_argument("--read-plainly", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read_plainly:
        read_plainly(str(args.export.absolute()))
    else:
        compare(args.export, args.rounds)


if __name__ == "__main__":
    main()
