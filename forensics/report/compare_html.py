"""The comparison as a page of the report's style: one file, no network, its own script only."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

import forensics
from forensics.report import html as page
from forensics.report import plots
from forensics.report import text as t
from forensics.report.compare import CompareWords, headline, parting_line, parts, value, views

if TYPE_CHECKING:
    from forensics.comparison import Comparison, Item, Pair
    from forensics.report.model import Curve

ROWS = 400  # differences listed of one part
ALIKE = 200  # items listed that are alike
POINTS = 1200  # of one curve


def render_html(found: Comparison, lang: str = "en") -> str:
    """The whole page.  `lang`: `en` or `zh` (ValueError for another)."""
    words = CompareWords(lang)
    one, two = views(found, lang)
    data = payload(found, words)
    plotly = page._plotly()
    script, style = page._asset("page.js"), page._asset("style.css")
    drawn = bool(data["lanes"])
    state = {"plot": data, "ranks": [], "words": page._script_words(one)}
    text = page._environment().get_template("compare.html.j2").render(
        w=words,
        v=one,
        sides=[("a", one), ("b", two)],
        title=headline(found, words),
        parting=parting_line(found, words),
        parts=[(name, *split(items)) for name, items in parts(found)],
        own=found.own[:ROWS],
        rows=[row(pair, words) for pair in found.metrics],
        plot=data,
        version=forensics.__version__,
        script=Markup(script),
        style=Markup(style),
        policy=page._policy(script, style, plotly["hash"] if drawn else ""),
        plotly=plotly["packed"] if drawn else "",
        state=base64.b64encode(gzip.compress(json.dumps(state, separators=(",", ":")).encode(), 6, mtime=0)).decode(),
    )  # fmt: skip
    return text.encode("utf-8", "replace").decode("utf-8")


def split(items: list[Item]) -> tuple[list[Item], list[Item], int]:
    """(items that differ, items alike, how many were left out)."""
    odd = [item for item in items if item.state != "same"]
    alike = [item for item in items if item.state == "same"]
    return odd[:ROWS], alike[:ALIKE], max(0, len(odd) - ROWS) + max(0, len(alike) - ALIKE)


def row(pair: Pair, words: CompareWords) -> dict[str, Any]:
    """One metric of the table."""
    point = pair.parts_at
    both = pair.a is not None and pair.b is not None
    state = "" if both else words("compare.only_a" if pair.b is None else "compare.only_b")
    return {
        "name": t.visible(words.get(f"lane.{pair.name}", pair.name), 80),
        "common": f"{pair.common:,}" if both else state,
        "equal": words("compare.all_equal") if pair.equal else "–" if pair.equal_until is None else t.number(pair.equal_until),
        "parts": t.number(point.step) if point else words("compare.never") if both and pair.common else "–",
        "values": f"{value(point.a)} / {value(point.b)}" if point else "–",
        "odd": point is not None,
    }


def payload(found: Comparison, words: CompareWords) -> dict[str, Any]:
    """Both runs' curves over the step, in the form the page's script draws; a lane per metric that both have, else none."""
    lanes = []
    total = kept = 0
    for pair in found.metrics:
        if pair.a is None or pair.b is None:
            continue
        drawn = []
        for side, curve in (("compare.side_a", pair.a), ("compare.side_b", pair.b)):
            x, y, s = plots._columns(_steps(curve), curve.value, ())
            if len(x):
                index = plots.thin(x, y, POINTS)
                total += len(x)
                kept += len(index)
                drawn.append(plots._trace(f"{words(side)} · {pair.name}", x[index], y[index], s, True, side == "compare.side_b"))
        if len(drawn) == 2:
            name = words.get(f"lane.{pair.name}", t.visible(pair.name.replace("_", " "), 40))
            lanes.append({"id": pair.name, "title": name, "unit": "", "log": pair.name not in plots.LINEAR, "curves": drawn})
    first = found.first_parting
    lines = []
    if first is not None and first.parts_at is not None and any(lane["id"] == first.name for lane in lanes):
        lines.append({"x": first.parts_at.step, "kind": "ended", "label": words("compare.line")})
    notes = [words("compare.legend")] if lanes else []
    notes += [words("window.thinned" if kept < total else "window.complete", kept=f"{kept:,}", total=f"{total:,}")] if total else []
    return {"axis": "step", "zone": 0, "lanes": lanes, "marks": [], "lines": lines, "ranges": {}, "thinned": kept < total, "notes": notes}


def _steps(curve: Curve) -> list[float | None]:
    return curve.step if any(step is not None for step in curve.step) else [float(n) for n in range(len(curve.value))]
