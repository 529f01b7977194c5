"""This file knows about LZ4 blocks, which CUDA 12 and before (and `nvcc --compress-mode=speed`) pack code with.

The block format alone, without frames: lz4's lz4_Block_format.md.
"""

from __future__ import annotations

MIN_MATCH = 4


class DamagedError(ValueError):
    """The block does not hold what it says."""


def unpacked(block: bytes, size: int) -> bytes:
    """The `size` bytes that a block holds. Raises DamagedError where it holds others; never makes more than `size`.

    >>> unpacked(bytes([0x32]) + b"abc" + bytes([3, 0]) + bytes([0x10]) + b"d", 10)
    b'abcabcabcd'
    """
    out, at = bytearray(), 0
    while at < len(block):
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        if at + literals > len(block) or len(out) + literals > size:
            raise DamagedError("literals beyond the end")
        out += block[at:at + literals]
        at += literals
        if at == len(block):                         # the last sequence has no match
            break
        if at + 2 > len(block):
            raise DamagedError("no room for an offset")
        distance = int.from_bytes(block[at:at + 2], "little")
        count, at = _length(block, at + 2, token & 15)
        count += MIN_MATCH
        if not 0 < distance <= len(out) or len(out) + count > size:
            raise DamagedError("a match outside the text")
        _repeat(out, distance, count)
    if len(out) != size:
        raise DamagedError(f"{len(out)} bytes, expected {size}")
    return bytes(out)


def _length(block: bytes, at: int, nibble: int) -> tuple[int, int]:
    """A length, and where what follows begins: 15 goes on in bytes until one is not 255."""
    if nibble < 15:
        return nibble, at
    while at < len(block):
        nibble += block[at]
        at += 1
        if block[at - 1] != 255:
            return nibble, at
    raise DamagedError("a length without an end")


def _repeat(out: bytearray, distance: int, count: int) -> None:
    """Append `count` bytes from `distance` back; they may overlap what is being written."""
    start = len(out) - distance
    piece = bytes(out[start:start + min(distance, count)])
    out += (piece * (count // len(piece) + 1))[:count]
