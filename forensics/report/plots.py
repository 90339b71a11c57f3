"""The crash window as data: lanes of curves, marks, ranges; thinned so that nothing telling is lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tsdownsample import MinMaxDownsampler

from forensics.report import text as t
from forensics.report.model import Curve, Track
from forensics.report.view import View

# Lane -> canonical metric names shown in it, in the order of the plot.
METRIC_LANES: dict[str, tuple[str, ...]] = {
    "loss": ("loss", "policy_loss", "value_loss", "eval_loss"),
    "grad_norm": ("grad_norm",),
    "reward": ("reward", "reward_chosen", "reward_rejected"),
    "reward_std": ("reward_std",),
    "kl": ("kl",),
    "entropy": ("entropy",),
    "length": ("length", "response_length", "completion_length", "length_max"),
    "learning_rate": ("learning_rate",),
    "step_time": ("step_time",),
}
TRACK_LANES = (("memory_used", "GiB"), ("utilization", "%"), ("power", "W"), ("temperature", "°C"))
LINEAR = frozenset({"learning_rate"})
SOURCES = ("kernel", "scheduler", "gpu", "nccl", "train")
SEVERITY = {"fatal": 0, "error": 1, "warning": 2, "info": 3, "debug": 4}

CURVE_POINTS = 1500  # points drawn of one curve
CURVES = 8  # curves in one lane
EXTRA_LANES = 6  # metrics outside METRIC_LANES that get a lane of their own
GPUS = 16  # GPUs drawn
MARKS = 400
Row = tuple[str, Sequence[float | None], Sequence[float | None], Sequence[float | None]]  # label, x, value, step
TOTAL_POINTS = 60_000  # of the whole plot; keeps the page within its size


def thin(x: np.ndarray, y: np.ndarray, limit: int = CURVE_POINTS, after: float = math.inf) -> np.ndarray:
    """Ascending indices of the points to draw, about `limit` at most.

    Kept for certain: first and last point, lowest and highest reading of every bucket, non-finite readings (up to 200), and
    points with x >= `after` (up to half of `limit`, the last ones).  `x` ascending.
    """
    n = len(y)
    if n <= limit:
        return np.arange(n)
    finite = np.flatnonzero(np.isfinite(y))
    bad = np.flatnonzero(~np.isfinite(y))
    if len(bad) > 200:
        bad = np.concatenate([bad[:100], bad[-100:]])
    tail = np.flatnonzero(x >= after)[-(limit // 2) :]
    room = max(16, limit - len(bad) - len(tail)) // 2 * 2
    chosen = finite
    if len(finite) > room:
        picked = MinMaxDownsampler().downsample(  # type: ignore[no-untyped-call]
            np.ascontiguousarray(y[finite], dtype=np.float64), n_out=room
        )
        # The library's buckets may miss the very last reading; the two global extremes are added for certainty.
        inner = y[finite]
        chosen = finite[np.concatenate([picked.astype(np.int64), [0, len(finite) - 1, int(inner.argmin()), int(inner.argmax())]])]
    return np.unique(np.concatenate([chosen, bad, tail]))


def payload(view: View) -> dict[str, Any]:
    """Everything the page's script needs to draw, JSON-ready; `lanes` is empty where there is nothing to draw."""
    page, w = view.page, view.words
    timed = any(_known(c.time) for c in page.curves) or any(_known(track.time) for track in page.tracks)
    unresolved = not page.tracks and bool(page.curves) and all(_distinct(c.time) <= 2 < len(c.time) for c in page.curves)
    by_step = (not timed or unresolved) and any(_known(c.step) for c in page.curves)
    curves, skipped_metrics = _metric_lanes(page.curves)
    tracks = _choose(page.tracks)
    lanes: list[tuple[str, str, str, list[Row]]] = []
    for name, members in curves.items():
        rows: list[Row] = []
        for curve in members:
            label = curve.name if curve.rank is None else f"{curve.name} · {w('window.rank')} {curve.rank}"
            rows.append((label, curve.step if by_step else curve.time, curve.value, curve.step))
        lanes.append((name, w.get(f"lane.{name}", t.visible(name.replace("_", " "), 40)), "", rows))
    if not by_step:
        for name, unit in TRACK_LANES:
            rows = []
            for track in tracks:
                values = getattr(track, name)
                if name == "memory_used":
                    values = [None if v is None else v / 1024 for v in values]
                if any(v is not None for v in values):
                    rows.append((f"{track.host or ''} GPU {track.gpu}".strip(), track.time, values, ()))
            if rows:
                lanes.append((name, w(f"lane.{name}"), unit, rows))
    moved = 0
    ended = page.ended if page.ended is not None else (page.last.time if page.last else None)
    limit = max(60, min(CURVE_POINTS, TOTAL_POINTS // max(1, sum(len(rows) for *_, rows in lanes))))
    failure = page.first_failure
    anchor = max((x for x in (ended, failure) if x is not None), default=math.inf)
    after = anchor - 300 if timed and not by_step else math.inf
    out_lanes = []
    total = kept = 0
    culprits = {f"{track.host or ''} GPU {track.gpu}".strip() for track in tracks if track.culprit}
    for name, title, unit, rows in lanes:
        drawn = []
        for label, xs, ys, steps in rows:
            x, y, s = _columns(xs, ys, steps)
            if not len(x):
                continue
            if not by_step:
                moved += spread(x, ended)
            index = thin(x, y, limit, after)
            total += len(x)
            kept += len(index)
            drawn.append(_trace(label, x[index], y[index], s[index] if len(s) else s, by_step, label in culprits))
        if drawn:
            out_lanes.append({"id": name, "title": title, "unit": unit, "log": name not in LINEAR and not unit, "curves": drawn})
    marks, marks_left = _marks(view) if not by_step else ([], 0)
    left = []
    if skipped_metrics:
        names = ", ".join(t.visible(n, 40) for n in skipped_metrics[:8]) + (", …" if len(skipped_metrics) > 8 else "")
        left.append(w("window.metrics_left", names=names))
    if len(tracks) < len(page.tracks):
        left.append(w("window.gpus_left", n=len(page.tracks) - len(tracks), total=len(page.tracks)))
    if marks_left:
        left.append(w("window.marks_left", n=marks_left))
    lines = [] if by_step else [
        {"x": _ms(x), "kind": kind, "label": w(f"window.{kind}")}
        for kind, x in (("healthy", page.healthy.time if page.healthy else None), ("failure", failure), ("ended", ended))
        if x is not None
    ]  # fmt: skip
    notes = [w("window.thinned" if kept < total else "window.complete", kept=f"{kept:,}", total=f"{total:,}")] if total else []
    if left:
        notes.append(w("window.left_out", what="; ".join(left)))
    if by_step:
        notes.append(w("window.by_step"))
    elif moved:
        notes.append(w("window.spread"))
    return {
        "axis": "step" if by_step else "time",
        "zone": 0 if by_step else _ms(page.zone * 3600),
        "lanes": out_lanes,
        "marks": marks,
        "lines": lines,
        "ranges": {} if by_step else _spans(out_lanes, marks, lines),
        "thinned": kept < total,
        "notes": notes,
    }


def spread(x: np.ndarray, ended: float | None) -> int:
    """Spread readings that share one time (they inherited it from a line above) evenly up to the next time; returns how many moved.

    `x` ascending, changed in place.  The last group goes up to `ended`, and never farther than the average gap before it.
    """
    if len(x) < 2:
        return 0
    starts = np.flatnonzero(np.concatenate([[True], np.diff(x) > 0]))
    sizes = np.diff(np.concatenate([starts, [len(x)]]))
    if (sizes == 1).all():
        return 0
    marks = x[starts]
    last = float(marks[-1])
    if ended is not None and ended > last:
        gap = float(np.mean(np.diff(marks))) * sizes[-1] if len(marks) > 1 else ended - last
        last += min(ended - last, gap)
    moved = 0
    for start, size, here, there in zip(starts.tolist(), sizes.tolist(), marks.tolist(), [*marks[1:].tolist(), last], strict=True):
        if size > 1:
            x[start : start + size] = np.linspace(here, there, size, endpoint=False)
            moved += size - 1
    return moved


def _distinct(values: Sequence[float | None]) -> int:
    return len({v for v in values if v is not None})


def _known(values: Iterable[float | None]) -> bool:
    return any(v is not None for v in values)


def _metric_lanes(curves: list[Curve]) -> tuple[dict[str, list[Curve]], list[str]]:
    """Curves by lane, in the order of the plot, and the names that found no room."""
    lane_of = {name: lane for lane, names in METRIC_LANES.items() for name in names}
    lanes: dict[str, list[Curve]] = {lane: [] for lane in METRIC_LANES}
    extra: dict[str, list[Curve]] = {}
    for curve in curves:
        if curve.name in lane_of:
            lanes[lane_of[curve.name]].append(curve)
        else:
            extra.setdefault(curve.name, []).append(curve)
    chosen = sorted(extra, key=lambda name: -max(len(c.value) for c in extra[name]))[:EXTRA_LANES]
    lanes.update({name: extra[name] for name in extra if name in chosen})
    return {k: v[:CURVES] for k, v in lanes.items() if v}, [name for name in extra if name not in chosen]


def _choose(tracks: list[Track]) -> list[Track]:
    """At most `GPUS` tracks: those at fault, then those whose readings end first or differ most from the middle, then the rest."""
    if len(tracks) <= GPUS:
        return tracks
    middle: dict[str, float] = {}
    means: dict[int, dict[str, float]] = {}
    for index, track in enumerate(tracks):
        means[index] = {
            name: float(np.mean(known))
            for name, _ in TRACK_LANES
            if (known := [v for v in getattr(track, name) if v is not None and math.isfinite(v)])
        }
    for name, _ in TRACK_LANES:
        values = [m[name] for m in means.values() if name in m]
        middle[name] = float(np.median(values)) if values else 0.0
    ends = {i: max((x for x in track.time if x is not None), default=0.0) for i, track in enumerate(tracks)}

    def order(index: int) -> tuple[bool, float, float]:
        away = max((abs(v - middle[k]) / (abs(middle[k]) + 1e-9) for k, v in means[index].items()), default=0.0)
        return (not tracks[index].culprit, round(ends[index] / 30), -away)

    return [tracks[i] for i in sorted(sorted(range(len(tracks)), key=order)[:GPUS])]


def _columns(xs: Iterable[Any], ys: Iterable[Any], steps: Iterable[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and step as float arrays in order of x, without the readings that have no x; a missing value is left out."""
    x = np.array([math.nan if v is None else v for v in xs], dtype=np.float64)
    y_list = list(ys)
    present = np.array([v is not None for v in y_list], dtype=bool)
    y = np.array([math.nan if v is None else v for v in y_list], dtype=np.float64)
    s = np.array([math.nan if v is None else v for v in steps], dtype=np.float64)
    size = min(len(x), len(y))
    x, y, present = x[:size], y[:size], present[:size]
    keep = np.flatnonzero(np.isfinite(x) & present)
    keep = keep[np.argsort(x[keep], kind="stable")]
    return x[keep], y[keep], s[keep] if len(s) >= size and size else s[:0]


def _trace(label: str, x: np.ndarray, y: np.ndarray, step: np.ndarray, by_step: bool, culprit: bool) -> dict[str, Any]:
    xs = (
        x.tolist()
        if by_step
        else np.rint(x * 1000).astype(np.int64).tolist()
        if len(x) and abs(x).max() < 1e15
        else list(map(_ms, x.tolist()))
    )
    trace: dict[str, Any] = {
        "name": t.visible(label, 60),
        "x": [v - xs[0] for v in xs],
        "x0": xs[0],
        "y": _short(y),
    }
    if len(step) and np.isfinite(step).any() and not by_step:
        trace["step"] = [(int(v) if v.is_integer() else v) if math.isfinite(v) else None for v in step.tolist()]
    bad = [(int(i), str(float(y[i]))) for i in np.flatnonzero(~np.isfinite(y))]
    if bad:
        trace["bad"] = bad
    if culprit:
        trace["culprit"] = True
    return trace


def _short(y: np.ndarray) -> list[float | None]:
    """The values with six significant digits, None for those that are not finite."""
    values = y.tolist()
    short: list[float | None] = list(map(float, ("%.6g " * len(values) % tuple(values)).split()))  # one call formats them all
    for i in np.flatnonzero(~np.isfinite(y)).tolist():
        short[i] = None
    return short


def _marks(view: View) -> tuple[list[dict[str, Any]], int]:
    """The severest marks, in order of time, and how many were left out."""
    known = [m for m in view.page.marks if math.isfinite(m.time)]
    chosen = sorted(known, key=lambda m: SEVERITY.get(m.severity, 3))[:MARKS]
    out = [
        {
            "x": _ms(m.time),
            "source": view.words.get(f"kind.{m.source}", view.words("kind.other")),
            "text": t.visible(m.text, 160),
            "at": t.visible(f"{m.file}:{m.line}" if m.line else m.file, 120),
            "severity": m.severity if m.severity in SEVERITY else "info",
        }
        for m in sorted(chosen, key=lambda m: m.time)
    ]
    return out, len(known) - len(chosen)


def _spans(lanes: list[dict[str, Any]], marks: list[dict[str, Any]], lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Zoom ranges in milliseconds: the whole run, and the last hour, ten minutes and minute where the run is longer than that,
    and the minute before and after the first failure.

    The short ranges end just after the last line of the log, or after the first failure where that is later.
    """
    xs = [c["x0"] + x for lane in lanes for c in lane["curves"] for x in (c["x"][0], c["x"][-1])] + [line["x"] for line in lines]
    if not xs:
        xs = [mark["x"] for mark in marks]
    if not xs:
        return {}
    low, high = min(xs), max(xs)
    pad = max(1000, (high - low) // 50)
    out = {"all": [low - pad, high + pad]}
    stops = [line["x"] for line in lines if line["kind"] in ("ended", "failure")] or [high]
    for name, seconds in (("hour", 3600), ("ten", 600), ("minute", 60)):
        if high - low > seconds * 1000:
            out[name] = [max(stops) - seconds * 1000, max(stops) + seconds * 50]
    failure = next((line["x"] for line in lines if line["kind"] == "failure"), None)
    if failure is not None and high - low > 120_000:
        out["around"] = [failure - 60_000, failure + 60_000]
    return out


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
