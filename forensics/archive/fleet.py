"""The fleet page: what fails, how often, at what cost, and every run in one table; works from disk with ten thousand runs."""

from __future__ import annotations

import base64
import gzip
import json
import tomllib
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import forensics
from forensics.archive.cluster import clusters
from forensics.archive.statistics import LAYERS, between, failed, offenders
from forensics.archive.work import PLOTLY
from forensics.report import html as report_page
from forensics.report import text as t
from forensics.report.words import Words as ReportWords

ATTEMPTS = 200  # restarted jobs listed
CLUSTERS = 100
SKIPPED = 500
UNITS = 60  # repeat offenders listed
ENDS = 12  # attempts of one job listed
TONES = dict(zip(LAYERS, ("t1", "t2", "t3", "t4", "t5", "t6"), strict=True))
# Columns of the table: id, width in pixels, kind of value, whether it is a number.
TABLE = (
    ("run", 270, "", False),
    ("started", 172, "time", True),
    ("duration", 92, "span", True),
    ("world", 76, "", True),
    ("layer", 128, "", False),
    ("cause", 200, "", False),
    ("confidence", 100, "share", True),
    ("culprit", 150, "", False),
    ("lost", 100, "hours", True),
    ("attempt", 84, "", True),
    ("message", 480, "", False),
)
INTERNED = ("layer", "cause", "culprit", "message")
Row = dict[str, Any]


class Words:
    """The fleet page's words in one language (ValueError for an unknown one); layers are named as in the reports."""

    def __init__(self, lang: str):
        self.report = ReportWords(lang)
        self.lang = lang

    def __call__(self, key: str, **fill: Any) -> str:
        """The text of `section.key` with its placeholders filled."""
        section, _, name = key.partition(".")
        text = _table()[section][name][self.lang]
        return text.format(**fill) if fill else text

    def layer(self, layer: str) -> str:
        """A layer's name."""
        return self.report.get(f"layer.{layer}", layer)

    def span(self, hours: float | None, missing: str) -> str:
        """A length of time in words; `missing` where there is none."""
        if hours is None:
            return missing
        for unit, size in (("days", 48.0), ("hours", 1.5), ("minutes", 1 / 40), ("seconds", 0.0)):
            if hours >= size:
                return self(f"unit.{unit}", n=f"{hours * {'days': 1 / 24, 'hours': 1, 'minutes': 60, 'seconds': 3600}[unit]:.3g}")
        return missing


def render_fleet(rows: list[Row], skipped: list[dict[str, str]], lang: str) -> str:
    """The page.  rows: those of runs.parquet (times in Unix seconds), in order of run; skipped: the lines of skipped.jsonl."""
    w = Words(lang)
    bad = [row for row in rows if failed(row)]
    time = _over_time(bad, w)
    script, style = _asset("fleet.js"), files("forensics.report").joinpath("style.css").read_text("utf-8") + _asset("fleet.css")
    state = {
        **_columns(rows, w),
        "time": time,
        "plotly": f"assets/{PLOTLY}",
        "words": {"sort": w("runs.sort"), "shown": w("runs.shown"), "failed": w("time.failed")},
    }
    layers = _layers(bad, w)
    told, restarts = _attempts(rows, w)
    page = _environment().get_template("fleet.html.j2").render(
        w=w,
        lang=lang,
        policy=report_page._policy(script, style, "'strict-dynamic'"),
        style=Markup(style),
        script=Markup(script),
        state=base64.b64encode(gzip.compress(json.dumps(state, separators=(",", ":"), allow_nan=False).encode(), 9, mtime=0)).decode(),
        version=forensics.__version__,
        sentence=w("head.sentence", failed=f"{len(bad):,}", runs=f"{len(rows):,}"),
        most=_most(bad, layers, w),
        facts=_facts(rows, w),
        tiles=_tiles(rows, bad, restarts, w),
        timed=bool(time["x"]),
        bucket=time["bucket"],
        undated=time["undated"],
        layers=layers,
        bar=_bar,
        offenders=offenders(rows)[:UNITS],
        attempts=told[:ATTEMPTS],
        attempts_left=max(0, len(told) - ATTEMPTS),
        clusters=clusters(rows)[:CLUSTERS],
        names=[(layer, w.layer(layer)) for layer in (*LAYERS, "none", "unknown")],
        skipped=skipped[:SKIPPED],
        skipped_left=max(0, len(skipped) - SKIPPED),
    )  # fmt: skip
    return page.encode("utf-8", "replace").decode("utf-8")


@cache
def _table() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(_asset("words.toml"))


@cache
def _asset(name: str) -> str:
    return files("forensics.archive").joinpath(name).read_text("utf-8")


@cache
def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("forensics.archive", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["show"] = lambda value, limit: t.visible(str(value), limit)
    return env


def _bar(share: float, tone: str) -> Markup:
    """A share of one as a bar."""
    wide = f"{max(0.0, min(1.0, share)) * 160:.1f}"
    return Markup('<svg class="share" viewBox="0 0 160 12" role="img" aria-label="{} %"><rect class="rail" width="160" height="12" rx="3"/>').format(round(share * 100)) + Markup('<rect class="{}" width="{}" height="12" rx="3"/></svg>').format(tone, wide)  # fmt: skip


def _when(row: Row) -> float | None:
    return next((row[key] for key in ("first_time", "ended", "started") if row.get(key) is not None), None)


def _day(seconds: float | None) -> str:
    try:
        return "–" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
    except (OverflowError, OSError, ValueError):
        return "–"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _hours(rows: list[Row]) -> float:
    return float(sum(row["gpu_hours_lost"] or 0.0 for row in rows))


def _facts(rows: list[Row], w: Words) -> list[str]:
    times = [time for row in rows if (time := _when(row)) is not None]
    out = [w("head.span", first=_day(min(times)), last=_day(max(times)))] if times else []
    out.append(w("head.jobs", n=f"{len({row['series'] for row in rows}):,}"))
    hosts = {host for row in rows for host in row["hosts"] or ()}
    return [*out, w("head.hosts", n=f"{len(hosts):,}")] if hosts else out


def _most(bad: list[Row], layers: list[dict[str, Any]], w: Words) -> str:
    if not layers or not _hours(bad):
        return ""
    top = max(layers, key=lambda layer: layer["share"])
    cause = max((cause for layer in layers for cause in layer["causes"]), key=lambda cause: cause["count"])
    return w("head.most", layer=top["label"], share=f"{top['share']:.0%}", cause=cause["title"])


def _tiles(rows: list[Row], bad: list[Row], restarts: tuple[int, int], w: Words) -> list[dict[str, str]]:
    missing = sum(row["gpu_hours_lost"] is None for row in bad)
    exposure = sum(row["duration_s"] or 0.0 for row in rows) / 3600
    rate = between(sum(bool(row["duration_s"]) for row in bad), exposure)
    healthy, unknown = (sum(row["layer"] == layer for row in rows) for layer in ("none", "unknown"))
    interval = w("tile.mtbf_why", low=w.span(rate.low, w("tile.none")), high=w.span(rate.high, w("tile.open")), hours=_number(exposure))
    whole = _number(sum(row["gpu_hours"] or 0.0 for row in rows))
    return [
        {"label": w("tile.failed"), "value": f"{len(bad):,}", "why": w("tile.failed_why", healthy=f"{healthy:,}", unknown=f"{unknown:,}")},
        {"label": w("tile.lost"), "value": _number(_hours(bad)), "why": w("tile.lost_why", hours=whole, missing=w("tile.missing", n=missing) if missing else "")},
        {"label": w("tile.mtbf"), "value": w.span(rate.hours, w("tile.none")), "why": interval if rate.low is not None else ""},
        {"label": w("tile.repeats"), "value": f"{restarts[0]:,}", "why": w("tile.repeats_why", n=f"{restarts[1]:,}")},
    ]  # fmt: skip


def _layers(bad: list[Row], w: Words) -> list[dict[str, Any]]:
    """Layers that failed, with their causes, each by GPU hours, then by count."""
    whole = _hours(bad) or 1.0
    out = []
    for layer in LAYERS:
        rows = [row for row in bad if row["layer"] == layer]
        if not rows:
            continue
        by_cause: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_cause[row["cause"]].append(row)
        causes = [{"id": cause, "title": found[0]["title"] or cause, **_sums(found, whole)} for cause, found in by_cause.items()]
        causes.sort(key=lambda one: (-one["share"], -one["count"], one["id"]))
        out.append({"id": layer, "label": w.layer(layer), "tone": TONES[layer], "causes": causes, **_sums(rows, whole)})
    return sorted(out, key=lambda one: (-one["share"], -one["count"], LAYERS.index(one["id"])))


def _sums(rows: list[Row], whole: float) -> dict[str, Any]:
    hours = _hours(rows)
    last = max((time for row in rows if (time := _when(row)) is not None), default=None)
    return {"count": len(rows), "hours": _number(hours), "share": hours / whole, "last": _day(last)}


def _attempts(rows: list[Row], w: Words) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    """Restarted jobs, those that failed alike again first, and (repeated failures, restarts) over all."""
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["attempts"] > 1:
            series[row["series"]].append(row)
    out = []
    for name, members in series.items():
        members.sort(key=lambda row: row["attempt"])
        shown = [
            {"report": f"reports/{row['run']}.html", "attempt": row["attempt"], "title": row["title"] or w.layer(row["layer"])}
            for row in members[-ENDS:]
        ]
        label = f"{name} (job {members[0]['job']})" if members[0].get("job") else name
        out.append(
            {
                "name": label,
                "count": len(members),
                "lost": _number(_hours(members)),
                "hours": _hours(members),
                "repeated": sum(row["repeats"] for row in members),
                "runs": shown,
            }
        )
    out.sort(key=lambda one: (-one["repeated"], -one["hours"], one["name"]))
    return out, (sum(one["repeated"] for one in out), sum(one["count"] - 1 for one in out))


def _over_time(bad: list[Row], w: Words) -> dict[str, Any]:
    """Counts and GPU hours lost by layer in buckets of a day, a week or a month, so that some 60 bars are enough."""
    dated = [(datetime.fromtimestamp(when, UTC), row) for row in bad if (when := _when(row)) is not None and 0 <= when < 2.5e11]
    out: dict[str, Any] = {"bucket": "day", "x": [], "layers": [], "undated": len(bad) - len(dated)}
    if not dated:
        return out
    first, last = min(at for at, _ in dated), max(at for at, _ in dated)
    days = (last - first).days
    bucket = "day" if days <= 62 else "week" if days <= 430 else "month"
    starts = [_bucket(first, bucket)]
    while (following := _bucket(starts[-1] + timedelta(days={"day": 1, "week": 7, "month": 32}[bucket]), bucket)) <= last:
        starts.append(following)
        if len(starts) >= 2_000:  # stamps that lie centuries apart
            break
    place = {start: at for at, start in enumerate(starts)}
    for layer in LAYERS:
        count, hours = [0] * len(starts), [0.0] * len(starts)
        for at, row in dated:
            if row["layer"] == layer and (spot := place.get(_bucket(at, bucket))) is not None:
                count[spot] += 1
                hours[spot] += row["gpu_hours_lost"] or 0.0
        if any(count):
            out["layers"].append({"label": w.layer(layer), "tone": TONES[layer], "count": count, "hours": [round(v, 3) for v in hours]})
    return {**out, "bucket": bucket, "x": [f"{start:%Y-%m-%d}" for start in starts]}


def _bucket(at: datetime, kind: str) -> datetime:
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return day if kind == "day" else day - timedelta(days=day.weekday()) if kind == "week" else day.replace(day=1)


def _columns(rows: list[Row], w: Words) -> dict[str, Any]:
    """The table's data by column; texts that repeat stand once."""
    columns: dict[str, Any] = {
        "run": [row["run"] for row in rows],
        "path": [t.visible(row["path"], 200) for row in rows],
        "started": [None if row["started"] is None or abs(row["started"]) > 8e12 else round(row["started"]) for row in rows],
        "duration": [None if row["duration_s"] is None else round(row["duration_s"]) for row in rows],
        "world": [row["world_size"] for row in rows],
        "layer": [row["layer"] for row in rows],
        "cause": [row["cause"] for row in rows],
        "confidence": [row["confidence"] for row in rows],
        "culprit": [_culprit(row) for row in rows],
        "lost": [None if row["gpu_hours_lost"] is None else round(row["gpu_hours_lost"], 2) for row in rows],
        "attempt": [row["attempt"] for row in rows],
        "message": [t.visible(row["message"] or "", 200) or None for row in rows],
        "title": [row["title"] for row in rows],
        "job": [row["job"] for row in rows],
    }
    interned = [*INTERNED, "title"]
    for name in interned:
        words = sorted({value for value in columns[name] if value is not None})
        place = {value: at for at, value in enumerate(words)}
        columns[name] = {"words": words, "at": [place.get(value, -1) for value in columns[name]]}
    titles = {row["cause"]: row["title"] for row in rows if row["cause"] and row["title"]}
    words_of = {"layer": {layer: w.layer(layer) for layer in (*LAYERS, "none", "unknown")}, "cause": dict(sorted(titles.items()))}
    table = [
        {"id": name, "title": w(f"runs.{name}"), "width": width, "kind": kind, "number": number, "words": words_of.get(name)}
        for name, width, kind, number in TABLE
    ]
    return {"count": len(rows), "columns": columns, "interned": interned, "table": table, "searched": ["run", "path", "layer", "cause", "title", "culprit", "message", "job"]}  # fmt: skip


def _culprit(row: Row) -> str | None:
    parts = [str(row["culprit_host"] or ""), f"GPU {row['culprit_gpu']}" if row["culprit_gpu"] else "", f"rank {row['culprit_rank']}" if row["culprit_rank"] is not None else ""]  # fmt: skip
    return t.visible(" ".join(part for part in parts if part), 80) or None
