"""The guide's own limits on the lines its probes print: gradient of the head (S5), learning rate (S10), parts of the loss (S4), lengths (S2).

Judged only where a run prints such lines; what any framework logs is judged by the series rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Finding, Rule
from rules.series_view import excluded, found, series, short, undecided
from rules.statistics import finite, median, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

EXPLOSION = 100.0  # the guide's limit of the head's gradient norm
GROWTH = 10.0  # a norm that was always large is a matter of scale
TOLERANCE = 1e-5  # the guide's, for rates of 1e-4 and more; a tenth of the peak below
SWING = 0.5  # the guide's: share by which the longest sequence may vary
RATIO = 20.0  # value loss over policy loss
LEAST = 3  # readings


def _probed(run: Run) -> bool:
    return run.fact("probes") is not None


def head_gradient(run: Run) -> Iterator[Finding]:
    """S5: a head without gradient is a cut graph; one above 100 that was small before explodes."""
    covers = ("S5", "L3.2")
    line = series(run, "head_grad_norm")
    clean = finite(line.value)
    if len(clean) < LEAST:
        if _probed(run):
            yield undecided("probe.head-gradient", "training/autograd-error", covers, "head_grad_norm")
        return
    zero = [i for i, value in enumerate(line.value) if value == 0]
    if len(zero) >= 0.9 * len(clean):
        yield found("probe.head-gradient-zero", "training/autograd-error", line, zero[0], 0.6, covers, readings=len(zero), lasting=True)
        return
    early, late = median(clean[: max(LEAST, len(clean) // 4)]), tail_level(clean)
    if late > EXPLOSION and late >= GROWTH * early:
        first = next(i for i, value in enumerate(line.value) if value > EXPLOSION)
        yield found(
            "probe.head-gradient-explosion",
            "training/gradient-explosion",
            line,
            first,
            0.5,
            covers,
            baseline=short(early),
            final=short(late),
            lasting=True,
        )
        return
    if late > EXPLOSION:
        yield found(
            "probe.head-gradient-large", None, line, len(line) - 1, 0.0, covers, role="context", severity="warning", final=short(late)
        )
        return
    yield excluded("probe.head-gradient", "training/autograd-error", covers, line, middle=short(median(clean)))


def learning_rate(run: Run) -> Iterator[Finding]:
    """S10: the printed rate against the printed schedule, one step of play at either side (loggers differ in when they read it)."""
    covers = ("S10", "L3.4")
    actual, expected = series(run, "learning_rate"), series(run, "learning_rate_expected")
    wanted = {(source, number): value for source, number, value in zip(expected.source, expected.line, expected.value, strict=True)}
    pairs = [
        (i, value, wanted[place])
        for i, (value, place) in enumerate(zip(actual.value, zip(actual.source, actual.line, strict=True), strict=True))
        if place in wanted and math.isfinite(value) and math.isfinite(wanted[place])
    ]
    if len(pairs) < LEAST:
        return
    peak = max(abs(pair[2]) for pair in pairs)
    limit = min(TOLERANCE, 0.1 * peak) if peak else TOLERANCE
    off = []
    for at, (i, value, _) in enumerate(pairs):
        near = [pair[2] for pair in pairs[max(0, at - 1) : at + 2]]
        if value > max(near) + limit or value < min(near) - limit:
            off.append(i)
    if len(off) >= max(LEAST, 0.2 * len(pairs)):
        at_first = next(pair[2] for pair in pairs if pair[0] == off[0])
        yield found(
            "probe.lr-off-schedule",
            "training/lr-schedule",
            actual,
            off[0],
            0.55,
            covers,
            readings=len(off),
            expected=short(at_first),
            limit=short(limit),
        )
        return
    yield excluded("probe.lr", "training/lr-schedule", covers, actual, limit=short(limit))


def loss_parts(run: Run) -> Iterator[Finding]:
    """S4: a value loss far above the policy's points at the critic's learning rate; alone it accuses nobody."""
    covers = ("S4", "L3.1")
    policy, value = _printed(run, "policy_loss"), _printed(run, "value_loss")
    a, b = [abs(v) for v in finite(policy.value)], [abs(v) for v in finite(value.value)]
    if len(a) < LEAST or len(b) < LEAST or not median(a):
        return
    ratio = median(b) / median(a)
    if ratio >= RATIO:
        yield found(
            "probe.value-loss-large",
            None,
            value,
            len(value) - 1,
            0.0,
            covers,
            role="context",
            severity="warning",
            ratio=short(ratio),
            policy=short(median(a)),
        )


def lengths(run: Run) -> Iterator[Finding]:
    """S2: the longest sequence swings by more than half; a circumstance for memory and speed, not a cause."""
    line = _printed(run, "batch_max_length")
    clean = finite(line.value)
    if len(clean) < LEAST or not median(clean):
        return
    swing = (max(clean) - min(clean)) / median(clean)
    if swing > SWING:
        longest = max(range(len(line)), key=lambda i: line.value[i] if math.isfinite(line.value[i]) else -math.inf)
        yield found(
            "probe.length-swing",
            None,
            line,
            longest,
            0.0,
            ("S2", "L1.3"),
            role="context",
            severity="warning",
            swing=f"{swing:.0%}",
            low=short(min(clean)),
            high=short(max(clean)),
        )


def _printed(run: Run, name: str) -> Series:
    """The readings of a metric, none where the run prints no probe lines."""
    line = series(run, name)
    return line if _probed(run) else type(line)(name, [], [], [], [], [])


RULES = (
    Rule("probe.head-gradient", head_gradient, ("S5", "L3.2")),
    Rule("probe.lr", learning_rate, ("S10", "L3.4")),
    Rule("probe.loss-parts", loss_parts, ("S4", "L3.1")),
    Rule("probe.lengths", lengths, ("S2", "L1.3")),
)
