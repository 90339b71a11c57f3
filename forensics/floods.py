"""What one literal may cost: past a limit only some of the lines that hold it are looked at, the rest are counted.

A single log's limits hold for that log; a run of thousands of small logs shares limits, because what a thousand ranks print each
is a flood too.  A literal that floods is left out of the search and looked up on its own (`forensics.matcher`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from forensics.literals import Hit
from forensics.matcher import DENSE, EDGE, LATEST, SPREAD, Matcher

# Lines of one file per literal that are read one by one before thinning sets in, in files below and above LARGE bytes; and
# the same for literals of parsers that take readings from every line (metrics).
FLOOD = (5_000, 400)
READINGS = (8_000, 1_000)
LARGE = 64 << 20
ALL = 3  # times the first figure that all files of a run together may hold before the same sets in
SMALL = 1 << 20  # a file below this shows one line at each end of a literal that floods its run
SHARED = 2_000  # lines per literal that all small files of a run together show before that
# Hits of a block from which leaving a thinned literal out of the search pays for making the search anew: with more than AHEAD bytes
# of the file to come, and with less.
HEAVY, AHEAD = (60, 500), 128 << 20
TAIL = 16 << 20  # the last bytes of a file, where the crash is: more is looked at there
MANY = 256  # small files from which each shows only FEW readings, spread and last ones, once the run has shown enough
FEW = 2
SILENT = 1_000  # lines with a literal that said nothing, in all files, after which a small file shows only its last one
DENSE_FILE = 8  # hits in a small file from which leaving a literal out of the search pays
ROUND, VOTES, CHANGES = 32, 8, 12  # small files between changes of what is left out for all; files that must ask for it; changes in all


@dataclass
class Shared:
    """What the logs of a run tell each other: hits per literal so far, and the literals that are left out in small ones."""

    total: Counter[int] = field(default_factory=Counter)
    flooding: frozenset[int] = frozenset()
    said: set[int] = field(default_factory=set)  # literals whose lines gave an event or a reading
    silent: Counter[int] = field(default_factory=Counter)  # lines of the others
    logs: Counter[str] = field(default_factory=Counter)  # names without their numbers: files that no format claimed
    looks: dict[str, Any] = field(default_factory=dict)  # and what the beginning of each of them told; None where it differs
    scale: float = 1.0  # how many times the files counted here stand for: those to come will hold as much each
    files: int = 0
    changes: int = 0
    come: Counter[int] = field(default_factory=Counter)
    gone: Counter[int] = field(default_factory=Counter)

    def small_file(self, thinned: Set[int], missing: Set[int]) -> None:
        """After a small file: literals that were thinned in it, and left-out ones that it does not hold."""
        self.files += 1
        self.come.update(thinned - self.flooding)
        self.gone.update(missing)
        if self.files % ROUND == 0:
            come = {literal for literal, count in self.come.items() if count >= VOTES}
            gone = {literal for literal, count in self.gone.items() if count >= VOTES}
            if (come or gone) and self.changes < CHANGES:
                self.flooding = (self.flooding | come) - gone
                self.changes += 1
            self.come.clear()
            self.gone.clear()


@dataclass
class Floods:
    """The limits of one file.  `size`: its bytes, 0 where unknown (compressed)."""

    matcher: Matcher
    shared: Shared
    size: int = 0
    counts: Counter[int] = field(default_factory=Counter)  # hits per literal in this file
    over: frozenset[int] = frozenset()  # literals of readings past their limit
    flooding: frozenset[int] = frozenset()  # literals that are left out of the search

    def __post_init__(self) -> None:
        self.small = 0 < self.size < SMALL
        if self.small:
            self.flooding = self.shared.flooding

    def search(self, data: bytes, before: int, left_out: frozenset[int]) -> list[Hit]:
        """The hits of a block, of literals `left_out` a few.  `before`: bytes of the file before the block.  Safe on any thread."""
        tail = self._tail(data, before)
        return self.matcher.search(data, left_out, self._edge(data, before), tail and not self.small)

    def chosen(self, hits: list[Hit], data: bytes, before: int, left_out: frozenset[int]) -> list[Hit]:
        """Those of a block's hits whose lines are looked at, by their starts.  Blocks come in order; `left_out` as it was searched."""
        if not hits and not left_out:
            return hits
        tail = self._tail(data, before)
        large = max(self.size, before + len(data)) > LARGE
        per_literal = Counter([hit[0] for hit in hits])
        plans = self._plans(per_literal, large and not tail, tail, self._edge(data, before), left_out)
        heavy = HEAVY[self.size - before < AHEAD]
        self._leave_out(per_literal, plans, heavy, self._edge(data, before), left_out)
        if plans:
            hits = self._thinned(hits, per_literal, plans, len(data))
        hits.sort(key=_start)
        return hits

    def _tail(self, data: bytes, before: int) -> bool:
        return bool(self.size) and self.size - before - len(data) < TAIL

    def _edge(self, data: bytes, before: int) -> int:
        large = max(self.size, before + len(data)) > LARGE
        return 1 if self.small or (large and not self._tail(data, before)) else EDGE

    def _plans(
        self, per_literal: Counter[int], large: bool, tail: bool, edge: int, left_out: frozenset[int]
    ) -> dict[int, tuple[int, int, int]]:
        """Of literals past their limits: how many hits are taken at the block's start, spread over it, and at its end."""
        matcher, total = self.matcher, self.shared.total
        total.update(per_literal)
        self.counts.update(per_literal)
        scale = self.shared.scale
        limit = SHARED / scale if self.small else ALL * FLOOD[0]
        many = self.small and self.shared.files * scale > MANY
        enough = (READINGS[0] if many else ALL * READINGS[0]) / scale
        over: set[int] = set()
        plans: dict[int, tuple[int, int, int]] = {}
        for literal, count in per_literal.items():
            if literal in matcher.readings:
                elsewhere = self.small and total[literal] - self.counts[literal] > enough
                if elsewhere or literal in self.over:
                    wanted, latest = (DENSE, LATEST) if tail and not elsewhere else (SPREAD, 0)
                    if elsewhere and many:
                        wanted = latest = FEW
                    if literal not in left_out and count > 2 * wanted:
                        plans[literal] = (0, wanted, latest)
                elif self.counts[literal] > READINGS[large] or total[literal] > ALL * READINGS[0]:
                    over.add(literal)
            elif self.small and count > 1 and self.shared.silent[literal] > SILENT / scale and literal not in self.shared.said:
                plans[literal] = (0, 0, 1)
            elif count > 2 * edge and (literal in matcher.sparse or self.counts[literal] > FLOOD[large] or total[literal] > limit):
                plans[literal] = (edge, 0, edge)
        self.over |= over
        return plans

    def _leave_out(
        self, per_literal: Counter[int], plans: dict[int, tuple[int, int, int]], heavy: int, edge: int, left_out: frozenset[int]
    ) -> None:
        """Decide what the next searches leave out."""
        readings = self.matcher.readings
        if self.small:
            thinned = {literal for literal in plans if per_literal[literal] > DENSE_FILE and literal not in readings}
            self.shared.small_file(thinned, left_out - per_literal.keys())
            return
        self.flooding |= {literal for literal in self.over.union(plans) if per_literal[literal] > heavy}
        # Where a flood has ended its literal is searched for again.
        self.flooding -= {literal for literal in left_out if per_literal[literal] < (SPREAD if literal in readings else 2 * edge)}

    def _thinned(self, hits: list[Hit], per_literal: Counter[int], plans: dict[int, tuple[int, int, int]], size: int) -> list[Hit]:
        seen: Counter[int] = Counter()
        parts: dict[int, int] = {}
        kept = []
        for hit in hits:
            literal = hit[0]
            plan = plans.get(literal)
            if plan is not None:
                first, spread, last = plan
                at = seen[literal] = seen[literal] + 1
                if first < at <= per_literal[literal] - last:
                    # The first hit of each part of the block: literals of one line agree on the lines, whatever their number.
                    part = hit[1] * spread // size
                    if not spread or parts.get(literal) == part:
                        continue
                    parts[literal] = part
            kept.append(hit)
        return kept


def _start(hit: Hit) -> int:
    return hit[1]
