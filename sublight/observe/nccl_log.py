"""This file knows about logs of NCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING for all of it): what a
communicator searched, its latency and bandwidth table, and what it chose.

Only what is listed here leaves a log: figures, path classes, NCCL's own words, names of variables, and values of those
that hold switches, numbers or algorithms. Host names, addresses and paths stay behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sublight.errors import InputError

LINE = re.compile(
    r"(?P<who>\S+:\d+:\d+) \[(?:\d+|-)\] (?:\S+:\d+ )?NCCL (?P<level>INFO|WARN|TRACE|VERSION) (?P<text>.*)")
VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
START = re.compile(r"ncclCommInit\w+ comm \S+ rank (\d+) nranks (\d+) .* - Init START")
COMM = re.compile(r"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank \d+(?: MNNVL (\d))?")
PATTERN = re.compile(
    r"Pattern (\d), crossNic (\d), nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), type (\w+)/(\w+), "
    r"sameChannels (\d)")
CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels")
SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$")
CHOSEN = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
NUMBERED = re.compile(r"(\d+) Bytes -> Algo (\d) proto (\d) time ([\d.]+)")
MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
PLAIN_VALUE = re.compile(r"[A-Za-z0-9_^,;:. -]{1,120}")
# variables whose values are switches, numbers, levels or names of algorithms
SHOWN = re.compile(
    r"NCCL_(ALGO|PROTO|CROSS_NIC|PXN_\w+|P2P_\w*LEVEL|P2P_DISABLE|SHM_DISABLE|NVB_DISABLE|NET_GDR_\w+|\w*NTHREADS|"
    r"\w*NCHANNELS|\w*NRINGS|\w*CTAS|\w*CHUNKSIZE|\w*BUFFSIZE|NVLS_ENABLE|COLLNET_\w+|PAT_ENABLE|LL128_C2C|"
    r"NET_OVERHEAD|THREAD_THRESHOLDS|MNNVL_ENABLE|NETDEVS_POLICY|NCHANNELS_PER_NET_PEER)")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
OLD_NAMES = {"CollNet": "CollNetDirect"}


@dataclass(frozen=True, slots=True)
class LoggedGraph:
    """A line "Pattern …": rates in 10^9 bytes a second of one channel."""

    pattern: int
    cross_nic: int
    channels: int
    bw_intra: float
    bw_inter: float
    type_intra: str
    type_inter: str
    same_channels: bool


@dataclass(frozen=True, slots=True)
class LoggedChoice:
    """What ran. nbytes is the size as nccl-tests counts it; function is None where the log does not say it."""

    function: str | None
    nbytes: int
    algorithm: str
    protocol: str
    channels: int | None
    time_us: float | None                # NCCL's own prediction, where the log has it


@dataclass(frozen=True, slots=True)
class LoggedCommunicator:
    """What one communicator wrote; None and empty where the log has no such line."""

    ranks: int
    nodes: int | None
    local_ranks: int | None
    mnnvl: bool
    graphs: tuple[LoggedGraph, ...]      # in NCCL's order: ring, tree, (CollNet, CollNet direct,) NVLS
    lines: Mapping[tuple[str, str, str], tuple[float, float]]        # function, algorithm, protocol: µs, 10^9 B/s
    channels: int | None
    nvls_channels: int | None
    choices: tuple[LoggedChoice, ...]


@dataclass(frozen=True, slots=True)
class NcclLog:
    """A log: the version, the variables it names, its communicators."""

    version: str | None
    variables: Mapping[str, str | None]  # None: set, but the value is not shown
    multicast: bool | None               # NVLS can be had
    communicators: tuple[LoggedCommunicator, ...]
    warnings: int


@dataclass(slots=True)
class _Draft:
    """A communicator as far as its lines came."""

    ranks: int | None = None
    nodes: int | None = None
    local_ranks: int | None = None
    mnnvl: bool = False
    graphs: list[LoggedGraph] = field(default_factory=list)
    lines: dict[tuple[str, str, str], tuple[float, float]] = field(default_factory=dict)
    columns: list[tuple[str, str]] = field(default_factory=list)
    algorithms: list[str] = field(default_factory=list)
    channels: int | None = None
    nvls_channels: int | None = None


def read_log(path: str) -> NcclLog:
    """A log's content. Raises InputError where the file cannot be read or holds no line of NCCL."""
    from sublight.observe.source import label

    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InputError(f"cannot read {label(path)}: {error.strerror}") from None
    log = parse(text.splitlines())
    if log.version is None and not log.communicators:
        raise InputError(f"{label(path)} has no lines of NCCL; expected the output of a run with NCCL_DEBUG=INFO and "
                         "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING")
    return log


def parse(lines: Iterable[str]) -> NcclLog:
    """A log's content from its lines; lines of all ranks may be mixed."""
    version, multicast, warnings = None, None, 0
    variables: dict[str, str | None] = {}
    drafts: dict[str, list[_Draft]] = {}
    said: list[tuple[str, LoggedChoice]] = []
    for raw in lines:
        if found := VERSION.search(raw):
            version = version or found.group(1)
        if (line := LINE.search(raw)) is None:
            continue
        who, text = line.group("who"), line.group("text")
        warnings += line.group("level") == "WARN"
        if found := SET.search(text):
            _variable(variables, found.group(1), found.group(2))
        elif found := MULTICAST.search(text):
            multicast = found.group(1) is None
        elif choice := _choice(text):
            said.append((who.rpartition(":")[0], choice))
        else:
            _fill(drafts.setdefault(who, []), text)
    return NcclLog(version, variables, multicast, _communicators(drafts, said), warnings)


def _variable(variables: dict[str, str | None], name: str, value: str) -> None:
    shown = SHOWN.fullmatch(name) and PLAIN_VALUE.fullmatch(value)
    variables[name] = value if shown else None


def _choice(text: str) -> LoggedChoice | None:
    if found := CHOSEN.search(text):
        function, size, algorithm, protocol, low, high = found.groups()
        return LoggedChoice(_named(function, FUNCTIONS), int(size), _named(algorithm, ALGORITHMS),
                            _named(protocol, PROTOCOLS), int(high) - int(low) + 1, None)
    if found := NUMBERED.search(text):
        size, algorithm, protocol, time = found.groups()
        if int(algorithm) < len(ALGORITHMS) and int(protocol) < len(PROTOCOLS):
            name = ALGORITHMS[int(algorithm)]
            return LoggedChoice(None, int(size), name, PROTOCOLS[int(protocol)], None, float(time))
    return None


def _named(word: str, known: tuple[str, ...]) -> str:
    """As the table writes it: COLLNET_DIRECT is CollNetDirect."""
    plain = word.replace("_", "").lower()
    return next((name for name in known if name.lower() == plain), "unknown")


def _fill(mine: list[_Draft], text: str) -> None:
    """What a line of one thread adds to the communicator that it is making."""
    if found := START.search(text):
        mine.append(_Draft(ranks=int(found.group(2))))
    elif found := PATTERN.search(text):
        draft = _open(mine, new=bool(mine) and (mine[-1].channels is not None or bool(mine[-1].lines)))
        pattern, cross, channels, intra, inter, inside, across, same = found.groups()
        draft.graphs.append(LoggedGraph(int(pattern), int(cross), int(channels), float(intra), float(inter), inside,
                                        across, same == "1"))
    elif found := COMM.search(text):
        draft = _open(mine)
        draft.ranks, draft.nodes, draft.local_ranks = (int(found.group(i)) for i in (2, 3, 4))
        draft.mnnvl = found.group(5) == "1"
    elif found := CHANNELS.search(text):
        draft = _open(mine)
        draft.channels = int(found.group(1))
        draft.nvls_channels = int(found.group(2)) if found.group(2) else None
    elif "|" in text:
        _table_line(_open(mine), text)


def _open(mine: list[_Draft], *, new: bool = False) -> _Draft:
    if not mine or new:
        mine.append(_Draft())
    return mine[-1]


def _table_line(draft: _Draft, text: str) -> None:
    """A line of the latency and bandwidth table: blocks of three algorithms, or one wide table in older versions."""
    head, *cells = (cell.strip() for cell in text.split("|"))
    cells = cells[:-1] if cells and not cells[-1] else cells
    if head == "Algorithm":
        draft.algorithms = [OLD_NAMES.get(cell.split()[0], cell.split()[0]) for cell in cells if cell]
    elif head == "Protocol":
        draft.columns = [(algorithm, cell) for algorithm, cell in zip(
            [a for a in draft.algorithms for _ in PROTOCOLS], cells, strict=False)]
    elif head == "Latency/AlgBw":
        pairs = [cell.split("/") for cell in cells]
        draft.columns = [(OLD_NAMES.get(p[0].strip(), p[0].strip()), p[-1].strip()) for p in pairs]
    elif head in FUNCTIONS:
        for (algorithm, protocol), cell in zip(draft.columns, cells, strict=False):
            latency, _, bandwidth = cell.partition("/")
            try:
                draft.lines[head, algorithm, protocol] = (float(latency), float(bandwidth))
            except ValueError:
                continue                                 # a line that another rank's output broke


def _communicators(
    drafts: Mapping[str, list[_Draft]], said: list[tuple[str, LoggedChoice]],
) -> tuple[LoggedCommunicator, ...]:
    """One of each kind: ranks of one communicator say the same, and the first says most (rank 0 prints the table)."""
    best: dict[tuple[int, int | None], _Draft] = {}
    for mine in drafts.values():
        for draft in mine:
            if draft.ranks is None or not (draft.graphs or draft.lines or draft.channels):
                continue
            key = draft.ranks, draft.nodes
            if key not in best or _said(draft) > _said(best[key]):
                best[key] = draft
    alone = len(best) == 1                               # else nothing says whose a choice was
    return tuple(
        LoggedCommunicator(ranks=draft.ranks or 0, nodes=draft.nodes, local_ranks=draft.local_ranks, mnnvl=draft.mnnvl,
                           graphs=tuple(draft.graphs), lines=draft.lines, channels=draft.channels,
                           nvls_channels=draft.nvls_channels,
                           choices=_distinct([c for _, c in said], draft.ranks or 1) if alone else ())
        for draft in best.values())


def _said(draft: _Draft) -> tuple[bool, int]:
    return bool(draft.lines), len(draft.graphs)


def _distinct(choices: list[LoggedChoice], ranks: int) -> tuple[LoggedChoice, ...]:
    """Each once. NCCL prints what one rank brings to an all-gather or takes from a reduce-scatter; nccl-tests and the
    model count all of it. The older form, with a time, prints the whole."""
    from dataclasses import replace

    found: dict[LoggedChoice, None] = {}
    for choice in choices:
        part = choice.function in ("AllGather", "ReduceScatter")
        found[replace(choice, nbytes=choice.nbytes * ranks) if part else choice] = None
    return tuple(found)
