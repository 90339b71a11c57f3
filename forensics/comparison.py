"""Two runs side by side: environment, packages, settings, metrics, verdicts; what differs comes first.

A crashed run against a good one of the same job is the most telling reading of an environment: a fingerprint alone says little.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from forensics.analysis import Report
    from forensics.reading import Progress
    from forensics.report.model import Curve

SCHEMA = "forensics.comparison/1"
State = Literal["differs", "only_a", "only_b", "same"]
ORDER: dict[str, int] = {"differs": 0, "only_a": 1, "only_b": 2, "same": 3}
# Facts of one run alone, which differ between any two: told last and not counted.
OWN = ("last.", "gpu.uuid.", "slurm.", "tracker.", "started_at", "ended_at", "program", "kernel.", "host.memory_available", "env.MASTER_", "env.SLURM_JOB", "env.RANK", "env.LOCAL_RANK")  # fmt: skip
HOLDS = 3  # readings in a row that must differ before two curves part
NOISE = 4.0  # times the usual step-to-step change of the noisier curve
LEAST = 0.02  # share of the level below which a difference is none
METRICS = 24


@dataclass(slots=True, frozen=True)
class Item:
    """One key of both runs; None where a run says nothing of it."""

    key: str
    a: str | None
    b: str | None
    state: State


@dataclass(slots=True, frozen=True)
class Point:
    """Where two curves part: the step, both values, and how far apart they are in units of their noise."""

    step: float
    a: float
    b: float
    apart: float | None


@dataclass(slots=True)
class Pair:
    """One metric of both runs.

    steps: readings at steps that both printed.  equal_until: the last common step up to which all values are equal, None where the
    first differs already.  parts_at: where the curves part for good, None where they do not or too little is common.
    """

    name: str
    a: Curve | None
    b: Curve | None
    common: int = 0
    equal_until: float | None = None
    equal: bool = False
    parts_at: Point | None = None


@dataclass
class Comparison:
    """The result of `compare`, and its renderings.  Everything in it is redacted as the two reports are."""

    a: Report
    b: Report
    environment: list[Item]
    packages: list[Item]
    settings: list[Item]
    own: list[Item]
    metrics: list[Pair]
    lang: str = "en"

    @property
    def differences(self) -> int:
        """How many keys of environment, packages and settings differ."""
        return sum(item.state != "same" for group in (self.environment, self.packages, self.settings) for item in group)

    @property
    def first_parting(self) -> Pair | None:
        """The metric that parts first."""
        parted = [pair for pair in self.metrics if pair.parts_at is not None]
        return min(parted, key=lambda pair: pair.parts_at.step if pair.parts_at else math.inf, default=None)

    def to_dict(self) -> dict[str, Any]:
        """The document of schema `forensics.comparison/1`."""
        return json.loads(self.to_json())  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """The same as JSON text."""
        from forensics.report.compare import render_json

        return render_json(self, self.lang)

    def to_html(self) -> str:
        """One offline page."""
        from forensics.report.compare_html import render_html

        return render_html(self, self.lang)

    def to_markdown(self) -> str:
        """For a ticket."""
        from forensics.report.compare import render_markdown

        return render_markdown(self, self.lang)

    def print(self) -> None:
        """The differences on the terminal."""
        from forensics.report.compare import render_terminal

        render_terminal(self, self.lang)

    def _repr_markdown_(self) -> str:
        """Notebooks show the differences."""
        return self.to_markdown()


def compare(
    a: str | Path | Report,
    b: str | Path | Report,
    *,
    lang: str = "en",
    tz: str | None = None,
    rules: tuple[str, ...] | list[str] = (),
    redact: bool = True,
    hide_hosts: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two runs, given as paths (see `analyze`) or as reports already made.  Raises `forensics.Unusable` as `analyze` does."""
    from forensics.analysis import Report, analyze

    reports = [
        run
        if isinstance(run, Report)
        else analyze(run, lang=lang, tz=tz, rules=rules, redact=redact, hide_hosts=hide_hosts, progress=progress)
        for run in (a, b)
    ]
    if not hide_hosts and not isinstance(a, Report) and not isinstance(b, Report):
        _tell_apart(reports, Path(a), Path(b), redact)
    one, two = (_facts(report) for report in reports)
    groups: dict[str, list[Item]] = {"environment": [], "packages": [], "settings": [], "own": []}
    for key in sorted({*one, *two}):
        group = group_of(key)
        name = key.removeprefix("version.") if group == "packages" else key.removeprefix("setting.") if group == "settings" else key
        groups[group].append(_item(name, one.get(key), two.get(key)))
    for items in groups.values():
        items.sort(key=lambda item: (ORDER[item.state], item.key))
    return Comparison(reports[0], reports[1], **groups, metrics=_metrics(reports[0], reports[1]), lang=lang)


def _tell_apart(reports: list[Report], a: Path, b: Path, redact: bool) -> None:
    """Give two runs of one name (`logs`, often) as much of their paths as tells which is which."""
    from forensics.redact import Redactor

    models = [report.model for report in reports if report.model is not None]
    if len({str(model.facts["run"]["name"]) for model in models}) == len(models):
        return
    one, two = a.resolve().parts, b.resolve().parts
    same = next((n for n, (x, y) in enumerate(zip(reversed(one), reversed(two), strict=False)) if x != y), None)
    if same is None or same > 3:
        return
    for model, parts in zip(models, (one, two), strict=True):
        name = "/".join(parts[-same - 1 :])
        model.facts["run"]["name"] = Redactor().text(name) if redact else name


def group_of(key: str) -> str:
    """The part of the comparison in which a fact is shown."""
    if key.startswith(OWN):
        return "own"
    return "packages" if key.startswith("version.") else "settings" if key.startswith("setting.") else "environment"


def _facts(report: Report) -> dict[str, str]:
    assert report.model is not None
    found = report.model.facts.get("environment")
    return {str(key): text_of(value) for key, value in found.items()} if isinstance(found, dict) else {}


def text_of(value: Any) -> str:
    """A fact as text; several values of one key in order, joined."""
    if isinstance(value, list):
        return ", ".join(sorted(text_of(item) for item in value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _item(key: str, a: str | None, b: str | None) -> Item:
    state: State = "only_b" if a is None else "only_a" if b is None else "same" if a == b else "differs"
    return Item(key, a, b, state)


# ------------------------------------------------------------------------------------------------------------ metrics


def _metrics(a: Report, b: Report) -> list[Pair]:
    """Metrics that both runs printed first, those that part earliest at the head; then those of one run."""
    assert a.model is not None
    assert b.model is not None
    one = {curve.name: curve for curve in a.model.page.curves}
    two = {curve.name: curve for curve in b.model.page.curves}
    pairs = [pair_of(name, one.get(name), two.get(name)) for name in dict.fromkeys([*one, *two])]
    pairs.sort(key=lambda p: (p.a is None or p.b is None, p.parts_at.step if p.parts_at else math.inf))
    return pairs[:METRICS]


def pair_of(name: str, a: Curve | None, b: Curve | None) -> Pair:
    """Two curves aligned by step, and where they part."""
    pair = Pair(name, a, b)
    if a is None or b is None:
        return pair
    one, two = by_step(a), by_step(b)
    steps = sorted(one.keys() & two.keys())
    pair.common = len(steps)
    if not steps:
        return pair
    left, right = [one[s] for s in steps], [two[s] for s in steps]
    unequal = next((i for i, (x, y) in enumerate(zip(left, right, strict=True)) if not same(x, y)), None)
    pair.equal = unequal is None
    if unequal is None:
        pair.equal_until = steps[-1]
    elif unequal:
        pair.equal_until = steps[unequal - 1]
    pair.parts_at = parting(steps, left, right)
    return pair


def by_step(curve: Curve) -> dict[float, float]:
    """Step -> value; of several readings of one step the last; curves without steps by the number of the reading."""
    if any(step is not None for step in curve.step):
        return {step: value for step, value in zip(curve.step, curve.value, strict=True) if step is not None and value is not None}
    return {float(n): value for n, value in enumerate(curve.value) if value is not None}


def same(a: float, b: float) -> bool:
    """Whether two readings are one number (both not a number counts, too)."""
    return a == b or (math.isnan(a) and math.isnan(b))


def noise(values: Sequence[float]) -> float:
    """The usual change from one reading to the next: the median of its size."""
    changes = [abs(y - x) for x, y in pairwise(values) if math.isfinite(x) and math.isfinite(y)]
    return median(changes) if changes else 0.0


def parting(steps: Sequence[float], a: Sequence[float], b: Sequence[float]) -> Point | None:
    """The first step from which the curves stay apart for `HOLDS` readings by more than their noise and 2 % of their level.

    A reading that is not finite in one run only parts at once.
    """
    usual = max(noise(a), noise(b))
    finite = [abs(v) for v in (*a, *b) if math.isfinite(v)]
    limit = max(NOISE * usual, LEAST * (median(finite) if finite else 0.0))

    def apart(index: int) -> bool:
        x, y = a[index], b[index]
        if math.isfinite(x) != math.isfinite(y):
            return True
        return math.isfinite(x) and abs(x - y) > limit

    for start in range(len(steps)):
        broken = math.isfinite(a[start]) != math.isfinite(b[start])
        window = range(start, min(start + HOLDS, len(steps)))
        if broken or (len(window) == HOLDS and all(apart(i) for i in window)):
            size = abs(a[start] - b[start]) / usual if usual > 0 and math.isfinite(a[start]) and math.isfinite(b[start]) else None
            return Point(steps[start], a[start], b[start], size)
    return None
