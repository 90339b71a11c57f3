"""Blocks: whole lines, LF numbers, bounded memory, any encoding, damaged compression."""

import bz2
import gzip
import io
import lzma

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.blocks import Bounded, Refused, blocks, compression, encoding, open_plain


@given(st.binary(max_size=3000), st.integers(1, 400))
@settings(max_examples=200)
def test_nothing_is_lost_and_lines_are_counted_as_sed_counts(data, size):
    found = list(blocks(io.BytesIO(data), size)) if not encoding(data[:size]) else None
    if found is None:
        return
    assert b"".join(block.data for block in found) == data
    line = 1
    for block in found:
        assert block.first_line == line
        assert block.lines == block.data.count(b"\n")
        line += block.lines


def test_an_endless_line_comes_in_pieces_that_share_its_number():
    found = list(blocks(io.BytesIO(b"a\n" + b"x" * 5000 + b"\nb\n"), 1000))
    assert max(len(block.data) for block in found) <= 2000
    assert [block.first_line for block in found if b"x" in block.data] == [1, 2, 2, 2, 2] or all(
        block.first_line in (1, 2) for block in found if b"x" in block.data
    )
    assert found[-1].data.endswith(b"b\n")


@pytest.mark.parametrize("name", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_utf16_is_read_with_and_without_a_mark(name, mark):
    text = mark + "step 1 loss 2.5\nstep 2 loss 2.4\n" * 40
    data = b"".join(block.data for block in blocks(io.BytesIO(text.encode(name)), 333))
    assert data.decode().lstrip("\ufeff") == text.lstrip("\ufeff")


@pytest.mark.parametrize(
    ("kind", "pack"),
    [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress), ("zstd", lambda d: zstandard.ZstdCompressor().compress(d))],
)
def test_compression_is_told_by_content_and_truncation_keeps_what_was_read(tmp_path, kind, pack):
    text = b"".join(b"line %d\n" % n for n in range(50_000))
    packed = pack(text)
    assert compression(packed[:8]) == kind
    whole, cut = tmp_path / "odd.name", tmp_path / "cut"
    whole.write_bytes(packed)
    cut.write_bytes(packed[: len(packed) // 2])
    with open_plain(whole) as stream:
        assert b"".join(block.data for block in blocks(stream)) == text
    notes: list[str] = []
    with open_plain(cut) as stream:
        got = b"".join(block.data for block in blocks(stream, 4096, notes.append))
    assert text.startswith(got)


def test_concatenated_gzip_members_are_one_log(tmp_path):
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    with open_plain(path) as stream:
        assert stream.read() == b"one\ntwo\n"


def test_a_bomb_is_refused_with_a_note(tmp_path):
    notes: list[str] = []
    stream = Bounded(io.BytesIO(b"0" * 10_000), 5_000)
    list(blocks(stream, 1000, notes.append))
    assert notes
    assert "unpacks" in notes[0]
    with pytest.raises(Refused):
        Bounded(io.BytesIO(b"0" * 10), 5).read()


class Failing(io.RawIOBase):
    def __init__(self):
        self.calls = 0

    def readable(self):
        return True

    def read(self, size=-1):
        self.calls += 1
        if self.calls > 2:
            raise OSError(5, "Input/output error")
        return b"line\n" * 10


def test_a_read_error_ends_the_file_with_a_note():
    notes: list[str] = []
    found = list(blocks(Failing(), 50, notes.append))
    assert sum(block.lines for block in found) == 20
    assert "Input/output error" in notes[0]
