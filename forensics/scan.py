"""One pass over a text file: literals found in whole blocks, and Python objects only for the lines that hold one.

While a block's lines are looked at, the next one is read and searched on another thread.  Signatures and
parsers' triggers share one search.  What one literal may cost is bounded (`forensics.floods`).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from forensics.blocks import Block
from forensics.floods import Floods, Shared
from forensics.literals import Hit
from forensics.matcher import PATIENCE, Matcher
from forensics.stamps import find_stamp
from parsers.base import Context, Event, Line, Rows, Stamp
from parsers.prefixes import Style, clean, strip
from rules.base import Signature

KEPT = 120  # confirmed lines per signature and file that are kept, at each end
TEXT = 32 << 10  # bytes of one segment that are looked at
LONG = (8 << 20, 4 << 10)  # of a file's segments above the second figure: bytes looked at before only so much of each is read
REACH = 64 << 10  # bytes around a block's edges that stay visible
INDEXED = 8192  # lines after which the offset of one is kept, so that cited lines are found again without reading the file anew
BACK = 300  # lines searched upwards for a stamp

Ends = np.ndarray[Any, np.dtype[np.intp]]

# What every written time has somewhere: hours and minutes, a kernel's or an epoch's seconds, or a syslog-like month.
CLOCK_LIKE = re.compile(rb"\d[:.,h]\d\d|\d{10}")
KERNEL_LINE = re.compile(r"(?:^|\s)kernel:|NVRM: |^\[\s*\d+\.\d{6}\]|^\w+\s*:\w+\s*: \[|SXid|^\d+,\d+,\d+,[-c]")


@dataclass
class Scan:
    """State of one file while it is read."""

    matcher: Matcher
    rows: Rows
    kinds: frozenset[str]
    style: Style
    lines: int = 0
    read: int = 0  # bytes
    confirmed: Counter[int] = field(default_factory=Counter)  # per signature
    late: dict[int, deque[Event]] = field(default_factory=dict)
    seen_kinds: Counter[str] = field(default_factory=Counter)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    carry: Stamp | None = None
    carry_line: int = 0
    stamp_line: int = 0  # where `carry` stands
    tried: int = 0
    stamped: int = 0
    before: bytes = b""
    find: Callable[[str], Stamp | None] = find_stamp  # see forensics.odd_stamps
    next_line: int = 1  # number of the line that the next block begins with
    size: int = 0  # bytes of the file, 0 where unknown (compressed)
    shared: Shared = field(default_factory=Shared)  # with the other logs of the run
    long: int = 0  # bytes looked at of long segments
    index: list[tuple[int, int]] = field(default_factory=list)  # (line number, offset in what was read) every INDEXED lines

    def run(self, blocks: Iterator[Block], pool: ThreadPoolExecutor | None) -> None:
        """Read all blocks of the file; with a pool the next one is read ahead on it."""
        floods = Floods(self.matcher, self.shared, self.size)
        for piece, following in _ahead(blocks, floods, pool):
            data = piece.block.data
            hits = floods.chosen(piece.hits, data, self.read, piece.left_out)
            self.block(piece.block, piece.ends, hits, following.block if following else None)
        for number, events in self.late.items():
            self.rows.events.extend(events)
            dropped = self.confirmed[number] - KEPT - len(events)
            if dropped > 0 and events:
                events[-1].fields["left_out"] = dropped

    def block(self, block: Block, ends: Ends, hits: list[Hit], following: Block | None) -> None:
        """Read the lines of one block that hold one of `hits` (in the order of their starts).  `ends` are the offsets of its line feeds."""
        block.first_line = self.next_line
        block.lines = len(ends)
        every = ends[INDEXED - 1 :: INDEXED].tolist()
        self.index.extend((block.first_line + n * INDEXED, self.read + end + 1) for n, end in enumerate(every, 1))
        self.read += len(block.data)
        reader = _Reader(self, block, following)
        if hits:
            for begin, end, number, literals in self._segments(block, ends, hits):
                self._segment(reader, begin, end, number, literals)
        self.next_line = block.first_line + block.lines
        self.lines = self.next_line - (1 if block.data.endswith(b"\n") else 0)
        # The last stamp of the block serves the next one's first lines.
        reader.inherit(len(block.data), self.next_line)
        self.before = block.data[-REACH:]

    def _segments(self, block: Block, ends: Ends, hits: list[Hit]) -> Iterator[tuple[int, int, int, set[int]]]:
        """(begin, end, line number, literals in it) of each line, or piece of one between CRs, that holds a hit."""
        data = block.data
        lines = np.searchsorted(ends, np.fromiter((hit[1] for hit in hits), dtype=np.int64, count=len(hits)))
        bounds = np.concatenate(([-1], ends, [len(data)]))
        returns = b"\r" in data
        begin = end = -1
        number = 0
        group: set[int] = set()
        for (literal, start, stop), line, first, last in zip(
            hits, lines.tolist(), bounds[lines].tolist(), bounds[lines + 1].tolist(), strict=True
        ):
            if start < end:
                group.add(literal)
                continue
            if group:
                yield begin, end, number, group
            number = block.first_line + line
            begin = max(first, start - self.text // 2) + 1
            end = last
            if returns:
                begin = max(begin, data.rfind(b"\r", begin, start) + 1)
                back = data.find(b"\r", stop, last)
                end = last if back < 0 else back
            group = {literal}
        if group:
            yield begin, end, number, group

    @property
    def text(self) -> int:
        """How many bytes of one segment are looked at."""
        return TEXT if self.long < LONG[0] else LONG[1]

    def _segment(self, reader: _Reader, begin: int, end: int, number: int, literals: set[int]) -> None:
        line = reader.line(begin, end, number)
        before = (len(self.rows.events), len(self.rows.metrics))
        signatures, parsers = self.matcher.meant_by(frozenset(literals))
        if parsers:
            self._parse(reader, line, begin, end, parsers)
        for which in signatures:
            signature = self.matcher.signatures[which]
            if not self._applies(which, signature, line):
                continue
            if self.matcher.timeouts[which] >= PATIENCE:
                self.rows.note(f"the pattern of signature {signature.id} takes too long; it was left out")
                continue
            groups = self.matcher.confirm(which, line.text)
            if groups is None and line.full != line.text:
                groups = self.matcher.confirm(which, line.full)
            if groups is not None:
                self._keep(which, signature, line, groups)
        if (len(self.rows.events), len(self.rows.metrics)) != before:
            self.shared.said.update(literals)
        else:
            self.shared.silent.update(literals)

    def _parse(self, reader: _Reader, line: Line, begin: int, end: int, parsers: tuple[int, ...]) -> None:
        rows = self.rows
        before = (len(rows.events), len(rows.metrics))
        for which in parsers:
            parser = self.matcher.parsers[which]
            context = Context(
                partial(reader.following, end, line.number, of=line),
                partial(reader.preceding, begin, line.number, of=line),
                self.states.setdefault(which, {}),
            )
            try:
                parser.parse(line, rows, context)
            except Exception as error:
                rows.note(f"the {parser.name} reader failed on line {line.number} ({type(error).__name__}: {error}); the line was left out")
            after = (len(rows.events), len(rows.metrics))
            if after != before:
                before = after
                if parser.kind:
                    self.seen_kinds[parser.kind] += 1

    def _applies(self, which: int, signature: Signature, line: Line) -> bool:
        # NCCL tells at INFO what it tried: a plug-in that is not there is no missing library.
        if self.matcher.not_nccl[which] and "NCCL INFO" in line.full:
            return False
        if "any" in signature.sources or not signature.sources or not self.kinds:
            return True
        if not self.kinds.isdisjoint(signature.sources) or "text" in self.kinds:
            return True
        is_kernel = bool(KERNEL_LINE.search(line.full))
        return "kernel" in signature.sources if is_kernel else "train" in signature.sources and "kernel" not in self.kinds

    def _keep(self, which: int, signature: Signature, line: Line, groups: dict[str, str]) -> None:
        self.confirmed[which] += 1
        event = Event(
            "signature",
            self.rows.source,
            line.number,
            line.text[:2000],
            signature=signature.id,
            severity="error" if signature.role in ("root", "consequence") else "info",
            stamp=line.stamp,
            inherited=line.inherited,
            stamp_line=line.stamp_line,
            rank=_integer(groups.get("rank")) if "rank" in groups else line.rank,
            host=groups.get("host") or line.host,
            pid=_integer(groups.get("pid")) if "pid" in groups else line.pid,
            gpu=groups.get("pci") or groups.get("gpu"),
            fields=dict(groups),
        )
        if self.confirmed[which] <= KEPT:
            self.rows.events.append(event)
        else:
            self.late.setdefault(which, deque(maxlen=KEPT)).append(event)


class _Scanned(Line):
    """A line whose stamp, its own or an inherited one, is looked for when somebody asks: most lines with a literal say nothing in the end.

    The three fields of the stamp are unset until then.
    """

    __slots__ = ("above",)
    above: tuple[_Reader, int] | Line  # the reader and the line's offset in its block, or the line it is a neighbour of

    def __getattr__(self, name: str) -> Any:
        if name not in ("stamp", "inherited", "stamp_line"):
            raise AttributeError(name)
        above = self.above
        self.stamp, self.inherited, self.stamp_line = None, False, 0
        if isinstance(above, Line):
            self.stamp, self.inherited, self.stamp_line = above.stamp, True, above.stamp_line or above.number
        else:
            reader, begin = above
            self.stamp = reader.own(self)
            if self.stamp is None and reader.scan.carry_line < self.number:  # else asked too late: what is known by now may stand below
                self.stamp = reader.inherit(begin, self.number)
                if self.stamp is not None:
                    self.inherited, self.stamp_line = True, reader.scan.stamp_line
        return object.__getattribute__(self, name)


class _Reader:
    """Makes `Line`s from one block, with the edges of its neighbours in view."""

    def __init__(self, scan: Scan, block: Block, following: Block | None):
        self.scan = scan
        self.block = block
        self.after = following.data[:REACH] if following else b""

    def line(self, begin: int, end: int, number: int) -> Line:
        full = clean(self.block.data[begin : min(end, begin + self.scan.text)])
        if len(full) > LONG[1]:
            self.scan.long += len(full)
        return self._prefixed(full, number, (self, begin))

    def own(self, line: Line) -> Stamp | None:
        """The stamp that a line of this block bears itself."""
        scan = self.scan
        stamp = scan.find(line.full)
        scan.tried += 1
        if stamp is not None:
            scan.stamped += 1
            if line.number > scan.carry_line:
                scan.carry, scan.carry_line, scan.stamp_line = stamp, line.number, line.number
        return stamp

    def _prefixed(self, full: str, number: int, above: tuple[_Reader, int] | Line) -> Line:
        found = strip(full, self.scan.style)
        line = _Scanned(self.scan.rows.source, number, found.text, full, found.rank, found.host, found.pid, found.actor)
        line.above = above
        del line.stamp, line.inherited, line.stamp_line
        return line

    def inherit(self, begin: int, number: int) -> Stamp | None:
        """The nearest stamp above `begin`; lines between here and the last one found are tried once."""
        scan, data = self.scan, self.block.data
        end = data.rfind(b"\n", 0, begin)
        line, limit = number - 1, BACK if scan.stamped or scan.tried < 400 else 12
        while end > 0 and line > scan.carry_line and limit:
            begin = data.rfind(b"\n", 0, end) + 1
            piece = data[begin : min(end, begin + 400)]
            if len(piece) > 7 and CLOCK_LIKE.search(piece):
                stamp = scan.find(clean(piece))
                if stamp is not None:
                    scan.carry, scan.carry_line = stamp, line
                    scan.stamp_line = line
                    scan.stamped += 1
                    return stamp
            end, line, limit = begin - 1, line - 1, limit - 1
        scan.tried += 1
        if limit:
            scan.carry_line = max(scan.carry_line, number - 1)
        return scan.carry

    def following(self, end: int, number: int, limit: int, *, of: Line) -> Iterator[Line]:
        """Cleaned lines after the one that ends at `end`; CR segments after it on the same line come first."""
        data = self.block.data
        at = end
        if data[at : at + 2] == b"\r\n":
            at += 1
        for offset in range(limit):  # noqa: B007
            if at >= len(data):
                break
            step = data[at : at + 1] == b"\n"
            at += 1
            number += step
            stop = _segment_end(data, at)
            if at >= len(data):
                break
            piece = data[at : min(stop, at + TEXT)]
            at = stop
            if data[at : at + 2] == b"\r\n":
                at += 1
            yield self._neighbour(piece, number, of)
        else:
            return
        if self.after:
            number += data.count(b"\n", at) if at < len(data) else 0
            for more, piece in enumerate(self.after.removesuffix(b"\n").split(b"\n")[: limit - offset]):
                yield self._neighbour(piece[:TEXT], number + more, of)

    def preceding(self, begin: int, number: int, limit: int, *, of: Line) -> Iterator[Line]:
        """Cleaned lines above the one that begins at `begin`, nearest first."""
        data = self.block.data
        end = data.rfind(b"\n", 0, begin)
        if end < 0:
            end = -1
        while end > 0 and limit:
            number -= 1
            start = data.rfind(b"\n", 0, end) + 1
            yield self._neighbour(data[max(start, end - TEXT) : end], number, of)
            end, limit = start - 1, limit - 1
        if limit and self.scan.before and end <= 0:
            for piece in reversed(self.scan.before.rstrip(b"\n").split(b"\n")[-limit:]):
                number -= 1
                yield self._neighbour(piece[-TEXT:], number, of)

    def _neighbour(self, piece: bytes, number: int, of: Line) -> Line:
        return self._prefixed(clean(piece), number, of)


@dataclass(slots=True)
class _Piece:
    """A block made ready: where it begins, its line feeds, and its hits as they were found with some literals left out."""

    block: Block
    offset: int
    ends: Ends
    hits: list[Hit] = field(default_factory=list)
    left_out: frozenset[int] = frozenset()


def _ahead(blocks: Iterator[Block], floods: Floods, pool: ThreadPoolExecutor | None) -> Iterator[tuple[_Piece, _Piece | None]]:
    """Each block and the one after it; with a pool the next one is searched and the one after that read while the caller is at this one."""
    offset = 0

    def read() -> _Piece | None:
        nonlocal offset
        block = next(blocks, None)
        if block is None:
            return None
        piece = _Piece(block, offset, np.flatnonzero(np.frombuffer(block.data, dtype=np.uint8) == 10))
        offset += len(block.data)
        return piece

    def search(piece: _Piece, left_out: frozenset[int]) -> None:
        piece.hits, piece.left_out = floods.search(piece.block.data, piece.offset, left_out), left_out

    now = read()
    following = None if now is None else read()
    if now is not None:
        search(now, floods.flooding)
    while now is not None:
        if following is not None and pool is not None:
            searched, coming = pool.submit(search, following, floods.flooding), pool.submit(read)
            yield now, following
            searched.result()
            now, following = following, coming.result()
        else:
            yield now, following
            now, following = following, read() if following is not None else None
            if now is not None:
                search(now, floods.flooding)


def _segment_end(data: bytes, at: int) -> int:
    """Where the segment holding `at` ends: at LF, CR or the end."""
    line = data.find(b"\n", at)
    if line < 0:
        line = len(data)
    back = data.find(b"\r", at, line)
    return line if back < 0 else back


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
