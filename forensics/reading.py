"""Evidence -> Run: every file read by what recognises it, put on one clock, joined over ranks and hosts."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import parsers
from forensics import blocks, crowd, floods, join
from forensics.clock import align
from forensics.evidence import Evidence, Member, is_text
from forensics.floods import Shared
from forensics.matcher import Matcher
from forensics.odd_stamps import finder
from forensics.run import Run
from forensics.scan import Scan
from forensics.stamps import find_stamp
from forensics.tables import metric_frame, sample_frame
from parsers.anchors import edges
from parsers.base import Event, FileParser, Rows, Source, Stamp
from parsers.prefixes import Style, survey
from rules.base import Signature

if TYPE_CHECKING:
    from forensics.clock import Clocks

FAR = 30.0  # seconds between the stamps above and below an unstamped line from which it matters which is nearer
NO_TIME = {"en": "none of its lines carries a usable time: placed by order only", "zh": "没有任何一行带有可用时间：仅按行序排列"}
ALIKE = 48  # files whose names differ in numbers only, all of them plain logs, after which a further one is taken for one unasked
NUMBERS = re.compile(r"\d+")
SAMPLE = 40  # lines by which the kinds of a file are told
SMALL = 4 << 20  # below this a file is searched on the spot: a thread hand-over costs more than it saves
Progress = Callable[[str, int, int], None]  # (path, bytes done, bytes in all)

# Per kind: words of which a sample must hold one ("" = none is needed), and how one of its lines looks.
KIND_SIGNS: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
    (
        "kernel",
        ("kernel: ", "NVRM: "),
        re.compile(r"(?:^|\s)kernel: |NVRM: ").search,
    ),
    (
        "kernel",
        ("",),
        re.compile(
            r"(?:<\d+>)?\[\s*\d+\.\d{6}\](?!\d)|\w+\s*:\w+\s*: \[|\d+,\d+,\d+,[-c]|\[\w{3} \w{3}\s+\d+ \d\d:\d\d:\d\d \d{4}\] (?!\[?(?:INFO|WARN|ERROR))|\[(?:\w{3} ?\d\d? \d\d:\d\d|\s*\+\d+\.\d{6})\] |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d "
        ).match,
    ),
    ("tracker", (".py:",), re.compile(r"\[(?:wandb_\w+|retry|internal_api|sender|handler|mlflow\w*|swanlab\w*)\.py:\w*").search),
    ("nccl", ("NCCL ",), re.compile(r"\bNCCL (?:INFO|WARN|TRACE|CALL|version)\b").search),
    (
        "scheduler",
        ("slurm", "srun: ", "sbatch: ", "JobId=", "JobIDRaw", "MESSAGE", "Reason", "LAST SEEN"),
        re.compile(
            r"slurmstepd|^srun: |^sbatch: |JobId=\d+|JobIDRaw|\bslurmctld\b|\bMESSAGE\b.*\bREASON\b|^\s*(?:Type\s+Reason\s+Age|LAST SEEN)"
        ).search,
    ),
)


@dataclass(frozen=True)
class Look:
    """What a log's first lines tell: its kinds, its launcher prefixes, how its stamps are found, and how many lines they were."""

    kinds: frozenset[str]
    style: Style
    find: Callable[[str], Stamp | None]
    lines: int


@dataclass
class Reader:
    """Reads runs with one set of signatures and parsers (building it costs more than reading a small run)."""

    signatures: Sequence[Signature]
    threads: int = field(default_factory=lambda: min(4, os.cpu_count() or 1))

    def __post_init__(self) -> None:
        line_parsers, self.file_parsers = parsers.load()
        self.matcher = Matcher(self.signatures, line_parsers)

    def read(self, evidence: Evidence, zone: str | None = None, progress: Progress | None = None) -> Run:
        """The run's facts.  `zone` names the time zone of stamps that do not say theirs."""
        total = sum(member.info.size for member in evidence.members)
        done = 0
        rows: dict[str, Rows] = {}
        shared = Shared()
        small = [member for member in evidence.members if member.info.size < floods.SMALL]
        many = small[crowd.LEAD :] if len(small) >= crowd.CROWD else []
        apart = {member.path for member in many}
        if many:
            shared.scale = len(small) / crowd.LEAD
            self.matcher.search(b"-")  # made ready once, before the readers of many files are forked
        with (
            crowd.readers(self._log, bool(many)) as readers,
            ThreadPoolExecutor(self.threads) as pool,
            ThreadPoolExecutor(1) as aside,
        ):
            # Large tables are the dataframe engine's work, which leaves the interpreter free for the logs meanwhile.
            tables = {
                member.path: aside.submit(self._file, member, pool, Shared())
                for member in evidence.members
                if member.info.size >= SMALL and self._claim(member) is not None
            }

            def told(member: Member, found: Rows) -> None:
                nonlocal done
                rows[member.path] = found
                done += member.info.size
                member.forget()
                if progress:
                    progress(member.path, done, total)

            first = [member for member in evidence.members if member.path not in apart and member.path not in tables]
            for member in sorted(first, key=lambda member: member.info.size >= floods.SMALL):
                told(member, self._file(member, pool, shared))
            for member, found in crowd.read_all(many, shared, self._log, partial(self._file, pool=None), readers):
                told(member, found)
            for member in evidence.members:
                if member.path in tables:
                    told(member, tables[member.path].result())
        rows = {member.path: rows[member.path] for member in evidence.members}
        run = Run(evidence.name)
        run.files = {member.path: member.info for member in evidence.members}
        clocks = align(rows, run.files, zone)
        assemble(run, rows, clocks)
        if progress:
            progress("", total, total)
        return run

    def _log(self, member: Member, shared: Shared) -> Rows | None:
        """A plain log, read on the spot; None for a file that a format claims: the dataframe engine's threads are not there after a fork."""
        claimed = self._claimed(member, shared)
        return self._read(member, None, shared, None) if claimed is None else None

    def _file(self, member: Member, pool: ThreadPoolExecutor | None, shared: Shared) -> Rows:
        return self._read(member, pool, shared, self._claimed(member, shared))

    def _claimed(self, member: Member, shared: Shared) -> FileParser | None:
        name = NUMBERS.sub("0", member.path)
        # After many files of one name and no other kind the next is a log too.
        claimed = self._claim(member) if shared.logs[name] < ALIKE else None
        shared.logs[name] += 1 if claimed is None else -1_000_000
        return claimed

    def _read(self, member: Member, pool: ThreadPoolExecutor | None, shared: Shared, claimed: FileParser | None) -> Rows:
        rows = Rows(member.path)
        info = member.info
        if claimed is not None:
            info.kinds = (claimed.kind,)
            try:
                claimed.parse(Source(member.path, lambda: blocks.open_plain(member.real)), rows)
            except (ValueError, OSError, EOFError) as error:
                rows.note(f"read as {claimed.name}, but damaged: {error}")
            except Exception as error:
                rows.note(f"the {claimed.name} reader failed ({type(error).__name__}: {error})")
        elif not is_text(member.head.data):
            info.used = False
            info.notes.append("binary, of no kind that is read here")
            return rows
        if claimed is None or claimed.scan:
            self._scan(member, rows, pool, claimed, shared)
        info.notes.extend(rows.notes)
        return rows

    def _claim(self, member: Member) -> FileParser | None:
        best, parser = 0.5, None
        for candidate in self.file_parsers:
            try:
                sure = candidate.recognises(member.head)
            except Exception:  # a recogniser that trips over odd bytes does not recognise them
                continue
            if sure > best:
                best, parser = sure, candidate
        return parser

    def _look(self, member: Member, shared: Shared) -> Look:
        """What a log's beginning tells of it; prefixes and stamps are those of many files of its name where these agreed."""
        name = NUMBERS.sub("0", member.path)
        known = shared.looks.get(name)
        lines = member.head.lines[:160]
        if known is not None and shared.logs[name] > ALIKE:
            return Look(frozenset(kinds_of(lines[:SAMPLE])), known.style, known.find, len(lines))
        look = Look(frozenset(kinds_of(lines[:SAMPLE])), survey(lines), finder(lines), len(lines))
        if name not in shared.looks and look.find is find_stamp:
            shared.looks[name] = look
        elif known is None or (look.style, look.find) != (known.style, known.find):
            shared.looks[name] = None
        return look

    def _scan(self, member: Member, rows: Rows, pool: ThreadPoolExecutor | None, claimed: FileParser | None, shared: Shared) -> None:
        info = member.info
        look = self._look(member, shared)
        kinds = set(look.kinds)
        size = 0 if blocks.is_compressed(member.real) else info.size
        scan = Scan(self.matcher, rows, look.kinds, look.style, find=look.find, size=size, shared=shared)
        with blocks.open_again(member.real, rows.note) as stream:
            scan.run(blocks.blocks(stream, on_error=rows.note, count=False), pool if info.size >= SMALL else None)
        edges(rows, member.head.text, scan.carry, scan.carry_line, scan.find)
        if size and not blocks.encoding(member.head.data):
            member.index = scan.index
        info.lines = scan.lines
        info.stamped = scan.stamped
        kinds.update(kind for kind, count in scan.seen_kinds.items() if count)
        if rows.metrics:
            kinds.add("train")
        apart = claimed is not None and claimed.kind in ("gpu", "environment")  # samples and snapshots are no part of the training's log
        if not kinds - {"nccl", "scheduler"} and not (kinds and look.lines > 20) and not apart:
            kinds.add("train")
        info.kinds = tuple(sorted(kinds | ({claimed.kind} if claimed else set())))


def kinds_of(lines: Sequence[str]) -> list[str]:
    """The kinds of source whose lines make up a good part of a sample."""
    counts: Counter[str] = Counter()
    written = [line[:400] for line in lines if line.strip()]
    sample = "\n".join(written)
    signs = [(kind, shows) for kind, words, shows in KIND_SIGNS if any(word in sample for word in words)]
    for line in written:
        for kind, shows in signs:
            if shows(line):
                counts[kind] += 1
                break
    return [kind for kind, count in counts.items() if count >= max(1, 0.3 * len(written))]


def assemble(run: Run, rows: dict[str, Rows], clocks: Clocks) -> None:
    """Fill the run from what the parsers found: times, tables, ranks, hosts, progress, settings."""
    run.clocks = clocks.list
    order = {path: number for number, path in enumerate(run.files)}
    for path, found in rows.items():
        for event in found.events:
            event.time = clocks.time(path, event.stamp, event.line) if event.stamp else None
        run.events.extend(found.events)
        run.facts.extend((key, path, value, line) for key, value, line in found.facts)
    fill_times(run.events)
    run.events.sort(key=lambda e: (e.time if e.time is not None else float("inf"), order.get(e.source, 0), e.line))
    run.metrics = metric_frame(rows, clocks)
    run.samples = sample_frame(rows, clocks, run.files)
    untimed(run)
    join.hosts_and_ranks(run)
    if join.date_from_exits(run):
        run.events.sort(key=lambda e: (e.time if e.time is not None else float("inf"), order.get(e.source, 0), e.line))
    join.progress(run)
    join.settings(run)


def untimed(run: Run) -> None:
    """Say of each log without a usable stamp that its lines are placed by order alone."""
    placed = {clock.file for clock in run.clocks}
    for path, info in run.files.items():
        if info.used and info.lines and path not in placed and not info.stamped:
            info.notes.append(NO_TIME)


def nearest_stamp(group: list[Event]) -> None:
    """Give an unstamped error the stamp below it where that is nearer than the one above and much later.

    A file of standard error may hold one stamp at its head and the next where the launcher tears the job down.
    """
    below: Event | None = None
    for event in reversed(group):
        if event.stamp is not None and not event.inherited:
            below = event
        elif (
            event.inherited
            and below is not None
            and below.time is not None
            and event.time is not None
            and event.severity in ("error", "fatal")
        ):
            up, down = event.line - event.stamp_line, below.line - (event.end_line or event.line)
            if event.stamp_line and down <= up and below.time > event.time + FAR:
                event.time = below.time


def fill_times(events: list[Event]) -> None:
    """Events of a file before its first stamp take that stamp's time: they cannot be later."""
    by_file = defaultdict(list)
    for event in events:
        by_file[event.source].append(event)
    for group in by_file.values():
        group.sort(key=lambda e: e.line)
        nearest_stamp(group)
        first = next((e.time for e in group if e.time is not None), None)
        if first is not None:
            for event in group:
                if event.time is None:
                    event.time, event.inherited = first, True
                else:
                    break
