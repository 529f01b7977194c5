"""This file knows about mistakes in a file for NCCL's example tuner, which reads nearly anything without a word.

What it does with a row is plugins/tuner/example/plugin.c at 2.30.7: an unknown collective becomes allreduce, an unknown
algorithm ring, an unknown protocol simple; the first row that matches and that NCCL offers wins; and what no row
matches, or a row with channels -1, runs with one channel, because the plugin sets one before it looks (RCCL mended its
copy: ROCm/rccl pull request 1985).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sublight.comm.nccl.choice import COLLECTIVES as FUNCTIONS
from sublight.comm.nccl.choice import Model
from sublight.comm.tuner.grammar import ALGORITHMS, ANY, COLLECTIVES, DOCUMENTED_MOST, MOST_BYTES, PROTOCOLS

LINE_BYTES = 255                         # a longer line is read as two
FIELDS = (8, 10)
NAMES = ("collective", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks", "numPipeOps",
         "regBuff")
MOST_CHANNELS = 64
FALLBACK = {"collective": "allreduce", "algorithm": "ring", "protocol": "simple"}
KNOWN = {"collective": set(COLLECTIVES.values()), "algorithm": set(ALGORITHMS.values()),
         "protocol": set(PROTOCOLS.values())}
OURS = {word: name for table in (COLLECTIVES, ALGORITHMS, PROTOCOLS) for name, word in table.items()}


@dataclass(frozen=True, slots=True)
class Mistake:
    """wrong: the row does not do what it says; else it may be meant."""

    line: int
    wrong: bool
    text: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A row as the plugin understands it."""

    line: int
    collective: str
    low: int
    high: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int
    pipe_ops: int
    registered: int

    @property
    def job(self) -> tuple[str, int, int, int, int]:
        return self.collective, self.nodes, self.ranks, self.pipe_ops, self.registered


def lint(text: str, model: Model | None = None) -> tuple[Mistake, ...]:
    """Every mistake in a file, in order of lines. With a model also rows that NCCL does not offer on that topology."""
    found: list[Mistake] = []
    rows: list[Parsed] = []
    for number, line in enumerate(text.split("\n"), 1):
        row = _row(number, line, found)
        if row is not None:
            rows.append(row)
            found += _one(row, model)
    if not rows:
        found.append(Mistake(1, True, "no row: the plugin then gives every collective one channel"))
    found += [*_shadowed(rows), *_holes(rows)]
    return tuple(sorted(found, key=lambda mistake: mistake.line))


def _row(number: int, line: str, found: list[Mistake]) -> Parsed | None:
    """The row of a line as the plugin reads it, with what it misreads added to found; None where it reads none."""
    if line.startswith("#") or not line.strip("\r"):
        return None
    if len(line.encode()) > LINE_BYTES:
        found.append(Mistake(number, True, f"longer than {LINE_BYTES} bytes: the plugin reads it as two lines"))
    if ",," in line:
        found.append(Mistake(number, True, "an empty field: the plugin skips it, and all that follow move to the left"))
    fields = [field.strip(" \t\r") for field in line.split(",") if field]
    if len(fields) < FIELDS[0]:
        what = "a comment must begin in the first column" if line.lstrip().startswith("#") else (
            f"{len(fields)} fields, expected {FIELDS[0]} to {FIELDS[1]}")
        found.append(Mistake(number, not line.lstrip().startswith("#"), f"not read: {what}"))
        return None
    if fields[0].startswith("collective"):
        found.append(Mistake(number, False, "a header without #: read as a row that never matches"))
        return None
    if len(fields) > FIELDS[1]:
        found.append(Mistake(number, True, f"{len(fields)} fields: those after {FIELDS[1]} are dropped"))
    words = [_word(number, fields[i], NAMES[i], found) for i in (0, 3, 4)]
    numbers = [_number(number, field, NAMES[i], found)
               for i, field in enumerate(fields[:FIELDS[1]]) if i not in (0, 3, 4)]
    low, high, channels, nodes, ranks, pipe_ops, registered = [*numbers, ANY, ANY][:7]
    return Parsed(number, words[0], low, high, words[1], words[2], channels, nodes, ranks, pipe_ops, registered)


def _word(number: int, word: str, what: str, found: list[Mistake]) -> str:
    if word in KNOWN[what]:
        return word
    import difflib

    instead = FALLBACK[what]
    near = difflib.get_close_matches(word.lower().replace("-", "_"), sorted(KNOWN[what]), 1, 0.5)
    meant = f" (meant: {near[0]}?)" if near and near[0] != instead else ""
    lucky = bool(near) and near[0] == instead
    found.append(Mistake(number, not lucky, f"no {what} '{word[:40]}': the plugin silently takes {instead}{meant}"))
    return instead


def _number(number: int, word: str, what: str, found: list[Mistake]) -> int:
    """As strtoull or atoi read it: the digits at its beginning."""
    digits = re.match(r"[+-]?\d+", word)
    value = int(digits.group()) if digits else 0
    if digits is None or digits.group() != word:
        found.append(Mistake(number, True, f"{what} '{word[:40]}' is read as {value}"))
    if what in ("min_bytes", "max_bytes") and not 0 <= value <= MOST_BYTES:
        value = value % (MOST_BYTES + 1) if value < 0 else MOST_BYTES
        found.append(Mistake(number, True, f"{what} '{word[:40]}' is read as {value}"))
    return value


def _one(row: Parsed, model: Model | None) -> Iterator[Mistake]:
    """What is wrong with a row by itself."""
    if row.low > row.high:
        yield Mistake(row.line, True, f"never matches: min_bytes {row.low} is above max_bytes {row.high}")
    if row.high == DOCUMENTED_MOST:
        yield Mistake(row.line, False, f"max_bytes {DOCUMENTED_MOST} is not all sizes: 4 GiB and more match no row; "
                                       f"the plugin reads 64 bits, {MOST_BYTES} is the end")
    if row.channels == ANY:
        yield Mistake(row.line, True, "channels -1 is documented as NCCL's own number, but plugin.c hands NCCL 1 "
                                      "(2.30.7); 0 leaves it to NCCL")
    elif not 0 <= row.channels <= MOST_CHANNELS:
        yield Mistake(row.line, True, f"channels {row.channels}: expected 1 to {MOST_CHANNELS}, or 0 for NCCL's own")
    yield from _job(row)
    reason = _never(row)
    if reason:
        yield Mistake(row.line, True, f"no effect: {reason}; the next row that matches counts")
    elif model is not None and _means(row, model):
        line = model.lines.get((FUNCTIONS[OURS[row.collective]], OURS[row.algorithm], OURS[row.protocol]))
        if line is not None and line.off:
            yield Mistake(row.line, True, f"no effect on this topology: {line.off}")


def _job(row: Parsed) -> Iterator[Mistake]:
    for what, value in (("nNodes", row.nodes), ("nRanks", row.ranks)):
        if value != ANY and value < 1:
            yield Mistake(row.line, True, f"never matches: {what} {value}; expected 1 or more, or -1 for any")
    if row.nodes > 0 < row.ranks and row.ranks < row.nodes:
        yield Mistake(row.line, True, f"never matches: {row.ranks} ranks on {row.nodes} nodes")
    if row.pipe_ops == 0 or row.pipe_ops < ANY:
        yield Mistake(row.line, True, f"never matches: numPipeOps {row.pipe_ops}; expected 1 or more, or -1 for any")
    if row.registered not in (ANY, 0, 1):
        yield Mistake(row.line, True, f"never matches: regBuff {row.registered}; expected 0, 1, or -1 for any")


def _never(row: Parsed) -> str:
    """Why NCCL never offers this row's algorithm; "" if it may."""
    offered = {"allreduce": set(KNOWN["algorithm"]) - {"pat"}, "broadcast": {"ring"}, "reduce": {"ring"}}.get(
        row.collective, {"ring", "collnet_direct", "nvls", "pat"})
    if row.algorithm not in offered:
        return f"NCCL has no {row.algorithm} for {row.collective}"
    if row.protocol != "simple" and row.algorithm not in ("ring", "tree"):
        return f"{row.algorithm} runs with simple only"
    if row.algorithm == "nvls_tree" and row.nodes == 1:
        return "nvls_tree is for two nodes or more"
    if row.algorithm == "pat" and row.nodes > 0 and row.ranks not in (ANY, row.nodes):
        return "pat is for one GPU a node"
    return ""


def _means(row: Parsed, model: Model) -> bool:
    """Whether the row is for this job."""
    return row.nodes in (ANY, model.comm.nodes) and row.ranks in (ANY, model.comm.ranks)


def _covers(one: Parsed, two: Parsed) -> bool:
    """Whether every call that matches two matches one."""
    same = all(a in (ANY, b) for a, b in zip(one.job[1:], two.job[1:], strict=True))
    return same and one.collective == two.collective and one.low <= two.low and two.high <= one.high


def _shadowed(rows: Sequence[Parsed]) -> Iterator[Mistake]:
    """Rows that an earlier one hides, whole or in part. A row that NCCL may not offer hides nothing for certain."""
    for place, row in enumerate(rows):
        for earlier in rows[:place]:
            if _never(earlier) or row.low > row.high or earlier.low > earlier.high:
                continue
            if _for_some(earlier) and not _for_some(row):
                continue
            if _covers(earlier, row):
                yield Mistake(row.line, True, f"never counts: line {earlier.line} matches first")
                break
            if earlier.job == row.job and earlier.low <= row.high and row.low <= earlier.high:
                first, last = max(row.low, earlier.low), min(row.high, earlier.high)
                yield Mistake(row.line, False, f"from {first} to {last} bytes line {earlier.line} matches first")


def _for_some(row: Parsed) -> bool:
    """Whether NCCL offers the row's algorithm for some types and operations only."""
    reduces = row.collective in ("allreduce", "reducescatter")
    return reduces and (row.algorithm.startswith("nvls") or (row.algorithm, row.collective) == ("pat", "reducescatter"))


def _holes(rows: Sequence[Parsed]) -> Iterator[Mistake]:
    """Sizes of a job, and collectives, that no row matches."""
    jobs: dict[tuple[str, int, int, int, int], list[Parsed]] = {}
    for row in rows:
        if row.low <= row.high:
            jobs.setdefault(row.job, []).append(row)
    for job, mine in jobs.items():
        matching = [row for row in rows if row.low <= row.high and row.collective == job[0] and all(
            a in (ANY, b) for a, b in zip(row.job[1:], job[1:], strict=True))]
        holes, reach = [], -1
        for row in sorted(matching, key=lambda row: row.low):
            if row.low > reach + 1:
                holes.append(f"{reach + 1} to {row.low - 1}")
            reach = max(reach, row.high)
        if reach < MOST_BYTES:
            holes.append(f"{reach + 1} and more")
        if holes:
            yield Mistake(mine[0].line, False, f"{job[0]} of this job has no row for bytes {', '.join(holes)}: "
                                               "one channel there")
    missing = sorted(KNOWN["collective"] - {row.collective for row in rows})
    if rows and missing:
        yield Mistake(rows[-1].line, False, f"no row for {', '.join(missing)}: one channel there")
