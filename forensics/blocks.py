"""Bytes -> blocks of whole lines with line numbers, in bounded memory.

Line numbers count LF, as `sed -n Np` does.  A line longer than a block comes in pieces that share its number.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 8 << 20
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2", ".lz4": ""}
MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"))
# A text log compresses 5 to 40 times; runs of equal lines reach some hundreds.  Beyond this, and this size, it is a bomb.
MAX_RATIO = 2_000
MAX_UNPACKED = 1 << 30


class Refused(ValueError):
    """Evidence that will not be read; the message says why, for the report."""


@dataclass(slots=True)
class Block:
    """`data` holds whole lines (the last may lack its LF at the end of the file, or be a piece of an overlong line)."""

    data: bytes
    first_line: int
    lines: int  # LFs in data


def compression(head: bytes) -> str:
    """The compression that the first bytes betray, or an empty string."""
    return next((name for magic, name in MAGIC if head.startswith(magic)), "")


def is_compressed(path: Path) -> bool:
    """Whether the file's first bytes are those of a compression that is read here."""
    try:
        with path.open("rb") as raw:
            return bool(compression(raw.read(8)))
    except OSError:
        return False


def open_plain(path: Path, limit_ratio: int = MAX_RATIO) -> io.BufferedIOBase:
    """A binary stream of the file's content, decompressed where its first bytes say so."""
    raw = path.open("rb")
    kind = compression(raw.peek(8)[:8])
    if not kind:
        return raw
    size = max(1, path.stat().st_size)
    stream: io.BufferedIOBase
    if kind == "gzip":
        stream = gzip.GzipFile(fileobj=raw)
    elif kind == "xz":
        stream = lzma.LZMAFile(raw)
    elif kind == "bzip2":
        stream = bz2.BZ2File(raw)
    else:
        import zstandard

        stream = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return Bounded(stream, max(MAX_UNPACKED, size * limit_ratio))


def open_again(path: Path, note: Callable[[str], None] | None = None) -> io.BufferedIOBase:
    """`open_plain` for a file already listed: one that has vanished or cannot be read any more is an empty one, and `note` is told."""
    try:
        return open_plain(path)
    except OSError as error:
        if note:
            note(f"could not be read any more: {error.strerror or error}")
        return io.BytesIO()


class Bounded(io.BufferedIOBase):
    """A stream that refuses to give more than `limit` bytes, and closes what is below it."""

    def __init__(self, below: io.BufferedIOBase, limit: int):
        self.below = below
        self.left = limit

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self.below.read(size if size is not None and size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise Refused("unpacks to far more than a log does; the rest was not read")
        return data

    def read1(self, size: int = -1) -> bytes:
        data = self.below.read1(size if size >= 0 else 1 << 20)
        self.left -= len(data)
        if self.left < 0:
            raise Refused("unpacks to far more than a log does; the rest was not read")
        return data

    def close(self) -> None:
        self.below.close()
        super().close()


def encoding(head: bytes) -> str:
    """`utf-16-le`, `utf-16-be`, `utf-32-*` where the first bytes show it, else an empty string (8-bit, ASCII-compatible)."""
    for mark, name in ((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if head.startswith(mark):
            return name
    sample = head[:4096]
    if len(sample) >= 64:
        even, odd = sample[0::2].count(0), sample[1::2].count(0)
        half = len(sample) // 2
        if odd > 0.8 * half and even < 0.05 * half:
            return "utf-16-le"
        if even > 0.8 * half and odd < 0.05 * half:
            return "utf-16-be"
    return ""


def fill(stream: io.BufferedIOBase, size: int) -> tuple[bytes, str]:
    """Up to `size` bytes, and what went wrong if something did: the bytes before an error are not lost, as they are in one large `read`."""
    read = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    left = size
    trouble = ""
    try:
        while left > 0 and (data := read(left)):
            parts.append(data)
            left -= len(data)
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        trouble = str(error)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("zlib", "zstandard", "_lzma", "_bz2"):
            raise
        trouble = f"damaged compressed data ({error})"
    return b"".join(parts), trouble


def blocks(
    stream: io.BufferedIOBase, size: int = BLOCK, on_error: Callable[[str], None] | None = None, count: bool = True
) -> Iterator[Block]:
    """Yield the stream's blocks.  A read error ends the file: what was read stands, and `on_error` is told.

    With `count` off `first_line` and `lines` are left at 0 for the reader to fill: counting is a pass of its own.
    """
    rest, line, first, ended = b"", 1, True, False
    decoder: codecs.IncrementalDecoder | None = None
    while True:
        data, trouble = (b"", "") if ended else fill(stream, size)
        if trouble:
            ended = True
            if on_error:
                on_error(f"reading stopped early: {trouble}")
        if first:
            first = False
            name = encoding(data)
            decoder = codecs.getincrementaldecoder(name)("replace") if name else None
        last = not data
        if decoder is not None:
            data = decoder.decode(data, last).encode("utf-8", "replace")
        if last:
            rest += data
            if rest:
                yield Block(rest, line, rest.count(b"\n")) if count else Block(rest, 0, 0)
            return
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            if len(rest) >= size:
                yield Block(rest, line, 0)
                rest = b""
            continue
        whole = data if cut == len(data) and not rest else b"".join((rest, memoryview(data)[:cut]))
        rest = data[cut:]
        lines = whole.count(b"\n") if count else 0
        yield Block(whole, line if count else 0, lines)
        line += lines
