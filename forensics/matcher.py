"""What the scan looks for: every signature's and parser's literals in one search, and the signatures' patterns around a hit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import regex

from forensics.literals import Hit, Literals
from parsers.base import LineParser
from rules.base import Signature

EDGE = 3  # lines per block, at each end, that are read of a sparse or flooding literal
SPREAD = 12  # lines per block, evenly spread, that are read of readings past their limit
DENSE, LATEST = 100, 500  # the same at a file's end, and how many of the last ones of a block are all read there
CONFIRM = 8 << 10  # characters around a literal in which a signature's pattern is looked for
TIMEOUT = 0.25  # seconds for one pattern on one line: a user's own pattern cannot hang us
PATIENCE = 4  # timeouts after which a pattern is no longer tried


@dataclass
class Matcher:
    """All literals, searched for together, and what each is for."""

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
        # Signatures of which NCCL's own lines at INFO say nothing.
        self.not_nccl = [
            not (s.cause or "").startswith("comms/") and "NCCL" not in s.pattern and not any("NCCL" in text for text in s.literals)
            for s in self.signatures
        ]
        self._meant: dict[frozenset[int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.patterns: dict[int, Any] = {}
        self.timeouts: Counter[int] = Counter()

    @cached_property
    def search_engine(self) -> Literals:
        """The literals made ready for searching, on first use."""
        return Literals(self.literals)

    def meant_by(self, literals: frozenset[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The signatures and the parsers that a line with these literals concerns, each in order."""
        meant = self._meant.get(literals)
        if meant is None:
            uses = [self.uses[literal] for literal in literals]
            meant = (
                tuple(sorted({number for signatures, _ in uses for number in signatures})),
                tuple(sorted({number for _, parsers in uses for number in parsers})),
            )
            if len(self._meant) < 100_000:
                self._meant[literals] = meant
        return meant

    def search(self, data: bytes, flooding: frozenset[int] = frozenset(), edge: int = EDGE, tail: bool = False) -> list[Hit]:
        """(literal, start, end) of every occurrence, overlapping ones too; of flooding literals `edge` at each end, of readings some spread ones.

        Millions of hits that nobody reads would cost more than the search.
        """
        hits = self.search_engine.find(data, flooding)
        for literal in flooding:
            if literal in self.readings:
                hits.extend(_spread(data, self.literals[literal], literal, DENSE if tail else SPREAD, LATEST if tail else 0))
            else:
                hits.extend(_edges(data, self.literals[literal], literal, edge))
        return hits

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


def _edges(data: bytes, literal: bytes, number: int, edge: int) -> Iterator[Hit]:
    """The first and last few occurrences of a literal."""
    at = -1
    for _ in range(edge):
        at = data.find(literal, at + 1)
        if at < 0:
            return
        yield number, at, at + len(literal)
    last, end = at, len(data)
    for _ in range(edge):
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
        at = data.find(literal, max(last + 1, -(-part * end // parts)), end)
        if at < 0:
            return
        last = at
        yield number, at, at + len(literal)
