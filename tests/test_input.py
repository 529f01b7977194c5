"""Where a trace may come from, and what is said where it is something else."""

from __future__ import annotations

import gzip
import http.server
import io
import sqlite3
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import zstandard
from kineto import Kineto

from sublight.errors import InputError
from sublight.observe.kineto import read_kineto
from sublight.observe.source import Damage, label, open_bytes
from sublight.trace import Quality


def a_run(kernels: int = 40) -> Kineto:
    k = Kineto()
    for i in range(kernels):
        k.kernel("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", 10_000 * i, 10_000 * i + 9_000,
                 launch=(10_000 * i - 5_000, 10_000 * i - 4_000))
    return k


TEXT = a_run().text().encode()
EVENTS = len(a_run().events)


def zipped(*members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def quality(path: Path) -> Quality:
    return read_kineto(str(path)).quality


# ---------------------------------------------------------------- forms that are read whole

HALF = len(TEXT) // 2
WHOLE: dict[str, tuple[str, bytes]] = {
    "plain": ("t.json", TEXT),
    "gz": ("t.json.gz", gzip.compress(TEXT)),
    "gz of three members": ("t.json.gz", b"".join(map(gzip.compress, (TEXT[:HALF], b"", TEXT[HALF:])))),
    "gz with zeros behind it": ("t.json.gz", gzip.compress(TEXT) + bytes(300_000)),
    "gz with zeros between members": ("t.gz", gzip.compress(TEXT[:HALF]) + bytes(512) + gzip.compress(TEXT[HALF:])),
    "gz stored, not deflated": ("t.json.gz", gzip.compress(TEXT, 0)),
    "gz of gz": ("t.json.gz.gz", gzip.compress(gzip.compress(TEXT))),
    "zst": ("t.json.zst", zstandard.compress(TEXT)),
    "zst of two frames": ("t.json.zst", zstandard.compress(TEXT[:HALF]) + zstandard.compress(TEXT[HALF:])),
    "zip": ("t.zip", zipped(("t.json", TEXT))),
    "zip, stored": ("t.zip", zipped(("t.json", TEXT), how=zipfile.ZIP_STORED)),
    "zip in a folder, beside a Mac's": ("t.zip", zipped(
        ("run/t.json", TEXT), ("__MACOSX/run/t.json", b"\0\5\x16\7"), ("run/.DS_Store", b"\0\0\0\1Bud1"))),
    "zip with a note": ("t.zip", zipped(("README.txt", b"hello"), ("t.pt.trace.json", TEXT))),
    "zip of gz": ("t.zip", zipped(("t.json.gz", gzip.compress(TEXT)))),
    "gz called json": ("t.json", gzip.compress(TEXT)),
    "json called gz": ("t.json.gz", TEXT),
    "zst called gz": ("t.json.gz", zstandard.compress(TEXT)),
    "zip called json": ("t.json", zipped(("t.json", TEXT))),
    "no ending": ("trace", TEXT),
}


@pytest.mark.parametrize("form", WHOLE)
def test_every_form_gives_the_same_events(form: str, tmp_path: Path) -> None:
    name, data = WHOLE[form]
    path = tmp_path / name
    path.write_bytes(data)
    q = quality(path)
    assert (q.events, q.text_bytes, q.damaged, q.files) == (EVENTS, len(TEXT), False, (name,))


def test_what_is_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    """Blocks are 256 KiB: members, frames and pieces must join across them."""
    k = a_run(6_000)
    text = k.text().encode()
    assert len(text) > 8 << 18
    third = len(text) // 3
    for name, data in {
        "t.json": text, "t.gz": gzip.compress(text[:third]) + gzip.compress(text[third:], 0),
        "t.zst": zstandard.compress(text[:third], 1) + zstandard.compress(text[third:], 19),
        "t.zip": zipped(("t.json", text), how=zipfile.ZIP_STORED),
    }.items():
        (tmp_path / name).write_bytes(data)
        q = quality(tmp_path / name)
        assert (name, q.events, q.text_bytes, q.damaged) == (name, len(k.events), len(text), False)


# ---------------------------------------------------------------- forms that are damaged


def wrong_checksum(data: bytes) -> bytes:
    return data[:-8] + bytes(b ^ 255 for b in data[-8:-4]) + data[-4:]


def zip_with_wrong_checksum() -> bytes:
    data = zipped(("t.json", TEXT))
    return data.replace(zlib.crc32(TEXT).to_bytes(4, "little"), b"\1\2\3\4")


DAMAGED_BUT_WHOLE: dict[str, tuple[str, bytes]] = {
    "gz with a wrong checksum": ("t.gz", wrong_checksum(gzip.compress(TEXT))),
    "gz without its last bytes": ("t.gz", gzip.compress(TEXT)[:-8]),
    "gz with junk behind it": ("t.gz", gzip.compress(TEXT) + b"junk"),
    "zst with junk behind it": ("t.zst", zstandard.compress(TEXT) + b"junk"),
    "zst without its checksum": ("t.zst", zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)[:-2]),
    "zip with a wrong checksum": ("t.zip", zip_with_wrong_checksum()),
}


@pytest.mark.parametrize("form", DAMAGED_BUT_WHOLE)
def test_damage_behind_the_last_event_costs_no_event_and_is_said(form: str, tmp_path: Path) -> None:
    name, data = DAMAGED_BUT_WHOLE[form]
    path = tmp_path / name
    path.write_bytes(data)
    q = quality(path)
    assert (q.events, q.lost, q.cut_short) == (EVENTS, 0, True)


@pytest.mark.parametrize("pack", ["gz", "gz of stored blocks", "zst"])
def test_of_a_stream_that_breaks_off_all_is_kept_that_came_before(pack: str, tmp_path: Path) -> None:
    k = a_run(6_000)
    text = k.text().encode()
    data = {"gz": gzip.compress(text), "gz of stored blocks": gzip.compress(text, 0),
            "zst": zstandard.compress(text)}[pack]
    path = tmp_path / "t"
    path.write_bytes(data[: len(data) // 2])
    q = quality(path)
    assert q.cut_short
    assert len(k.events) / 4 < q.events < len(k.events)


def test_of_a_gz_damaged_in_the_middle_all_is_kept_up_to_the_last_sound_byte(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(TEXT))
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    kept = b""
    stream = zlib.decompressobj(31)
    for byte in data:                            # the slow way: byte by byte until zlib refuses
        try:
            kept += stream.decompress(bytes([byte]))
        except zlib.error:
            break
    path = tmp_path / "t.gz"
    path.write_bytes(data)
    damage = Damage()
    got = b"".join(open_bytes(str(path), damage))
    assert got.startswith(kept)
    assert len(kept) > 100
    assert damage.cut_short


def test_of_a_zip_damaged_in_the_middle_what_came_before_is_kept(tmp_path: Path) -> None:
    data = bytearray(zipped(("t.json", TEXT)))
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64
    path = tmp_path / "t.zip"
    path.write_bytes(data)
    q = quality(path)
    assert q.cut_short
    assert 0 < q.events < EVENTS


# ---------------------------------------------------------------- the command: standard input, URLs, refusals


def sublight(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "sublight", *arguments], input=data, capture_output=True,
                          timeout=60, check=False)


@pytest.mark.parametrize("data", [TEXT, gzip.compress(TEXT), zipped(("t.json", TEXT))], ids=["plain", "gz", "zip"])
def test_standard_input(data: bytes) -> None:
    done = sublight("explain", "-", "--format", "md", data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"**standard input")
    assert f"{EVENTS} events".encode() in done.stdout


def test_standard_input_can_be_named_once() -> None:
    done = sublight("explain", "-", "-", data=TEXT)
    refused(done, "standard input can be read only once")


class Server(http.server.BaseHTTPRequestHandler):
    """A few fixed answers, on this machine only."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/t.json": (200, TEXT), "/packed": (200, gzip.compress(TEXT)), "/empty": (200, b""),
        "/page": (200, b"<!DOCTYPE html><html><body>Sign in</body></html>"), "/broken": (500, b"oops"),
    }

    def do_GET(self) -> None:
        code, body = self.answers.get(self.path.split("?")[0], (404, b"not here"))
        self.send_response(code)
        promised = len(body) + (100 if "short" in self.path else 0)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if "short" in self.path else body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


@pytest.mark.parametrize("where", ["/t.json", "/packed", "/t.json?token=S3CRET"])
def test_urls_are_read(where: str, server: str) -> None:
    trace = read_kineto(server + where)
    assert (trace.quality.events, trace.quality.damaged) == (EVENTS, False)
    assert trace.quality.files == (where[1:].split("?")[0],)


def test_a_url_that_breaks_off_is_cut_short(server: str) -> None:
    q = read_kineto(server + "/t.json?short").quality
    assert q.cut_short
    assert 0 < q.events < EVENTS


@pytest.mark.parametrize(("where", "said"), [
    ("/gone.json?token=S3CRET", "cannot fetch gone.json: the server answered 404"),
    ("/broken", "cannot fetch broken: the server answered 500"),
    ("/page", "page is a web page"),
    ("/empty", "empty is empty"),
])
def test_urls_that_hold_no_trace(where: str, said: str, server: str) -> None:
    done = sublight("explain", server + where)
    refused(done, said)
    assert b"S3CRET" not in done.stderr


def test_a_server_that_does_not_answer() -> None:
    refused(sublight("explain", "http://127.0.0.1:9/t.json"), "cannot fetch t.json: ConnectionRefusedError")
    refused(sublight("explain", "http://bad host/t.json"), "cannot fetch t.json")


def refused(done: subprocess.CompletedProcess[bytes], said: str) -> None:
    """Exit code 2, one line on standard error, nothing on standard output."""
    error = done.stderr.decode()
    assert done.returncode == 2
    assert done.stdout == b""
    assert error.startswith("sublight: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert said in error


def sqlite_file(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
    database.close()


def encrypted_zip(path: Path) -> None:
    """The flag of encryption, set in both headers of a plain zip."""
    data = bytearray(zipped(("t.json", TEXT)))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)


def writes(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


NOT_TRACES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "sqlite": ("t.sqlite", sqlite_file, "holds no kernels, copies or memsets"),
    "nsys": ("t.nsys-rep", writes(b"\x17\xd6" + bytes(range(256)) * 20), "got a report of NVIDIA Nsight"),
    "png": ("t.png", writes(b"\x89PNG\r\n\x1a\n" + bytes(100)), "is a picture"),
    "html": ("t.json", writes(b"\n<!DOCTYPE html><html>"), "is a web page"),
    "pdf": ("t.json", writes(b"%PDF-1.7"), "is a PDF"),
    "bzip2": ("t.json.bz2", writes(b"BZh91AY&SY"), "is a bzip2 file"),
    "xz": ("t.json.xz", writes(b"\xfd7zXZ\0\0"), "is an xz file"),
    "utf-16": ("t.json", writes('{"traceEvents": []}'.encode("utf-16")), "is UTF-16 text"),
    "text": ("t.txt", writes(b"hello\n"), "got something else"),
    "other json": ("t.json", writes(b'{"a": 1}'), "got JSON without one"),
    "no events": ("t.json", writes(b'{"traceEvents": []}'), "no device activity"),
    "empty": ("t.json", writes(b""), "is empty"),
    "empty gz": ("t.json.gz", writes(gzip.compress(b"")), "is empty"),
    "gz of nothing but damage": ("t.json.gz", writes(gzip.compress(TEXT)[:12]), "is damaged"),
    "folder": ("folder", lambda path: path.mkdir(), "is a folder without traces"),
    "missing": ("gone.json", lambda path: None, "no such file"),
    "zip of two": ("t.zip", writes(zipped(("a.json", TEXT), ("b.json", TEXT))), "holds 2 files"),
    "zip of none": ("t.zip", writes(zipped(("__MACOSX/._t.json", b"\0"))), "holds 0 files"),
    "zip without its index": ("t.zip", writes(zipped(("t.json", TEXT))[:200]), "damaged zip"),
    "zip, encrypted": ("t.zip", encrypted_zip, "is encrypted"),
    "zip in lzma": ("t.zip", writes(zipped(("t.json", TEXT), how=zipfile.ZIP_LZMA)), "packed in another way"),
    "tower": ("t.gz", writes(gzip.compress(gzip.compress(gzip.compress(gzip.compress(TEXT))))), "archive inside"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", NOT_TRACES)
def test_what_is_no_trace_gets_one_line(kind: str, tmp_path: Path) -> None:
    name, make, said = NOT_TRACES[kind]
    path = tmp_path / name
    make(path)
    refused(sublight("explain", str(path), "--format", "json"), said)


def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(TEXT)
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        refused(sublight("explain", str(path)), "cannot open t.json: PermissionError")
    else:
        pytest.skip("this user may read everything")


def test_a_read_error_half_way_is_an_error_and_not_a_short_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(100)

    monkeypatch.setattr("sublight.observe.source._open_raw", lambda path: Failing(TEXT))
    with pytest.raises(InputError, match=r"reading t\.json stopped: OSError"):
        read_kineto(str(tmp_path / "t.json"))


@pytest.mark.parametrize(("path", "expected"), [
    ("-", "standard input"), ("/home/someone/run/t.json", "t.json"), ("t.json.gz", "t.json.gz"),
    ("https://user:pass@host/a/b/t.json?key=1#x", "t.json"), ("https://host/", "input"),
    ("what?#.json", "what?#.json"),
])
def test_an_input_is_named_by_its_last_part(path: str, expected: str) -> None:
    assert label(path) == expected
