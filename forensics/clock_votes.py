"""What two clocks' lines have in common, counted for every whole zone step between them.

The training side tells when it began, made progress, failed and which pids died; a host's log tells when the same pids were
killed or raised a GPU error, its GPU table when the cards became busy and idle.  The step under which most of this falls
together is the zone difference.  Without evidence the smallest claim wins: no step, or the host's own zone.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from forensics import clock_dates as dates

if TYPE_CHECKING:
    from forensics.run import FileInfo
    from parsers.base import Event, Rows

STEP = 900
REACH = 14 * 3600  # largest zone difference looked for
PRINTED_DATES = frozenset(("ctime", "ctime-zone", "iso-t"))  # date(1) and Slurm's own lines inside a training log
HOST_KINDS = frozenset(("kernel", "gpu"))
KERNEL_EVENTS = (
    "xid",
    "sxid",
    "oom",
    "segfault",
    "mce",
    "aer",
    "nvrm",
    "panic",
    "hung",
    "kill",
    "link",
    "ib_",
    "nic",
    "pcie",
    "lockup",
    "gpu_lost",
)
BUSY_MIB = 1024.0  # memory a card holds only while a job uses it
BUSY_PERCENT = 20.0
MAX_POINTS = 400
PRIOR_NONE, PRIOR_ZONE, PRIOR_HOUR, PRIOR_HALF, PRIOR_QUARTER = 1.5, 1.2, 0.3, -0.7, -1.7


@dataclass(slots=True, frozen=True)
class Point:
    """One telling event on a clock's own reading."""

    line: int
    at: float
    kind: str
    pid: int | None
    strong: bool  # an error the training side is likely to notice
    text: str


@dataclass
class Seen:
    """What one clock's lines show, on its own reading."""

    source: str
    first: float
    last: float
    points: list[Point] = field(default_factory=list)
    departures: list[float] = field(default_factory=list)
    progress: float | None = None
    busy: list[tuple[float, float]] = field(default_factory=list)  # (became busy, became idle or table's end) per card group
    idle_seen: tuple[bool, bool] = (False, False)  # whether the table shows idle before and after
    cadence: float = 0.0
    throttle: list[float] = field(default_factory=list)
    marks: dict[tuple[str, float], float] = field(default_factory=dict)  # (what, step or sequence number) -> reading, unique ones
    printed: bool = False  # dates a job script printed beside the training log

    @property
    def kernel(self) -> list[Point]:
        """The points, under the name they have in a host's log."""
        return self.points

    @classmethod
    def of(cls, source: str, form: str, points: list[tuple[int, float]], local: list[float], row: Rows) -> Seen:
        """Gather what `row` says on the clock `form`; `local` is parallel to `points` (line, Stamp.seconds)."""
        out = cls(source, min(local), max(local), printed=form in PRINTED_DATES and not row.samples)
        by_line = {line: (seconds, value) for (line, seconds), value in zip(points, local, strict=True)}

        def reading(event: Any) -> float | None:
            if event.stamp is None or dates.base(event.stamp.form) != form:
                return None
            known = by_line.get(event.line)
            return known[1] if known is not None and known[0] == event.stamp.seconds else None

        kept: dict[str, int] = {}
        for event in row.events:
            at = reading(event)
            if at is None or event.kind == "clock":
                continue
            if event.kind == "watchdog_timeout" and (ms := _timeout_ms(event)):
                out.departures.append(at - ms / 1000)
            strong = event.severity in ("error", "fatal") or event.kind.startswith(KERNEL_EVENTS)
            if not strong and event.pid is None and not _hot(event.kind, event.text):
                continue
            kept[event.kind] = kept.get(event.kind, 0) + 1
            if kept[event.kind] <= MAX_POINTS:
                out.points.append(Point(event.line, at, event.kind, _pid(event), strong, event.text[:300]))
        out._marks(row, reading)
        for metric in row.metrics[:-5000:-1]:
            at = reading(metric)
            if at is not None:
                out.progress = at
                break
        for frame in row.samples:
            out._table(frame, form)
        out.points.sort(key=lambda point: point.at)
        return out

    def _marks(self, row: Rows, reading: Callable[[Any], float | None]) -> None:
        """What other processes print at the same moment: a metric of a step, the time-out of a collective."""
        seen: Counter[tuple[str, float]] = Counter()
        named: list[tuple[tuple[str, float], Any]] = [
            ((m.name, m.step), m) for m in row.metrics[-20_000:] if m.step is not None and not m.inherited
        ]
        for event in row.events:
            seq = event.fields.get("seq")
            if event.kind == "watchdog_timeout" and isinstance(seq, int) and not event.inherited:
                named.append((("timeout", float(seq)), event))
        for mark, item in named:
            seen[mark] += 1
            at = reading(item)
            if at is not None:
                self.marks[mark] = at
        self.marks = {mark: at for mark, at in self.marks.items() if seen[mark] == 1}

    def _table(self, frame: Any, form: str) -> None:
        """When the cards of a GPU table became busy and idle, and when they began to throttle for heat or power brake."""
        import polars as pl

        if "local" not in frame.columns or "form" not in frame.columns:
            return
        frame = frame.filter(pl.col("form").str.strip_chars_end("~") == form).drop_nulls("local")
        if not frame.height:
            return
        load = []
        if "memory_used" in frame.columns:
            load.append(pl.col("memory_used").fill_null(0.0) >= BUSY_MIB)
        if "utilization" in frame.columns:
            load.append(pl.col("utilization").fill_null(0.0) >= BUSY_PERCENT)
        if load:
            # Rows of one round of readings lie milliseconds apart; a second is finer than any usual interval.
            rounds = (
                frame.select(pl.col("local").floor().alias("at"), pl.any_horizontal(load).alias("busy"))
                .group_by("at")
                .agg(pl.col("busy").any())
                .sort("at")
            )
            times, busy = rounds["at"].to_list(), rounds["busy"].to_list()
            if len(times) > 1:
                self.cadence = median(b - a for a, b in pairwise(times))
            if any(busy):
                first = busy.index(True)
                last = len(busy) - 1 - busy[::-1].index(True)
                after = times[last + 1] if last + 1 < len(times) else times[last]
                self.busy.append((times[first], after))
                self.idle_seen = (first > 0, last + 1 < len(times))
        if "throttle" in frame.columns:
            hot = frame.filter(pl.col("throttle").fill_null(0) & 0xE8 != 0)["local"]
            if hot.len():
                self.throttle.append(float(hot.min()))


@dataclass
class View:
    """The training side, on the reference clock's reading."""

    first: float | None = None
    last: float | None = None
    troubles: list[float] = field(default_factory=list)
    departures: list[float] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    pids: dict[int, list[float]] = field(default_factory=dict)
    net: list[float] = field(default_factory=list)
    throttle: list[float] = field(default_factory=list)

    def add_train(self, seen: Seen, shift: float) -> None:
        """Add one clock of the training side; `shift` brings its readings onto the reference clock."""
        first, last = seen.first + shift, seen.last + shift
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        self.departures.extend(at + shift for at in seen.departures)
        if seen.progress is not None:
            self.progress.append(seen.progress + shift)
        for point in seen.points:
            if point.strong:
                bisect.insort(self.troubles, point.at + shift)
                if "NET/" in point.text or "ibv_" in point.text or "async" in point.text:
                    self.net.append(point.at + shift)
            if point.pid is not None:
                self.pids.setdefault(point.pid, []).append(point.at + shift)

    @property
    def crash(self) -> float | None:
        """The beginning of the last bunch of troubles (gaps under 10 minutes), else the last line."""
        if not self.troubles:
            return self.last
        start = self.troubles[-1]
        for at in reversed(self.troubles):
            if start - at > 600:
                break
            start = at
        return start


@dataclass(slots=True)
class Decision:
    """The zone step of host clocks against the reference clock, and the reference clock's own zone where it follows."""

    step: float = 0.0
    reference_zone: float | None = None
    basis: str = "assumed"
    margin: float = 0.0
    uncertainty: float = 43_200.0
    common: float | None = None


def decide(
    view: View,
    locals_: list[tuple[Seen, float | None]],
    raws: list[tuple[Seen, float]],
    common: float | None,
    known: float | None,
    paired: list[float],
) -> Decision:
    """The step of all host clocks together.

    locals_: host clocks with their own zone where told; raws: kernel logs with the UTC time of second 0; common: the hosts'
    zone; known: the reference clock's zone; paired: steps seen between neighbouring lines of one file.
    """
    if view.first is None:
        if common is not None and known is not None:
            return Decision(common - known, known, "zone", 0.0, 0.0, common)
        return Decision(reference_zone=known or 0.0, common=common)
    if known is not None and common is not None:
        decision = Decision(common - known, known, "zone", 9.0, 0.0, common)
        _throttle(view, locals_, decision.step)
        return decision
    scores: list[tuple[float, float, float]] = []  # (with prior, without, step)
    for step in range(-REACH, REACH + 1, STEP):
        if common is not None and not -12 * 3600 <= common - step <= 14 * 3600:
            continue
        votes = sum(score(view, seen, step) for seen, _ in locals_)
        if common is not None:
            votes += sum(score(view, seen, step - common, zero) for seen, zero in raws)
        votes += 6.0 * sum(abs(step - pair) < 1 for pair in paired[:3])
        scores.append((votes + _prior(step, common), votes, step))
    best = max(scores, key=lambda item: (item[0], -abs(item[2])))
    rest = max((item[0] for item in scores if item[2] != best[2]), default=0.0)
    told = best[1] >= 0.75
    decision = Decision(
        best[2],
        known if known is not None else None if common is None else common - best[2],
        "events" if told else "assumed",
        best[0] - rest,
        (1.0 if best[0] - rest >= 1.0 else 3600.0) if told else 43_200.0,
        common,
    )
    if raws and decision.reference_zone is None:
        zones = [
            (sum(score(view, seen, -zone, zero) for seen, zero in raws) + _prior(zone, None), zone)
            for zone in range(-12 * 3600, REACH + 1, STEP)
        ]
        decision.reference_zone = max(zones, key=lambda item: (item[0], -abs(item[1])))[1]
    if decision.reference_zone is None:
        decision.reference_zone = 0.0 if common is None else common - best[2]
    _throttle(view, locals_, decision.step)
    return decision


def own_step(view: View, seen: Seen, decision: Decision) -> float:
    """The step of one clock that names no zone: the hosts' common one unless its own lines clearly say another."""
    choices = {decision.step, 0.0} | ({decision.common} if decision.common is not None else set())
    if view.first is None or len(choices) == 1:
        return decision.step
    return max(choices, key=lambda step: (score(view, seen, step) + (1.5 if step == decision.step else 0.0), step == decision.step))


def score(view: View, seen: Seen, step: float, zero: float = 0.0) -> float:
    """How much of what both sides saw falls together when `seen` reads `step` seconds more than the reference clock.

    zero: added to the readings first (the start of a monotonic clock).  About 0 without evidence, 2 to 10 with much.
    """
    move = zero - step
    first, last = view.first or 0.0, view.last or 0.0
    crash = view.crash
    total = 0.0
    pids = 0.0
    marks = 0.0
    last_mark = -1e18
    used: set[int] = set()
    for point in seen.points:
        at = point.at + move
        if point.pid is not None and point.pid in view.pids and point.pid not in used:
            best = max(_closeness(there - at) for there in view.pids[point.pid][:20])
            if best > 0:
                used.add(point.pid)
                pids += best
        if point.strong and at - last_mark > 30:
            last_mark = at
            if crash is not None and -10 <= crash - at <= 120:
                marks += 1.0
            elif _near(view.troubles, at, -5, 60) or any(abs(at - there) <= 30 for there in view.departures):
                marks += 0.7
    total += min(6.0, pids) + min(2.0, marks)
    if seen.busy:
        start, end = seen.busy[0][0] + move, seen.busy[-1][1] + move
        slack = max(60.0, 3 * seen.cadence)
        if seen.idle_seen[1]:
            gap = abs(end - last)
            total += 2.0 if gap <= slack else 1.0 if gap <= 300 else 0.0
        if seen.idle_seen[0]:
            gap = start - first
            total += 1.5 if -slack <= gap <= 300 else 0.5 if -600 <= gap <= 1200 else 0.0
    if seen.cadence:  # a table is taken along with the run, so their spans belong together
        low, high = seen.first + move, seen.last + move
        length = max(60.0, min(last - first, high - low))
        together = min(high, last) - max(low, first)
        total += 1.5 * max(0.0, min(1.0, (together + 60.0) / length))
        total += 0.5 * max(0.0, 1 - abs(low - first) / 120) + 0.5 * max(0.0, 1 - abs(high - last) / 120)
    elif seen.printed:  # a job script prints the date when it starts and ends
        total += 2.0 * max(0.0, 1 - abs(seen.first + move - first) / 180) + 1.0 * max(0.0, 1 - abs(seen.last + move - last) / 180)
    elif seen.last + move < first - 600:
        total -= 1.0
    return total


def zero_by_events(view: View, points: list[Point]) -> tuple[float, float, int] | None:
    """Second 0 of a raw kernel log on the reference clock by events both sides saw: (zero, uncertainty, votes)."""
    candidates: list[tuple[float, float]] = []  # (zero, weight)
    crash = view.crash
    for point in points[-MAX_POINTS:]:
        for there in view.pids.get(point.pid or -1, [])[:5]:
            candidates.append((there - point.at, 3.0))
        text = point.text
        if "panic" in point.kind or "Kernel panic" in text or "lockup" in point.kind:
            candidates.extend((there - point.at, 2.0) for there in (sorted(view.departures)[:1] or sorted(view.progress)[-1:]))
        elif _hot(point.kind, text):
            candidates.extend((there - point.at, 1.5) for there in view.throttle[:2])
        elif point.kind.startswith(("link", "ib_", "nic", "mlx")):
            candidates.extend((there - point.at, 1.0) for there in (*view.net[:2], *sorted(view.departures)[:1]))
    strong = [point for point in points if point.strong]
    if strong and crash is not None:
        # The last bunch of host errors goes with the crash.
        start = strong[-1].at
        for point in reversed(strong):
            if start - point.at > 180:
                break
            start = point.at
        target = min((d for d in view.departures if d <= crash), default=crash)
        candidates.append((target - start, 0.8))
    if not candidates:
        return None
    best_weight, best = 0.0, 0.0
    for zero, _ in candidates:
        weight = sum(w for z, w in candidates if abs(z - zero) <= 15)
        if weight > best_weight:
            best_weight, best = weight, zero
    near = [z for z, _ in candidates if abs(z - best) <= 15]
    return median(near), 15.0 if best_weight >= 3 else 120.0, len(near)


def frame_points(samples: list[Any]) -> list[tuple[str, list[int], list[float]]]:
    """(form, lines, seconds) of the stamps in sample frames, thinned to a few thousand."""
    out = []
    for frame in samples:
        if "local" not in frame.columns or "form" not in frame.columns or not frame.height:
            continue
        whole = frame.drop_nulls("local")
        for form in whole["form"].drop_nulls().unique().to_list():
            part = whole.filter(whole["form"] == form)
            step = max(1, part.height * len(samples) // 6000)
            picked = [*range(0, part.height, step), part.height - 1]
            lines = part["line"].gather(picked).to_list() if "line" in part.columns else [at + 1 for at in picked]
            times = part["local"].gather(picked).to_list()
            out.append((form.rstrip("~"), [int(line) for line in lines], [float(time) for time in times]))
    return out


def group_of(source: str, form: str, row: Rows, info: FileInfo | None) -> tuple[str, str]:
    """(`host` or `train`, host name or empty): whose clock this is, the machine's or the training processes'."""
    host = (info.host if info else None) or next((event.host for event in row.events if event.host), None) or ""
    kinds = frozenset(info.kinds) if info else frozenset()
    if row.samples or (kinds & HOST_KINDS and "train" not in kinds and not row.metrics):
        return "host", host
    if form in ("mono", "kmsg", "minute"):
        return "host", host
    if form in PRINTED_DATES and not any(metric.stamp is not None and dates.base(metric.stamp.form) == form for metric in row.metrics):
        own = [event for event in row.events if event.stamp is not None and not event.inherited and dates.base(event.stamp.form) == form]
        own = [event for event in own if event.fields.get("what") != "edge"]
        if own and all(event.kind in ("slurm", "clock") or (event.stamp is not None and event.stamp.form.endswith("~")) for event in own):
            return "host", host
    return "train", host


def _throttle(view: View, locals_: list[tuple[Seen, float | None]], step: float) -> None:
    for seen, _ in locals_:
        view.throttle.extend(at - step for at in seen.throttle)


def _prior(step: float, common: float | None) -> float:
    if step == 0:
        return PRIOR_NONE
    if common is not None and step == common:
        return PRIOR_ZONE
    return PRIOR_HOUR if step % 3600 == 0 else PRIOR_HALF if step % 1800 == 0 else PRIOR_QUARTER


def _hot(kind: str, text: str) -> bool:
    return "therm" in kind or "temperature above threshold" in text


def _closeness(delay: float) -> float:
    """How well a training line `delay` seconds after a host's line about the same pid fits its being the effect."""
    if -3 <= delay <= 30:
        return 3.0
    if -60 <= delay <= 180:
        return 2.0
    return 0.8 if 0 <= delay <= 2400 else 0.0


def _near(times: list[float], at: float, low: float, high: float) -> bool:
    index = bisect.bisect_left(times, at + low)
    return index < len(times) and times[index] <= at + high


def _timeout_ms(event: Event) -> float | None:
    for key in ("timeout_ms", "timeout", "ms"):
        value = event.fields.get(key)
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def _pid(event: Event) -> int | None:
    value = event.pid if event.pid is not None else event.fields.get("pid")
    return value if isinstance(value, int) and value > 1 else None
