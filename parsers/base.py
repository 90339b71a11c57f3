"""What a parser is, and the rows it writes.

A run's text files are read once, in blocks, through one search for many literals.  Only lines that hold one of the
registered literals ("triggers") become Python objects, so a parser is cheap however large the log is.  There are two kinds:

`LineParser`  declares `triggers` and gets every line that contains one of them, whatever file it stands in: several formats
              live in one file (framework logger, NCCL, kernel lines, progress bars), so recognition is per line.
`FileParser`  claims a whole file by its content (CSV, JSON, pickles, environment dumps) and reads it itself.

A module of this package that defines `PARSER` (one of the two, or a tuple of them) is found by `parsers.load()`; nothing
else has to be edited to add a format.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, AnyStr, Literal, cast

if TYPE_CHECKING:
    import regex

Severity = Literal["debug", "info", "warning", "error", "fatal"]


class LazyPattern:
    """A regular expression that is compiled when it is first used; its methods are the compiled one's from then on.

    The parsers hold some six hundred of them, of which a run needs a part: compiling all took longer than reading a small run.
    """

    def __init__(self, engine: Literal["re", "regex"], text: str | bytes, flags: int):
        self.source = (engine, text, flags)
        self.ready: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.ready is None:
            engine, text, flags = self.source
            if engine == "re":
                self.ready = re.compile(text, flags)
            else:
                import regex

                self.ready = regex.compile(text, flags)
        value = getattr(self.ready, name)
        setattr(self, name, value)  # found without a detour next time
        return value


def lazy(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile`, put off until the pattern is first used."""
    return cast("re.Pattern[AnyStr]", LazyPattern("re", text, flags))


def lazy_regex(text: str, flags: int = 0) -> regex.Pattern[str]:
    """`regex.compile`, put off until the pattern is first used."""
    return cast("regex.Pattern[str]", LazyPattern("regex", text, flags))


@dataclass(slots=True, frozen=True)
class Stamp:
    """A time as written in a line.

    seconds: Unix seconds when `zone` is known; the same reading taken as if it were UTC when it is not; seconds since
    boot for `mono` forms.  Year-less stamps are computed in year 2000 (a leap year) with `yearless=True`.
    """

    form: str
    seconds: float
    zone: float | None = None  # offset of the written zone from UTC in seconds; None = the text names no zone
    yearless: bool = False
    mono: bool = False
    precision: float = 1.0  # seconds

    def __reduce__(self) -> tuple[Any, ...]:  # a third of the time that a dataclass with slots takes to be sent between processes
        return Stamp, (self.form, self.seconds, self.zone, self.yearless, self.mono, self.precision)


@dataclass(slots=True)
class Line:
    """One physical line (1-based `number`, as `sed -n Np` counts), cleaned for reading.

    `text` has no ANSI escapes, NULs or launcher prefixes; of a line holding carriage returns it is the segment with the
    trigger.  `full` is the same segment before the prefixes were taken off.  `stamp` is the line's own stamp or, with
    `inherited`, that of the nearest line above which has one.
    """

    source: str
    number: int
    text: str
    full: str
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    actor: str | None = None
    stamp: Stamp | None = None
    inherited: bool = False
    stamp_line: int = 0  # line of an inherited stamp


@dataclass(slots=True)
class Event:
    """A line that says something.  `kind` is a parser's name for it (`traceback`, `xid`, `watchdog_timeout`) or `signature`."""

    kind: str
    source: str
    line: int
    text: str
    severity: Severity = "info"
    signature: str | None = None
    stamp: Stamp | None = None
    inherited: bool = False
    time: float | None = None  # Unix seconds on the common axis, set by forensics.clock
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    gpu: str | None = None  # index or PCI bus id as the log says it
    fields: dict[str, Any] = field(default_factory=dict)
    end_line: int | None = None
    stamp_line: int = 0  # line of an inherited stamp


@dataclass(slots=True)
class Metric:
    """One reading of a training metric under its canonical name (see parsers/canonical.toml); `raw` is the printed name."""

    name: str
    value: float
    source: str
    line: int
    step: float | None = None
    rank: int | None = None
    stamp: Stamp | None = None
    inherited: bool = False
    raw: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return Metric, (self.name, self.value, self.source, self.line, self.step, self.rank, self.stamp, self.inherited, self.raw)


@dataclass
class Rows:
    """Collects what parsers find in one file.

    `samples` holds polars frames with the columns of `forensics.timeline.SAMPLES` that are known; their `stamp` columns are
    `local` (float seconds as in `Stamp.seconds`) and `form`.  `facts` is the environment fingerprint:
    (key, value, line), key in dotted form such as `gpu.name`, `version.torch`, `limit.open_files`.
    """

    source: str
    events: list[Event] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)
    facts: list[tuple[str, Any, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)

    max_notes = 40
    max_metrics = 3_000_000
    max_metric_names = 2_000

    def event(self, line: Line, kind: str, severity: Severity = "info", **more: Any) -> Event:
        """Add an event at `line`; keywords are fields of `Event` (text, rank, host, pid, gpu, fields, end_line …)."""
        values: dict[str, Any] = {
            "text": line.text[:2000],
            "stamp": line.stamp,
            "inherited": line.inherited,
            "stamp_line": line.stamp_line,
            "rank": line.rank,
            "host": line.host,
            "pid": line.pid,
        }
        values.update(more)
        event = Event(kind=kind, source=self.source, line=line.number, severity=severity, **values)
        self.events.append(event)
        return event

    def metric(self, line: Line, name: str, value: float, step: float | None = None, raw: str = "", rank: int | None = None) -> None:
        """Add a reading; readings past the bounds (total, distinct names) are dropped and noted once."""
        if name not in self.names:
            if len(self.names) >= self.max_metric_names:
                self.note("more metric names than are kept; the rest were left out")
                return
            self.names[name] = 0
        if len(self.metrics) >= self.max_metrics:
            self.note("more metric readings than are kept; the rest were left out")
            return
        self.names[name] += 1
        self.metrics.append(
            Metric(
                name,
                value,
                self.source,
                line.number,
                step,
                rank if rank is not None else line.rank,
                line.stamp,
                line.inherited,
                raw or name,
            )
        )

    def readings(self, line: Line, found: list[tuple[str, float, str]], step: float | None) -> None:
        """Add many readings (canonical name, value, printed name) of one line, in the same bounds as `metric`."""
        for name, value, raw in found:
            if name in self.names and len(self.metrics) < self.max_metrics:
                self.names[name] += 1
                self.metrics.append(Metric(name, value, self.source, line.number, step, line.rank, line.stamp, line.inherited, raw))
            else:
                self.metric(line, name, value, step, raw)

    def fact(self, line: Line | int, key: str, value: Any) -> None:
        """Add one item of the environment fingerprint."""
        self.facts.append((key, value, line if isinstance(line, int) else line.number))

    def note(self, text: str) -> None:
        """Add a remark on the file for the report (each text once)."""
        if len(self.notes) < self.max_notes and text not in self.notes:
            self.notes.append(text)


class Context:
    """What a line parser may look at around its line: neighbours only, bounded, in the same file.

    `state` is a dict private to one parser and one file, for what must be remembered between lines.
    """

    def __init__(
        self,
        following: Callable[[int], Iterator[Line]],
        preceding: Callable[[int], Iterator[Line]],
        state: dict[str, Any] | None = None,
    ):
        self._following = following
        self._preceding = preceding
        self.state: dict[str, Any] = {} if state is None else state

    def following(self, limit: int = 200) -> Iterator[Line]:
        """The next lines of the file, cleaned, nearest first."""
        return self._following(limit)

    def preceding(self, limit: int = 20) -> Iterator[Line]:
        """The lines above, cleaned, nearest first."""
        return self._preceding(limit)


@dataclass(slots=True)
class LineParser:
    """Handles lines that contain one of `triggers` (case-sensitive, at least 3 bytes, as specific as the format allows).

    `sparse` triggers stand in very many lines (progress bars, rank maps): of those only the first and last few of each block
    are handed over.  `parse(line, rows, context)` adds rows; it must not raise on any text, and returns nothing.
    """

    name: str
    triggers: tuple[str, ...]
    parse: Callable[[Line, Rows, Context], None]
    sparse: tuple[str, ...] = ()
    kind: str = ""  # the kind of file that such lines betray: train, kernel, nccl, scheduler, gpu …; "" = says nothing
    readings: bool = False  # every line carries readings: a file may hold many before the scanner thins them out


@dataclass
class Head:
    """The beginning of a file, for recognition: `data` is its first 64 kB decompressed, `text` the same decoded."""

    path: str
    data: bytes
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines of `text`, split once for all who look at them."""
        return self.text.splitlines()

    @cached_property
    def written(self) -> list[str]:
        """Those of the first 400 that are not blank."""
        return [line for line in self.lines[:400] if line and not line.isspace()]


def mostly(lines: Sequence[str], test: Callable[[str], object], share: float = 0.9) -> bool:
    """Whether at least `share` of the lines pass a test; asks no longer than it takes to know."""
    misses = len(lines) - ceil(share * len(lines) - 1e-9)
    for line in lines:
        if not test(line):
            misses -= 1
            if misses < 0:
                return False
    return bool(lines)


class Source:
    """One file of the evidence as a file parser sees it: read-only, decompressed, bounded."""

    def __init__(self, path: str, opener: Callable[[], io.BufferedIOBase], limit: int = 256 << 20):
        self.path = path
        self._opener = opener
        self.limit = limit

    def open(self) -> io.BufferedIOBase:
        """A binary stream of the decompressed content."""
        return self._opener()

    def read(self) -> bytes:
        """The content, cut at `limit` bytes."""
        with self.open() as stream:
            return stream.read(self.limit)

    def text(self) -> str:
        """The content decoded with replacement of invalid bytes, line ends kept."""
        return self.read().decode("utf-8", "replace")


@dataclass(slots=True)
class FileParser:
    """Claims whole files.  `recognises(head)` gives 0 (no) to 1 (surely); the highest above 0.5 wins.

    `scan` = the line parsers and signatures read the file too.  `parse(source, rows)` may raise ValueError for a broken
    file: the message becomes a note in the report.
    """

    name: str
    kind: str
    recognises: Callable[[Head], float]
    parse: Callable[[Source, Rows], None]
    scan: bool = False
