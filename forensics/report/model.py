"""What the report shows: one object, filled by the engine, read by every renderer.

`facts` is the document of `--json` (schema `forensics.postmortem/1`).  `page` holds what only the page needs: curves, GPU tracks,
marks, ranks, files and the lines around each cited line.  Every human sentence in either may be a plain string or a pair
`{"en": …, "zh": …}`; `localise` chooses.  Times in `facts` are RFC 3339 strings, times in `page` are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

Text = str | dict[str, str]

LANGUAGES = ("en", "zh")
# Strings under these keys name things that other programs look up; only secrets are taken out of them, never an e-mail-like part.
NAMES = frozenset(
    {"file", "path", "source", "host", "hosts", "rule", "cause", "layer", "role", "exclude_hosts", "name", "schema", "version"}
)
PLAIN = frozenset({float, int, bool, type(None)})  # what holds no text
SCALARS = PLAIN | {str}


@dataclass(slots=True)
class Cited:
    """One line of the evidence: path relative to the run, 1-based line, its text, its time (Unix seconds) if known."""

    file: str
    line: int
    text: str = ""
    time: float | None = None

    @property
    def key(self) -> str:
        """The key of the lines around it in `Page.context`."""
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Curve:
    """Readings of one training metric; the three lists have one length.  `time` in Unix seconds, `value` may hold nan and inf."""

    name: str
    value: list[float | None]
    time: list[float | None]
    step: list[float | None]
    rank: int | None = None
    file: str = ""


@dataclass(slots=True)
class Track:
    """Samples of one GPU; lists as long as `time`, or empty where nothing was recorded.

    Memory in MiB, utilization in percent, temperature in degrees Celsius, power in watts.
    """

    host: str | None
    gpu: str
    time: list[float | None]
    memory_used: list[float | None] = field(default_factory=list)
    utilization: list[float | None] = field(default_factory=list)
    temperature: list[float | None] = field(default_factory=list)
    power: list[float | None] = field(default_factory=list)
    memory_total: float | None = None
    culprit: bool = False


@dataclass(slots=True)
class Mark:
    """An event on the plot.  `source` is the kind of file it stands in: kernel, scheduler, gpu, nccl, train, …"""

    time: float
    source: str
    text: str
    file: str = ""
    line: int = 0
    severity: str = "info"


@dataclass(slots=True)
class RankRow:
    """What is known of one rank at the end of the run.  `odd` marks those the verdict or the comparison singles out."""

    rank: int
    host: str | None = None
    gpu: str | None = None
    last_step: float | None = None
    last_time: float | None = None
    last_collective: str | None = None
    first_error: Cited | None = None
    exit: str | None = None
    odd: bool = False


@dataclass(slots=True)
class FileRow:
    """One file that was read, or was left out (`used` false).  `size` in bytes."""

    path: str
    size: int
    lines: int = 0
    kinds: tuple[str, ...] = ()
    host: str | None = None
    rank: int | None = None
    notes: list[Text] = field(default_factory=list)
    used: bool = True


@dataclass(slots=True)
class Page:
    """What the page shows beyond the JSON document.

    context: `file:line` -> the lines around it as (line number, raw text), the cited one among them.
    strongest: up to three lines, best first; where empty, the first evidence of the chain and the findings is taken.
    healthy, last: the last healthy step's line and the last line of the run; `healthy_step` its number.
    first_failure, ended: Unix seconds.  zone: hours from UTC in which times are shown.
    last_colour: the last three-colour line before the crash, if the logs hold any.
    ranks_more, files_more: how many there are beyond those in `ranks` and `files`.
    """

    curves: list[Curve] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ranks: list[RankRow] = field(default_factory=list)
    files: list[FileRow] = field(default_factory=list)
    context: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    strongest: list[Cited] = field(default_factory=list)
    healthy: Cited | None = None
    healthy_step: float | None = None
    first_failure: float | None = None
    last: Cited | None = None
    ended: float | None = None
    zone: float = 0.0
    last_colour: Cited | None = None
    ranks_more: int = 0
    files_more: int = 0


@dataclass(slots=True)
class PostMortem:
    """The whole account of one run.  `facts`: the document of CONTRACT schema `forensics.postmortem/1`."""

    facts: dict[str, Any]
    page: Page = field(default_factory=Page)

    def redacted(self, redactor: Any) -> PostMortem:
        """A copy without secrets and personal details; `facts["redactions"]` counts what was taken out, by kind.

        redactor: a `forensics.redact.Redactor`.
        """
        facts = _map(self.facts, redactor.text, redactor.name)
        page = _map(self.page, redactor.text, redactor.name)
        assert isinstance(facts, dict)
        assert isinstance(page, Page)
        facts["redactions"] = dict(redactor.counts)
        return PostMortem(facts, page)


def localise(value: Any, lang: str) -> Any:
    """A copy of nested dicts and lists in which every language pair is replaced by its text in `lang` (else English, else any)."""
    if isinstance(value, dict):
        if is_pair(value):
            return value.get(lang) or value.get("en") or next(iter(value.values()))
        return {key: item if type(item) in SCALARS else localise(item, lang) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if type(item) in SCALARS else localise(item, lang) for item in value]
    return value


def is_pair(value: Any) -> bool:
    """Whether `value` is a text in several languages."""
    return (
        isinstance(value, dict)
        and 0 < len(value) <= len(LANGUAGES)
        and all(k in LANGUAGES and isinstance(v, str) for k, v in value.items())
    )


def _map(value: Any, text: Callable[[str], str], name: Callable[[str], str], is_name: bool = False) -> Any:
    if isinstance(value, str):
        return name(value) if is_name else text(value)
    if isinstance(value, dict):
        return {name(k) if isinstance(k, str) else k: _map(v, text, name, is_name or k in NAMES) for k, v in value.items()}
    if isinstance(value, list):
        # Long columns of numbers (curves) need no walk.
        if value and set(map(type, value)) <= PLAIN:
            return value
        return [_map(item, text, name, is_name) for item in value]
    if isinstance(value, tuple):
        return tuple(_map(item, text, name, is_name) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f: _map(getattr(value, f), text, name, f in NAMES) for f in _fields(type(value))})
    return value


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
