"""Fatbins: what nvcc packs in each way comes out whole; damage is one clear error, or an entry that says what it is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import cubins
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sublight.errors import InputError
from sublight.kernels.inspect import fatbin, lz4
from sublight.kernels.inspect.cubin import read_cubin
from sublight.kernels.inspect.fatbin import ACCELERATED, CUBIN, LZ4, PTX, ZSTD, entries

TEXT = b"abc" * 40 + bytes(range(256)) * 3 + b"tail"


def packed(text: bytes) -> bytes:
    """An LZ4 block, greedily: runs become matches, the rest literals. Ends in literals, as the format asks."""
    out, at, start = bytearray(), 0, 0
    while at < len(text) - 12:
        earlier = text.rfind(text[at:at + 4], max(0, at - 65535), at)
        if earlier < 0:
            at += 1
            continue
        length = 4
        while at + length < len(text) - 5 and text[earlier + length] == text[at + length] and length < 5000:
            length += 1
        out += sequence(text[start:at], at - earlier, length)
        at = start = at + length
    return bytes(out + sequence(text[start:], 0, 4))


def sequence(literals: bytes, distance: int, length: int) -> bytes:
    def more(rest: int) -> bytes:
        return b"" if rest < 0 else b"\xff" * (rest // 255) + bytes([rest % 255])

    token = bytes([min(len(literals), 15) << 4 | min(length - 4, 15)])
    tail = distance.to_bytes(2, "little") + more(length - 4 - 15) if distance else b""
    return token + more(len(literals) - 15) + literals + tail


def test_lz4_blocks_come_out_whole() -> None:
    assert lz4.unpacked(packed(TEXT), len(TEXT)) == TEXT
    assert len(packed(TEXT)) < len(TEXT) // 2, "no match was packed, so none was tested"


@given(st.binary(max_size=60), st.integers(1, 60), st.binary(max_size=600))
@settings(max_examples=50, deadline=None)
def test_lz4_of_anything(piece: bytes, times: int, rest: bytes) -> None:
    text = piece * times + rest
    assert lz4.unpacked(packed(text), len(text)) == text


@pytest.mark.parametrize("block", [
    b"\xf0", b"\xf0\xff\xff", b"\x10", b"\x14a\x00", b"\x10a\x00\x00", b"\x10a\x05\x00", b"\x30ab"])
def test_damaged_lz4_is_refused(block: bytes) -> None:
    with pytest.raises(lz4.DamagedError):
        lz4.unpacked(block, 10)


def test_lz4_never_makes_more_than_it_was_told() -> None:
    with pytest.raises(lz4.DamagedError, match="outside"):
        lz4.unpacked(b"\x1fa\x01\x00" + b"\xff" * 100_000 + b"\x00", 1000)


def test_entries_plain_and_packed() -> None:
    data = cubins.cubin()
    data += b"\0" * (-len(data) % 8)                 # what is not packed has no length of its own
    file = cubins.fatbin((CUBIN, 80, 0x11, data, 0),
                         (CUBIN, 90, ACCELERATED | ZSTD, zstandard.compress(data), len(data)),
                         (PTX, 90, LZ4, packed(TEXT), len(TEXT)), (64, 100, 0, b"tile", 0))
    assert [(entry.kind, entry.arch, entry.data) for entry in entries(file, "x")] == [
        ("cubin", "sm_80", data), ("cubin", "sm_90a", data), ("ptx", "sm_90", TEXT), ("other", "sm_100", None)]


def test_containers_that_follow_each_other() -> None:
    one = cubins.fatbin((CUBIN, 80, 0, cubins.cubin(), 0))
    assert len(list(entries(one + b"\0" * 24 + one, "x"))) == 2


@pytest.mark.parametrize(("flags", "data", "size", "says"), [
    (ZSTD, b"no zstd", 100, "zstd cannot read it"),
    (ZSTD, zstandard.compress(b"a" * 1000), 999, "expected 999"),
    (LZ4, packed(TEXT), len(TEXT) + 1, "expected 893"),
    (ZSTD, b"", fatbin.LARGEST + 1, "bytes unpacked"),
])
def test_an_entry_that_cannot_be_unpacked_says_why(flags: int, data: bytes, size: int, says: str) -> None:
    entry, = entries(cubins.fatbin((CUBIN, 90, flags, data, size)), "x")
    assert entry.data is None
    assert says in entry.missing


@pytest.mark.parametrize("cut", [17, 40, 79, 200])
def test_a_truncated_fatbin_is_one_error(cut: int) -> None:
    with pytest.raises(InputError, match="damaged or cut short"):
        list(entries(cubins.fatbin((CUBIN, 80, 0, cubins.cubin(), 0))[:cut], "x"))


def test_the_kept_fatbin() -> None:
    kinds = [(entry.kind, entry.arch) for entry in entries(cubins.FATBIN.read_bytes(), "x")]
    assert kinds == [("cubin", "sm_80"), ("ptx", "sm_80"), ("cubin", "sm_90a")]
    last = [entry.data for entry in entries(cubins.FATBIN.read_bytes(), "x")][-1]
    assert last is not None
    assert [f.resources for f in read_cubin(last, "x").functions] == [
        f.resources for f in read_cubin(cubins.BEFORE.read_bytes(), "x").functions]


def test_of_code_that_was_linked_the_unlinked_pieces_are_left_alone() -> None:
    linked, piece = (cubins.fatbin((CUBIN, sm, 0, cubins.cubin(), 0)) for sm in (80, 90))
    both = cubins.program(**{".nv_fatbin": linked, "__nv_relfatbin": piece})
    assert [entry.arch for entry in fatbin.inside(both, "x")] == ["sm_80"]
    assert [entry.arch for entry in fatbin.inside(cubins.program(__nv_relfatbin=piece), "x")] == ["sm_90"]


@pytest.mark.parametrize(("section", "says"), [(".hip_fatbin", "AMD"), (".text", "without code of CUDA")])
def test_programs_without_code_of_cuda(section: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        list(fatbin.inside(cubins.program(**{section: b"x"}), "x"))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_changed_bytes_give_entries_or_one_error(data: st.DataObject) -> None:
    damaged = bytearray(cubins.FATBIN.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[:data.draw(st.integers(0, len(damaged)))])
    for each in (bytes(damaged), cut):
        with contextlib.suppress(InputError):
            list(entries(each, "x"))


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["default", "size", "speed"])
def test_each_way_in_which_nvcc_packs(mode: str, tmp_path: Path) -> None:
    cubins.nvcc((cubins.EXAMPLES / "tiles.cu").read_text(), tmp_path, "-DBLOCKS=8", f"--compress-mode={mode}",
                "-gencode", "arch=compute_80,code=[sm_80,compute_80]", "-gencode", "arch=compute_90a,code=sm_90a",
                "-fatbin", "-o", "x.fatbin")
    ours = {entry.data.rstrip(b"\0") for entry in entries((tmp_path / "x.fatbin").read_bytes(), "x") if entry.data}
    cubins.cuobjdump("-xelf", "all", "-xptx", "all", "x.fatbin", cwd=tmp_path)
    theirs = {path.read_bytes().rstrip(b"\0") for path in tmp_path.iterdir() if path.suffix in (".cubin", ".ptx")}
    assert len(theirs) == 3
    assert ours == theirs


@pytest.mark.heavy
def test_code_inside_a_program(tmp_path: Path) -> None:
    source = (cubins.EXAMPLES / "tiles.cu").read_text() + "int main() { return 0; }"
    cubins.nvcc(source, tmp_path, "-DBLOCKS=8", "-arch=sm_90a", "-o", "program")
    names = {function.name for entry in fatbin.inside((tmp_path / "program").read_bytes(), "x")
             if entry.kind == "cubin" and entry.data for function in read_cubin(entry.data, "x").functions}
    assert names == {"running_sums", "tile_product"}
