"""The comparison of two runs as JSON, Markdown and on the terminal."""

from __future__ import annotations

import json
import math
import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from forensics.report import text as t
from forensics.report.view import LAYERS, View
from forensics.report.words import Words

if TYPE_CHECKING:
    from forensics.comparison import Comparison, Item, Pair
    from forensics.report.model import Curve

LIMIT = 8000  # characters of the Markdown text
ROWS = 14  # differences listed of one part in Markdown and on the terminal
LINES = 40


@cache
def _table() -> dict[str, dict[str, str]]:
    return tomllib.loads(files("forensics.report").joinpath("compare_words.toml").read_text("utf-8"))["compare"]  # type: ignore[no-any-return]


class CompareWords(Words):
    """The report's words and, under `compare.…`, those of the comparison."""

    def __call__(self, key: str, **fill: Any) -> str:
        if key.startswith("compare."):
            text = _table()[key.removeprefix("compare.")][self.lang]
            return text.format(**fill) if fill else text
        return super().__call__(key, **fill)


def views(found: Comparison, lang: str) -> tuple[View, View]:
    """Both runs as the report tells them."""
    assert found.a.model is not None
    assert found.b.model is not None
    return View(found.a.model, lang), View(found.b.model, lang)


def headline(found: Comparison, words: CompareWords) -> str:
    """How many differences there are."""
    return words("compare.sentence", n=found.differences) if found.differences else words("compare.alike")


def parting_line(found: Comparison, words: CompareWords) -> str:
    """Which metric parts first, and where."""
    pair = found.first_parting
    if pair is not None and pair.parts_at is not None:
        point = pair.parts_at
        return words("compare.parting", metric=t.visible(pair.name, 60), step=t.number(point.step), a=value(point.a), b=value(point.b))
    return words("compare.no_parting" if any(p.common for p in found.metrics) else "compare.no_common")


def value(number: float | None) -> str:
    """A reading in at most six digits."""
    return "–" if number is None else f"{number:.6g}"


def parts(found: Comparison) -> list[tuple[str, list[Item]]]:
    """The compared parts in order, as (name, items)."""
    return [("environment", found.environment), ("packages", found.packages), ("settings", found.settings)]


# -------------------------------------------------------------------------------------------------------------- JSON


def render_json(found: Comparison, lang: str = "en") -> str:
    """The document of schema `forensics.comparison/1`; numbers JSON does not know become null."""
    from forensics.comparison import SCHEMA
    from forensics.report.model import localise

    sides = {}
    for name, report in (("a", found.a), ("b", found.b)):
        assert report.model is not None
        facts = localise(report.model.facts, lang)
        sides[name] = {key: facts.get(key) for key in ("run", "verdict", "redactions")}
    document = {
        "schema": SCHEMA,
        **sides,
        "differences": found.differences,
        **{name: [_item(item) for item in items] for name, items in (*parts(found), ("own", found.own))},
        "metrics": [_pair(pair) for pair in found.metrics],
    }
    from forensics.report.json import _plain

    return json.dumps(_plain(document), ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _item(item: Item) -> dict[str, Any]:
    return {"key": item.key, "a": item.a, "b": item.b, "state": item.state}


def _pair(pair: Pair) -> dict[str, Any]:
    point = pair.parts_at
    return {
        "name": pair.name,
        "common_steps": pair.common,
        "equal": pair.equal,
        "equal_until": pair.equal_until,
        "parts_at": None if point is None else {"step": point.step, "a": point.a, "b": point.b, "apart": point.apart},
        "a": _curve(pair.a),
        "b": _curve(pair.b),
    }


def _curve(curve: Curve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    known = [v for v in curve.value if v is not None]
    finite = [v for v in known if math.isfinite(v)]
    return {
        "file": curve.file,
        "readings": len(known),
        "last": known[-1] if known else None,
        "lowest": min(finite, default=None),
        "highest": max(finite, default=None),
    }


# ---------------------------------------------------------------------------------------------------------- Markdown


def render_markdown(found: Comparison, lang: str = "en") -> str:
    """The differences for a ticket; texts of the evidence stand in code spans or are escaped."""
    from forensics.report.markdown import code, escape

    words = CompareWords(lang)
    one, two = views(found, lang)
    blocks = [f"## {escape(headline(found, words))}", escape(parting_line(found, words))]
    verdicts = [
        f"- **{words('compare.side_' + side)}** {code(t.visible(view.name, 80))} {escape(view.sentence)} ({view.percent})"
        for side, view in (("a", one), ("b", two))
    ]
    blocks.append("\n".join(verdicts))
    for name, items in parts(found):
        odd = [item for item in items if item.state != "same"]
        if not items:
            continue
        lines = [f"### {words('compare.' + name)}"]
        for item in odd[:ROWS]:
            lines.append(f"- {code(t.visible(item.key, 80))}: {_code(item.a)} → {_code(item.b)}")
        if len(odd) > ROWS:
            lines.append("- " + words("page.more", n=len(odd) - ROWS))
        lines.append("- " + words("compare.same_count", n=len(items) - len(odd)))
        blocks.append("\n".join(lines))
    parted = [pair for pair in found.metrics if pair.parts_at is not None]
    if parted:
        lines = [f"### {words('compare.metrics')}"]
        for pair in parted[:ROWS]:
            point = pair.parts_at
            assert point is not None
            lines.append(
                f"- {code(t.visible(pair.name, 60))}: {words('compare.parts')} {t.number(point.step)} ({value(point.a)} → {value(point.b)})"
            )
        blocks.append("\n".join(lines))
    text = ""
    for block in blocks:
        if len(text) + len(block) > LIMIT:
            break
        text += block + "\n\n"
    return text


def _code(text: str | None) -> str:
    from forensics.report.markdown import code

    return "–" if text is None else code(t.visible(text, 120))


# ---------------------------------------------------------------------------------------------------------- terminal


def render_terminal(found: Comparison, lang: str = "en", console: Console | None = None) -> None:
    """Print the verdicts and the first differences, at most 40 lines."""
    out = console or Console(highlight=False)
    for line in summary(found, lang)[:LINES]:
        out.print(line, no_wrap=True, overflow="ellipsis", crop=True, soft_wrap=False, highlight=False)


def summary(found: Comparison, lang: str = "en") -> list[Text]:
    """The lines of the summary, most telling first."""
    words = CompareWords(lang)
    one, two = views(found, lang)
    lines = [Text(headline(found, words), "bold"), Text(parting_line(found, words))]
    for side, view in (("a", one), ("b", two)):
        tone = "red" if view.layer in LAYERS else "green" if view.layer == "none" else "yellow"
        lines.append(
            Text(f"{words('compare.side_' + side)}  {view.name}: ", "dim").append(f"{view.sentence} ({view.percent})", f"not dim {tone}")
        )
    for name, items in parts(found):
        odd = [item for item in items if item.state != "same"]
        if not odd:
            continue
        lines += [Text(""), Text(words("compare." + name), "bold")]
        for item in odd[:8]:
            row = Text("  ").append(t.visible(item.key, 48), "cyan").append("  ")
            row.append(t.visible(item.a, 60) if item.a is not None else "–").append(" → ", "dim")
            lines.append(row.append(t.visible(item.b, 60) if item.b is not None else "–"))
        if len(odd) > 8:
            lines.append(Text("  " + words("page.more", n=len(odd) - 8), "dim"))
    return lines
