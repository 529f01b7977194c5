"""What explaining a trace costs: sublight, HolisticTraceAnalysis 0.5.0 and bare decoding, side by side.

    python bench/peers.py TRACE.json --hta-python hta/bin/python [--runs 3]

HolisticTraceAnalysis lives in a virtual environment of its own (`pip install HolisticTraceAnalysis==0.5.0`).
The contestants take turns, each in a fresh process; the ratios of each round are taken within the round, so
that other load on the machine hits both sides, and the median round is shown. TRACE is plain JSON in Kineto's
own layout, as `repeat_trace.py` writes it: bare decoding knows no other. Linux only: reads /proc.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SUBLIGHT = Path(sys.executable).with_name("sublight")
SAMPLE_S = 0.05
MIB = 1 << 20
HTA_VERSION = "0.5.0"
HTA = f"HTA {HTA_VERSION}"
HTA_SCRIPT = f"""
import sys
from importlib.metadata import version
from hta.trace_analysis import TraceAnalysis
if version("HolisticTraceAnalysis") != "{HTA_VERSION}":
    sys.exit("expected HolisticTraceAnalysis {HTA_VERSION}, got " + version("HolisticTraceAnalysis"))
analysis = TraceAnalysis(trace_files={{0: sys.argv[1]}})
print(analysis.get_temporal_breakdown(visualize=False))
print(analysis.get_comm_comp_overlap(visualize=False))
print(analysis.get_gpu_kernel_breakdown(visualize=False))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one process and all its children."""

    cpu_s: float        # user and system
    wall_s: float
    peak_bytes: int


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants, as far as they still live."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:     # the thread ended between the listing and the reading
            continue
        for child in pids:
            yield from tree(int(child))


def proportional_bytes(pid: int) -> int:
    """Resident memory in which a page shared by n processes counts 1/n; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def measure(command: list[str]) -> Cost:
    """Run to the end, output discarded; RuntimeError with the end of its error output if it fails."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        sampled = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            # A process alone has an exact high-water mark in `usage`; the sum over several needs samples.
            pids = list(tree(process.pid))
            if len(pids) > 1:
                sampled = max(sampled, sum(map(proportional_bytes, pids)))
            time.sleep(SAMPLE_S)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"{Path(command[0]).name} ended with status {process.returncode}: {tail}")
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, max(usage.ru_maxrss * 1024, sampled))


def contestants(trace: Path, hta_python: Path | None) -> dict[str, list[str]]:
    bare = Path(__file__).with_name("bare_decode.py")
    commands = {
        "sublight": [str(SUBLIGHT), "explain", str(trace), "--window", "all", "--format", "json"],
        "bare decoding": [sys.executable, str(bare), str(trace)],
    }
    if hta_python:
        commands[HTA] = [str(hta_python), "-c", HTA_SCRIPT, str(trace)]
    return commands


def spread(values: list[float]) -> str:
    return f"{(max(values) - min(values)) / median(values):.0%}"


def ratios(theirs: list[Cost], ours: list[Cost]) -> tuple[float, float]:
    """Medians over the rounds of (CPU time, peak memory), theirs in multiples of ours."""
    pairs = list(zip(theirs, ours, strict=True))
    return median(t.cpu_s / o.cpu_s for t, o in pairs), median(t.peak_bytes / o.peak_bytes for t, o in pairs)


def report(rounds: dict[str, list[Cost]]) -> str:
    """One line per contestant; ratios are multiples of sublight's cost."""
    lines = [f"{'':15}{'CPU s':>8}{'spread':>8}{'wall s':>8}{'peak MiB':>10}{'x CPU':>8}{'x memory':>10}"]
    for name, costs in rounds.items():
        cpu, memory = ratios(costs, rounds["sublight"])
        cpu_s = [c.cpu_s for c in costs]
        lines.append(
            f"{name:15}{median(cpu_s):8.2f}{spread(cpu_s):>8}{median(c.wall_s for c in costs):8.2f}"
            f"{median(c.peak_bytes for c in costs) / MIB:10.0f}{cpu:8.2f}{memory:10.2f}")
    return "\n".join(lines)


def failures(
    rounds: dict[str, list[Cost]], *, max_bare: float | None, min_cpu: float | None, min_memory: float | None
) -> list[str]:
    """What misses a limit, in words; a limit of None holds."""
    bare, _ = ratios(rounds["sublight"], rounds["bare decoding"])
    failed = []
    if max_bare is not None and bare > max_bare:
        failed.append(f"expected at most {max_bare:g} times the CPU time of bare decoding, got {bare:.2f}")
    if HTA in rounds:
        cpu, memory = ratios(rounds[HTA], rounds["sublight"])
        for what, got, least in (("CPU time", cpu, min_cpu), ("memory", memory, min_memory)):
            if least is not None and got < least:
                failed.append(f"expected {HTA} to need at least {least:g} times our {what}, got {got:.2f}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--hta-python", type=Path, help="the Python of an environment with HTA; else no HTA")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--min-cpu", type=float, help="fail if HTA needs less than this times our CPU time")
    parser.add_argument("--min-memory", type=float, help="the same for memory")
    parser.add_argument("--max-bare", type=float, help="fail above this times the CPU time of bare decoding")
    args = parser.parse_args()
    if args.hta_python is None and (args.min_cpu or args.min_memory):
        parser.error("--min-cpu and --min-memory compare with HTA: give --hta-python too")
    if args.runs < 1:
        parser.error(f"expected at least one run, got --runs {args.runs}")
    if not SUBLIGHT.exists():
        parser.error(f"no sublight beside {sys.executable}; run `pip install -e .` with this Python first")

    commands = contestants(args.trace, args.hta_python)
    with args.trace.open("rb") as file:     # into the page cache, for everyone
        while file.read(MIB):
            pass
    rounds: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(args.runs):
        for name, command in commands.items():
            print(f"round {turn + 1} of {args.runs}: {name}", file=sys.stderr)
            rounds[name].append(measure(command))
    print(f"{args.trace.name}, {args.trace.stat().st_size / 1e6:.0f} MB, median of {args.runs}")
    print(report(rounds))
    failed = failures(rounds, max_bare=args.max_bare, min_cpu=args.min_cpu, min_memory=args.min_memory)
    for line in failed:
        print(f"FAIL: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
