"""Bounded readers for the three binary framings that trackers use: protobuf wire format, TFRecord and LevelDB log blocks.

Nothing here knows a schema; damaged data ends the reading without an exception.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

LEVEL_BLOCK = 32_768
MAX_RECORD = 64 << 20
MAX_FIELDS = 200_000


def varint(data: bytes, at: int) -> tuple[int, int] | None:
    """(value, position behind it) of a variable-length integer, None where the data ends or it is longer than ten bytes."""
    value = shift = 0
    for offset in range(10):
        if at + offset >= len(data):
            return None
        byte = data[at + offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + offset + 1
        shift += 7
    return None


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of a protobuf message: integers for type 0, bytes for 1, 2 and 5."""
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= len(data):
            return
        key = varint(data, at)
        if key is None:
            return
        at = key[1]
        field, kind = key[0] >> 3, key[0] & 7
        if field == 0:
            return
        if kind == 0:
            value = varint(data, at)
            if value is None:
                return
            at = value[1]
            yield field, kind, value[0]
            continue
        if kind == 2:
            length = varint(data, at)
            if length is None:
                return
            size, at = length
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            return
        if at + size > len(data):
            return
        yield field, kind, data[at : at + size]
        at += size


def first(data: bytes, number: int) -> int | bytes | None:
    """The first value of a field, None where it is absent."""
    return next((value for field, _, value in fields(data) if field == number), None)


def text(data: bytes, number: int) -> str:
    """The first value of a text field, empty where it is absent."""
    value = first(data, number)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def double(value: int | bytes | None) -> float | None:
    """A little-endian double or float."""
    if not isinstance(value, bytes) or len(value) not in (4, 8):
        return None
    result: float = struct.unpack("<d" if len(value) == 8 else "<f", value)[0]
    return result


def tf_records(data: bytes) -> Iterator[bytes]:
    """Payloads of a TFRecord file: length (u64), its checksum, data, its checksum."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > MAX_RECORD or at + 12 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def level_records(data: bytes, start: int) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 768 bytes with pieces (checksum u32, length u16, type u8: full, first, middle, last)."""
    at, whole = start, b""
    while at + 7 <= len(data):
        left = LEVEL_BLOCK - at % LEVEL_BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 and length == 0:
            at += left  # padding up to the next block
            continue
        piece = data[at + 7 : at + 7 + length]
        at += 7 + length
        if len(piece) < length or kind not in (1, 2, 3, 4):
            return
        if kind == 1:
            yield piece
        elif kind == 2:
            whole = piece
        elif len(whole) + len(piece) <= MAX_RECORD:
            whole += piece
            if kind == 4:
                yield whole
                whole = b""
