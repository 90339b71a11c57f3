"""One pass over a text file: literals found by an automaton, and Python objects only for the lines that hold one.

The automaton runs over whole blocks with the interpreter lock released, so the next block is searched on another core while
this one's lines are read.  Signatures and parsers' triggers share the automaton.  What one literal may cost is bounded: past
`FLOOD` lines of one file only the first and last few of each block are looked at, and the rest are counted.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import ahocorasick_rs
import regex

from forensics.blocks import Block
from forensics.stamps import find_stamp
from parsers.base import Context, Event, Line, LineParser, Rows, Stamp
from parsers.prefixes import Style, clean, strip
from rules.base import Signature

# Lines of one file per literal that are read one by one before thinning sets in, in files below and above LARGE bytes; and
# the same for literals of parsers that take readings from every line (metrics).
FLOOD = (5_000, 400)
READINGS = (8_000, 1_500)
LARGE = 64 << 20
ALL = 3  # times the first figure that all files of a run together may hold before the same sets in
SMALL = 1 << 20  # a file below this shows one line at each end of a literal that floods its run
EDGE = 3  # lines per block, at each end, that are read of a sparse or flooding literal
SPREAD = 16  # lines per block, evenly spread, that are read of readings past their limit
# The crash is at the end of a file: in its last TAIL bytes readings are spread more densely, and the last ones of each block are all taken.
TAIL = 16 << 20
DENSE, LATEST = 200, 800
KEPT = 120  # confirmed lines per signature and file that are kept, at each end
TEXT = 32 << 10  # bytes of one segment that are looked at
LONG = (8 << 20, 4 << 10)  # of a file's segments above the second figure: bytes looked at before only so much of each is read
CONFIRM = 8 << 10  # characters around a literal in which a signature's pattern is looked for
REACH = 64 << 10  # bytes around a block's edges that stay visible
BACK = 300  # lines searched upwards for a stamp
TIMEOUT = 0.25  # seconds for one pattern on one line: a user's own pattern cannot hang us
PATIENCE = 4  # timeouts after which a pattern is no longer tried

Hit = tuple[int, int, int]  # number of the literal, where it starts and ends in the block

# What every written time has somewhere: hours and minutes, a kernel's or an epoch's seconds, or a syslog-like month.
CLOCK_LIKE = re.compile(rb"\d[:.,h]\d\d|\d{10}")
KERNEL_LINE = re.compile(r"(?:^|\s)kernel:|NVRM: |^\[\s*\d+\.\d{6}\]|^\w+\s*:\w+\s*: \[|SXid|^\d+,\d+,\d+,[-c]")


@dataclass
class Matcher:
    """All literals in one automaton, and what each is for."""

    signatures: Sequence[Signature]
    parsers: Sequence[LineParser]

    def __post_init__(self) -> None:
        self.literals: list[bytes] = []
        self.uses: list[tuple[list[int], list[int]]] = []  # literal -> (signatures, parsers)
        self.sparse: set[int] = set()
        index: dict[bytes, int] = {}

        def place(text: str) -> int:
            literal = text.encode()
            if literal not in index:
                index[literal] = len(self.literals)
                self.literals.append(literal)
                self.uses.append(([], []))
            return index[literal]

        for number, signature in enumerate(self.signatures):
            for text in signature.literals:
                self.uses[place(text)][0].append(number)
        dense: set[int] = set()
        for number, parser in enumerate(self.parsers):
            for text in parser.triggers:
                at = place(text)
                dense.add(at)
                if number not in self.uses[at][1]:
                    self.uses[at][1].append(number)
            for text in parser.sparse:
                at = place(text)
                self.sparse.add(at)
                if number not in self.uses[at][1]:
                    self.uses[at][1].append(number)
        self.sparse -= dense
        readings = {text.encode() for parser in self.parsers if parser.readings for text in parser.triggers}
        self.readings = frozenset(number for number, literal in enumerate(self.literals) if literal in readings)
        self.patterns: dict[int, Any] = {}
        self.timeouts: Counter[int] = Counter()
        self.reduced: dict[frozenset[int], tuple[ahocorasick_rs.BytesAhoCorasick, list[int]]] = {}

    @cached_property
    def automaton(self) -> ahocorasick_rs.BytesAhoCorasick:
        return ahocorasick_rs.BytesAhoCorasick(self.literals, implementation=ahocorasick_rs.Implementation.DFA)

    def search(self, data: bytes, flooding: frozenset[int] = frozenset(), tail: bool = False) -> list[Hit]:
        """(literal, start, end) of every occurrence, overlapping ones too; of flooding literals a few at each end."""
        if not flooding:
            return self.automaton.find_matches_as_indexes(data, overlapping=True)
        automaton, kept = self._without(flooding)
        hits = [(kept[literal], start, end) for literal, start, end in automaton.find_matches_as_indexes(data, overlapping=True)]
        for literal in flooding:
            if literal in self.readings:
                hits.extend(_spread(data, self.literals[literal], literal, DENSE if tail else SPREAD, LATEST if tail else 0))
            else:
                hits.extend(_edges(data, self.literals[literal], literal))
        return hits

    def _without(self, flooding: frozenset[int]) -> tuple[ahocorasick_rs.BytesAhoCorasick, list[int]]:
        """An automaton without the literals that flood a file: millions of hits nobody reads cost more than the search."""
        if flooding not in self.reduced:
            kept = [number for number in range(len(self.literals)) if number not in flooding]
            patterns = [self.literals[number] for number in kept]
            while len(self.reduced) > 1:  # 40 MB each; threads still at work keep theirs alive
                self.reduced.pop(next(iter(self.reduced)), None)
            self.reduced[flooding] = (ahocorasick_rs.BytesAhoCorasick(patterns, implementation=ahocorasick_rs.Implementation.DFA), kept)
        return self.reduced[flooding]

    def confirm(self, number: int, text: str) -> dict[str, str] | None:
        """Named groups where the signature's pattern stands in the text, None where it does not."""
        signature = self.signatures[number]
        if not signature.pattern:
            return {}
        pattern = self.patterns.get(number)
        if pattern is None:
            pattern = self.patterns[number] = compiled(signature)
        match = None
        for begin, end in self._windows(signature, text):
            if isinstance(pattern, re.Pattern):
                match = pattern.search(text, begin, end)
            elif self.timeouts[number] < PATIENCE:
                try:
                    match = pattern.search(text, begin, end, timeout=TIMEOUT, concurrent=False)
                except TimeoutError:
                    self.timeouts[number] += 1
            if match is not None:
                return {k: v for k, v in match.groupdict().items() if v is not None}
        return None

    def _windows(self, signature: Signature, text: str) -> Iterator[tuple[int, int]]:
        """The whole of a text, or of a long one what stands around the first and the last of the signature's literals."""
        if len(text) <= CONFIRM:
            yield 0, len(text)
            return
        first = min((at for literal in signature.literals if (at := text.find(literal)) >= 0), default=0)
        last = max((at for literal in signature.literals if (at := text.rfind(literal)) >= 0), default=0)
        for at in (first, last) if last - first > CONFIRM // 4 else (first,):
            begin = max(0, at - CONFIRM // 2)
            yield begin, begin + CONFIRM


def compiled(signature: Signature) -> Any:
    """The pattern: the project's own, linted to be linear, by the standard engine; a user's by the one that can be timed out."""
    if signature.own:
        try:
            return re.compile(signature.pattern)
        except re.error:
            pass
    return regex.compile(signature.pattern)


@dataclass
class Scan:
    """State of one file while it is read."""

    matcher: Matcher
    rows: Rows
    kinds: frozenset[str]
    style: Style
    lines: int = 0
    read: int = 0  # bytes
    counts: Counter[int] = field(default_factory=Counter)  # hits per literal in this file
    total: Counter[int] = field(default_factory=Counter)  # and in all files of the run so far
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
    flooding: frozenset[int] = frozenset()
    next_line: int = 1  # number of the line that the next block begins with
    size: int = 0  # bytes of the file, 0 where unknown (compressed)
    long: int = 0  # bytes looked at of long segments

    def run(self, blocks: Iterator[Block], pool: ThreadPoolExecutor | None) -> None:
        """Read all blocks of the file."""
        for block, hits, following in self._searched(blocks, pool):
            self.block(block, hits, following)
        for number, events in self.late.items():
            self.rows.events.extend(events)
            dropped = self.confirmed[number] - KEPT - len(events)
            if dropped > 0 and events:
                events[-1].fields["left_out"] = dropped

    def _searched(self, blocks: Iterator[Block], pool: ThreadPoolExecutor | None) -> Iterator[tuple[Block, list[Hit], Block | None]]:
        """Each block with its hits and the block after it; with a pool, searched ahead on its threads (three in flight)."""
        waiting: deque[tuple[Block, Callable[[], list[Hit]]]] = deque()
        sent = 0
        for block in blocks:
            if pool is None:
                waiting.append((block, partial(self.matcher.search, block.data)))
            else:
                sent += len(block.data)
                tail = bool(self.size) and self.size - sent < TAIL
                waiting.append((block, pool.submit(self.matcher.search, block.data, self.flooding, tail).result))
            if len(waiting) == 3:
                done, result = waiting.popleft()
                yield done, result(), waiting[0][0]
        while waiting:
            done, result = waiting.popleft()
            yield done, result(), waiting[0][0] if waiting else None

    def block(self, block: Block, hits: list[Hit], following: Block | None) -> None:
        """Read the lines of one block that hold a literal."""
        data = block.data
        block.first_line = self.next_line
        self.read += len(data)
        reader = _Reader(self, block, following)
        if hits:
            hits = self._thinned(hits)
        at, number = 0, block.first_line
        end_of_segment, group = -1, set()
        begin = 0
        for literal, start, stop in hits:
            if start < end_of_segment:
                group.add(literal)
                continue
            if group:
                self._segment(reader, begin, end_of_segment, number, group)
            begin = data.rfind(b"\n", at, start)
            begin = max(begin, data.rfind(b"\r", max(at, begin), start), start - self.text // 2) + 1
            number += data.count(b"\n", at, begin)
            at = begin
            end_of_segment = _segment_end(data, stop)
            group = {literal}
        if group:
            self._segment(reader, begin, end_of_segment, number, group)
        block.lines = number - block.first_line + data.count(b"\n", at)
        self.next_line = block.first_line + block.lines
        self.lines = self.next_line - (1 if data.endswith(b"\n") else 0)
        # The last stamp of the block serves the next one's first lines.
        reader.inherit(len(data), self.next_line)
        self.before = data[-REACH:]

    @property
    def text(self) -> int:
        """How many bytes of one segment are looked at."""
        return TEXT if self.long < LONG[0] else LONG[1]

    def _thinned(self, hits: list[Hit]) -> list[Hit]:
        per_literal = Counter(hit[0] for hit in hits)
        thin = set()
        strides: dict[int, int] = {}
        large = max(self.size, self.read) > LARGE
        total = self.total
        total.update(per_literal)
        edge = 1 if 0 < self.size < SMALL else EDGE
        for literal, count in per_literal.items():
            self.counts[literal] += count
            if literal in self.matcher.readings:
                if (self.counts[literal] > READINGS[large] or total[literal] > ALL * READINGS[0]) and literal not in self.flooding:
                    self.flooding |= {literal}
                if total[literal] - self.counts[literal] > ALL * READINGS[0] and self.size < SMALL and count > 2 * SPREAD:
                    strides[literal] = count // SPREAD
            elif count > 2 * edge and (
                literal in self.matcher.sparse or self.counts[literal] > FLOOD[large] or total[literal] > ALL * FLOOD[0]
            ):
                thin.add(literal)
        if thin or strides:
            self.flooding |= thin
            seen: Counter[int] = Counter()
            kept = []
            for hit in hits:
                literal = hit[0]
                if literal in strides:
                    seen[literal] += 1
                    if seen[literal] % strides[literal]:
                        continue
                elif literal in thin:
                    seen[literal] += 1
                    if edge < seen[literal] <= per_literal[literal] - edge:
                        continue
                kept.append(hit)
            hits = kept
        hits.sort(key=lambda hit: hit[1])
        return hits

    def _segment(self, reader: _Reader, begin: int, end: int, number: int, literals: set[int]) -> None:
        line = reader.line(begin, end, number)
        context: Context | None = None
        signatures: set[int] = set()
        parsers: set[int] = set()
        for literal in literals:
            to_signatures, to_parsers = self.matcher.uses[literal]
            signatures.update(to_signatures)
            parsers.update(to_parsers)
        before = len(self.rows.events)
        metrics = len(self.rows.metrics)
        for which in sorted(parsers):
            parser = self.matcher.parsers[which]
            context = Context(
                partial(reader.following, end, number, of=line),
                partial(reader.preceding, begin, number, of=line),
                self.states.setdefault(which, {}),
            )
            try:
                parser.parse(line, self.rows, context)
            except Exception as error:
                self.rows.note(f"the {parser.name} reader failed on line {number} ({type(error).__name__}: {error}); the line was left out")
            if len(self.rows.events) > before or len(self.rows.metrics) > metrics:
                before, metrics = len(self.rows.events), len(self.rows.metrics)
                if parser.kind:
                    self.seen_kinds[parser.kind] += 1
        for which in sorted(signatures):
            signature = self.matcher.signatures[which]
            if not self._applies(signature, line):
                continue
            if self.matcher.timeouts[which] >= PATIENCE:
                self.rows.note(f"the pattern of signature {signature.id} takes too long; it was left out")
                continue
            groups = self.matcher.confirm(which, line.text)
            if groups is None and line.full != line.text:
                groups = self.matcher.confirm(which, line.full)
            if groups is not None:
                self._keep(which, signature, line, groups)

    def _applies(self, signature: Signature, line: Line) -> bool:
        # NCCL tells at INFO what it tried: a plug-in that is not there is no missing library.
        if (
            "NCCL INFO" in line.full
            and not (signature.cause or "").startswith("comms/")
            and "NCCL" not in signature.pattern
            and not any("NCCL" in text for text in signature.literals)
        ):
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
        line = self._prefixed(full, number)
        line.stamp = self.scan.find(full)
        if line.stamp is None:
            line.stamp, line.inherited = self.inherit(begin, number), True
            line.stamp_line = self.scan.stamp_line
            if line.stamp is None:
                line.inherited = False
        else:
            self.scan.carry, self.scan.carry_line = line.stamp, number
            self.scan.stamp_line = number
            self.scan.stamped += 1
        self.scan.tried += 1
        return line

    def _prefixed(self, full: str, number: int) -> Line:
        prefixed = strip(full, self.scan.style)
        return Line(self.scan.rows.source, number, prefixed.text, full, prefixed.rank, prefixed.host, prefixed.pid, prefixed.actor)

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
        line = self._prefixed(clean(piece), number)
        line.stamp, line.inherited = of.stamp, True
        line.stamp_line = of.stamp_line or of.number
        return line


def _segment_end(data: bytes, at: int) -> int:
    """Where the segment holding `at` ends: at LF, CR or the end."""
    line = data.find(b"\n", at)
    if line < 0:
        line = len(data)
    back = data.find(b"\r", at, line)
    return line if back < 0 else back


def _edges(data: bytes, literal: bytes, number: int) -> Iterator[Hit]:
    """The first and last few occurrences of a literal."""
    at = -1
    for _ in range(EDGE):
        at = data.find(literal, at + 1)
        if at < 0:
            return
        yield number, at, at + len(literal)
    last, end = at, len(data)
    for _ in range(EDGE):
        end = data.rfind(literal, last + 1, end)
        if end < 0:
            return
        yield number, end, end + len(literal)


def _spread(data: bytes, literal: bytes, number: int, parts: int, latest: int) -> Iterator[Hit]:
    """Occurrences of a literal spread evenly over the block, and its `latest` last ones."""
    end = len(data)
    for _ in range(latest):
        end = data.rfind(literal, 0, end)
        if end < 0:
            return
        yield number, end, end + len(literal)
    last = -1
    for part in range(parts):
        at = data.find(literal, max(last + 1, part * end // parts), end)
        if at < 0:
            return
        last = at
        yield number, at, at + len(literal)


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
