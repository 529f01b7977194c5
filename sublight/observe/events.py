"""This file knows about cutting a trace's JSON text into events, in chunks, whatever its layout and damage.

    blocks of bytes ──▶ head │ events … events … events │ tail

A chunk is cut at the last place that looks like the end of an event. A typed decode of the whole chunk then proves
the cut: brackets and strings balance, or the decode fails. Only a chunk that fails is looked at event by event.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from sublight.errors import InputError

CHUNK_BYTES = 512 << 10              # larger ones leave the cache between decoding and splitting into columns
HEAD_LIMIT_BYTES = 64 << 20
KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|cname|sf"
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
EVENT_START = re.compile(rb'\{\s*"(?:' + KEYS + rb')"\s*:')
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
PHASE_KEY = re.compile(rb'"ph"\s*:')
ERROR_BYTE = re.compile(r"byte (\d+)")
STRUCTURAL_QUOTE = re.compile(r'(?<=[{,:\[])\s*"|"(?=\s*[,:}\]])')

E = TypeVar("E")
Buffer = bytes | bytearray | memoryview
CLOSE = ord("]")


@dataclass(slots=True)
class Tally:
    """What happened on the way: text around the events, events lost, repairs by kind."""

    head: bytes = b""
    tail: bytes = b""
    lost: int = 0
    cut_short: bool = False                      # the text ends inside the list of events
    repaired: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Codec(Generic[E]):
    """How one event's text becomes a value: a whole list at once, or one parsed object (None: not an event)."""

    decode: Callable[[Buffer], list[E]]
    convert: Callable[[dict[str, Any]], E | None]


def events(blocks: Iterator[bytes], codec: Codec[E], tally: Tally, name: str) -> Iterator[list[E]]:
    """Lists of events in file order. `tally` is complete when the iterator is exhausted.

    Raises InputError when no event list can be found.
    """
    text = _Text(_to_first_event(blocks, tally, name))
    size = CHUNK_BYTES
    while text.fill(blocks, size):
        cut = _cut(text.buffer, text.used)
        if cut is None:                           # one event is longer than a chunk: read on
            size *= 2
            continue
        size = CHUNK_BYTES
        end, next_start = cut
        batch, error = _decoded(text.buffer, end, codec)
        if error is not None:
            damaged = bytes(text.buffer[1:end])
            if _list_end(error, damaged) is not None:
                break
            batch, behind = _salvage(damaged, codec, tally)
            if behind is not None:
                yield batch
                yield from _behind(behind + text.rest(end) + b"".join(blocks), codec, tally)
                return
        text.drop(next_start)
        yield batch
    yield from _last(text.rest(1) + b"".join(blocks), codec, tally)


class _Text:
    """Text from the start of an event on, behind a `[`, in one buffer that is filled again and again: fresh memory
    for each chunk would cost as much as decoding it."""

    def __init__(self, text: bytes) -> None:
        self.buffer = bytearray(CHUNK_BYTES * 2)
        self.used = 0
        self._add(b"[")
        self._add(text)

    def _add(self, block: bytes) -> None:
        end = self.used + len(block)
        if end > len(self.buffer):
            self.buffer.extend(bytes(max(end, 2 * len(self.buffer)) - len(self.buffer)))
        self.buffer[self.used : end] = block
        self.used = end

    def fill(self, blocks: Iterator[bytes], size: int) -> bool:
        """Grow to a size; False when the blocks end before."""
        while self.used < size:
            block = next(blocks, None)
            if block is None:
                return False
            self._add(block)
        return True

    def drop(self, until: int) -> None:
        """Forget what stands before a place."""
        rest = self.rest(until)
        self.used = 1
        self._add(rest)

    def rest(self, start: int) -> bytes:
        """What stands from a place on."""
        return bytes(memoryview(self.buffer)[start : self.used])


def _decoded(buffer: bytearray, end: int, codec: Codec[E]) -> tuple[list[E], Exception | None]:
    """The events of buffer[:end], decoded in place: the byte at `end` serves as the closing bracket meanwhile."""
    kept, buffer[end] = buffer[end], CLOSE
    view = memoryview(buffer)[: end + 1]
    try:
        return codec.decode(view), None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return [], error
    finally:
        view.release()
        buffer[end] = kept


def _to_first_event(blocks: Iterator[bytes], tally: Tally, name: str) -> bytes:
    """Read up to the first event; keep what stands before it as the head."""
    text = b""
    for block in blocks:
        searched = max(0, len(text) - 64)
        text += block
        if not text.strip():
            continue
        if text.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"["):
            tally.head = b"{"
            return text[text.index(b"[") + 1 :]
        for found in EVENTS_KEY.finditer(text, searched):
            tally.head = text[: found.start()]
            return text[found.end() :]
        if len(text) > HEAD_LIMIT_BYTES:
            break
    first = EVENT_START.search(text)
    while first and not PHASE_KEY.search(text, first.start(), first.start() + 4096):
        first = EVENT_START.search(text, first.end())
    if first is None:
        kind = "JSON without a \"traceEvents\" list" if text.lstrip()[:1] == b"{" else "something else"
        raise InputError(
            f"{name}: expected a PyTorch profiler trace (JSON with a \"traceEvents\" list), got {kind}; "
            "export one with torch.profiler's export_chrome_trace or tensorboard_trace_handler"
        )
    tally.repaired["head of the file unreadable"] += 1
    tally.head = text[: first.start()]
    return text[first.start() :]


def _cut(text: bytearray, used: int) -> tuple[int, int] | None:
    """(end of the last complete event, start of the one after it): the last `}, {` of the text that is followed
    by an event's first key."""
    window = 1 << 14
    while True:
        start = max(0, used - window)
        for found in reversed(list(BETWEEN_EVENTS.finditer(text, start, used))):
            if EVENT_START.match(text, found.end(), used):
                return found.start() + 1, found.end()
        if start == 0:
            return None
        window *= 8


def _list_end(error: Exception, text: bytes) -> int | None:
    """Where the list of events closed, if that is why decoding `[` + text (+ `]`) failed: just behind its `]`."""
    if "trailing characters" not in str(error):
        return None
    found = ERROR_BYTE.search(str(error))
    if found is None:
        return None
    # The byte named is the first that does not belong (or the one after it), in a text with one `[` in front.
    closed = text.rfind(b"]", 0, max(0, int(found[1]) - 1)) + 1
    if text[closed : int(found[1]) - 2].strip() or not _is_tail(text[closed:]):
        return None
    return closed or None


def _is_tail(text: bytes) -> bool:
    """Does this stand behind a list of events: the end, or another key of the root object?"""
    return re.match(rb'\s*(?:$|\}|,\s*")', text) is not None


def _last(text: bytes, codec: Codec[E], tally: Tally) -> Iterator[list[E]]:
    """The rest of the file: events, the end of their list, and the keys behind it."""
    closed: int | None = len(text)
    try:
        yield codec.decode(b"[" + text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        closed = _list_end(error, text)
        batch: list[E] | None = None
        if closed is not None:
            try:
                batch = codec.decode(b"[" + text[:closed])
            except (msgspec.MsgspecError, UnicodeDecodeError):
                closed = None
        if batch is None:
            batch, behind = _salvage(text, codec, tally)
            closed = None if behind is None else len(text) - len(behind)
            tally.cut_short = closed is None
        yield batch
    yield from _behind(b"" if closed is None else text[closed:], codec, tally)


def _behind(text: bytes, codec: Codec[E], tally: Tally) -> Iterator[list[E]]:
    """The keys behind the list of events; where events follow all the same, damage had closed the list."""
    while (start := _next_event(text)) is not None and not _well_formed_tail(text):
        tally.repaired["list of events closed too early"] += 1
        batch, behind = _salvage(text[start:], codec, tally)
        yield batch
        text = behind or b""
    tally.tail = text


def _next_event(text: bytes) -> int | None:
    return next((s for s in _starts(text) if PHASE_KEY.search(text, s, s + 65536)), None)


def _well_formed_tail(text: bytes) -> bool:
    try:
        msgspec.json.decode(b'{"_":0' + text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _starts(text: bytes) -> Iterator[int]:
    """Where events may begin: an object whose first key is an event's, and which is not itself a key's value."""
    for found in EVENT_START.finditer(text):
        at = found.start() - 1
        while at >= 0 and text[at] in b" \t\r\n":
            at -= 1
        if at < 0 or text[at] not in b":":
            yield found.start()


def _salvage(text: bytes, codec: Codec[E], tally: Tally) -> tuple[list[E], bytes | None]:
    """Events of a damaged stretch, and what stands behind the end of the list (None: it does not end in here).

    Whole runs are decoded at once, doubled on success and halved on failure, so that one damaged event among
    thousands costs a few decodes.
    """
    starts = [*_starts(text), len(text)]
    out: list[E] = []
    tally.lost += len(PHASE_KEY.findall(text, 0, starts[0]))
    at, width = 0, len(starts) - 1
    while at < len(starts) - 1:
        width = max(1, min(width, len(starts) - 1 - at))
        run = text[starts[at] : starts[at + width]].rstrip().removesuffix(b",")
        try:
            out += codec.decode(b"[" + run + b"]")
            at, width = at + width, width * 2
            continue
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if width > 1:
                width //= 2
                continue
        event, length, tail = _one(text, starts, at, codec, tally)
        if event is not None:
            out.append(event)
        if tail is not None:
            return out, tail
        at += length
    return out, None


def _one(
    text: bytes, starts: list[int], at: int, codec: Codec[E], tally: Tally
) -> tuple[E | None, int, bytes | None]:
    """One event by the patient way: (event or None, pieces used, text behind the list's end or None)."""
    for pieces in range(1, min(6, len(starts) - at)):            # its arguments may hold objects that look like events
        piece = text[starts[at] : starts[at + pieces]]
        for kind, mended in _mends(piece):
            try:
                value, end = json.JSONDecoder(strict=False, parse_constant=lambda _: None).raw_decode(mended)
            except (ValueError, RecursionError):
                continue
            event = codec.convert(value) if isinstance(value, dict) else None
            behind = mended[end:].strip()
            if kind:
                tally.repaired[kind] += 1
            tally.lost += (event is None and _counts(piece, pieces)) + len(re.findall(r'"ph"\s*:', behind))
            if behind.startswith("]") and _is_tail(behind[1:].encode()):
                whole = text[starts[at] :]
                return event, pieces, whole[_behind_list(whole, len(mended[:end].encode())) :]
            return event, pieces, None
    piece = text[starts[at] : starts[at + 1]]
    tally.lost += _counts(piece, 1)
    return None, 1, None


def _counts(piece: bytes, pieces: int) -> bool:
    """Is a piece that could not be read an event? One that starts like an event, but says no phase, was part of
    its neighbour's arguments."""
    return pieces > 1 or PHASE_KEY.search(piece) is not None or b'"ts"' in piece


def _behind_list(text: bytes, about: int) -> int:
    """Just behind the first `]` that is followed by the end or by a key, from `about` on."""
    at = text.find(b"]", max(0, about - 8))
    while at >= 0 and not _is_tail(text[at + 1 :]):
        at = text.find(b"]", at + 1)
    return len(text) if at < 0 else at + 1


def _mends(piece: bytes) -> Iterator[tuple[str, str]]:
    """The text of one event, as it is and mended in the ways that real files need, mildest first.

    Sources of the faults: kineto PR#1184 (empty value), pytorch#130622 (control characters), HTA PR#324 (bytes
    that are not UTF-8, unescaped quotes), NaN and Infinity from C++ streams.
    """
    plain = piece.decode("utf-8", "replace")
    bad_bytes = "\ufffd" in plain and b"\xef\xbf\xbd" not in piece
    yield ("invalid UTF-8" if bad_bytes else "control characters or not-a-number"), plain
    filled = re.sub(r":\s*(?=[,}\]])", ": null", plain)
    if filled != plain:
        yield "empty values", filled
    numbers = re.sub(r":\s*[-+]?(?:nan|inf|NaN|Infinity|infinity)(?=\s*[,}\]])", ": null", filled)
    if numbers != filled:
        yield "not-a-number", numbers
    commas = re.sub(r",\s*(?=[}\]])", "", numbers)
    if commas != numbers:
        yield "trailing commas", commas
    structural = {m.end() - 1 if m[0][-1] == '"' else m.start() for m in STRUCTURAL_QUOTE.finditer(commas)}
    quoted = "".join(
        '\\"' if c == '"' and i not in structural and (i == 0 or commas[i - 1] != "\\") else c
        for i, c in enumerate(commas)
    )
    if quoted != commas:
        yield "unescaped quotes", quoted
