"""Lines and contexts made by hand, so that a parser can be tested without the scanner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Metric, Rows, Source
from parsers.prefixes import Style, clean, strip


def lines_of(text: str, source: str = "train.log") -> list[Line]:
    """Every segment of a text as the scanner would clean it; segments of one physical line share its number."""
    out = []
    for number, physical in enumerate(text.split("\n"), 1):
        for segment in physical.split("\r"):
            full = clean(segment.encode("utf-8", "surrogatepass"))
            prefixed = strip(full, Style())
            out.append(Line(source, number, prefixed.text, full, prefixed.rank, prefixed.host, prefixed.pid, prefixed.actor))
    return out


def feed(parsers: LineParser | Iterable[LineParser], text: str, source: str = "train.log") -> Rows:
    """The rows that line parsers make of a text: each line that holds one of a parser's triggers is handed to it."""
    rows = Rows(source)
    lines = lines_of(text, source)
    chosen = (parsers,) if isinstance(parsers, LineParser) else tuple(parsers)
    states: list[dict[str, Any]] = [{} for _ in chosen]
    for at, line in enumerate(lines):
        for parser, state in zip(chosen, states, strict=True):
            if any(trigger in line.full for trigger in (*parser.triggers, *parser.sparse)):
                parser.parse(line, rows, _context(lines, at, state))
    return rows


def _context(lines: list[Line], at: int, state: dict[str, Any]) -> Context:
    def following(limit: int) -> Iterator[Line]:
        yield from lines[at + 1 : at + 1 + limit]

    def preceding(limit: int) -> Iterator[Line]:
        """Whole physical lines above, as the scanner gives them: segments run together."""
        number = lines[at].number
        for above in range(number - 1, max(0, number - 1 - limit), -1):
            parts = [line for line in lines if line.number == above]
            if parts:
                yield Line(parts[0].source, above, "".join(p.text for p in parts), "".join(p.full for p in parts))

    return Context(following, preceding, state)


def parse_file(parser: FileParser, path: str, data: bytes) -> Rows:
    """The rows a file parser makes of a file's content."""
    import io

    rows = Rows(path)
    parser.parse(Source(path, lambda: io.BytesIO(data)), rows)
    return rows


def head(path: str, data: bytes) -> Head:
    """The head of a file's content for `recognises`."""
    return Head(path, data[: 64 << 10], data[: 64 << 10].decode("utf-8", "replace"))


def series(rows: Rows, name: str) -> list[tuple[float | None, float]]:
    """(step, value) of a metric's readings in order."""
    return [(m.step, m.value) for m in rows.metrics if m.name == name]


def named(rows: Rows, name: str) -> list[Metric]:
    """A metric's readings in order."""
    return [m for m in rows.metrics if m.name == name]


def facts(rows: Rows, key: str) -> list[Any]:
    """The values of a fact."""
    return [value for name, value, _ in rows.facts if name == key]
