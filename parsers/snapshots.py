"""What the readers of printed snapshots share: units, sections below a header line, and sample rows with their clock.

A snapshot is the output of a tool (`nvidia-smi`, `ulimit -a`, `df`) wherever it was written: a file of its own, a file with many,
or the top of a training log.  Its readers therefore start at a header line that only this tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from parsers.base import Context, Line, Rows

_NUMBER = re.compile(r"\s{0,20}(-?\d{1,15}(?:\.\d{1,6})?)")
_SIZE = re.compile(r"\s{0,20}(\d{1,18}(?:\.\d{1,6})?)\s{0,4}([KMGTP]?)(i?)(B?|bytes|byte)?\s{0,4}\Z", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
PROMPT = re.compile(r"\A\s{0,4}(?:[\w.@~:/()\[\] -]{0,80})?[$#>+] ")
MAX_FRAMES = 20_000


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
    if not found or len(rows.samples) >= MAX_FRAMES:
        return
    names = list(dict.fromkeys(name for row in found for name in row))
    frame = pl.DataFrame({name: [row.get(name) for row in found] for name in names}, strict=False)
    if at.stamp is not None:
        frame = frame.with_columns(pl.lit(float(at.stamp.seconds)).alias("local"), pl.lit(at.stamp.form).alias("form"))
    if "host" not in frame.columns:
        frame = frame.with_columns(pl.lit(at.host, dtype=pl.String).alias("host"))
    rows.samples.append(frame)
