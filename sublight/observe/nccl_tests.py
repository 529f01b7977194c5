"""This file knows about nccl-tests: the text that it prints, several tests in one file, whole or broken off.

Columns are found by the table's own header, so that versions with other columns read the same. What a failed run leaves
behind becomes a Result without samples whose `failure` is one of FAILURES: never the log's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sublight.result import Placement, Result
from sublight.work import Message

COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv", "broadcast": "broadcast",
    "reduce": "reduce", "gather": "gather", "scatter": "scatter", "hypercube": "hypercube",
}
# In what a broken run printed -> what we call it. The first that fits counts.
FAILURES = (
    ("remote process exited or there was a network error", "peer lost or network error"),
    ("unhandled system error", "system error"), ("unhandled cuda error", "CUDA error"), ("Test CUDA "
        "failure", "CUDA error"),
    ("out of memory", "out of memory"), ("internal error", "NCCL internal error"), ("invalid usage", "invalid usage"),
    ("invalid argument", "invalid argument"), ("timeout", "timeout"), ("timed out", "timeout"),
    ("TIME LIMIT", "time limit of the job"), ("CANCELLED", "job cancelled"), ("Killed", "process killed"),
    ("Segmentation fault", "process crashed"), ("Test NCCL failure", "NCCL error"), ("Test failure", "test failure"),
    ("NCCL WARN", "NCCL warning, then nothing"),
)
CUT_SHORT, WRONG = "output ends early", "wrong values"

LAUNCHER = re.compile(r"^(?:\[\d+,\d+\]<std\w+>:\s?|\s*\d+:\s(?=[#\s]))")     # mpirun --tag-output, srun --label
START = re.compile(r"Collective test starting: (\w+?)(?:_perf)?\s*$")
PARAMETERS = re.compile(r"# nThread\s+\d+ nGpus\s+\d+ minBytes\s+(\d+) maxBytes\s+(\d+) step: (\d+)\((\w+)\)")
REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
RANK = re.compile(r"#\s+Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+\s+on\s+(\S+)\s+"
                  r"device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)")
LIBRARY = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+\.\d+)")
AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
PROGRAM = re.compile(r"\b(" + "|".join(sorted(COLLECTIVES, key=len, reverse=True)) + r")_perf\b")
PORTS = re.compile(r"""NCCL_IB_HCA['"]?\s*(?:=|:| set (?:by environment )?to )\s*["']?=?([^\s"']*)""")
ONE_PORT = re.compile(r"(?!mlx\d(?::|$))[A-Za-z]\w{0,30}\d(?::\d+)?")     # "mlx5" alone is a prefix of every port
RAIL_NAME = re.compile(r"(?:^|[^A-Za-z])(?:rail|hca|nic|mlx\d(?=_))[-_]?(\d{1,3})(?!\d)", re.I)


@dataclass(slots=True)
class Rank:
    host: str
    device: int
    bus: str
    model: str


@dataclass(slots=True)
class Row:
    """One place of one line. seconds and bus_bytes_per_second are None where the line shows no number."""

    nbytes: int
    place: str
    seconds: float | None
    bus_bytes_per_second: float | None
    wrong: int = 0
    shortest: float | None = None        # of the iterations, in seconds, where the file has them
    longest: float | None = None
    samples: tuple[float, ...] = ()
    by_process: tuple[tuple[float, ...], ...] = ()


@dataclass(slots=True)
class Test:
    """One test of a file, as far as it came."""

    collective: str
    ranks: list[Rank] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    least_bytes: int = 0
    most_bytes: int = 0
    step: tuple[int, str] = (2, "factor")
    average: float | None = None         # bytes per second
    failure: str | None = None
    port: str | None = None
    library: str | None = None
    ended: bool = False


def looks_like(text: str) -> bool:
    """Whether this is text of nccl-tests."""
    return "# nThread" in text or "Collective test starting" in text or ("algbw" in text and "busbw" in text)


def read_text(text: str, name: str) -> tuple[Result, ...]:
    """The Results of a log: `time` and `bus bandwidth` for each size and place, `average bus bandwidth` for each test.
    `name` is the file's, for the collective where the text does not say it, and as the source."""
    return tuple(r for test in tests(text.splitlines(), name) for r in results(test, name))


def tests(lines: Iterable[str], name: str) -> list[Test]:
    """The tests of a log in order."""
    out: list[Test] = []
    columns: list[str] = []
    library, port = None, None
    hint = COLLECTIVES[m.group(1)] if (m := PROGRAM.search(name)) else None
    named_at_start = for_one = False
    for raw in lines:
        line = LAUNCHER.sub("", raw.rstrip())
        if m := LIBRARY.search(line):
            library = f"NCCL {_version(m)}"
        if m := START.search(line):
            out.append(Test(COLLECTIVES.get(m.group(1), "unnamed"), library=library, port=port))
            named_at_start, columns = True, []
        elif m := PARAMETERS.search(line):
            if not named_at_start:
                out.append(Test(hint or "unnamed", library=library, port=port))
            named_at_start = False
            out[-1].least_bytes, out[-1].most_bytes = int(m.group(1)), int(m.group(2))
            out[-1].step = (int(m.group(3)), m.group(4))
        elif m := PORTS.search(line):
            port = m.group(1) if ONE_PORT.fullmatch(m.group(1)) else None
            here = PROGRAM.search(line)      # said for one launch, or for all that follow
            hint, for_one = (COLLECTIVES[here.group(1)], True) if here else (hint, False)
            for test in out[-1:]:
                if not (here or test.ended or test.rows or test.failure):
                    test.port = port
        elif (m := PROGRAM.search(line)) and not line.startswith("#"):
            hint = COLLECTIVES[m.group(1)]
            port, for_one = (None, False) if for_one else (port, for_one)
        elif "algbw" in line and "size" in line:
            columns = line.replace("#wrong", "wrong").replace("#", " ").split()
            if not out or out[-1].ended:
                out.append(Test(hint or "unnamed", library=library, port=port))
        elif out:
            _fill(out[-1], line, columns, library)
    for test in out:
        if test.collective == "unnamed":
            test.collective = _by_factor(test)
    return out


def _version(found: re.Match[str]) -> str:
    if found.group(2):
        return found.group(2)
    code = int(found.group(1))           # 22807 is 2.28.7; before 2.9, 2804 was 2.8.4
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 10000 else (
        f"{code // 1000}.{code // 100 % 10}.{code % 100}")


def _fill(test: Test, line: str, columns: Sequence[str], library: str | None) -> None:
    test.library = test.library or library
    if m := RANK.search(line):
        test.ranks.append(Rank(m.group(2), int(m.group(3)), m.group(4), m.group(5).strip()))
    elif m := REDUCED.search(line):
        test.most_bytes = min(test.most_bytes, int(m.group(1))) or int(m.group(1))
    elif m := AVERAGE.search(line):
        value = _number(m.group(1))
        test.average, test.ended = None if not value else value * 1e9, True
    elif columns and line.lstrip()[:1].isdigit():
        test.rows.extend(_rows(line.split(), columns))
    elif not test.ended and test.failure is None:
        test.failure = next((said for sign, said in FAILURES if sign.lower() in line.lower()), None)


def _rows(cells: list[str], columns: Sequence[str]) -> Iterator[Row]:
    """The places of one line of the table. A line that stops early yields what is whole."""
    times = [i for i, c in enumerate(columns) if c in ("time", "cputime")]
    places = ("out-of-place", "in-place")[: len(times)] if len(times) > 1 else ("in-place",)
    size = _number(cells[0])
    if size is None or not times:
        return
    shift = 0
    if len(cells) <= times[-1] and len(times) == 2 and len(cells) >= times[0] + 4 and len(cells) == len(columns) - (
            times[1] - times[0]):
        places, shift = ("in-place",), times[1] - times[0]       # a replay fills only the last columns
        times = times[1:]
    for place, at in zip(places, times, strict=False):
        at -= shift
        if len(cells) < at + 3:
            return
        seconds, bus = _number(cells[at]), _number(cells[at + 2])
        wrong = _number(cells[at + 3]) if len(cells) > at + 3 else None
        extra = {columns[i + shift]: _number(cells[i]) for i in range(at + 4, min(at + 8, len(cells)))
                 if i + shift < len(columns) and columns[i + shift].startswith("i_")}
        yield Row(int(size), place, seconds * 1e-6 if seconds else None, bus * 1e9 if bus else None, int(wrong or 0),
                  _micro(extra.get("i_min")), _micro(extra.get("i_max")))


def _micro(value: float | None) -> float | None:
    return None if value is None else value * 1e-6


def _number(text: str) -> float | None:
    """A finite number that is not negative; None for N/A and what is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e30 else None


def _by_factor(test: Test) -> str:
    """The collective of a log that does not name it, by its bus factor; "unnamed" where that does not tell.
    Factors: nccl-tests doc/PERFORMANCE.md."""
    n = len(test.ranks)
    ratios = [row.bus_bytes_per_second * row.seconds / row.nbytes for row in test.rows
              if row.seconds and row.bus_bytes_per_second and row.nbytes]
    if n > 2 and ratios and abs(sorted(ratios)[len(ratios) // 2] / (2 * (n - 1) / n) - 1) < 0.02:
        return "all_reduce"
    return "unnamed"


def placement_of(test: Test) -> Placement | None:
    """Who took part; hosts in the order of their first ranks."""
    if not test.ranks:
        return None
    hosts = tuple(dict.fromkeys(rank.host for rank in test.ranks))
    gpus = max(1, len(test.ranks) // len(hosts))
    return Placement(len(hosts), gpus, hosts, test.ranks[0].model or None, test.library)


def rail_in(name: str) -> str | None:
    """The rail that a file's name says: "pair_rail3_a_b.log" is rail 3."""
    found = RAIL_NAME.search(name)
    return f"rail {int(found.group(1))}" if found else None


def rail_of(test: Test, name: str = "") -> str | None:
    """How the one port that NCCL was told to use, the rail that the file's name says, or the one GPU of each node is
    called: "rail mlx5_3", "rail 3", "rail 3@5d". Nodes that differ: "rail 0@52-0@9d". None with more GPUs a node."""
    if test.port is not None:
        return f"rail {test.port}"
    if (said := rail_in(name)) is not None:
        return said
    hosts = dict.fromkeys(rank.host for rank in test.ranks)
    if not test.ranks or len(hosts) != len(test.ranks) or len(hosts) < 2:
        return None
    names = [f"{rank.device}@{_slot(rank.bus)}" for rank in test.ranks]
    return f"rail {names[0]}" if len(set(names)) == 1 else "rail " + "-".join(names[:2])


def _slot(bus: str) -> str:
    """The bus number of a PCI address: "0000:9d:00" is 9d, "0x07" is 07."""
    parts = bus.split(":")
    part = parts[-2] if len(parts) >= 2 else parts[0].removeprefix("0x")
    return part if re.fullmatch(r"[0-9a-fA-F]{1,8}", part) else "x"


def results(test: Test, source: str) -> Iterator[Result]:
    """A test's Results, failures last."""
    placement, group = placement_of(test), max(len(test.ranks), 1)
    rail = rail_of(test, source)

    def variant(place: str, *more: str) -> str:
        return ", ".join(word for word in (place, *more, rail or "") if word)

    for row in test.rows:
        message = Message(test.collective, group, row.nbytes)
        if row.wrong:
            yield Result("time", "s", (), message, placement, variant(row.place), WRONG, source)
            continue
        for label, unit, samples in (
            ("time", "s", row.samples or ((row.seconds,) if row.seconds else ())),
            ("bus bandwidth", "B/s", (row.bus_bytes_per_second,) if row.bus_bytes_per_second else ()),
            ("shortest time", "s", (row.shortest,) if row.shortest else ()),
            ("longest time", "s", (row.longest,) if row.longest else ()),
        ):
            if samples:
                yield Result(label, unit, samples, message, placement, variant(row.place), None, source)
        for i, times in enumerate(row.by_process):
            yield Result("time", "s", times, message, _of_process(test, placement, i, len(row.by_process)),
                         variant(row.place, f"process {i}"), None, source)
    failure = failure_of(test)
    last = Message(test.collective, group, test.most_bytes or max((row.nbytes for row in test.rows), default=0))
    if test.average or failure:
        yield Result("average bus bandwidth", "B/s", () if failure or not test.average else (test.average,), last,
                     placement, variant(""), failure, source)


def _of_process(test: Test, placement: Placement | None, process: int, processes: int) -> Placement | None:
    """The placement with the process's own host alone, where ranks divide evenly among processes."""
    if placement is None or len(test.ranks) % processes:
        return placement
    return replace(placement, hosts=(test.ranks[process * (len(test.ranks) // processes)].host,))


def failure_of(test: Test) -> str | None:
    """Why a test is not whole; None where it is."""
    good = [row for row in test.rows if row.seconds and not row.wrong]
    if any(row.wrong for row in test.rows):
        return WRONG
    if test.ended:
        return None if good else (test.failure or "no value")
    if test.failure:
        return test.failure
    if not good:
        return CUT_SHORT
    size, step = max(row.nbytes for row in good), test.step
    follows = size * step[0] if step[1] == "factor" else size + step[0]
    return CUT_SHORT if test.most_bytes and follows <= test.most_bytes else None
