"""The clocks of a run while they are worked out: what each form of stamp in each file showed, in line order."""

from __future__ import annotations

import bisect
import time as _time
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from forensics import clock_dates as dates
from forensics import clock_votes as votes

if TYPE_CHECKING:
    from forensics.run import FileInfo
    from parsers.base import Rows, Stamp

STEP = 900.0  # seconds; every civil zone in use is a multiple of a quarter of an hour from UTC
MANY = 50_000  # points of one clock beyond which only one a minute is kept


@dataclass(slots=True)
class Clock:
    """How one file's clock was placed.

    offset_s: this file's reading minus the reference clock's, None for a raw kernel log (see `zero`).  `basis` is a key:
    reference, same-clock, zone (written in the text), audit (an epoch in the lines), pair (two stamps side by side), events
    (things both sources saw), assumed.  `facts` holds what the basis rests on.
    """

    file: str
    form: str
    basis: str
    offset_s: float | None = 0.0
    uncertainty_s: float = 0.0
    zero: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def certain(self) -> bool:
        """Whether order against other files may be concluded from this clock."""
        return self.basis != "assumed" and self.uncertainty_s <= 60


@dataclass(slots=True)
class Track:
    """One clock while it is worked out: its points in line order, and offset pieces (axis - stamp.seconds) by first line."""

    source: str
    form: str
    points: list[tuple[int, float]] = field(default_factory=list)  # (line, Stamp.seconds)
    zones: set[float] = field(default_factory=set)
    yearless: bool = False
    mono: bool = False
    precision: float = 1.0
    group: str = "train"  # train | host
    host: str = ""
    metrics: int = 0
    local: list[float] = field(default_factory=list)  # dated local readings, parallel to points
    epochs: list[tuple[int, float, float, str]] = field(default_factory=list)  # (line, own seconds, epoch, what)
    written: dict[tuple[int, float], tuple[int, int, int, float]] = field(default_factory=dict)  # ambiguous dates, by point
    boots: list[int] = field(default_factory=list)  # first lines of boots
    starts: list[int] = field(default_factory=list)
    pieces: list[float] = field(default_factory=list)
    table: bool = False  # stamps of a GPU table, whose rows may be sorted by card
    drift: float = 0.0  # seconds ahead of true time beyond the zone, near the crash
    moved: float = 0.0  # seconds by which corrections of the clock were undone
    clock: Clock | None = None

    @property
    def zoned(self) -> bool:
        return bool(self.zones)


def piece_at(starts: list[int], line: int) -> int:
    return max(0, bisect.bisect_right(starts, line) - 1)


def collect(rows: dict[str, Rows], files: dict[str, FileInfo]) -> dict[tuple[str, str], Track]:
    """All clocks with their points in line order."""
    tracks: dict[tuple[str, str], Track] = {}
    boots: dict[str, list[int]] = defaultdict(list)

    def track(source: str, form: str) -> Track:
        key = (source, dates.base(form))
        if key not in tracks:
            tracks[key] = Track(source, key[1])
        return tracks[key]

    def add(source: str, line: int, stamp: Stamp) -> Track:
        one = track(source, stamp.form)
        one.points.append((line, stamp.seconds))
        one.yearless |= stamp.yearless
        date = dates.written(stamp.form.rstrip("~"), stamp.seconds)
        if date is not None:
            one.written[line, stamp.seconds] = date
        one.mono |= stamp.mono
        one.precision = max(one.precision if len(one.points) > 1 else 0.0, stamp.precision)
        if stamp.zone is not None:
            one.zones.add(stamp.zone)
        return one

    for source, row in rows.items():
        for event in row.events:
            if event.stamp is None:
                if event.kind == "clock" and event.fields.get("what") == "boot":
                    boots[source].append(event.line)
                continue
            one = add(source, event.line, event.stamp)
            if event.kind in ("clock", "boot"):
                if event.fields.get("what") == "boot" or event.kind == "boot":
                    boots[source].append(event.line)
                epoch = event.fields.get("epoch")
                if event.kind == "clock" and isinstance(epoch, int | float) and not event.inherited:
                    one.epochs.append((event.line, event.stamp.seconds, float(epoch), str(event.fields.get("what"))))
        last: dict[str, float] = {}
        held: Stamp | None = None
        for metric in row.metrics:
            if metric.stamp is held or metric.stamp is None:  # several metrics of one line share their stamp
                if held is not None and metric.stamp is held:
                    one.metrics += 1
                continue
            held = metric.stamp
            one = track(source, held.form)
            one.metrics += 1
            # What matters is where a clock stands and where it breaks; readings in between are left out.
            sparse = 60.0 if len(one.points) > MANY else 1.0
            if abs(held.seconds - last.get(one.form, -1e18)) >= sparse:
                add(source, metric.line, held)
                last[one.form] = held.seconds
        if row.metrics and row.metrics[-1].stamp is not None:
            add(source, row.metrics[-1].line, row.metrics[-1].stamp)
        for form, lines, seconds in votes.frame_points(row.samples):
            one = track(source, form)
            one.points.extend(zip(lines, seconds, strict=True))
            one.precision = 0.001
            one.table = True
    for (source, _form), one in tracks.items():
        one.points = sorted(set(one.points))
        one.boots = sorted(set(boots.get(source, ())))
        one.group, one.host = votes.group_of(source, one.form, rows[source], files.get(source))
    return {key: one for key, one in tracks.items() if one.points}


def fill_dates(tracks: dict[tuple[str, str], Track], files: dict[str, FileInfo]) -> None:
    """Fill `local`: dated local readings; year-less clocks take the year that brings them nearest to the run's dated stamps."""
    dated: list[float] = []
    for one in tracks.values():
        if one.mono:
            one.local = [seconds for _, seconds in one.points]
        elif not one.yearless:
            zone = next(iter(one.zones), 0.0)
            one.local = [seconds + zone for _, seconds in one.points]
            if one.group == "train" and not one.written:
                dated.append(one.local[-1])
    if not dated:
        dated = [one.local[-1] for one in tracks.values() if one.local and not one.mono]
    epochs = [epoch for one in tracks.values() for _, _, epoch, what in one.epochs if what != "rtc"]
    for one in tracks.values():
        if one.written and not one.zones:
            others = [
                other.local[-1] for other in tracks.values() if other is not one and other.local and not other.mono and not other.written
            ]
            texts = [one.written[point] for point in one.points if point in one.written]
            fixed = dates.ordered(texts, median(others or epochs) if others or epochs else None)
            if fixed is not None and len(fixed) == len(one.points):
                one.local = fixed
    for one in tracks.values():
        if not one.yearless:
            continue
        info = files.get(one.source)
        if dated or epochs:
            target = median(dated or epochs)
        elif info is not None and info.modified:
            target = info.modified
        else:
            target = _time.time()
        one.local = dates.with_years([seconds for _, seconds in one.points], target)
    for one in tracks.values():
        if one.mono or one.zones:
            continue
        one.local = dates.unfold(one.local)
        if one.group == "host" and not one.table and not one.epochs:
            one.local, one.moved = dates.corrected(one.local)


def zone_of(one: Track) -> float | None:
    """The clock's offset from UTC: written, or the whole step between its readings and the epochs in its lines."""
    if one.zones:
        return next(iter(one.zones))
    if one.mono or not one.epochs:
        return None
    local = dict(zip((line for line, _ in one.points), one.local, strict=True))
    gaps = [local[line] - epoch for line, _, epoch, what in one.epochs if line in local and what != "rtc"]
    if not gaps:
        return None
    step = round(median(gaps) / STEP) * STEP
    return step if abs(median(gaps) - step) <= dates.POISON and abs(step) <= 15 * 3600 else None


def drift_near(one: Track, near: float) -> tuple[float, str, float, dict[str, Any]]:
    """Seconds this clock is ahead of true time beyond its zone, from the epochs nearest the crash: (drift, basis, spread, facts)."""
    if one.mono:
        return 0.0, "assumed", 0.0, {}
    zone = zone_of(one)
    if zone is None or not one.epochs:
        return 0.0, "zone" if one.zones else "assumed", 1.0 if one.zones else 0.0, {}
    local = dict(zip((line for line, _ in one.points), one.local, strict=True))
    half = one.precision / 2 if one.precision >= 1 else 0.0  # whole seconds are cut, not rounded
    gaps = [(local[line], local[line] + half - zone - epoch) for line, _, epoch, what in one.epochs if line in local and what != "rtc"]
    value, spread, used = dates.nearest(gaps, near)
    if used == 0:
        return 0.0, "zone" if one.zones else "assumed", 1.0, {}
    return value, "audit", spread + one.precision, {"anchors": used, "drift_s": round(value, 3)}


def drifts(one: Track, step: float) -> list[float]:
    """Offset of each point: the step plus the drift told by the epochs at its place in the file."""
    zone = None if one.mono else zone_of(one)
    if zone is None or not one.epochs or one.group != "host":
        return [step + one.drift] * len(one.local)
    local = dict(zip((line for line, _ in one.points), one.local, strict=True))
    half = one.precision / 2 if one.precision >= 1 else 0.0
    found = dates.pieces(
        [(line, local[line] + half - zone - epoch) for line, _, epoch, what in one.epochs if line in local and what != "rtc"]
    )
    if not found:
        return [step + one.drift] * len(one.local)
    starts = [line for line, _ in found]
    return [step + found[piece_at(starts, line)][1] for line, _ in one.points]


def epoch_zero(one: Track, near: float) -> float | None:
    """UTC of monotonic second 0 of the last boot, by epochs in the lines nearest its end; None without any."""
    if not one.mono or not one.epochs:
        return None
    first = dates.boot_starts(one.points, one.boots)[-1]
    gaps = [(seconds, epoch - seconds) for line, seconds, epoch, what in one.epochs if line >= first and what != "rtc"]
    gaps = gaps or [(seconds, epoch - seconds) for line, seconds, epoch, _ in one.epochs if line >= first]
    if not gaps:
        return None
    rough = median(value for _, value in gaps)
    value, _, used = dates.nearest(gaps, near - rough)
    return value if used else None
