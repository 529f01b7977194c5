"""This file knows about cutting a trace's JSON text into events, in chunks, whatever its layout and damage.

    blocks of bytes ──▶ head │ events … events … events │ tail

A chunk is cut at the last place that looks like the end of an event. A typed decode of the whole chunk then proves
the cut: brackets and strings balance, or the decode fails. Only a chunk that fails is looked at event by event.

Every event is read or counted as lost. What cannot be read is counted by `ph`, `ts`, `pid` and `tid`, the keys that
every event has: a damaged event is counted as long as one of them survives.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import msgspec

from sublight.errors import InputError

CHUNK_BYTES = 512 << 10              # larger ones leave the cache between decoding and splitting into columns
BLOCK_BYTES = 256 << 10
LIMIT_BYTES = 64 << 20               # of the head, and of what may stand between two events
KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|cname|sf"
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
EVENTS_KEY_DAMAGED = re.compile(rb'"traceEvents"[^\w{}]{0,16}(?=\{\s*"ph"\s*:)|traceEvents[^\w{}]{0,16}\[\s*(?=\{)')
LIST_ROOT = re.compile(rb"\s*\[\s*(?:[{\]]|$)")
EVENT_START = re.compile(rb'\{\s*"(?:' + KEYS + rb')"\s*:')
KEY_BEFORE = re.compile(rb'"\s*:\s*\Z')
INNER_START = re.compile(EVENT_START.pattern.decode())
MOST_INNER = 8
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
PHASE_KEY = re.compile(rb'"ph"\s*:')
COUNTED_KEY = re.compile(r'"(ph|ts|pid|tid)"\s*:')
TIME_KEY = re.compile(r'"ts"\s*:')
LIST_END = re.compile(r'\s*\]\s*(?:$|\}|,\s*")')                 # and the end, or another key of the root
EVENT_AND_LIST_END = re.compile(r'\}\s*(\]\s*(?:$|\}\s*$|,\s*"\w+"\s*:))')
STRUCTURAL_QUOTE = re.compile(r'(?<=[{,:\[])\s*"|"(?=\s*[,:}\]])')
BARE_QUOTE = re.compile(r'(?<!\\)"')
STRING = r'"(?:[^"\\]|\\.)*"'
EMPTY_VALUE = re.compile(STRING + r"|(:\s*)(?=[,}\]])")
NOT_A_NUMBER = re.compile(STRING + r"|(:\s*)[-+]?(?:nan|inf|NaN|Infinity|infinity)\b(?:\([^)]*\))?(?=\s*[,}\]])")
TRAILING_COMMA = re.compile(STRING + r"|,(?=\s*[}\]])")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

E = TypeVar("E")
Buffer = bytes | bytearray | memoryview
CLOSE = ord("]")


@dataclass(slots=True)
class Tally:
    """What happened on the way: text around the events, events lost, repairs by kind."""

    head: bytes = b""                            # empty where the list is the root
    tail: bytes = b""
    lost: int = 0
    cut_short: bool = False                      # the text ends before it is complete
    repaired: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Codec(Generic[E]):
    """How events' text becomes values: a whole list at once, or one parsed object (None: not an event)."""

    decode: Callable[[Buffer], list[E]]
    convert: Callable[[dict[str, Any]], E | None]


def events(blocks: Iterator[bytes], codec: Codec[E], tally: Tally, name: str) -> Iterator[list[E]]:
    """Lists of events in file order, but for mended ones, which follow those of their chunk. Each list is what the
    last successful call of `codec.decode` returned, or made by `codec.convert` alone. `tally` is complete when the
    iterator is exhausted.

    Raises InputError when no event list can be found, or when a second trace follows the first.
    """
    blocks = _from_first_event(blocks, tally, name)
    text = _Text()
    size = CHUNK_BYTES
    while text.fill(blocks, size):
        cut = _cut(text.buffer, text.used)
        if cut is None and size < LIMIT_BYTES:    # one event is longer than a chunk: read on
            size *= 2
            continue
        size = CHUNK_BYTES
        end, next_start = cut or (text.used, text.used)
        batch = _decoded(text.buffer, end, codec)
        if batch is None:
            tail = yield from _salvage(text.part(1, end), codec, tally, name)
            if tail is not None:                  # and yet another event was found behind it
                _closed_early(tail, tally, name)
        else:
            yield batch
        text.drop(next_start)
    last = yield from _salvage(text.part(1, text.used), codec, tally, name)
    tally.tail = last or b""
    in_object = tally.head.lstrip().startswith(b"{")
    tally.cut_short = last is None or (in_object and not last.rstrip(b" \t\r\n\0").endswith(b"}"))


class _Text:
    """Text from the start of an event on, behind a `[`, in one buffer that is filled again and again: fresh memory
    for each chunk would cost as much as decoding it."""

    def __init__(self) -> None:
        self.buffer = bytearray(CHUNK_BYTES * 2)
        self.buffer[0:1], self.used = b"[", 1

    def fill(self, blocks: Iterator[bytes], size: int) -> bool:
        """Grow to a size; False when the blocks end before."""
        while self.used < size:
            block = next(blocks, None)
            if block is None:
                return False
            self._add(block)
        return True

    def _add(self, block: bytes) -> None:
        end = self.used + len(block)
        if end >= len(self.buffer):
            self.buffer.extend(bytes(max(end + 1, 2 * len(self.buffer)) - len(self.buffer)))
        self.buffer[self.used : end] = block
        self.used = end

    def part(self, start: int, end: int) -> bytes:
        """A copy of what stands between two places."""
        return bytes(memoryview(self.buffer)[start:end])

    def drop(self, until: int) -> None:
        """Forget what stands before a place."""
        rest = self.part(until, self.used)
        self.used = 1
        self._add(rest)


def _decoded(buffer: bytearray, end: int, codec: Codec[E]) -> list[E] | None:
    """The events of buffer[:end], decoded in place: the byte at `end` serves as the closing bracket meanwhile.
    None where they are damaged."""
    kept, buffer[end] = buffer[end], CLOSE
    view = memoryview(buffer)[: end + 1]
    try:
        return codec.decode(view)
    except UNREADABLE:
        return None
    finally:
        view.release()
        buffer[end] = kept


def _from_first_event(blocks: Iterator[bytes], tally: Tally, name: str) -> Iterator[bytes]:
    """The text from behind the `[` of the event list on; what stands before it becomes the head."""
    text = bytearray()
    for block in blocks:
        searched = max(0, len(text) - 64)
        text += block
        if not searched:
            text = text.removeprefix(b"\xef\xbb\xbf")
            if LIST_ROOT.match(text):
                return chain(_in_blocks(text, text.index(b"[") + 1), blocks)
        found = EVENTS_KEY.search(text, searched)
        if found:
            tally.head = bytes(text[: found.start()])
            return chain(_in_blocks(text, found.end()), blocks)
        if len(text) > LIMIT_BYTES:
            break
    opened = EVENTS_KEY_DAMAGED.search(text)
    starts = [opened.end()] if opened else _starts(text)
    if not starts:
        raise InputError(
            f"{name}: expected a PyTorch profiler trace (JSON with a \"traceEvents\" list), got {_kind(text, name)}; "
            "export one with torch.profiler's export_chrome_trace or tensorboard_trace_handler"
        )
    tally.repaired["head of the file unreadable"] += 1
    tally.head = bytes(text[: starts[0]])
    in_list = tally.head.lstrip().startswith(b"[")
    tally.lost += _count(tally.head.decode("utf-8", "replace")) if in_list else len(PHASE_KEY.findall(tally.head))
    return chain(_in_blocks(text, starts[0]), blocks)


def _in_blocks(text: bytearray, start: int) -> Iterator[bytes]:
    for at in range(start, len(text), BLOCK_BYTES):
        yield bytes(text[at : at + BLOCK_BYTES])


def _kind(text: bytearray, name: str) -> str:
    if name.endswith((".nsys-rep", ".qdrep", ".ncu-rep")):
        return "a report of NVIDIA Nsight"
    return "JSON without one" if text[:4096].lstrip().startswith((b"{", b"[")) else "something else"


def _cut(text: bytearray, used: int) -> tuple[int, int] | None:
    """(end of the last complete event, start of the one after it): the last `}, {` of the text that is followed
    by an event's first key and its phase."""
    window = 1 << 14
    while True:
        start, later = max(0, used - window), used
        for found in reversed(list(BETWEEN_EVENTS.finditer(text, start, used))):
            if EVENT_START.match(text, found.end(), used) and PHASE_KEY.search(text, found.end(), later):
                return found.start() + 1, found.end()
            later = found.start()
        if start == 0:
            return None
        window *= 8


def _starts(text: Buffer) -> list[int]:
    """Where events begin: at an object whose first key is an event's, which is not itself a key's value, and which
    names a phase before the next such object begins (arguments may hold objects that look like events)."""
    phases = PHASE_KEY.finditer(text)
    phase = next(phases, None)
    out: list[int] = []
    start = -1
    for at in chain(_object_starts(text), (len(text),)):
        while phase is not None and phase.start() < start:
            phase = next(phases, None)
        if phase is not None and start <= phase.start() < at and start >= 0:
            out.append(start)
        start = at
    return out


def _object_starts(text: Buffer) -> Iterator[int]:
    for found in EVENT_START.finditer(text):
        if not KEY_BEFORE.search(text, max(0, found.start() - 64), found.start()):
            yield found.start()


def _salvage(text: bytes, codec: Codec[E], tally: Tally, name: str) -> Generator[list[E], None, bytes | None]:
    """Events of a damaged stretch, and what stands behind the end of the list (None: it does not end in here).

    Whole runs are decoded at once, doubled on success and halved on failure, so that one damaged event among
    thousands costs a few decodes; one by one, each event is looked at a bounded number of times.
    """
    edges = [*_starts(text), len(text)]
    count = len(edges) - 1
    mended: list[E] = []
    before = text[: edges[0]].decode("utf-8", "replace")
    tail = before if LIST_END.match(before) else None
    if tail is None:
        tally.lost += _count(before)
    elif count:
        _closed_early(tail.encode(), tally, name)
    at, width = 0, count
    while at < count:
        width = max(1, min(width, count - at))
        run = text[edges[at] : edges[at + width]].rstrip().removesuffix(b",")
        try:
            batch = codec.decode(b"[" + run + b"]")
        except UNREADABLE:
            if width > 1:
                width //= 2
                continue
        else:
            yield batch
            at, width, tail = at + width, width * 2, None
            continue
        found, tail = _one(run, codec, tally, last=at + 1 == count)
        mended += found
        at += 1
        if tail is not None and at < count:
            _closed_early(tail.encode(), tally, name)
    if mended:
        yield mended
    return None if tail is None else tail.encode().lstrip().removeprefix(b"]")


def _closed_early(behind: bytes, tally: Tally, name: str) -> None:
    """Events follow the end of their list: damage had closed it, or the file holds more than one list."""
    if not EVENTS_KEY.search(behind):
        tally.repaired["list of events closed too early"] += 1
    elif _ends_its_root(behind.decode("utf-8", "replace")):
        raise InputError(f"{name} holds two traces one behind the other; expected one: split the file")
    else:
        tally.repaired["a second list of events"] += 1


def _ends_its_root(behind: str) -> bool:
    """Does the root end here, and something else follow?"""
    rest = '{"_":0' + behind.strip().removeprefix("]")
    try:
        _, end = _LAX.raw_decode(rest)
    except (ValueError, RecursionError, ArithmeticError):
        return False
    return end < len(rest)


def _one(piece: bytes, codec: Codec[E], tally: Tally, *, last: bool) -> tuple[list[E], str | None]:
    """One event by the patient way: (events read, text from the end of the list on if the list ends behind it)."""
    for kind, mended in _mends(piece):
        try:
            value, end = (_LAX if kind else _STRICT).raw_decode(mended)
        except (ValueError, RecursionError, ArithmeticError):
            continue
        if "\0" in mended[:end]:                 # a hole that a crash left: two events may have met around it
            break
        behind = mended[end:]
        tail = behind if LIST_END.match(behind) else None
        stray = behind.strip(", \t\r\n") if tail is None else ""
        event = codec.convert(value)
        if event is None or ("ts" not in value and TIME_KEY.search(stray)):      # its other half stands behind it
            tally.lost += _count(mended[:end] + stray)
            return [], tail
        tally.lost += (behind_it := _count(stray))
        if kind:
            tally.repaired[kind] += 1
        if stray and not behind_it:
            tally.repaired["stray text between events"] += 1
        return [event], tail
    plain = piece.decode("utf-8", "replace")
    inner = _inner(plain, codec)
    tail = _tail_of(plain) if last else None
    tally.lost += max(0, _count(plain[: len(plain) - len(tail or "")]) - len(inner))
    return inner, tail


def _inner(piece: str, codec: Codec[E]) -> list[E]:
    """Whole events inside a damaged one: where text is missing, an event may have become another one's value."""
    out: list[E] = []
    behind = 1
    for found in islice(INNER_START.finditer(piece, 1), MOST_INNER):
        if found.start() < behind:
            continue
        try:
            value, behind = _STRICT.raw_decode(piece, found.start())
        except (ValueError, RecursionError, ArithmeticError):
            continue
        event = codec.convert(value)
        if event is not None and "ts" in value:
            out.append(event)
    return out


def _tail_of(piece: str) -> str | None:
    """From the end of the list on, where the event before it is unreadable: the first place from which on the rest
    of the root is sound, else the first that looks like it."""
    found = [m.start(1) for m in EVENT_AND_LIST_END.finditer(piece)][:8]
    sound = (at for at in found if _well_formed(piece[at + 1 :]))
    at = next(sound, found[0] if found else None)
    return None if at is None else piece[at:]


def _well_formed(tail: str) -> bool:
    try:
        msgspec.json.decode(b'{"_":0' + tail.encode(), type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return not tail.strip()
    return True


def _count(text: str) -> int:
    """How many events an unreadable text was: as many as it names two of the keys that every event has; one, if it
    names any. (One key alone may be there twice: a flipped bit makes "pid" of "tid".)"""
    counts = [count for _, count in Counter(COUNTED_KEY.findall(text)).most_common(2)]
    return 0 if not counts else max([1, *counts[1:]])


def _refuse(constant: str) -> None:
    raise ValueError(constant)


# Decimal: time stamps of old files need more digits than a double has.
_STRICT = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)
_LAX = json.JSONDecoder(parse_float=Decimal, parse_constant=lambda _: None, strict=False)


def _mends(text: bytes) -> Iterator[tuple[str, str]]:
    """The text of one event, as it is and mended in the ways that real files need, mildest first.

    Sources of the faults: kineto PR#1184 (empty value), pytorch#130622 (control characters), HTA PR#324 (bytes
    that are not UTF-8, unescaped quotes), NaN and Infinity from C++ streams.
    """
    piece = text.decode("utf-8", "replace")
    if "\ufffd" in piece and b"\xef\xbf\xbd" not in text:
        yield "invalid UTF-8", piece
    else:
        yield "", piece
        yield "control characters or not-a-number", piece
    filled = EMPTY_VALUE.sub(lambda m: m[0] if m[1] is None else ": null", piece)
    if filled != piece:
        yield "empty values", filled
    numbers = NOT_A_NUMBER.sub(lambda m: m[0] if m[1] is None else ": null", filled)
    if numbers != filled:
        yield "not-a-number", numbers
    commas = TRAILING_COMMA.sub(lambda m: "" if m[0] == "," else m[0], numbers)
    if commas != numbers:
        yield "trailing commas", commas
    structural = {m.end() - 1 if m[0][-1] == '"' else m.start() for m in STRUCTURAL_QUOTE.finditer(commas)}
    quoted = BARE_QUOTE.sub(lambda m: '"' if m.start() in structural else '\\"', commas)
    if quoted != commas:
        yield "unescaped quotes", quoted
