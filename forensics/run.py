"""The facts of one run as rules see them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parsers.base import Event
from rules.base import Evidence, Finding

if TYPE_CHECKING:
    import polars as pl


@dataclass(slots=True)
class FileInfo:
    """One file of the run: `kinds` are what its content showed (train, kernel, nccl, scheduler, gpu, metrics, environment …)."""

    path: str
    size: int
    lines: int = 0
    kinds: tuple[str, ...] = ()
    host: str | None = None
    rank: int | None = None
    notes: list[Any] = field(default_factory=list)  # sentences, or pairs of them by language
    stamped: int = 0  # lines whose own time was read among those looked at
    first_time: float | None = None
    last_time: float | None = None
    modified: float | None = None
    attempt: int | None = None
    used: bool = True


@dataclass(slots=True)
class RankInfo:
    """What is known of one rank over all files."""

    rank: int
    host: str | None = None
    local_rank: int | None = None
    gpu: str | None = None  # index
    pci: str | None = None
    pids: set[int] = field(default_factory=set)
    last_step: float | None = None
    last_time: float | None = None  # last line of this rank, Unix seconds
    first_error: Evidence | None = None
    exit: str | None = None  # "exit 1", "SIGKILL" …
    last_collective: str | None = None


@dataclass(slots=True)
class Series:
    """One metric over the run, in order of reading.  All lists have the same length; `step` may hold None."""

    name: str
    value: list[float]
    step: list[float | None]
    time: list[float | None]
    source: list[str]
    line: list[int]

    def __len__(self) -> int:
        return len(self.value)

    def evidence(self, index: int) -> Evidence:
        """The line where reading `index` stands."""
        return Evidence(self.source[index], self.line[index], f"{self.name} = {self.value[index]:g}", self.time[index])


@dataclass
class Run:
    """Everything read from one run directory, on one clock (Unix seconds, UTC)."""

    name: str
    events: list[Event] = field(default_factory=list)  # in order of time, then file and line
    metrics: pl.DataFrame | None = None  # columns of forensics.timeline.METRICS
    samples: pl.DataFrame | None = None  # columns of forensics.timeline.SAMPLES
    files: dict[str, FileInfo] = field(default_factory=dict)
    ranks: dict[int, RankInfo] = field(default_factory=dict)
    facts: list[tuple[str, str, Any, int]] = field(default_factory=list)  # (key, file, value, line)
    clocks: list[Any] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    world_size: int | None = None
    hosts: list[str] = field(default_factory=list)
    started: float | None = None
    ended: float | None = None  # time of the last line of the training log
    last_step: float | None = None
    last_progress: float | None = None  # time of the last sign of training progress
    last_progress_at: Evidence | None = None
    progress_lines: dict[str, list[int]] = field(default_factory=dict)  # file -> lines that show a training step, ascending
    progress_times: list[float] = field(default_factory=list)  # times of those that have one, ascending
    restarts: dict[str, list[int]] = field(default_factory=dict)  # file -> lines at which an attempt begins, ascending
    restart_times: list[float] = field(default_factory=list)
    clock_uncertainty: dict[str, float] = field(default_factory=dict)  # file -> seconds by which its clock may be off
    memo: dict[str, Any] = field(default_factory=dict)  # what rules work out once and share, by name
    settings: dict[str, Any] = field(default_factory=dict)  # run configuration: canonical key -> value

    def __post_init__(self) -> None:
        self._by_kind: dict[str, list[Event]] | None = None
        self._by_signature: dict[str, list[Event]] | None = None
        self._series: dict[tuple[str, int | None], Series] = {}
        self._names: set[str] | None = None

    def kind(self, *names: str) -> list[Event]:
        """Events of these kinds, in time order."""
        if self._by_kind is None:
            self._by_kind = defaultdict(list)
            for event in self.events:
                self._by_kind[event.kind].append(event)
        if len(names) == 1:
            return self._by_kind.get(names[0], [])
        return [event for event in self.events if event.kind in names]

    def signature(self, *ids: str) -> list[Event]:
        """Events confirmed for these signature ids, in time order."""
        if self._by_signature is None:
            self._by_signature = defaultdict(list)
            for event in self.events:
                if event.signature:
                    self._by_signature[event.signature].append(event)
        return [event for name in ids for event in self._by_signature.get(name, [])]

    def series(self, name: str, rank: int | None = None) -> Series:
        """Readings of a canonical metric (of one rank where given, else of whichever ranks printed it), one per step.

        Several sources that print the same metric are not mixed: the one with most readings is taken.
        """
        key = (name, rank)
        if key not in self._series:
            self._series[key] = self._read_series(name, rank)
        return self._series[key]

    def names(self) -> set[str]:
        """Canonical names of the metrics that occur."""
        if self._names is None:
            self._names = set() if self.metrics is None else set(self.metrics["name"].unique().to_list())
        return self._names

    def _read_series(self, name: str, rank: int | None) -> Series:
        empty = Series(name, [], [], [], [], [])
        if self.metrics is None or name not in self.names():
            return empty
        mask = self.metrics["name"] == name
        if rank is not None:
            mask &= self.metrics["rank"] == rank
        # Column by column: on a few thousand readings a query costs more in its planning than in its work.
        columns = {key: self.metrics[key].filter(mask) for key in ("value", "step", "time", "source", "line", "raw", "rank")}
        if not len(columns["line"]):
            return empty
        # One file, one spelling, one rank: ranks that print the same step would show it several times.
        several = [columns[key].to_list() for key in ("rank", "source", "raw") if columns[key].n_unique() > 1]
        lists = [columns[key].to_list() for key in ("value", "step", "time", "source", "line")]
        if several or not columns["line"].is_sorted():
            own = list(zip(*several, strict=True)) or [()] * len(lists[0])
            counts = Counter(own)
            best = min(counts, key=lambda key: (-counts[key], *_lowest(key[0] if key else None)))
            order = [i for i, key in enumerate(own) if key == best]
            order.sort(key=lists[-1].__getitem__)
            lists = [[values[i] for i in order] for values in lists]
        return Series(name, *lists)

    def fact(self, key: str) -> Any:
        """The first value of an environment fact, or None."""
        return next((value for name, _, value, _ in self.facts if name == key), None)

    def evidence(self, event: Event) -> Evidence:
        """An event as a place to cite."""
        return Evidence(event.source, event.line, event.text[:400], event.time)

    def found(self, prefix: str) -> list[Finding]:
        """Findings (outcome `found`) whose cause or rule id starts with `prefix`."""
        return [f for f in self.findings if f.outcome == "found" and ((f.cause or "").startswith(prefix) or f.rule.startswith(prefix))]


def _lowest(rank: Any) -> tuple[bool, int]:
    """Sorts ranks, none before 0; anything else is equal."""
    return (rank is not None, rank) if isinstance(rank, int) else (False, 0)
