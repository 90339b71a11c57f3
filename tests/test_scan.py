"""The one-pass scan: right lines, right numbers, stamps inherited, floods bounded, whatever the block edges cut."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics import floods, matcher
from forensics import scan as module
from forensics.blocks import blocks
from forensics.matcher import Matcher
from forensics.scan import Scan
from parsers.base import Context, Line, LineParser, Rows
from parsers.prefixes import PLAIN
from rules.base import Signature


def signature(name="boom", literal="BOOM", pattern=r"BOOM (?P<rank>\d+)", role="root", sources=("any",), cause="training/code-exception"):
    return Signature(name, cause, role, 0.5, (literal,), pattern, sources, {"en": name}, {}, {}, "", "test", "test", (), (), ())


def read(data: bytes, signatures=(), parsers=(), size=8 << 20, kinds=("train",)):
    rows = Rows("a.log")
    scan = Scan(Matcher(list(signatures), list(parsers)), rows, frozenset(kinds), PLAIN)
    scan.run(blocks(io.BytesIO(data), size, count=False), None)
    return rows, scan


@pytest.mark.parametrize("size", [40, 64, 1000, 8 << 20])
def test_line_numbers_are_those_of_sed_at_any_block_size(size):
    lines = [b"quiet line %d" % n for n in range(200)]
    for n in (0, 57, 198, 199):
        lines[n] = b"2026-01-02 03:04:05 BOOM %d" % n
    rows, scan = read(b"\n".join(lines), [signature()], size=size)
    assert [(e.line, e.rank) for e in rows.events] == [(1, 0), (58, 57), (199, 198), (200, 199)]
    assert scan.lines == 200


@given(
    st.lists(st.sampled_from([b"BOOM 1", b"x", b"\x00\xff\xfe", b"a\rBOOM 2\rb", b"\x1b[31mBOOM 3\x1b[0m", b"", b"tqdm\r\n"]), max_size=40),
    st.integers(1, 50),
)
@settings(max_examples=150, deadline=None)
def test_every_hit_is_found_at_its_line_and_nothing_raises(lines, size):
    data = b"\n".join(lines)
    rows, _ = read(data, [signature()], size=size)
    want = [n for n, line in enumerate(data.split(b"\n"), 1) if b"BOOM" in line]
    # A block edge may cut an overlong piece of a line, never a line that fits into a block.
    if size >= max((len(line) for line in lines), default=0) + 2:
        assert [e.line for e in rows.events] == want


def test_the_segment_with_the_literal_is_read_of_a_line_of_bars():
    rows, _ = read(b" 10%| 1/10\r 20%| 2/10\rBOOM 4 after bars\r 30%| 3/10\n", [signature()])
    assert rows.events[0].text == "BOOM 4 after bars"


def test_a_line_without_a_stamp_takes_the_nearest_above():
    rows, _ = read(b"2026-01-02 03:04:05,100 step 1\nplain\nBOOM 1\n2026-01-02 03:04:09,100 step 2\nBOOM 2\n", [signature()])
    first, second = rows.events
    assert first.inherited
    assert second.inherited
    assert second.stamp.seconds - first.stamp.seconds == pytest.approx(4.0)


def test_stamps_are_carried_over_block_edges():
    data = b"2026-01-02 03:04:05 step\n" + b"x\n" * 100 + b"BOOM 1\n"
    rows, _ = read(data, [signature()], size=64)
    assert rows.events[0].stamp is not None


def test_following_and_preceding_cross_block_edges_with_right_numbers():
    seen = {}

    def parse(line: Line, rows: Rows, context: Context) -> None:
        seen["after"] = [(near.number, near.text) for near in context.following(3)]
        seen["before"] = [(near.number, near.text) for near in context.preceding(3)]

    data = b"".join(b"line %d\n" % n for n in range(1, 8)) + b"TRIGGER\n" + b"".join(b"line %d\n" % n for n in range(9, 14))
    for size in (9, 16, 30, 4096):
        read(data, parsers=[LineParser("t", ("TRIGGER",), parse)], size=size)
        assert seen["after"] == [(9, "line 9"), (10, "line 10"), (11, "line 11")] or len(seen["after"]) < 3
        assert all(text == f"line {number}" for number, text in seen["after"] + seen["before"])
        assert seen["before"][:1] == [(7, "line 7")]


def test_a_parser_that_fails_costs_a_note():
    def parse(line: Line, rows: Rows, context: Context) -> None:
        raise RuntimeError("odd")

    rows, _ = read(b"TRIGGER\nBOOM 1\n", [signature()], [LineParser("fragile", ("TRIGGER",), parse)])
    assert len(rows.events) == 1
    assert "fragile" in rows.notes[0]


def test_a_flood_is_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(floods, "FLOOD", (50, 50))
    monkeypatch.setattr(module, "KEPT", 10)
    data = b"".join(b"BOOM %d\n" % n for n in range(3000))
    rows, _ = read(data, [signature()], size=1 << 12)
    assert 10 < len(rows.events) <= 20
    assert rows.events[0].line == 1
    assert rows.events[-1].line == 3000


def test_readings_are_spread_and_complete_at_the_end(monkeypatch):
    monkeypatch.setattr(floods, "READINGS", (100, 100))
    monkeypatch.setattr(floods, "TAIL", 5000)
    monkeypatch.setattr(floods, "SMALL", 0)
    for where in (floods, matcher):
        monkeypatch.setattr(where, "LATEST", 150)
    seen = []

    def parse(line: Line, rows: Rows, context: Context) -> None:
        seen.append(line.number)

    data = b"".join(b"loss=%d\n" % n for n in range(5000))
    rows = Rows("a.log")
    scan = Scan(Matcher([], [LineParser("m", ("loss=",), parse, readings=True)]), rows, frozenset(), PLAIN, size=len(data))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        scan.run(blocks(io.BytesIO(data), 4096, count=False), pool)
    assert len(seen) < 3500
    assert seen[-100:] == list(range(4901, 5001))


def test_sources_keep_a_kernel_signature_out_of_printed_text():
    only = signature(sources=("kernel",))
    rows, _ = read(b"model says: BOOM 1\n", [only], kinds=("train",))
    assert rows.events == []
    rows, _ = read(b"[  12.345678] BOOM 1\n", [only], kinds=("kernel",))
    assert len(rows.events) == 1


def test_nccl_info_lines_name_no_missing_library():
    other = signature(literal="libfoo", pattern="libfoo")
    rows, _ = read(b"node:1:2 [0] NCCL INFO Plugin: libfoo not found\nImportError: libfoo\n", [other])
    assert [e.line for e in rows.events] == [2]
