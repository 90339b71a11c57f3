"""What the series rules share: the attempt that matters, departures of every metric, and how findings are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding
from rules.statistics import (
    MIN_POINTS,
    Departure,
    beyond_past,
    departure,
    finite,
    leaves,
    looks_rounded,
    median,
    monotone,
    noise,
    tail_level,
)

if TYPE_CHECKING:
    from forensics.run import Run, Series

REWARD_NAMES = ("reward", "reward_std", "frac_zero_std", "reward_total")
RL_NAMES = frozenset(
    {"kl", "kl_loss", "policy_loss", "reward_std", "response_length", "frac_zero_std", "clip_fraction", "kl_coef", "value_loss", "reward"}
)
PREFERENCE_NAMES = frozenset({"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy"})
HEALTH: dict[str, tuple[bool, float, float]] = {  # metric: (bad direction is up, least absolute change, least relative change)
    "loss": (True, 0.02, 0.08),
    "grad_norm": (True, 1e-6, 2.0),
    "entropy": (True, 0.02, 0.3),
    "response_length": (True, 8.0, 0.3),
    "value_loss": (True, 1e-4, 2.0),
    "kl": (True, 0.01, 1.0),
}


def short(value: float) -> str:
    """A number as people write it: four significant digits."""
    return f"{value:.4g}"


def rl(run: Run) -> bool:
    """The run optimises a reward (so its loss says little)."""
    return bool(run.names() & RL_NAMES) and not run.names() & PREFERENCE_NAMES


def last_attempt(series: Series) -> Series:
    """The series of the last attempt: cut where the step counter falls back to its beginning (a fresh start, not a resume)."""
    cut = 0
    previous: float | None = None
    for i, step in enumerate(series.step):
        if step is None:
            continue
        if previous is not None and step < previous and step <= max(2.0, 0.1 * previous) and len(series) - i >= 3:
            cut = i
        previous = step
    if not cut:
        return series
    return type(series)(series.name, series.value[cut:], series.step[cut:], series.time[cut:], series.source[cut:], series.line[cut:])


def series(run: Run, *names: str) -> Series:
    """The last attempt of the first of these metrics that has readings (an empty series when none has)."""
    for name in names:
        found = run.series(name)
        if len(found):
            return last_attempt(found)
    return last_attempt(run.series(names[0]))


def departures(run: Run) -> dict[str, Departure | None]:
    """For the metrics whose rise is a symptom: where each left its level for good.  Computed once per run."""
    known: dict[str, Departure | None] | None = getattr(run, "series_departures", None)
    if known is None:
        known = {}
        for name, (up, floor, relative) in HEALTH.items():
            line = series(run, "kl", "kl_loss") if name == "kl" else series(run, name)
            measure = departure if name in ("kl", "grad_norm", "value_loss") else leaves
            # A norm of exactly 0 is a skipped step (the search of a loss scale), no level to leave.
            values = [math.nan if v == 0 else v for v in line.value] if name == "grad_norm" else line.value
            known[name] = measure(values, up=up, floor=floor, relative=relative)
        reward = series(run, "reward")
        known["reward-down"] = leaves(reward.value, up=False, floor=1e-3, relative=0.15) if len(reward) else None
        entropy = series(run, "entropy")
        known["entropy-down"] = leaves(entropy.value, up=False, floor=1e-3, relative=0.4) if len(entropy) else None
        length = series(run, "response_length")
        known["length-down"] = _shrinks(length) if len(length) else None
        for name, line in (("loss", series(run, "loss")), ("reward-down", reward)):
            spot = known[name]
            if spot is not None and not beyond_past(line.value, spot):
                known[name] = None
        run.series_departures = known  # type: ignore[attr-defined]
    return known


def _shrinks(length: Series) -> Departure | None:
    """A fall to less than 60 % looked for on the logarithm: lengths that already drift have too much spread for a linear threshold."""
    spot = departure([math.log(max(v, 0.5)) if math.isfinite(v) else math.nan for v in length.value], up=False, floor=-math.log(0.6))
    if spot is None:
        return leaves(length.value, up=False, floor=4.0, relative=0.4) or _dwindles(length)
    return Departure(spot.index, math.exp(spot.baseline), spot.sigma, math.exp(spot.threshold), math.exp(spot.final), spot.worst)


FEW_TOKENS = 40.0  # an answer that is left of long ones; a model that learns to stop rambling keeps more


def _dwindles(length: Series) -> Departure | None:
    """Answers that shrink from the first step on to a few tokens: there is no level to leave, only a way down."""
    clean = finite(length.value)
    if len(clean) < 2 * MIN_POINTS:
        return None
    early, final = median(clean[:4]), tail_level(clean)
    if final > 0.15 * early or final > FEW_TOKENS or monotone(clean) > -0.6:
        return None
    at = next(i for i, v in enumerate(length.value) if v < 0.6 * early)
    return Departure(at, early, noise(clean), 0.6 * early, final, len(length) - 1)


LATER = 0.22  # weight of a departure that comes clearly after another one: it follows, whatever else it might mean
_OF = {"reward-down": "reward", "entropy-down": "entropy", "length-down": "response_length"}


def earlier_departure(run: Run, line: Series, index: int, *names: str) -> str | None:
    """The first of these departures (keys of `departures`) in the same file more than three lines before the reading, or None."""
    found_at: list[tuple[int, str]] = []
    for name in names:
        spot = departures(run).get(name)
        other = series(run, "kl", "kl_loss") if name == "kl" else series(run, _OF.get(name, name))
        if spot is not None and other.source[spot.index] == line.source[index] and other.line[spot.index] < line.line[index] - 3:
            found_at.append((other.line[spot.index], name))
    return min(found_at)[1] if found_at else None


def where(line: Series, index: int, text: str = "") -> Evidence:
    """Reading `index` as evidence, in the words `name = value (step n)`."""
    place = line.evidence(index)
    step = line.step[index]
    place.text = text or f"{line.name} = {short(line.value[index])}" + ("" if step is None else f" (step {step:g})")
    return place


def found(
    rule: str,
    cause: str | None,
    line: Series,
    index: int,
    weight: float,
    covers: tuple[str, ...],
    more: Sequence[tuple[Series, int]] = (),
    **facts: Any,
) -> Finding:
    """A finding at reading `index` of `line`; further readings as supporting evidence.  Keys of Finding may stand in `facts`."""
    own = {key: facts.pop(key) for key in ("role", "severity", "rank", "ranks", "host", "gpu", "count") if key in facts}
    step = line.step[index]
    facts.setdefault("metric", line.name)
    facts.setdefault("value", short(line.value[index]))
    facts.setdefault("step", "?" if step is None else f"{step:g}")
    evidence = [where(line, index)] + [where(other, i) for other, i in more if len(other)]
    return Finding(rule=rule, cause=cause, weight=weight, time=line.time[index], evidence=evidence, covers=covers, facts=facts, **own)


def excluded(rule: str, cause: str | None, covers: tuple[str, ...], line: Series | None = None, index: int = -1, **facts: Any) -> Finding:
    """The cause is ruled out by this reading."""
    evidence = [where(line, index)] if line is not None and len(line) else []
    return Finding(
        rule=rule,
        outcome="excluded",
        cause=cause,
        role="context",
        weight=0.0,
        severity="info",
        evidence=evidence,
        covers=covers,
        facts=facts,
    )


def undecided(rule: str, cause: str | None, covers: tuple[str, ...], needs: str, **facts: Any) -> Finding:
    """Not enough was recorded; `needs` is the key of the gap in rules/words/steps.toml."""
    return Finding(
        rule=rule, outcome="undecided", cause=cause, role="context", weight=0.0, severity="info", covers=covers, needs=needs, facts=facts
    )


def rounded(run: Run, source: str) -> bool:
    """The file prints metrics with three decimals only, so that a 0.000 may be any small number."""
    cached: dict[str, bool] = getattr(run, "series_rounded", {})
    if source not in cached:
        import polars as pl

        values: list[float] = []
        if run.metrics is not None:
            values = run.metrics.filter(pl.col("source") == source)["value"].head(3000).to_list()
        small = [v for v in values if v is not None and 0 < abs(v) < 100]
        cached[source] = len(small) >= 8 and looks_rounded(small)
        run.series_rounded = cached  # type: ignore[attr-defined]
    return cached[source]


def index_at(line: Series, source: str, at: int) -> int | None:
    """The reading of `line` that stands at or nearest before line `at` of `source` (within 3 lines after counts too)."""
    best: int | None = None
    for i, (name, number) in enumerate(zip(line.source, line.line, strict=True)):
        if name == source and number <= at + 3:
            best = i
    return best


def number(value: Any) -> float | None:
    """A setting as a finite number, or None."""
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if math.isfinite(result) else None


def setting(run: Run, *names: str) -> float | None:
    """The first of these settings (or facts) that holds a number."""
    for name in names:
        for value in (run.settings.get(name), run.fact(name), run.fact(f"config.{name}"), run.fact(f"setting.{name}")):
            result = number(value)
            if result is not None:
                return result
    return None


def level(line: Series) -> float:
    """Median of the readings; NaN when there are none."""
    return median(finite(line.value))
