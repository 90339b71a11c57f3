"""Printed metric names -> canonical names and units.

The table is `canonical.toml` beside this module.  Names that stand nowhere in it are kept as printed, so nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from forensics.packs import read_toml


@dataclass(frozen=True, slots=True)
class Reading:
    """How one printed name is read: canonical `name`, `scale` to its unit, and whether the table knew the name."""

    name: str
    scale: float = 1.0
    known: bool = False


@dataclass(slots=True)
class Entry:
    """One canonical metric as the table describes it."""

    name: str
    unit: str
    en: str
    zh: str
    keys: list[str] = field(default_factory=list)
    frameworks: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Pattern:
    head: str
    tail: str
    name: str
    canonical: bool
    known: bool


@dataclass(slots=True)
class _Table:
    entries: list[Entry]
    anywhere: dict[str, str]
    lowered: dict[str, str]
    framed: dict[tuple[str, str], str]
    scales: dict[str, float]
    patterns: list[_Pattern]


@cache
def _table() -> _Table:
    data: dict[str, Any] = read_toml(Path(__file__).with_name("canonical.toml"))
    table = _Table([], {}, {}, {}, {}, [])
    for item in data["metric"]:
        entry = Entry(item["name"], item["unit"], item["en"], item["zh"], item.get("keys", []), item.get("in", {}))
        table.entries.append(entry)
        for key in (entry.name, *entry.keys):
            table.anywhere.setdefault(key, entry.name)
            table.lowered.setdefault(key.lower(), entry.name)
        for framework, keys in entry.frameworks.items():
            for key in keys:
                table.framed[framework, key] = entry.name
        table.scales.update(item.get("scaled", {}))
    for item in data["pattern"]:
        head, _, tail = item["match"].partition("{x}")
        table.patterns.append(_Pattern(head, tail, item["name"], item.get("canonical", False), item.get("known", False)))
    return table


@lru_cache(maxsize=20_000)
def reading(raw: str, framework: str | None = None) -> Reading:
    """The canonical reading of a printed name; `framework` decides names that mean different things in different places."""
    table = _table()
    name = table.framed.get((framework, raw)) if framework else None
    if name is None:
        name = (
            table.anywhere.get(raw) or table.lowered.get(raw.lower()) or table.lowered.get(raw.lower().replace("-", "_").replace(" ", "_"))
        )
    if name is not None:
        scale = table.scales.get(f"{framework}:{raw}", table.scales.get(raw, 1.0))
        return Reading(name, scale, True)
    for pattern in table.patterns:
        if not (raw.startswith(pattern.head) and raw.endswith(pattern.tail)):
            continue
        rest = raw[len(pattern.head) : len(raw) - len(pattern.tail)]
        if not rest or len(rest) + len(pattern.head) + len(pattern.tail) != len(raw):
            continue
        known = True
        if pattern.canonical:
            inner = reading(rest, framework) if rest.count("_") + rest.count("/") < 20 else Reading(rest)
            if pattern.known and not inner.known:
                continue
            rest, known = inner.name, inner.known
        return Reading(pattern.name.replace("{x}", rest), 1.0, known)
    return Reading(raw)


def canonical(raw: str, framework: str | None = None) -> str:
    """The canonical name of a printed one; the printed one where none is known."""
    return reading(raw, framework).name


def entries() -> list[Entry]:
    """Every canonical metric, in the table's order."""
    return list(_table().entries)


def unit(name: str) -> str:
    """The unit of a canonical metric; an empty text for plain numbers and unknown names."""
    return _units().get(name, "")


@cache
def _units() -> dict[str, str]:
    return {entry.name: entry.unit for entry in _table().entries}


def table_markdown() -> str:
    """The table as Markdown, for docs/metrics.md."""
    lines = [
        "# Metric names",
        "",
        "Generated from `parsers/canonical.toml`. Every printed name becomes the canonical name on its left; a printed name that",
        "stands nowhere here is kept as printed.",
        "",
        "| canonical | unit | meaning | 含义 | printed as |",
        "|---|---|---|---|---|",
    ]
    for entry in _table().entries:
        printed = [f"`{key}`" for key in entry.keys if key != entry.name]
        printed += [f"{framework}: `{key}`" for framework, keys in sorted(entry.frameworks.items()) for key in keys]
        lines.append(f"| `{entry.name}` | {entry.unit} | {entry.en} | {entry.zh} | {', '.join(printed)} |")
    lines += ["", "## Families", "", "| printed | canonical |", "|---|---|"]
    for pattern in _table().patterns:
        shown = pattern.name.replace("{x}", "<canonical name>" if pattern.canonical else "<name>")
        lines.append(f"| `{pattern.head}<name>{pattern.tail}` | `{shown}` |")
    return "\n".join(lines) + "\n"
