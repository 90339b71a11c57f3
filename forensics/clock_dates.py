"""What makes one clock's readings steady: years that are not written, hours that come twice, corrections, boots, drift.

Everything here looks at one clock alone: its readings in the order of the lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise
from statistics import median
from zoneinfo import ZoneInfo

from forensics.stamps import zone_seconds

HALF_YEAR = 182 * 86_400.0
BACKWARDS = 1.0  # seconds a kernel's clock may run backwards between processors before a new boot is assumed
POISON = 300.0  # an epoch that far from its neighbours on both sides was written before a snapshot was restored
AMBIGUOUS = frozenset(("us", "us2", "dmy", "spark"))
PIECE = 1.0  # drift in seconds after which a clock gets a new offset
CORRECTED = 5.0  # seconds a single-writer log must jump back before a correction of the clock is assumed
NEAR = 3600.0  # seconds around the crash within which anchors are preferred: drift is up to 1.4 s a day


def named_zone(name: str, local: float) -> float | None:
    """Seconds east of UTC of a zone name or offset (`Europe/Berlin`, `+08:00`) at a local time; None for no zone."""
    direct = zone_seconds(name)
    if direct is not None:
        return direct
    try:
        offset = datetime.fromtimestamp(local, UTC).replace(tzinfo=ZoneInfo(name)).utcoffset()
    except (KeyError, ValueError, OSError, OverflowError):
        return None
    return None if offset is None else offset.total_seconds()


def with_years(seconds: list[float], target: float) -> list[float]:
    """Readings computed in year 2000 moved to the years they mean: the last one nearest `target`, earlier ones by roll-over.

    A step of more than half a year between neighbouring lines is New Year, in either direction (lines of several programs
    in one file may be a little out of order).
    """
    year = datetime.fromtimestamp(max(0.0, min(target, 7e9)), UTC).year
    last = min((year - 1, year, year + 1), key=lambda y: abs(in_year(seconds[-1], y) - target))
    out = [0.0] * len(seconds)
    later = seconds[-1]
    for index in range(len(seconds) - 1, -1, -1):
        if seconds[index] - later > HALF_YEAR:
            last -= 1
        elif later - seconds[index] > HALF_YEAR:
            last += 1
        later = seconds[index]
        out[index] = in_year(later, last)
    return out


# Forms that are one clock: what tells them apart in a single line is only the size of the numbers.
_SAME = {"dmy": "us", "spark": "us2"}


@lru_cache(1024)
def base(form: str) -> str:
    """The clock of a form within its file."""
    form = form.rstrip("~")
    return _SAME.get(form, form)


def written(form: str, seconds: float) -> tuple[int, int, int, float] | None:
    """The three numbers of a date as they stood in the text of an ambiguous form, and the time of day; None for other forms."""
    if form not in AMBIGUOUS:
        return None
    moment = datetime(1970, 1, 1) + timedelta(days=seconds // 86_400)
    year, month, day = moment.year, moment.month, moment.day
    numbers = {"us": (month, day, year), "us2": (month, day, year - 2000), "dmy": (day, month, year), "spark": (year - 2000, month, day)}[
        form
    ]
    return (*numbers, seconds % 86_400)


def ordered(dates: list[tuple[int, int, int, float]], target: float | None) -> list[float] | None:
    """Readings of `a/b/c` dates under the one order (month, day or year first) that suits the whole file; None if none does.

    An order must give existing dates throughout; then the fewest days run backwards, the last date is nearest to `target`
    (a date from elsewhere in the run), the span is shortest, and month first is preferred.
    """
    best: tuple[tuple[float, ...], list[float]] | None = None
    for preference, (year, month, day) in enumerate(((2, 0, 1), (2, 1, 0), (0, 1, 2))):
        out = []
        for item in dates:
            numbers = item[:3]
            number = numbers[year] if numbers[year] >= 100 else 2000 + numbers[year]
            try:
                start = (datetime(number, numbers[month], numbers[day]) - datetime(1970, 1, 1)).total_seconds()
            except ValueError:
                break
            out.append(start + item[3])
        else:
            backwards = sum(before - after > 43_200 for before, after in pairwise(out))
            away = abs(out[-1] - target) // 86_400 if target is not None else 0.0
            # Without any help a later year is likelier: logs of 2013 are rare.
            key = (backwards, away, (max(out) - min(out)) // 86_400, -(out[-1] // (366 * 86_400)) if preference else -1e9, preference)
            if best is None or key < best[0]:
                best = (key, out)
    return None if best is None else best[1]


def in_year(seconds: float, year: int) -> float:
    """A reading of the year 2000 in another year; 29 February becomes 1 March where there is none."""
    start = (datetime(year, 1, 1) - datetime(1970, 1, 1)).total_seconds()
    within = seconds - 946_684_800.0
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not leap and within >= 60 * 86_400:
        within -= 86_400
    return start + within


def unfold(local: list[float]) -> list[float]:
    """Undo the end of daylight saving: a fall by one hour on a Sunday night in October, November, March or April, once.

    The readings before it get the hour off, so that the clock as it is at the end counts throughout.
    """
    for index, (before, after) in enumerate(pairwise(local)):
        fall = before - after
        if 3300 <= fall <= 3600:
            moment = datetime.fromtimestamp(max(0.0, min(before, 7e9)), UTC)
            if moment.weekday() == 6 and moment.hour <= 3 and moment.month in (3, 4, 10, 11) and local[index + 1] >= local[0] - 3600:
                return [value - 3600 for value in local[: index + 1]] + local[index + 1 :]
    return local


def corrected(local: list[float]) -> tuple[list[float], float]:
    """Undo a correction of the clock in a log that one program writes in order: (readings, seconds moved in all).

    Where the reading falls by 5 seconds to an hour the clock was set right: what stands above is moved back by the fall, so
    that the clock as it is at the end counts throughout.  More than two falls are no corrections but a file of several
    writers, and nothing is moved.
    """
    falls = [(index, before - after) for index, (before, after) in enumerate(pairwise(local)) if before - after > CORRECTED]
    if not falls or len(falls) > 2 or any(fall >= 3600 for _, fall in falls):
        return local, 0.0
    out = list(local)
    for index, fall in falls:
        out[: index + 1] = [value - fall for value in out[: index + 1]]
    return out, sum(fall for _, fall in falls)


def boot_starts(points: list[tuple[int, float]], banners: list[int]) -> list[int]:
    """First lines of the boots in a kernel log with seconds since boot: where they run back by more than a second, or at all at a banner."""
    starts = [points[0][0]]
    known = set(banners)
    for (_, before), (line, after) in pairwise(points):
        if after < before - BACKWARDS or (line in known and after < before):
            starts.append(line)
    return starts


def pieces(gaps: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """(first line, value) where the anchors' values (line, value) move by more than a second; lone outliers are left out."""
    kept = []
    for index, (line, value) in enumerate(gaps):
        around = [gaps[i][1] for i in (index - 1, index + 1) if 0 <= i < len(gaps)]
        if len(around) == 2 and abs(around[0] - around[1]) <= CORRECTED and abs(value - around[0]) > CORRECTED:
            continue
        kept.append((line, value))
    out: list[tuple[int, float]] = []
    for line, value in kept:
        if not out or abs(value - out[-1][1]) > PIECE:
            out.append((line if out else 0, value))
    return out


def nearest(gaps: Iterable[tuple[float, float]], near: float) -> tuple[float, float, int]:
    """Median of the values at the times nearest `near` without outliers: (value, spread, number used)."""
    pairs = list(gaps)
    if not pairs:
        return 0.0, 0.0, 0
    middle = median(value for _, value in sorted(pairs, key=lambda pair: abs(pair[0] - near))[:9])
    pairs = [pair for pair in pairs if abs(pair[1] - middle) <= POISON] or pairs
    pairs.sort(key=lambda pair: abs(pair[0] - near))
    close = [pair for pair in pairs if abs(pair[0] - near) <= NEAR][:9] or pairs[:3]
    values = [value for _, value in close]
    value = median(values)
    return value, max(abs(v - value) for v in values), len(values)


def iso(seconds: float, zone: float | None) -> str:
    """Unix seconds as RFC 3339 with microseconds in a zone (seconds east of UTC; None is written as +00:00)."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(-6e10, min(round(seconds, 6), 2e11)))
    return moment.astimezone(timezone(timedelta(seconds=zone or 0.0))).isoformat(timespec="microseconds")
