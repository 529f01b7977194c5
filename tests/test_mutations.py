"""Damaged files: a report or one clear error, never anything else, and no event lost in silence.

A base is a sound trace of which the test knows where each event begins and ends. A mutated file is made of pieces
of its base, so that the test knows, without reading JSON, which events are still whole. The rule:

  1. Every whole event is read: `quality.events` is at least their number.
  2. Nothing is invented: `quality.events + quality.lost` is at most whole events + damaged ones.
  3. Nothing goes missing: it is at least whole events + damaged places that can be counted. A damaged place is an
     event with wrong bytes, or the seam at which two torn events meet; it can be counted if it still names one of
     the four keys that every event has (`ph`, `ts`, `pid`, `tid`).

Bytes that change inside one event, or between events, therefore leave the sum exactly as it was; whole events that
are repeated or removed change it by exactly their number; of a file that ends early, every event before the end is
read and `cut_short` is set.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import signal
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import zstandard
from conftest import DATA, KINETO
from kineto import Kineto

from sublight.errors import InputError
from sublight.explain import explain
from sublight.observe import events as events_module
from sublight.observe import kineto_events
from sublight.observe.events import Buffer
from sublight.observe.kineto import read_kineto
from sublight.show.json import document
from sublight.trace import Trace

SEED = 20_260
LONGEST_CASE_S = 5.0
FIRST_BYTES = 16                     # where a file's format is told
COUNTED = [re.compile(rb'"%s"\s*:' % key) for key in (b"ph", b"ts", b"pid", b"tid")]


# ---------------------------------------------------------------- bases


@dataclass(frozen=True)
class Base:
    """A sound trace: its text, where its events are, and where their list ends."""

    name: str
    text: bytes
    spans: tuple[tuple[int, int], ...]

    @property
    def list_end(self) -> int:
        return self.text.index(b"]", self.spans[-1][1]) + 1


def base(name: str, text: str) -> Base:
    """Finds the events with Python's own JSON reader, which shares nothing with ours."""
    data = text.encode()
    plain = data.decode("latin-1")               # a character a byte
    at = re.search(r'"traceEvents"\s*:\s*\[|^\s*\[', plain)
    assert at, name
    spans = []
    position = at.end()
    while found := re.compile(r"[\s,]*\{").match(plain, position):
        start = found.end() - 1
        _, position = json.JSONDecoder(strict=False).raw_decode(plain, start)
        spans.append((start, position))
    json.loads(data)
    assert len(spans) > 20, name
    return Base(name, data, tuple(spans))


def small_run() -> Kineto:
    """Three steps with launches, copies, communication, host events, flows and thread names."""
    k = Kineto(record_shapes=True, flows=True)
    for step in range(3):
        t = 100_000 * step
        op = k.op("aten::addmm", t + 1_000, t + 9_000, dims=[[64, 64], [64, 64]])
        for i in range(6):
            launch = (t + 2_000 + 1_000 * i, t + 2_500 + 1_000 * i)
            k.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", t + 10_000 + 6_000 * i, t + 15_000 + 6_000 * i,
                     launch=launch, op=op)
        k.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", t + 30_000, t + 60_000,
                 stream=20, launch=(t + 9_000, t + 9_500), dtype="BFloat16")
        k.memcpy("DtoH", t + 61_000, t + 62_000, launch=(t + 10_000, t + 10_400))
        k.call("cudaDeviceSynchronize", t + 12_000, t + 70_000)
        k.step(step, t, t + 80_000)
    k.overhead("Activity Buffer Request", 5_000, 6_000)
    k.raw({"name": "process_name", "ph": "M", "ts": 0, "pid": 4242, "tid": 0, "args": {"name": "python"}})
    k.raw({"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 1})
    return k


def one_key_a_line(document: dict[str, Any]) -> str:
    """The layout of torch 2.9 and later: one key a line, the comma behind `dur` on a line of its own, blank lines
    between events, and a `traceName` with a bracket in it as the last key."""
    def event(e: dict[str, Any]) -> str:
        rows = [f'    "{key}": {json.dumps(value)}' for key, value in e.items() if key != "args"]
        text = ",\n".join(rows)
        if "args" in e:
            inner = ",\n".join(f'      "{key}": {json.dumps(value)}' for key, value in e["args"].items())
            text += '\n    ,\n    "args": {\n' + inner + "\n    }"
        return "  {\n" + text + "\n  }"

    head = ",\n".join(f'  "{k}": {json.dumps(v)}' for k, v in document.items() if k != "traceEvents")
    listed = ",\n\n".join(event(e) for e in document["traceEvents"])
    return f'{{\n{head},\n  "traceEvents": [\n{listed}\n\n  ],\n  "traceName": "run[3].json"\n}}\n'


def slice_of(path: Path, first: int, count: int) -> str:
    """Some consecutive events of a real trace, with all that stands around the list, byte for byte."""
    whole = base(path.name, gzip.decompress(path.read_bytes()).decode())
    chosen = whole.spans[first : first + count]
    text = whole.text[: whole.spans[0][0]] + whole.text[chosen[0][0] : chosen[-1][1]] + whole.text[whole.spans[-1][1] :]
    return text.decode()


@cache
def bases() -> tuple[Base, ...]:
    """Every layout, and slices of the real traces where they are there."""
    k = small_run()
    plain = json.loads(k.text(indent=None))
    made = [
        base("kineto", k.text()),
        base("indent 2", k.text(indent=2)),
        base("indent 4", k.text(indent=4)),
        base("one line", k.text(indent=None)),
        base("no spaces", json.dumps(plain, separators=(",", ":"))),
        base("list root", k.text(list_root=True)),
        base("list root, one line", k.text(indent=None, list_root=True)),
        base("2021", k.text(legacy=True)),
        base("one key a line", one_key_a_line(plain)),
        base("sorted keys", json.dumps(plain, indent=1, sort_keys=True)),
    ]
    for name, relative in KINETO.items():
        if (DATA / relative).exists():
            made.append(base(name, slice_of(DATA / relative, 3_000, 250)))
    return tuple(made)


# ---------------------------------------------------------------- mutations


@dataclass(frozen=True)
class Mutant:
    """A damaged file, and what is known of it."""

    what: str
    data: bytes
    whole: int                       # events that no byte is missing or wrong of
    countable: int                   # damaged places that still name one of the four keys
    damaged: int                     # events that a byte is missing or wrong of, of which some text is there
    cut: bool = False                # the text ends inside the list of events
    packed: bool = False             # compressed: what comes behind the damage may be anything
    format_touched: bool = False     # its first bytes are not what they were


def changed(b: Base, what: str, text: bytes, touched: set[int]) -> Mutant:
    """Bytes replaced in place."""
    hit = [(s, e) for s, e in b.spans if any(s <= at < e for at in touched)]
    return Mutant(what, text, len(b.spans) - len(hit), sum(_names_a_key(text[s:e]) for s, e in hit), len(hit),
                  format_touched=min(touched) < FIRST_BYTES)


def spliced(b: Base, what: str, pieces: list[tuple[int, int] | bytes], *, cut: bool = False) -> Mutant:
    """Pieces (start, end) of the base, and foreign bytes, one behind the other."""
    whole, torn, seams, loose = 0, 0, [], b""
    in_seam = False
    for piece in pieces:
        if isinstance(piece, bytes):
            loose += piece if in_seam else b""
            continue
        start, end = piece
        for s, e in b.spans:
            low, high = max(s, start), min(e, end)
            if high <= low:
                continue
            if (low, high) == (s, e):
                whole += 1
                continue
            torn += 1
            if low > s and in_seam:              # the second half of a seam
                loose += b.text[low:high]
                seams.append(loose)
                loose, in_seam = b"", high < e
                continue
            if low > s:
                seams.append(b.text[low:high])
            else:
                loose, in_seam = b.text[low:high], True
        if in_seam and b.spans and not any(s < end < e for s, e in b.spans):
            seams.append(loose)
            loose, in_seam = b"", False
    if in_seam:
        seams.append(loose)
    text = b"".join(p if isinstance(p, bytes) else b.text[p[0] : p[1]] for p in pieces)
    return Mutant(what, text, whole, sum(map(_names_a_key, seams)), torn, cut=cut,
                  format_touched=text[:FIRST_BYTES] != b.text[:FIRST_BYTES])


def _names_a_key(text: bytes) -> bool:
    return any(key.search(text) for key in COUNTED)


def flips(rng: random.Random, b: Base) -> Mutant:
    text = bytearray(b.text)
    at = {rng.randrange(len(text)) for _ in range(rng.randint(1, 20))}
    for i in at:
        text[i] ^= rng.randint(1, 255)
    return changed(b, f"flip {sorted(at)}", bytes(text), at)


def flips_in_one_event(rng: random.Random, b: Base) -> Mutant:
    text = bytearray(b.text)
    start, end = rng.choice(b.spans)
    at = {rng.randrange(start, end) for _ in range(rng.randint(1, 20))}
    for i in at:
        text[i] ^= rng.randint(1, 255)
    return changed(b, f"flip in {start}:{end} {sorted(at)}", bytes(text), at)


def signs(rng: random.Random, b: Base) -> Mutant:
    """Bytes replaced by those that mean something to JSON: the meanest kind of flip."""
    text = bytearray(b.text)
    at = {rng.randrange(len(text)) for _ in range(rng.randint(1, 8))}
    for i in at:
        text[i] = rng.choice(b'{}[]",:\\ \n0e-')
    return changed(b, f"signs {sorted(at)}", bytes(text), at)


def cut(rng: random.Random, b: Base) -> Mutant:
    end = rng.randrange(b.spans[0][0], len(b.text))
    return spliced(b, f"cut at {end}", [(0, end)], cut=end < b.list_end)


def duplicate(rng: random.Random, b: Base) -> Mutant:
    low, high = sorted(rng.sample(range(b.spans[0][0], b.spans[-1][1]), 2))
    high = min(high, low + 5_000)
    return spliced(b, f"duplicate {low}:{high}", [(0, high), (low, len(b.text))])


def duplicate_whole(rng: random.Random, b: Base) -> Mutant:
    i, j = sorted(rng.sample(range(len(b.spans)), 2))
    low, high = b.spans[i][0], b.spans[j][0]
    return spliced(b, f"duplicate events {i}:{j}", [(0, high), (low, len(b.text))])


def delete(rng: random.Random, b: Base) -> Mutant:
    low, high = sorted(rng.sample(range(b.spans[0][0], b.spans[-1][1]), 2))
    high = min(high, low + rng.choice((3, 30, 300, 3_000)))
    return spliced(b, f"delete {low}:{high}", [(0, low), (high, len(b.text))])


def delete_whole(rng: random.Random, b: Base) -> Mutant:
    i, j = sorted(rng.sample(range(len(b.spans)), 2))
    low, high = b.spans[i][0], b.spans[j][0]
    return spliced(b, f"delete events {i}:{j}", [(0, low), (high, len(b.text))])


def insert(rng: random.Random, b: Base) -> Mutant:
    at = rng.randrange(len(b.text))
    return spliced(b, f"insert at {at}", [(0, at), rng.randbytes(rng.randint(1, 64)), (at, len(b.text))])


def zeros(rng: random.Random, b: Base) -> Mutant:
    """A hole, as file systems leave it after a crash."""
    low = rng.randrange(b.spans[0][0], b.spans[-1][1])
    high = min(low + 512, b.spans[-1][1])
    return spliced(b, f"zeros {low}:{high}", [(0, low), bytes(high - low), (high, len(b.text))])


TEXT_MUTATIONS: tuple[Callable[[random.Random, Base], Mutant], ...] = (
    flips, flips_in_one_event, signs, cut, duplicate, duplicate_whole, delete, delete_whole, insert, zeros,
)


def packed(rng: random.Random, b: Base, pack: str) -> Mutant:
    """A compressed stream with bytes flipped or cut off. Known: what can be unpacked before the damage."""
    stream = gzip.compress(b.text, 6, mtime=0) if pack == "gz" else zstandard.compress(b.text, 3)
    data = bytearray(stream)
    if rng.random() < 0.5:
        del data[rng.randrange(FIRST_BYTES, len(data)) :]
    else:
        for _ in range(rng.randint(1, 20)):
            data[rng.randrange(4, len(data))] ^= rng.randint(1, 255)
    text, sound = (gunzipped if pack == "gz" else unzstd)(bytes(data))
    same = next((i for i, (x, y) in enumerate(zip(text, b.text, strict=False)) if x != y), min(len(text), len(b.text)))
    whole = sum(e <= same for _, e in b.spans)
    return Mutant(f"{pack} damaged, sound up to {same}", bytes(data), whole, 0, 1 << 30, cut=not sound, packed=True,
                  format_touched=not text[:FIRST_BYTES] or text[:FIRST_BYTES] != b.text[:FIRST_BYTES])


def gunzipped(data: bytes) -> tuple[bytes, bool]:
    """Byte by byte: what zlib hands over before it refuses, and whether it was whole."""
    stream, out = zlib.decompressobj(31), b""
    for byte in data:
        try:
            out += stream.decompress(bytes([byte]))
        except zlib.error:
            return out, False
    return out, stream.eof


def unzstd(data: bytes) -> tuple[bytes, bool]:
    stream, out = zstandard.ZstdDecompressor().decompressobj(), b""
    for byte in data:
        if stream.eof:
            return out, False
        try:
            out += stream.decompress(bytes([byte]))
        except zstandard.ZstdError:
            return out, False
    return out, stream.eof


def mutants(seed: int, count: int) -> Iterator[tuple[Base, Mutant]]:
    """Seeded; every base meets every mutation."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random, Base], Mutant]] = [*TEXT_MUTATIONS]
    kinds += [lambda r, b: packed(r, b, "gz"), lambda r, b: packed(r, b, "zst")]
    for i in range(count):
        b = bases()[i % len(bases())]
        yield b, kinds[i // len(bases()) % len(kinds)](rng, b)


# ---------------------------------------------------------------- the check


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """A hang becomes a failure."""
    def fire(_: int, __: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, fire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def account(path: Path) -> Trace:
    """Read and explain to the end of the JSON. A trace without anything to account for may be refused."""
    with at_most(LONGEST_CASE_S):
        trace = read_kineto(str(path))
        try:
            json.dumps(document(explain(trace)), allow_nan=False, ensure_ascii=False).encode()
        except InputError:
            assert not len(trace.activities.ts_ns) or not trace.activities.dur_ns.any(), "refused, but not empty"
        return trace


def judge(mutant: Mutant, trace: Trace) -> str | None:
    """What is wrong with the answer; None if nothing is."""
    q = trace.quality
    total = q.events + q.lost
    if q.events < mutant.whole:
        return f"{q.events} read of {mutant.whole} whole events ({q.lost} lost)"
    if total > mutant.whole + mutant.damaged:
        return f"{q.events} read + {q.lost} lost of {mutant.whole} whole + {mutant.damaged} damaged events"
    if total < mutant.whole + mutant.countable:
        return f"{q.events} read + {q.lost} lost, but {mutant.whole} whole + {mutant.countable} countable"
    if mutant.cut and not q.cut_short:
        return "ends early, but does not say so"
    return None


def storm(count: int, tmp_path: Path, seed: int = SEED) -> None:
    path = tmp_path / "mutant.json"
    wrong = []
    for number, (b, mutant) in enumerate(mutants(seed, count)):
        path.write_bytes(mutant.data)
        where = f"#{number} {b.name}, {mutant.what[:200]}"
        try:
            trace = account(path)
        except InputError as error:
            replayed = mutant.packed and "two traces" in str(error)      # garbled copying may repeat a stretch
            if not mutant.format_touched and mutant.whole and not replayed:
                wrong.append(f"{where}: refused: {error}")
        except Exception as error:
            wrong.append(f"{where}: {type(error).__name__}: {error}")
        else:
            if (verdict := judge(mutant, trace)) is not None:
                wrong.append(f"{where}: {verdict}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:20])


def test_200_mutated_files(tmp_path: Path) -> None:
    storm(200, tmp_path, seed=1)


@pytest.mark.heavy
def test_2000_mutated_files(tmp_path: Path) -> None:
    storm(2_000, tmp_path)


# ---------------------------------------------------------------- every event damaged

EVERY: dict[str, Callable[[bytes], bytes]] = {
    "name not closed": lambda e: e.replace(b'gemm"', b"gemm", 1),
    "quotes in the name": lambda e: e.replace(b"gemm", b'g"em"m', 1),
    "bytes that are not UTF-8": lambda e: e.replace(b"gemm", b"g\xff\xfem", 1),
    "not a number": lambda e: e.replace(b'"x": 1', b'"x": -nan', 1),
    "empty value": lambda e: e.replace(b'"x": 1', b'"x": ', 1),
    "trailing comma": lambda e: e.replace(b'"x": 1', b'"x": 1,', 1),
    "no closing brace": lambda e: e.removesuffix(b"}"),
    "no opening brace": lambda e: e.removeprefix(b"{"),
    "list closed behind each": lambda e: e + b"]",
    "root closed behind each": lambda e: e + b'], "x": [0',
    "stray text": lambda e: e + b" oops",
    "brackets": lambda e: e.replace(b'"x": 1', b'"x": [[[[[[', 1),
    "zeros": lambda e: e.replace(b"gemm", b"\0\0\0\0", 1),
}


def event_text(i: int) -> bytes:
    return (b'{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": %d.125, "dur": 1.5, "args": '
            b'{"device": 0, "stream": 7, "correlation": %d, "x": 1}}' % (2 * i, i))


def damaged_everywhere(damage: Callable[[bytes], bytes], count: int) -> bytes:
    return b'{"traceEvents": [\n' + b",\n".join(damage(event_text(i)) for i in range(count)) + b'], "x": 1}'


@pytest.mark.parametrize("kind", EVERY)
def test_a_file_in_which_every_event_is_damaged_costs_a_bounded_look_at_each(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is counted in bytes handed to a decoder: no more than so many times the file, however long it is."""
    looked_at = 0
    mends = events_module._mends

    def counted(text: bytes) -> Iterator[tuple[str, str]]:
        nonlocal looked_at
        for mended in mends(text):
            looked_at += len(text)
            yield mended

    decode = kineto_events.Decoder.__call__

    def decoded(self: Any, text: Buffer) -> list[Any]:
        nonlocal looked_at
        looked_at += len(text)
        return decode(self, text)

    monkeypatch.setattr(events_module, "_mends", counted)
    monkeypatch.setattr(kineto_events.Decoder, "__call__", decoded)
    count = 5_000
    text = damaged_everywhere(EVERY[kind], count)
    path = tmp_path / "all.json"
    path.write_bytes(text)
    q = read_kineto(str(path)).quality
    assert q.events + q.lost == count
    assert q.damaged
    assert looked_at < 24 * len(text)
    if kind in ("no closing brace", "no opening brace", "zeros"):
        assert q.events == 0 or kind == "no opening brace"
    elif kind not in ("name not closed", "brackets"):
        assert q.events == count, "all of these can be mended"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", EVERY)
def test_5_mb_in_which_every_event_is_damaged(kind: str, tmp_path: Path) -> None:
    count = 5_000_000 // len(event_text(0))
    path = tmp_path / "all.json"
    path.write_bytes(damaged_everywhere(EVERY[kind], count))
    with at_most(90):
        q = read_kineto(str(path)).quality
    assert q.events + q.lost == count


# ---------------------------------------------------------------- nasty files


def answer(path: Path, data: bytes) -> Trace | str:
    """The trace, or the words of the error."""
    path.write_bytes(data)
    try:
        with at_most(LONGEST_CASE_S):
            trace = read_kineto(str(path))
            explain(trace)
            return trace
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(("data", "said"), [
    (b"[", "no device activity"),
    (b"[]", "no device activity"),
    (b'{"traceEvents": []}', "no device activity"),
    (b'{"traceEvents": [', "no device activity"),
    (b"{", "got JSON without one"),
    (b"{}", "got JSON without one"),
    (b'{"traceEvents": null}', "got JSON without one"),
    (b"null", "got something else"),
    (b"\0" * 1000, "got something else"),
    (b" \n\n ", "got something else"),
    (b"[1, 2, 3]", "got JSON without one"),
    (b'[{"a": 1}, {"a": 2}]', "no device activity"),
    (b"[" * 100_000, "got JSON without one"),
    (b'{"a":' * 100_000, "got JSON without one"),
    (b'{"traceEvents": ' + b"[" * 100_000, "no device activity"),
    (b'{"traceEvents": [' + b'{"ph":' * 100_000, "no device activity"),
    ("\ufeff{}".encode("utf-16-le"), "UTF-16"),
    ("\ufeff{}".encode("utf-16-be"), "UTF-16"),
    ('{"traceEvents": []}'.encode("utf-16-le"), "UTF-16"),
], ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "")
def test_files_that_hold_no_trace_get_one_clear_error(data: bytes, said: str, tmp_path: Path) -> None:
    got = answer(tmp_path / "t.json", data)
    assert isinstance(got, str)
    assert said in got


def test_deep_nesting_inside_one_event_loses_that_event_only(tmp_path: Path) -> None:
    deep = event_text(1).replace(b'"x": 1', b'"x": ' + b"[" * 100_000 + b"]" * 100_000)
    got = answer(tmp_path / "t.json", b'{"traceEvents": [' + event_text(0) + b"," + deep + b"," + event_text(2) + b"]}")
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost) == (2, 1)


def test_a_long_file_without_an_event_list_is_refused_before_it_is_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 limits' worth of text, little more than the limit is read."""
    monkeypatch.setattr(events_module, "LIMIT_BYTES", 1 << 20)
    handed = 0

    def blocks() -> Iterator[bytes]:
        nonlocal handed
        yield b'{"metadata": ['
        for _ in range(40 << 2):
            handed += 1 << 18
            yield b'"filler", ' * 26_214 + b"      "

    codec: events_module.Codec[Any] = events_module.Codec(lambda text: [], lambda value: None)
    with pytest.raises(InputError, match="got JSON without one"):
        list(events_module.events(blocks(), codec, events_module.Tally(), "t.json"))
    assert handed < 3 << 20


@pytest.mark.heavy
def test_a_head_of_200_mb(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.write(b'{"metadata": [0')
        for _ in range(200):
            file.write(b', "filler"' * 104_857)
        file.write(b"]}")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="got JSON without one"), at_most(60):
            read_kineto(str(path))
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_a_byte_order_mark_of_utf_8_is_read_over(tmp_path: Path) -> None:
    k = small_run()
    got = answer(tmp_path / "t.json", b"\xef\xbb\xbf" + k.text(indent=2).encode())
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.damaged, got.rank) == (len(k.events), False, 0)


@pytest.mark.parametrize("indent", ["kineto", 2, None])
def test_two_traces_one_behind_the_other_are_refused(indent: Any, tmp_path: Path) -> None:
    text = small_run().text(indent=indent).encode()
    got = answer(tmp_path / "t.json", text + b"\n" + text)
    assert isinstance(got, str)
    assert "two traces" in got


def test_a_second_list_of_events_in_one_root_is_read_and_said(tmp_path: Path) -> None:
    one = b'"traceEvents": [' + b",".join(event_text(i) for i in range(30)) + b"]"
    two = b'"traceEvents": [' + b",".join(event_text(i) for i in range(30, 40)) + b"]"
    got = answer(tmp_path / "t.json", b"{" + one + b', "x": 1, ' + two + b"}")
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost) == (40, 0)
    assert got.quality.repaired == {"a second list of events": 1}


def test_half_of_an_escaped_pair_in_a_name_can_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    op = (b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": '
          b'{"Concrete Inputs": ["\\ud83d"], "Input Dims": [[2.5]]}}')
    path.write_bytes(b'{"traceEvents": [' + op + b"," + event_text(0).replace(b"gemm", b"ge\\ud83dmm") + b"]}")
    assert account(path).names == ("aten::mm", "ge?mm")


def test_an_event_that_became_the_value_of_a_torn_one_is_read(tmp_path: Path) -> None:
    """The first event is torn off behind `"args":`, as far as the next one."""
    listed = b",\n".join(event_text(i) for i in range(30))
    text = b'{"traceEvents": [' + event_text(30).split(b' {"device"')[0] + listed + b"]}"
    got = answer(tmp_path / "t.json", text)
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost) == (30, 1)


def test_a_hole_from_one_event_to_the_next_makes_no_event_of_two(tmp_path: Path) -> None:
    """As file systems leave it after a crash: zeros, here inside a text that is not even decoded."""
    noted = [event_text(i).replace(b'"x": 1', b'"note": "long enough"') for i in range(30)]
    text = b'{"traceEvents": [' + b",".join(noted) + b"]}"
    low, high = text.index(b"enough", text.index(b'"ts": 20.')), text.index(b"enough", text.index(b'"ts": 22.'))
    got = answer(tmp_path / "t.json", text[:low] + bytes(high - low) + text[high:])
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost) == (28, 1)


def test_of_a_key_that_an_event_has_twice_the_last_counts(tmp_path: Path) -> None:
    twice = event_text(0).replace(b'"dur": 1.5', b'"dur": 9, "dur": 1.5')
    got = answer(tmp_path / "t.json", b'{"traceEvents": [' + twice + b"]}")
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost, got.activities.dur_ns.tolist()) == (1, 0, [1500])


def test_arguments_may_hold_objects_that_look_like_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "CHUNK_BYTES", 2_000)             # so that many cuts fall beside such objects
    inside = b'"x": [{"name": 1}, {"id": 2, "y": [{"name": 3}, {"args": 4}]}]'
    listed = b",\n".join(event_text(i).replace(b'"x": 1', inside) for i in range(200))
    got = answer(tmp_path / "t.json", b'{"traceEvents": [' + listed + b"]}")
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.damaged) == (200, False)


def test_a_closing_bracket_in_the_middle_does_not_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "CHUNK_BYTES", 4_000)             # the rest of the file is many chunks away
    text = damaged_everywhere(lambda e: e, 500).replace(event_text(250), event_text(250) + b'], "y": [0')
    got = answer(tmp_path / "t.json", text)
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost) == (500, 0)
    assert got.quality.repaired == {"list of events closed too early": 1}
    assert not got.quality.cut_short


@pytest.mark.parametrize("indent", ["kineto", 2, None])
@pytest.mark.parametrize("missing", [1, 2, 10])
def test_a_root_that_is_not_closed_is_cut_short(indent: Any, missing: int, tmp_path: Path) -> None:
    k = small_run()
    got = answer(tmp_path / "t.json", k.text(indent=indent).encode()[:-missing])
    assert isinstance(got, Trace)
    assert (got.quality.events, got.quality.lost, got.quality.cut_short) == (len(k.events), 0, True)


def test_time_stamps_of_old_files_keep_their_last_digit_in_a_mended_event(tmp_path: Path) -> None:
    """19 digits: more than a double has."""
    bad = event_text(0).replace(b'"ts": 0.125', b'"ts": 1700000000123456.789').replace(b'"x": 1', b'"x": -nan')
    got = answer(tmp_path / "t.json", b'{"traceEvents": [' + bad + b"]}")
    assert isinstance(got, Trace)
    assert got.activities.ts_ns.tolist() == [1_700_000_000_123_456_789]
    assert got.quality.repaired == {"not-a-number": 1}
