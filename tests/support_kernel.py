"""A run made from the texts of its files, without reading a directory: lines through the kernel parsers, then rules over them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from forensics.run import FileInfo, RankInfo, Run
from forensics.stamps import find_stamp
from parsers import kernel_gpu, kernel_log, kernel_oom
from parsers.base import Event, Rows
from rules.base import Finding
from tests.support_lines import _context, lines_of

PARSERS = (kernel_gpu.PARSER, kernel_oom.PARSER, kernel_log.PARSER)


def read(text: str, source: str = "dmesg.txt", parsers: Any = PARSERS) -> Rows:
    """Rows of the kernel parsers, each line with its own stamp."""
    rows = Rows(source)
    lines = lines_of(text, source)
    for line in lines:
        line.stamp = find_stamp(line.full)
    for parser in parsers:
        state: dict[str, Any] = {}
        for at, line in enumerate(lines):
            if any(trigger in line.full for trigger in parser.triggers):
                parser.parse(line, rows, _context(lines, at, state))
    return rows


def one(text: str, kind: str) -> Event:
    """The only event of a kind that a text gives."""
    (event,) = [e for e in read(text).events if e.kind == kind]
    return event


def at(text: str) -> float:
    """Unix seconds of an ISO time taken as UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def make_run(files: dict[str, str], **more: Any) -> Run:
    """A run of these kernel logs (`host/name` or `name`); stamps without a zone count as UTC.

    more: started, ended, last_progress (ISO texts), ranks (list of RankInfo), events, samples, facts.
    """
    events: list[Event] = list(more.pop("events", []))
    infos: dict[str, FileInfo] = {}
    for path, text in files.items():
        host = path.split("/")[0] if "/" in path else None
        infos[path] = FileInfo(path, len(text), text.count("\n") + 1, ("kernel",), host)
        for event in read(text, path).events:
            if event.stamp is not None and not event.stamp.mono:
                event.time = event.stamp.seconds
            event.host = event.host or host
            events.append(event)
    events.sort(key=lambda e: (e.time is None, e.time or 0.0, e.source, e.line))
    ranks = {r.rank: r for r in more.pop("ranks", [])}
    times = {
        name: at(value) if isinstance(value, str) else value
        for name, value in more.items()
        if name in ("started", "ended", "last_progress")
    }
    rest = {name: value for name, value in more.items() if name not in times}
    return Run("run", events=events, files=infos, ranks=ranks, hosts=sorted({r.host for r in ranks.values() if r.host}), **times, **rest)


def ranks_of(host: str, pids: list[int], first: int = 0) -> list[RankInfo]:
    """Ranks of one host, one per process id, GPU indices counted from 0."""
    return [RankInfo(first + i, host, i, str(i), pids={pid}) for i, pid in enumerate(pids)]


def found(findings: list[Finding], prefix: str = "") -> list[Finding]:
    """Those with outcome `found` whose rule starts with the prefix."""
    return [f for f in findings if f.outcome == "found" and f.rule.startswith(prefix)]
