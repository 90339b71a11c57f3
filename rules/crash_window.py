"""H1 crash window: the last healthy step, the crash moment, and whether the loss broke suddenly or decayed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.series_view import rl, series, short, undecided, where
from rules.statistics import MIN_POINTS, finite, std

if TYPE_CHECKING:
    from forensics.run import Run, Series
    from parsers.base import Event

SUDDEN = 10.0  # the guide's H1: |change| above ten standard deviations of the history
FAILING = ("error", "fatal")


def last_healthy(run: Run) -> tuple[Series, int] | None:
    """The last finite reading of the metric that says the run was alive."""
    for name in ("loss", "policy_loss", "reward", "step_time"):
        line = series(run, name)
        for index in range(len(line) - 1, -1, -1):
            if math.isfinite(line.value[index]):
                return line, index
    return None


def crash_event(run: Run) -> Event | None:
    """The first error after the last progress, by the clock; by file order where lines carry no time."""
    marker = run.last_progress_at
    for event in run.events:
        if event.severity not in FAILING:
            continue
        if run.last_progress is not None and event.time is not None:
            if event.time >= run.last_progress - 1.0:
                return event
        elif marker is None or (event.source == marker.file and event.line > marker.line):
            return event
    return None


def jump(line: Series) -> tuple[int, float, float] | None:
    """(position, change, standard deviation before it) of the last change above SUDDEN standard deviations."""
    values = line.value
    clean_before = finite(values)
    if len(clean_before) < MIN_POINTS:
        return None
    for index in range(len(values) - 1, max(MIN_POINTS, len(values) - 10) - 1, -1):
        new, old = values[index], values[index - 1]
        if not math.isfinite(old):
            continue
        spread = std(values[max(0, index - 200) : index])
        if not math.isfinite(new):
            return index, math.inf, spread
        if spread and abs(new - old) > SUDDEN * spread:
            return index, new - old, spread
    return None


def judge(run: Run) -> Iterator[Finding]:
    """A context finding with the window; the verdict weighs hardware and data more after a sudden break."""
    covers = ("H1", "S12")
    healthy = last_healthy(run)
    crash = crash_event(run)
    if healthy is None:
        yield undecided("series.crash-window", None, covers, "loss")
        return
    line, index = healthy
    loss = series(run, "loss")
    spot = None if rl(run) or not len(loss) else jump(loss)
    kind = "sudden" if spot is not None else "no-jump" if len(finite(loss.value)) >= MIN_POINTS and not rl(run) else "unknown"
    evidence: list[Evidence] = [where(line, index)]
    if crash is not None:
        evidence.append(run.evidence(crash))
    before = line.time[index]
    gap = crash.time - before if crash is not None and crash.time is not None and before is not None else None
    facts: dict[str, object] = {
        "step": "?" if line.step[index] is None else f"{line.step[index]:g}",
        "value": short(line.value[index]),
        "metric": line.name,
        "gap": "?" if gap is None else f"{gap:.0f} s",
        "kind": kind,
    }
    if spot is not None:
        evidence.insert(0, where(loss, spot[0]))
        facts["change"] = "nan" if math.isinf(spot[1]) else short(spot[1])
        facts["std"] = short(spot[2])
    yield Finding(
        rule=f"series.crash-window-{kind}" if kind == "sudden" else "series.crash-window",
        cause=None,
        role="context",
        weight=0.1,
        severity="info",
        time=crash.time if crash is not None else before,
        evidence=evidence,
        covers=covers,
        facts=facts,
    )


RULES = (Rule("series.crash-window", judge, ("H1", "S12")),)
