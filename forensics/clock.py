"""Every stamp of a run onto one axis.

A clock is what wrote one form of stamp in one file.  The reference clock is the main training log's; the common axis is its
reading, in Unix seconds (true UTC when its zone is written or given, otherwise its wall time read as if it were UTC).
All other clocks get an offset to it, piecewise by line, from, in this order of trust: a zone in the text; an epoch inside
the lines (audit, rtc, Lustre); two stamps side by side; events that both sides saw (forensics.clock_votes).  Whole zone
steps are preferred to odd offsets and no step to a step.  What cannot be told keeps offset 0 and says so.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any

from forensics import clock_dates as dates
from forensics import clock_tracks
from forensics import clock_votes as votes
from forensics.clock_tracks import Clock, Track

if TYPE_CHECKING:
    from forensics.run import FileInfo
    from parsers.base import Rows, Stamp

HALF_HOUR = 1800.0
BASES = ("reference", "same-clock", "zone", "audit", "pair", "events", "assumed")


class Clocks:
    """The clocks of a run.  `zone` is the reference clock's offset from UTC in seconds where known."""

    def __init__(self, tracks: dict[tuple[str, str], Track], reference: tuple[str, str] | None, zone: float | None):
        self._tracks = tracks
        self.reference = reference
        self.zone = zone
        self.list: list[Clock] = _per_file(tracks)
        self._by_file = {clock.file: clock for clock in self.list}

    def time(self, source: str, stamp: Stamp | None, line: int) -> float | None:
        """Unix seconds of a stamp that stands at `line` (or was inherited there); None when nothing places it."""
        if stamp is None:
            return None
        track = self._tracks.get((source, dates.base(stamp.form)))
        if track is None or not track.starts:
            return None
        return stamp.seconds + track.pieces[clock_tracks.piece_at(track.starts, line)]

    def offset_table(self, source: str, form: str) -> list[tuple[int, float]]:
        """(first line, seconds to add to `Stamp.seconds`) pieces of one clock in line order; empty for an unknown clock."""
        track = self._tracks.get((source, dates.base(form)))
        return [] if track is None else list(zip(track.starts, track.pieces, strict=True))

    def of(self, source: str) -> Clock | None:
        """The clock of a file."""
        return self._by_file.get(source)

    def order_is_certain(self, source_a: str, source_b: str, gap_s: float) -> bool:
        """Whether two events that far apart in two files have a sure order."""
        if source_a == source_b:
            return True
        a, b = self._by_file.get(source_a), self._by_file.get(source_b)
        return a is not None and b is not None and abs(gap_s) > a.uncertainty_s + b.uncertainty_s

    def iso(self, seconds: float) -> str:
        """An axis time as RFC 3339 on the reference clock."""
        return dates.iso(seconds, self.zone)


def align(rows: dict[str, Rows], files: dict[str, FileInfo], zone: str | None = None) -> Clocks:
    """Place every clock of a run; `zone` (a name or `+08:00`) is the reference clock's, as the user says."""
    tracks = clock_tracks.collect(rows, files)
    if not tracks:
        return Clocks({}, None, None)
    clock_tracks.fill_dates(tracks, files)
    reference = _reference(tracks, files)
    main = tracks[reference]
    known = next(iter(main.zones)) if main.zones else None
    named = dates.named_zone(zone, main.local[-1]) if zone and main.local and not main.mono else None
    if main.group == "host":
        known = 0.0  # the training log tells no time: the axis is UTC
    elif known is None:
        known = named
    _place(tracks, reference, rows, files, known, named if main.group == "host" else None)
    return Clocks(tracks, reference, known)


def _reference(tracks: dict[tuple[str, str], Track], files: dict[str, FileInfo]) -> tuple[str, str]:
    """The main training log's clock: of a training file, with most metric readings, then most stamps, then the largest file."""

    def rank(key: tuple[str, str]) -> tuple[Any, ...]:
        one, info = tracks[key], files.get(key[0])
        kinds = info.kinds if info else ()
        plain = not one.mono and one.form not in votes.PRINTED_DATES
        return (one.group == "train", not one.mono, "train" in kinds, plain, one.metrics, len(one.points), info.size if info else 0, key)

    return max(tracks, key=rank)


# Placing ----------------------------------------------------------------------------------------------------------------


def _place(
    tracks: dict[tuple[str, str], Track],
    reference: tuple[str, str],
    rows: dict[str, Rows],
    files: dict[str, FileInfo],
    known: float | None,
    hosts: float | None,
) -> None:
    """Give every track its pieces and its clock; known: the reference clock's zone; hosts: the hosts' zone as the user says."""
    main = tracks[reference]
    shift = known or 0.0  # axis = reference reading - shift
    view = votes.View()
    near = main.local[-1]
    views = {key: _view_of(one, rows[one.source]) for key, one in tracks.items()}
    # 1. The training side: clocks taken to be the reference clock unless a pair on neighbouring lines says otherwise.
    steps: dict[tuple[str, str], tuple[float, str, float, dict[str, Any]]] = {}
    for key, one in tracks.items():
        if one.group == "train" and not one.mono:
            steps[key] = (0.0, "reference" if key == reference else "same-clock", 0.0 if key == reference else one.precision, {})
    _side_by_side(tracks, reference, steps, views)
    _by_steps(tracks, views, reference, steps, files)
    for key, (step, *_rest) in steps.items():
        if not tracks[key].zoned or known is not None:
            view.add_train(views[key], -step)
    # A host whose training log is off by seconds or minutes has a wrong clock, and its kernel log reads the same one.
    skew = {
        host: step
        for key, (step, basis, _, _) in steps.items()
        if basis == "events" and abs(step) <= 900 and (host := _host(files, key[0]))
    }
    # 2. What each host's own clock is from UTC, by epochs in its lines or a zone in its text.
    zones = {key: clock_tracks.zone_of(one) for key, one in tracks.items()}
    host_zone: dict[str, float] = {}
    for key, one in tracks.items():
        if one.group == "host" and (found := zones[key]) is not None and not one.mono:
            host_zone.setdefault(one.host, found)
    common = _most(host_zone.values()) if host_zone else hosts
    # 3. One zone step for all host clocks together: hosts of one cluster are set alike.
    paired = [step for key, (step, basis, _, _) in steps.items() if basis == "pair" and tracks[key].group == "host"]
    locals_ = [(views[key], zones[key]) for key, one in tracks.items() if one.group == "host" and not one.mono]
    raws = [
        (views[key], epoch_zero)
        for key, one in tracks.items()
        if one.mono and (epoch_zero := clock_tracks.epoch_zero(one, near)) is not None
    ]
    decision = votes.decide(view, locals_, raws, common, known, paired)
    for key, one in tracks.items():
        if key in steps and one.group == "train":
            continue
        if one.mono:
            _place_mono(one, near, decision, view, views[key], shift, skew.get(one.host, 0.0))
            continue
        zone = zones[key] if zones[key] is not None else common
        drift, basis, spread, facts = clock_tracks.drift_near(one, near + decision.step)
        if one.moved:
            facts["moved_s"] = round(one.moved, 3)
        if one.zoned or zones[key] is not None:
            step = (zone or 0.0) - decision.reference_zone if decision.reference_zone is not None else decision.step
        else:
            step = votes.own_step(view, views[key], decision)
        if key in steps and steps[key][1] == "pair":
            step = steps[key][0]
        basis = decision.basis if basis == "assumed" else basis
        facts |= {"step_s": step, "votes": round(decision.margin, 2), **({"zone_s": zone} if zone is not None else {})}
        uncertainty = max(spread, one.precision, decision.uncertainty)
        one.drift = drift
        if ahead := skew.get(one.host, 0.0):
            step, facts["host_ahead_s"] = step + ahead, round(ahead, 3)
        steps[key] = (step + drift, basis, uncertainty, facts)
    for key, (offset, basis, uncertainty, facts) in steps.items():
        one = tracks[key]
        if one.zoned and one.group == "train" and known is None:
            offset = offset + next(iter(one.zones)) - (decision.reference_zone or 0.0) if key != reference else 0.0
            basis = "zone" if key != reference else basis
        one.clock = Clock(one.source, one.form, basis, round(offset, 3), round(uncertainty, 3), None, facts)
        shifted = clock_tracks.drifts(one, offset - one.drift)
        _set_pieces(one, [local - shifted[index] - shift for index, local in enumerate(one.local)])


def _most(values: Iterable[float]) -> float:
    """The most frequent value, the smallest of several."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _view_of(one: Track, row: Rows) -> votes.Seen:
    return votes.Seen.of(one.source, one.form, one.points, one.local, row)


def _place_mono(
    one: Track, near: float, decision: votes.Decision, view: votes.View, seen: votes.Seen, shift: float, ahead: float = 0.0
) -> None:
    """Pieces for each boot of a raw kernel log; ahead: seconds by which the host's wall clock, so its epochs too, is wrong."""
    starts = dates.boot_starts(one.points, one.boots)
    zone = decision.reference_zone
    zeros: list[float | None] = []
    drifting: dict[int, list[tuple[int, float]]] = {}
    basis, uncertainty = "assumed", 86_400.0
    facts: dict[str, Any] = {}
    for index, start in enumerate(starts):
        stop = starts[index + 1] if index + 1 < len(starts) else 1 << 62
        anchors = [anchor for anchor in one.epochs if start <= anchor[0] < stop]
        anchors = [anchor for anchor in anchors if anchor[3] != "rtc"] or anchors
        gaps = [(s, epoch - ahead - s) for _, s, epoch, _ in anchors]
        by_line = [(line, epoch - ahead - s) for line, s, epoch, _ in anchors]
        last = index == len(starts) - 1
        if gaps:
            rough = median(value for _, value in gaps)
            target = near - (zone or 0.0) - rough
            value, spread, used = dates.nearest(gaps, target)
            zeros.append(value + (zone or 0.0))
            drifting[index] = dates.pieces([(line, gap) for line, gap in by_line])
            if last:
                basis, uncertainty, facts = "audit", max(spread, decision.uncertainty), {"anchors": used}
        else:
            inside = [point for point in seen.kernel if start <= point.line < stop]
            voted = votes.zero_by_events(view, inside)
            zeros.append(voted[0] if voted else None)
            if voted and last:
                basis, uncertainty, facts = "events", voted[1], {"votes": voted[2]}
    settled = _filled(zeros, starts, one, near)
    if zeros[-1] is None:
        facts = {"assumed": "last line at the end of the training log"}
    one.starts, one.pieces = [], []
    for index, (start, value) in enumerate(zip(starts, settled, strict=True)):
        for line, gap in drifting.get(index) or [(start, value - (zone or 0.0))]:
            one.starts.append(max(line, start))
            one.pieces.append(gap + (zone or 0.0) - shift)
    zero = settled[-1] - shift
    one.clock = Clock(one.source, one.form, basis, None, round(uncertainty, 3), dates.iso(zero, shift if shift else None), facts)


def _filled(zeros: list[float | None], starts: list[int], one: Track, near: float) -> list[float]:
    """Boots that no anchor places: the last one ends with the training log, earlier ones a minute before the next begins."""
    out: list[float] = []
    for index in range(len(zeros) - 1, -1, -1):
        stop = starts[index + 1] if index + 1 < len(starts) else 1 << 62
        end = max((s for line, s in one.points if starts[index] <= line < stop), default=0.0)
        value = zeros[index]
        out.append(value if value is not None else out[-1] - end - 60.0 if out else near - end)
    return out[::-1]


def _side_by_side(
    tracks: dict[tuple[str, str], Track],
    reference: tuple[str, str],
    steps: dict[tuple[str, str], tuple[float, str, float, dict[str, Any]]],
    views: dict[tuple[str, str], votes.Seen],
) -> None:
    """Other clocks inside training files: a steady whole zone step between neighbouring lines is their offset.

    Below the last line of the base a silence looks like a zone: the usual time-out of a collective is half an hour.  There the
    instant at which the ranks began to wait is compared, and without one odd half hours are not believed.
    """
    by_file: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, one in tracks.items():
        if not one.mono and not one.zoned:
            by_file[one.source].append(key)
    for keys in by_file.values():
        base = max((k for k in keys if k in steps), key=lambda k: (k == reference, len(tracks[k].points)), default=None)
        if base is None:
            continue
        for key in keys:
            if key == base:
                continue
            gaps = _neighbour_gaps(tracks[key], tracks[base])
            if not gaps:
                continue
            gap, below = median(gaps), tracks[key].points[0][0] > tracks[base].points[-1][0]
            if below and views[key].departures:
                gap = median(views[key].departures) - tracks[base].local[-1]  # what the ranks were doing while the base was silent
            step = round(gap / HALF_HOUR) * HALF_HOUR
            if below and step % 3600 and not views[key].departures:
                continue
            if abs(gap - step) <= 90 and abs(step) <= 14 * 3600 and (step or tracks[key].group == "host"):
                steps[key] = (step, "pair", max(tracks[key].precision, 1.0), {"pairs": len(gaps), "step_s": step})


def _by_steps(
    tracks: dict[tuple[str, str], Track],
    views: dict[tuple[str, str], votes.Seen],
    reference: tuple[str, str],
    steps: dict[tuple[str, str], tuple[float, str, float, dict[str, Any]]],
    files: dict[str, FileInfo],
) -> None:
    """Training logs of other hosts: the same step or the same collective's time-out, printed in both, tells their clocks apart."""
    main, home = views[reference], _host(files, reference[0])
    for key in steps:
        host = _host(files, key[0])
        if key[0] == reference[0] or host is None or host == home:
            continue
        gaps = [at - main.marks[mark] for mark, at in views[key].marks.items() if mark in main.marks]
        if len(gaps) < 3:
            continue
        gap = median(gaps)
        spread = median(abs(value - gap) for value in gaps)
        ends = abs((views[key].last - main.last) - gap) <= 120 or abs((views[key].first - main.first) - gap) <= 120
        zone = round(gap / HALF_HOUR) * HALF_HOUR
        # Steps repeated by a later attempt are minutes or hours apart too, but then neither the logs' ends nor a zone fit.
        if abs(gap) > 5 and spread <= 2 and ends and (abs(gap) <= 900 or abs(gap - zone) <= 30):
            steps[key] = (gap, "events", spread + 1.0, {"anchors": len(gaps)})


def _host(files: dict[str, FileInfo], source: str) -> str | None:
    info = files.get(source)
    return info.host if info else None


def _neighbour_gaps(one: Track, base: Track) -> list[float]:
    """Reading of `one` minus those of `base` on the lines next to it, at most 50.

    A point counts only when its neighbours on both sides (where there are two within reach) say the same to 3 minutes: lines
    of one program may be hours apart, and a gap of its own must not look like a zone.
    """
    lines = [line for line, _ in base.points]
    gaps = []
    for (line, _), local in list(zip(one.points, one.local, strict=True))[:400]:
        at = bisect.bisect_left(lines, line)
        around = [local - base.local[i] for i in (at - 1, at) if 0 <= i < len(lines) and abs(lines[i] - line) <= 12]
        if around and max(around) - min(around) <= 180:
            gaps.append(median(around))
    return gaps[:50]


def _set_pieces(one: Track, axis: list[float]) -> None:
    """Compress axis - stamp.seconds into pieces by line."""
    one.starts, one.pieces = [], []
    for (line, seconds), value in zip(one.points, axis, strict=True):
        offset = value - seconds
        if not one.pieces or abs(offset - one.pieces[-1]) > 1e-4:
            one.starts.append(line)
            one.pieces.append(offset)


def _per_file(tracks: dict[tuple[str, str], Track]) -> list[Clock]:
    """One clock per file: that of the form with most stamps."""
    best: dict[str, Track] = {}
    for one in tracks.values():
        held = best.get(one.source)
        if one.clock is not None and (held is None or _weight(one) > _weight(held)):
            best[one.source] = one
    return [one.clock for _, one in sorted(best.items()) if one.clock is not None]


def _weight(one: Track) -> tuple[bool, int]:
    return (one.clock is not None and one.clock.basis == "reference", len(one.points))
