"""Robust statistics for short, noisy training series (standard library only, bounded work).

Training curves have heavy tails, NaN, rounding and a few dozen to a few million readings; so: medians instead of means,
spread from the median absolute deviation, and long series are looked at through at most `BUCKETS` bucket medians.
Nothing here raises on NaN, infinity or empty input.  Fewer than `MIN_POINTS` finite readings decide nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_POINTS = 8  # below this a median absolute deviation says nothing
BUCKETS = 1500
SETBACK = 1.8  # a departure goes this many times further than any setback that the series had come back from
LEVEL = 0.25  # Kendall's tau below which a stretch has no trend
GAUSS = 1.4826  # MAD of a normal distribution times this is its standard deviation


@dataclass(slots=True, frozen=True)
class Departure:
    """A series that left its recent level for good.

    `index`: first reading beyond `threshold` that stays so (position in the list given).  `baseline` and `sigma`: level and
    noise of the readings before it.  `final`: level of the last tenth.  `worst`: position of the most extreme reading.
    """

    index: int
    baseline: float
    sigma: float
    threshold: float
    final: float
    worst: int

    @property
    def factor(self) -> float:
        """Final level over baseline (infinite where the baseline is 0)."""
        return self.final / self.baseline if self.baseline else math.inf

    @property
    def strength(self) -> float:
        """Distance of the final level from the baseline in noise units."""
        return abs(self.final - self.baseline) / self.sigma if self.sigma else math.inf


@dataclass(slots=True, frozen=True)
class Spike:
    """Readings `start`..`end` (inclusive) far above their neighbours; `recovered`: the level came back after them."""

    start: int
    end: int
    peak: float
    baseline: float
    recovered: bool


def finite(values: Sequence[float]) -> list[float]:
    """The finite values, in order."""
    return list(filter(math.isfinite, values))


def median(values: Sequence[float]) -> float:
    """Median of the finite values; NaN when there are none."""
    ordered = sorted(filter(math.isfinite, values))
    return _middle(ordered) if ordered else math.nan


def _middle(ordered: list[float]) -> float:
    half = len(ordered) >> 1
    return ordered[half] if len(ordered) & 1 else (ordered[half - 1] + ordered[half]) / 2


def smoothed(values: Sequence[float], half: int) -> list[float]:
    """The running median of finite values, each over itself and up to `half` readings on either side."""
    ordered = sorted(values[:half])  # of the window, kept sorted from step to step
    out = []
    for i in range(len(values)):
        if i + half < len(values):
            insort(ordered, values[i + half])
        if i > half:
            del ordered[bisect_left(ordered, values[i - half - 1])]
        out.append(_middle(ordered))
    return out


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile of the finite values; NaN when there are none."""
    ordered = sorted(filter(math.isfinite, values))
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def mad_sigma(values: Sequence[float]) -> float:
    """Standard deviation estimated from the median absolute deviation; 0 for constant or empty input."""
    centre = median(values)
    if math.isnan(centre):
        return 0.0
    return GAUSS * median([abs(v - centre) for v in values if math.isfinite(v)])


def noise(values: Sequence[float]) -> float:
    """Standard deviation of the reading-to-reading noise, blind to slow trends (from first differences)."""
    clean = finite(values)
    return mad_sigma([b - a for a, b in pairwise(clean)]) / math.sqrt(2) if len(clean) > 2 else 0.0


def std(values: Sequence[float]) -> float:
    """Plain standard deviation of the finite values (the guide's H1 asks for this one)."""
    clean = finite(values)
    if len(clean) < 2:
        return 0.0
    scale = max(abs(v) for v in clean) or 1.0  # keeps the squares of extreme values finite
    parts = [v / scale for v in clean]
    mean = math.fsum(parts) / len(parts)
    return scale * math.sqrt(math.fsum((v - mean) ** 2 for v in parts) / len(parts))


def looks_rounded(values: Sequence[float], decimals: int = 3) -> bool:
    """Every finite value has at most `decimals` decimals (verl up to 0.4 prints so): a 0 may then be a small number."""
    scale = 10.0**decimals
    clean = finite(values)
    return bool(clean) and all(abs(v * scale - round(v * scale)) < 1e-6 * max(1.0, abs(v * scale)) for v in clean if abs(v) < 1e9)


def thin(values: Sequence[float], limit: int = BUCKETS) -> tuple[list[float], list[int]]:
    """At most `limit` bucket medians of the finite values, with the position of each bucket's first value."""
    places = [i for i, v in enumerate(values) if math.isfinite(v)]
    if len(places) <= limit:
        return [values[i] for i in places], places
    size = -(-len(places) // limit)
    heads = places[::size]
    return [median([values[i] for i in places[n : n + size]]) for n in range(0, len(places), size)], heads


def theil_sen(values: Sequence[float], at: Sequence[float] | None = None, limit: int = 150) -> float:
    """Median of pairwise slopes (per unit of `at`, else per reading); 0 when there are fewer than two readings."""
    pairs = [(float(i) if at is None else at[i], v) for i, v in enumerate(values) if math.isfinite(v)]
    if at is not None:
        pairs = [(x, y) for x, y in pairs if math.isfinite(x)]
    if len(pairs) > limit:
        step = (len(pairs) - 1) / (limit - 1)
        pairs = [pairs[round(n * step)] for n in range(limit)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for n, a in enumerate(pairs) for b in pairs[n + 1 :] if b[0] != a[0]]
    return median(slopes) if slopes else 0.0


def monotone(values: Sequence[float], limit: int = 150) -> float:
    """Kendall's tau against time, -1 (always falling) to 1 (always rising); ties count as neither."""
    clean, _ = thin(values, limit)
    pairs = len(clean) * (len(clean) - 1) // 2
    if not pairs:
        return 0.0
    score, later = 0, list[float]()  # the readings after this one, sorted
    for value in reversed(clean):
        score += len(later) - bisect_right(later, value) - bisect_left(later, value)
        insort(later, value)
    return score / pairs


def tail_level(values: Sequence[float]) -> float:
    """Median of the last tenth (three readings at least)."""
    clean = finite(values)
    return median(clean[-max(3, min(len(clean) // 10, 50)) :])


def departure(
    values: Sequence[float],
    up: bool = True,
    k: float = 6.0,
    floor: float = 0.0,
    relative: float = 0.0,
    window: int = 40,
    keep: float = 0.85,
) -> Departure | None:
    """The first reading that leaves the level of the readings before it and never comes back, or None.

    A reading departs when it is more than `k` noise widths, more than `floor`, and more than `relative` times the baseline
    beyond the median of up to `window` readings before it.  From there on at least `keep` of the readings, and the last
    tenth, must stay beyond the threshold.  A slow drift moves the baseline along and does not count.
    """
    line, places = thin(values)
    count = len(line)
    if count < MIN_POINTS:
        return None
    sign = 1.0 if up else -1.0
    flipped = [sign * v for v in line]
    last = tail_level(flipped)
    own_noise = noise(flipped)
    lead = max(4, min(window, count // 5))
    ordered = sorted(flipped[:4])  # of the readings in the window, kept sorted from step to step
    for i in range(4, count - 1):
        if i > 4:
            insort(ordered, flipped[i - 1])
        if i - window > 0:
            del ordered[bisect_left(ordered, flipped[i - window - 1])]
        base = _middle(ordered)
        if flipped[i] <= base or last <= base:
            continue
        least = base + max(floor, relative * abs(base))
        if flipped[i] <= least or last <= least:
            continue
        before = flipped[max(0, i - window) : i]
        spread = max(mad_sigma(before), min(own_noise, noise(before)), 1e-9 * abs(base))
        threshold = base + max(k * spread, floor, relative * abs(base))
        if flipped[i] <= threshold or last <= threshold:
            continue
        rest = flipped[i:]
        if len(rest) < 3 or sum(v > threshold for v in rest) < keep * len(rest):
            continue
        if len(before) < lead and monotone(before) > 0.8:
            continue  # the very first readings of a ramp are no baseline
        place = places[i]
        if len(places) > 1 and i + 1 < count and places[i + 1] > place + 1:
            place = next((j for j in range(place, places[i + 1]) if sign * values[j] > threshold), place)
        worst = max(range(i, count), key=lambda j: flipped[j])
        return Departure(place, sign * base, spread, sign * threshold, sign * last, places[worst])
    return None


def turn(
    values: Sequence[float],
    up: bool = True,
    k: float = 4.0,
    floor: float = 0.0,
    relative: float = 0.12,
    visible: float = 0.2,
    keep: float = 0.85,
) -> Departure | None:
    """A slow ramp away from the best level ever reached, which a running baseline would follow; None when there is none.

    The best level is the lowest (`up`) or highest smoothed one, reached after the first readings.  The last tenth must lie more
    than `k` noise widths, `floor` and `relative` times that level away, and the way there must be one-directional.  The index
    is the reading at which the way is unmistakable: beyond `visible` times the level or a fifth of the whole way.
    """
    line, places = thin(values)
    count = len(line)
    if count < 2 * MIN_POINTS:
        return None
    sign = 1.0 if up else -1.0
    flipped = [sign * v for v in line]
    half = max(1, min(7, count // 40))
    smooth = smoothed(flipped, half)
    stop = count - max(4, count // 20)
    best = min(range(stop), key=lambda i: (smooth[i], i))
    if best < max(MIN_POINTS, count // 20):
        # On a level it is chance which reading is the best: the last one that is as good, if there was no trend up to it.
        slack = min(noise(flipped), 0.15 * (tail_level(flipped) - smooth[best]))
        later = max(i for i in range(stop) if smooth[i] <= smooth[best] + slack) if slack > 0 else best
        best = later if later >= 2 * MIN_POINTS and abs(monotone(flipped[: later + 1])) < LEVEL else best
    # A metric that only ever moved one way (KL, entropy at the start) has no level to leave.
    if best < max(MIN_POINTS, count // 20):
        return None
    base, last, spread = smooth[best], tail_level(flipped), noise(flipped[: best + 1])
    way = last - base
    if way <= max(k * spread, floor, relative * abs(base)):
        return None
    path = smooth[best:]
    if monotone(path) < 0.4:
        return None
    threshold = base + max(k * spread, floor, min(max(visible * abs(base), 0.2 * way), 0.5 * way))
    threshold = min(threshold, base + 0.6 * way)
    for i in range(best, count - 1):
        rest = flipped[i:]
        if flipped[i] > threshold and sum(v > threshold for v in rest) >= keep * len(rest):
            worst = max(range(i, count), key=lambda j: flipped[j])
            return Departure(places[i], sign * base, spread, sign * threshold, sign * last, places[worst])
    return None


def leaves(values: Sequence[float], up: bool = True, floor: float = 0.0, relative: float = 0.0, k: float = 6.0) -> Departure | None:
    """A step away from the recent level, else a slow ramp away from the best one."""
    return departure(values, up=up, k=k, floor=floor, relative=relative) or turn(values, up=up, floor=floor, relative=max(relative, 0.12))


def beyond_past(values: Sequence[float], spot: Departure, margin: float = 1.3) -> bool:
    """The final level lies clearly beyond where the series had wandered in the third before the departure (or 20 readings).

    Slow random wandering also leaves a running baseline; what it does not do is leave its own earlier range by far.
    """
    up = spot.final >= spot.baseline
    # The way out begins at the last reading on the good side of the level: it is no part of the past.
    start = spot.index
    while start > 0 and not (
        math.isfinite(values[start - 1]) and (values[start - 1] <= spot.baseline if up else values[start - 1] >= spot.baseline)
    ):
        start -= 1
    start = start or spot.index
    past = finite(values[max(0, start - max(20, start // 3)) : start])
    if len(past) < 4:
        return False
    smooth = smoothed(past, 1)
    reach = quantile(smooth, 0.95) if up else quantile(smooth, 0.05)
    way = abs(spot.final - spot.baseline)
    return way > margin * abs(reach - spot.baseline) and way > SETBACK * setback(values[:start], up)


def setback(values: Sequence[float], up: bool, last: int = 400) -> float:
    """The largest way in the bad direction (`up` or down) that a series had gone before, single spikes left out; 0 for too few readings."""
    clean, _ = thin(finite(values)[-last:], 200)
    smooth = smoothed(clean, 2)
    best, largest = math.inf, 0.0
    for value in smooth if up else [-v for v in smooth]:
        best = min(best, value)
        largest = max(largest, value - best)
    return largest if len(clean) >= MIN_POINTS else 0.0


def spikes(values: Sequence[float], k: float = 10.0, relative: float = 0.5, window: int = 30) -> list[Spike]:
    """Excursions above the running level: beyond `k` noise widths and `relative` times the level, with what came after."""
    line, places = thin(values)
    found: list[Spike] = []
    i, ordered = 4, list[float]()  # the readings of the window before i, sorted; empty where i has leapt
    while i < len(line):
        if ordered:
            insort(ordered, line[i - 1])
            if i > window:
                del ordered[bisect_left(ordered, line[i - window - 1])]
        else:
            ordered = sorted(line[max(0, i - window) : i])
        base = _middle(ordered)
        if line[i] <= base + relative * abs(base):  # below the threshold whatever the noise is
            i += 1
            continue
        before = line[max(0, i - window) : i]
        threshold = base + max(k * max(mad_sigma(before), noise(before)), relative * abs(base), 1e-12)
        if line[i] <= threshold:
            i += 1
            continue
        ordered = []
        end = i
        while end + 1 < len(line) and line[end + 1] > threshold:
            end += 1
        after = line[end + 1 : end + 1 + window]
        half_way = base + 0.5 * (threshold - base)
        found.append(
            Spike(places[i], places[end], max(line[i : end + 1]), base, len(after) >= 3 and median(after) <= max(half_way, threshold))
        )
        i = end + window // 2 if end + 1 < len(line) else len(line)
    return found


def constant_run(values: Sequence[float], target: float | None = None, tolerance: float = 0.0) -> tuple[int, int] | None:
    """The run of equal readings (or of readings equal to `target`) that reaches the last one: (first position, length)."""
    clean = [(i, v) for i, v in enumerate(values) if math.isfinite(v)]
    if not clean:
        return None
    wanted = clean[-1][1] if target is None else target
    start = len(clean)
    while start and abs(clean[start - 1][1] - wanted) <= tolerance:
        start -= 1
    return (clean[start][0], len(clean) - start) if start < len(clean) else None


def settles_at(values: Sequence[float], target: float, tolerance: float = 0.0, keep: float = 0.85) -> tuple[int, int] | None:
    """(first position, count) from which on at least `keep` of the readings, the last one among them, equal `target`.

    Unlike `constant_run` it bears a few other readings while the signal dies.
    """
    clean = [(i, abs(v - target) <= tolerance) for i, v in enumerate(values) if math.isfinite(v)]
    if not clean or not clean[-1][1]:
        return None
    hits, best = 0, len(clean) - 1
    for count, (place, (_, equal)) in enumerate(zip(range(len(clean) - 1, -1, -1), reversed(clean), strict=True), 1):
        hits += equal
        if equal and hits >= keep * count:
            best = place
    return clean[best][0], len(clean) - best


def trailing_nonfinite(values: Sequence[float]) -> tuple[int, int] | None:
    """The non-finite readings that last to the end: (position of the first, how many), None when the last one is finite."""
    i = len(values)
    while i and not math.isfinite(values[i - 1]):
        i -= 1
    return (i, len(values) - i) if i < len(values) else None


def growth(values: Sequence[float], at: Sequence[float] | None = None) -> tuple[float, float, float]:
    """(slope per reading or unit of `at`, Kendall's tau, total rise first tenth to last tenth): steady growth has tau near 1."""
    clean = finite(values)
    if len(clean) < MIN_POINTS:
        return 0.0, 0.0, 0.0
    edge = max(3, len(clean) // 10)
    return theil_sen(values, at), monotone(values), median(clean[-edge:]) - median(clean[:edge])


def sawtooth(values: Sequence[float]) -> float:
    """Share of downward steps larger than a tenth of the range: 0 for a leak's staircase, near a half for batch-length noise."""
    clean, _ = thin(values)
    if len(clean) < 3:
        return 0.0
    span = max(clean) - min(clean)
    if not span:
        return 0.0
    return sum(a - b > 0.1 * span for a, b in pairwise(clean)) / (len(clean) - 1)


def plateau(values: Sequence[float], share: float = 0.4) -> bool:
    """The last `share` of the readings has stopped rising: its growth is under a tenth of the growth before it."""
    clean, _ = thin(values)
    cut = int(len(clean) * (1 - share))
    if cut < 4 or len(clean) - cut < 4:
        return False
    early = median(clean[max(0, cut - 3) : cut]) - median(clean[:3])
    late = median(clean[-3:]) - median(clean[cut : cut + 3])
    return early > 0 and late < 0.1 * early * share / (1 - share)


def slope_onset(values: Sequence[float], share: float = 0.17) -> int:
    """Position of the first reading from which on a growing series has clearly left its start (`share` of the total rise)."""
    line, places = thin(values)
    if len(line) < MIN_POINTS:
        return places[0] if places else 0
    start, end = median(line[:3]), tail_level(line)
    limit = start + share * (end - start)
    below = [i for i, v in enumerate(line) if (v - limit) * (1 if end >= start else -1) <= 0]
    return places[min(len(places) - 1, (below[-1] + 1) if below else 0)]
