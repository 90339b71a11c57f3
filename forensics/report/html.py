"""The page: one HTML file that needs no network and runs nothing but its own script.

A content-security policy in the page allows exactly the texts written here, by their hashes; whatever a log line, a host or a
metric is called, it can only ever be text.  plotly.js and the plot's data are stored compressed and unpacked by the browser.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from forensics.report import plots
from forensics.report import text as t
from forensics.report.model import Page, PostMortem
from forensics.report.view import LAYERS, VERDICTS, View

FILES = 400  # files listed
FINDINGS = 60  # findings listed of one layer and outcome
RANK_ROWS = 8192  # ranks in the page
CELLS = 1024  # ranks that are drawn as one element each
ENVIRONMENT = 300  # items of the environment listed
LARGEST = 2_500_000  # bytes the page may have
FEW_FILES = 60  # files and ranks of a page that would be larger
FEW_RANKS = 512


def render_html(model: PostMortem, lang: str = "en", plotly_at: str | None = None) -> str:
    """The whole page.  `lang`: `en` or `zh` (ValueError for another).

    plotly_at: where a copy of plotly.js shared by several pages lies, relative to the page; without it the page carries its own.
    The page stays under 2.5 MB: should there be too much, the lines around the quotes go first, then files, ranks that are like the
    others, and curves; how many were left out stands in the page.
    """
    page = _render(View(model, lang), plotly_at)
    model = replace(model, page=replace(model.page))  # thinned here, whole for other renderings
    for thin in THINNER:
        if len(page.encode()) <= LARGEST:
            break
        thin(model.page)
        page = _render(View(model, lang), plotly_at)
    return page


def _no_context(page: Page) -> None:
    page.context = {}


def _few_files(page: Page) -> None:
    kept = sorted(page.files, key=lambda f: (not f.notes, -f.size, f.path))[:FEW_FILES]
    page.files_more += len(page.files) - len(kept)
    page.files = kept


def _few_ranks(page: Page) -> None:
    spare = max(0, FEW_RANKS - sum(row.odd for row in page.ranks))
    plain = {row.rank for row in [row for row in page.ranks if not row.odd][:spare]}
    kept = [row for row in page.ranks if row.odd or row.rank in plain][:FEW_RANKS]
    page.ranks_more += len(page.ranks) - len(kept)
    page.ranks = kept


def _few_curves(page: Page) -> None:
    page.curves, page.tracks = page.curves[:6], page.tracks[:16]


THINNER: tuple[Callable[[Page], None], ...] = (_no_context, _few_files, _few_ranks, _few_curves)


def render_fragment(model: PostMortem, lang: str = "en") -> str:
    """The verdict as a small piece of HTML without scripts, for notebooks."""
    return _environment().get_template("fragment.html.j2").render(v=View(model, lang), w=View(model, lang).words)


def _render(view: View, plotly_at: str | None) -> str:
    # A script that the policy allows by its hash may load the shared library: that is what 'strict-dynamic' says.
    plotly = {"packed": "-", "hash": "'strict-dynamic'"} if plotly_at else _plotly()
    data = plots.payload(view)
    script, style = _asset("page.js"), _asset("style.css")
    state = {"plot": data, "ranks": _rank_rows(view), "words": _script_words(view)}
    text = _environment().get_template("page.html.j2").render(
        v=view,
        w=view.words,
        plot=data,
        script=Markup(script),
        style=Markup(style),
        policy=_policy(script, style, plotly["hash"] if data["lanes"] or data["marks"] else ""),
        plotly=plotly["packed"] if data["lanes"] or data["marks"] else "",
        plotly_at=plotly_at or "",
        state=base64.b64encode(gzip.compress(json.dumps(state, separators=(",", ":")).encode(), 6, mtime=0)).decode(),
        onion=_onion(view),
        sentence=_sentence(view),
        groups=view.groups(),
        grid=_grid(view),
        layers=_layers(view),
        environment=_pairs(view.facts.get("environment"))[:ENVIRONMENT],
        files=sorted(view.page.files, key=lambda f: (not f.notes, -f.size, f.path))[:FILES],
        verdicts=VERDICTS,
    )  # fmt: skip
    return text.encode("utf-8", "replace").decode("utf-8")


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("forensics.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        coloured=_coloured, show=lambda v, limit=t.LINE_LIMIT: t.visible(str(v), limit), bytes=t.size, number=t.number, clock=t.clock
    )
    return env


@cache
def _asset(name: str) -> str:
    return files("forensics.report").joinpath(name).read_text("utf-8")


@cache
def _plotly() -> dict[str, str]:
    """plotly.js as the plotly package ships it: gzip in base64, and its hash for the policy."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs().encode()
    return {"packed": base64.b64encode(gzip.compress(source, 6, mtime=0)).decode(), "hash": _hash(source)}


def _hash(text: bytes) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text).digest()).decode() + "'"


def _policy(script: str, style: str, plotly: str) -> str:
    """The policy that allows this script, this style and, by `plotly`, the plot library; nothing else."""
    # plotly adds one empty style element and fills it by rule: the hash of the empty text lets that one through.
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script.encode())} {plotly}".rstrip(),
            f"style-src {_hash(style.encode())} {_hash(b'')}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _coloured(text: str) -> Markup:
    """`text` escaped, with the three-colour prefixes as coloured spans."""
    if t.COLOUR.search(text) is None:
        return escape(text)
    out, end = Markup(""), 0
    for match in t.COLOUR.finditer(text):
        out += escape(text[end : match.start()]) + Markup('<span class="tag {}">{}</span>').format(match[1].lower(), match[0])
        end = match.end()
    return out + escape(text[end:])


def _sentence(view: View) -> Markup:
    """The sentence, its time kept on one line."""
    sentence, when = escape(view.sentence), escape(view.when)
    return Markup(sentence.replace(when, Markup("<time>{}</time>").format(view.when))) if view.when else sentence


def _onion(view: View) -> list[dict[str, Any]]:
    """Six circles that touch at the bottom, so that each layer has a crescent for its name."""
    out = []
    for index, layer in enumerate(LAYERS):
        radius = 168 - 23 * index
        out.append(
            {
                "layer": layer,
                "label": view.words(f"layer.{layer}"),
                "state": view.layer_state(layer),
                "r": radius,
                "cy": 340 - radius,
                "y": 340 - 2 * radius + (31 if index < 5 else radius + 4),
            }
        )
    return out


def _grid(view: View) -> dict[str, Any]:
    """Cells of the rank matrix: position, size and tone; ranks in order, 8 to 64 in a row.  Very many are drawn as a path for each tone."""
    tone = {rank: group for group in view.groups() for rank in group.ranks}
    rows = sorted(view.page.ranks, key=lambda r: r.rank)[:RANK_ROWS]
    count = len(rows)
    columns = 8 if count <= 32 else 16 if count <= 128 else 32 if count <= 512 else 64
    step = 100 if count <= 32 else 960 / columns
    wide, high = (118, 56) if count <= 32 else (step, step)
    cells = [
        {
            "rank": row.rank,
            "x": round(index % columns * wide, 1),
            "y": round(index // columns * high, 1),
            "tone": tone[row.rank].tone,
            "odd": tone[row.rank].odd,
        }
        for index, row in enumerate(rows)
    ]
    gap = 8 if count <= 32 else 2.5 if columns == 64 else 4
    paths = []
    if count > CELLS:  # one path for all of a tone; those singled out keep an element of their own
        box = f"h{wide - gap:g}v{high - gap:g}h-{wide - gap:g}z"
        plain = [cell for cell in cells if not cell["odd"]]
        cells = [cell for cell in cells if cell["odd"]]
        for shade in sorted({cell["tone"] for cell in plain}):
            paths.append({"tone": shade, "d": "".join(f"M{c['x']:g} {c['y']:g}{box}" for c in plain if c["tone"] == shade)})
    lines = -(-count // columns)
    used = columns if count <= 32 else min(count, columns)  # a few ranks keep the size of eight in a row
    return {
        "cells": cells,
        "paths": paths,
        "columns": columns,
        "wide": wide,
        "high": high,
        "w": wide - gap,
        "h": high - gap,
        "width": used * wide,
        "height": lines * high,
        "large": count <= 32,
    }


def _rank_rows(view: View) -> list[list[Any]]:
    rows = sorted(view.page.ranks, key=lambda r: r.rank)[:RANK_ROWS]
    tone = {rank: group for group in view.groups() for rank in group.ranks}
    out = []
    for row in rows:
        place = " · ".join(part for part in (row.host or "", f"GPU {row.gpu}" if row.gpu else "") if part)
        error = row.first_error
        out.append(
            [
                row.rank,
                t.visible(place, 80),
                t.number(row.last_step),
                t.clock(row.last_time, view.page.zone, seconds_only=True),
                t.visible(row.last_collective or "", 120),
                t.visible(f"{error.file}:{error.line}  {error.text}", 220) if error else "",
                t.visible(row.exit or "", 60),
                tone[row.rank].odd,
            ]
        )
    return out


def _layers(view: View) -> list[dict[str, Any]]:
    """Every layer with its findings by outcome; those of no layer at the end."""
    out = []
    for layer in (*LAYERS, "other"):
        by_outcome = {}
        for outcome in ("found", "excluded", "undecided"):
            items = view.findings(outcome, layer)
            by_outcome[outcome] = {
                "count": len(items),
                "items": [
                    {**item, "quotes": [q for q in map(view.quote, (item.get("evidence") or [])[:3]) if q]} for item in items[:FINDINGS]
                ],
            }
        if layer != "other" or any(o["count"] for o in by_outcome.values()):
            label = view.words("layers.other") if layer == "other" else view.words(f"layer.{layer}")
            out.append(
                {
                    "layer": layer,
                    "label": label,
                    "long": view.words.get(f"layer_long.{layer}", ""),
                    "outcomes": by_outcome,
                    "state": view.layer_state(layer),
                }
            )
    return out


def _pairs(value: Any, prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Nested dicts and lists as (dotted key, text)."""
    if isinstance(value, dict) and depth < 6:
        return [pair for key, item in value.items() for pair in _pairs(item, f"{prefix}.{key}" if prefix else str(key), depth + 1)]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value) and depth < 6:
        return [pair for index, item in enumerate(value) for pair in _pairs(item, f"{prefix}[{index}]", depth + 1)]
    if isinstance(value, list):
        value = ", ".join(map(t.number, value))
    return [(t.visible(prefix, 120), t.visible(t.number(value), 400))] if prefix and value not in (None, "") else []


def _script_words(view: View) -> dict[str, str]:
    names = ("page.copied", "page.copy", "window.nonfinite", "window.failed", "window.step", "window.events", "ranks.rank", "ranks.place", "ranks.last_step",
             "ranks.last_seen", "ranks.collective", "ranks.error", "ranks.exit", "ranks.odd", "ranks.nothing")  # fmt: skip
    return {re.sub(r"\W", "_", name): view.words(name) for name in names}
