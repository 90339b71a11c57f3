"""What the readers of printed snapshots share: units, sections below a header line, and sample rows with their clock.

A snapshot is the output of a tool (`nvidia-smi`, `ulimit -a`, `df`) wherever it was written: a file of its own, a file with many,
or the top of a training log.  Its readers therefore start at a header line that only this tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from parsers.base import Context, Line, Rows, lazy

_NUMBER = lazy(r"\s{0,20}(-?\d{1,15}(?:\.\d{1,6})?)")
_SIZE = lazy(r"\s{0,20}(\d{1,18}(?:\.\d{1,6})?)\s{0,4}([KMGTP]?)(i?)(B?|bytes|byte)?\s{0,4}\Z", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
PROMPT = lazy(r"\A\s{0,4}(?:[\w.@~:/()\[\] -]{0,80})?[$#>+] ")
MAX_SAMPLES = 2_000_000
MERGE = 256  # small frames that are joined into one: a table a second makes 86,400 a day


def number(text: str) -> float | None:
    """The number at the beginning of a cell (`69.85 W`, `32C`), None where there is none."""
    found = _NUMBER.match(text)
    return float(found[1]) if found else None


def size_bytes(text: str) -> float | None:
    """A size with its unit (`64G`, `47 GiB`, `81559MiB`, `512`) in bytes, units as powers of 1024; None for anything else."""
    found = _SIZE.match(text[:60])
    if found is None:
        return None
    return float(found[1]) * 1024.0 ** _POWERS[found[2].lower()]


def gib(count: float) -> float:
    """Bytes as GiB with two decimals."""
    return round(count / 2**30, 2)


def once(rows: Rows, context: Context, line: Line | int, key: str, value: Any) -> None:
    """A fact, each pair of key and value only once for one parser and file (at most 5,000)."""
    seen: set[tuple[str, str]] = context.state.setdefault("facts", set())
    mark = (key, str(value))
    if mark not in seen and len(seen) < 5_000:
        seen.add(mark)
        rows.fact(line, key, value)


def below(context: Context, limit: int, blanks: int = 1) -> Iterator[Line]:
    """The lines below a header up to `blanks` empty lines in a row, or a shell prompt."""
    empty = 0
    for line in context.following(limit):
        if not line.text.strip():
            empty += 1
            if empty >= blanks:
                return
            continue
        empty = 0
        if PROMPT.match(line.text[:160]) and line.text.lstrip()[:1] != "|":
            return
        yield line


def add_samples(rows: Rows, found: list[dict[str, Any]], at: Line) -> None:
    """Append GPU samples (columns of `forensics.timeline.SAMPLES`, each with its `line`) taken at the time of the line `at`."""
    if not found or sum(frame.height for frame in rows.samples) >= MAX_SAMPLES:
        return
    names = list(dict.fromkeys(name for row in found for name in row))
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in found] for name in names}
    if at.stamp is not None:
        columns |= {"local": [float(at.stamp.seconds)] * len(found), "form": [at.stamp.form] * len(found)}
    if at.host is not None:
        columns.setdefault("host", [at.host] * len(found))
    types = {
        "host": pl.String,
        "gpu": pl.String,
        "pci": pl.String,
        "status": pl.String,
        "form": pl.String,
        "line": pl.Int64,
        "throttle": pl.Int64,
    }
    frame = pl.DataFrame(columns | ({} if "host" in columns else {"host": [None] * len(found)}), schema_overrides=types, strict=False)
    rows.samples.append(frame)
    if len(rows.samples) >= MERGE:
        merge(rows)


def merge(rows: Rows) -> None:
    """Join frames whose stamps are of one form (a frame has one)."""
    groups: dict[str | None, list[pl.DataFrame]] = {}
    for frame in rows.samples:
        form = frame["form"][0] if "form" in frame.columns and frame.height else None
        groups.setdefault(form, []).append(frame)
    rows.samples[:] = [pl.concat(group, how="diagonal_relaxed") for group in groups.values()]
