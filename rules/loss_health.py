"""Loss and gradient: NaN, divergence, spikes, explosion, vanishing, loss-scale overflow, masked labels (L2.2, L3.2, L3.3, S5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.series_view import (
    LATER,
    PREFERENCE_NAMES,
    departures,
    earlier_departure,
    excluded,
    found,
    index_at,
    rl,
    rounded,
    series,
    short,
    undecided,
)
from rules.statistics import MIN_POINTS, Departure, constant_run, finite, median, monotone, spikes, trailing_nonfinite

if TYPE_CHECKING:
    from forensics.run import Run, Series
    from parsers.base import Event

DIVERGED = 0.08  # least relative rise of the loss that is called a divergence
EXPLODED = 100.0  # the guide's S5: a gradient norm above this calls for clipping
MANY_OVERFLOWS = 6  # halvings in a row; a scaler that searches its scale at the start needs fewer
OVERFLOW_KINDS = ("overflow",)


def _nonfinite(line: Series) -> tuple[int, int, bool] | None:
    """(first position, count, lasting) of the NaN/inf readings that matter: those that last to the end, else any."""
    tail = trailing_nonfinite(line.value)
    if tail is not None:
        return (*tail, tail[1] >= 2 or len(line) <= 2)
    bad = [i for i, v in enumerate(line.value) if not math.isfinite(v)]
    return (bad[0], len(bad), False) if bad else None


def _nan_to_the_end(loss: Series, grad: Series) -> tuple[Series, int, int] | None:
    """Where NaN set in for good: in the loss, or in grad_norm while the loss shows 0 or a repeated value (filtered by the trainer)."""
    best: tuple[Series, int, int] | None = None
    for line in (loss, grad):
        bad = _nonfinite(line) if len(line) else None
        if bad is None:
            continue
        start, count, lasting = bad
        if line is grad and not lasting:
            continue  # one inf norm is a step that the scaler skipped
        if not lasting and count < 0.5 * (len(line) - start):
            continue
        place = (line, start, count)
        if best is None or (line.source[start] == best[0].source[best[1]] and line.line[start] < best[0].line[best[1]]):
            best = place
    return best


def judge_nan(run: Run) -> Iterator[Finding]:
    """NaN or infinity that lasts: which series it entered first, and whether every label was masked."""
    covers = ("L3.1", "S4", "S5")
    loss, grad = series(run, "loss", "policy_loss"), series(run, "grad_norm")
    if not len(loss) and not len(grad):
        yield undecided("series.loss-nan", "training/loss-nan", covers, "loss")
        return
    hit = _nan_to_the_end(loss, grad)
    if hit is None:
        single = next((line for line in (loss, grad) if len(line) and _nonfinite(line)), None)
        facts: dict[str, Any] = {"recovered": single.name} if single is not None else {}
        yield excluded("series.loss-nan", "training/loss-nan", covers, loss if len(loss) else grad, **facts)
        return
    line, start, count = hit
    source, at = line.source[start], line.line[start]
    beside = index_at(grad if line is loss else loss, source, at)
    other = grad if line is loss else loss
    masked = (
        line is loss
        and beside is not None
        and abs(other.line[beside] - at) <= 3
        and other.value[beside] == 0.0
        and all(v == 0.0 for v in other.value[beside:])
        and not rounded(run, source)
    )
    if masked:
        weight = 0.75 if start == 0 else 0.6
        yield found("series.all-labels-masked", "data/all-labels-masked", line, start, weight, covers, [(other, beside or 0)], count=count)
        return
    before = finite(line.value[:start])
    told: dict[str, Any] = {"before": short(before[-1]) if before else "-", "readings": count}
    weight = 0.8 if count >= 5 else 0.7 if count >= 3 else 0.6
    advantage = series(run, "reward_std", "advantage")
    first_bad = next((i for i, v in enumerate(advantage.value) if not math.isfinite(v)), None) if len(advantage) else None
    role = "root"
    if first_bad is not None and (advantage.source[first_bad] != source or advantage.line[first_bad] <= at):
        role = "consequence"
    yield found("series.loss-nan", "training/loss-nan", line, start, weight, covers, role=role, severity="fatal", **told)


def _diverged(run: Run) -> tuple[Series, Departure] | None:
    loss = series(run, "loss")
    spot = departures(run)["loss"]
    if rl(run) or spot is None or not len(loss):
        return None
    if spot.baseline > 0 and spot.final < (1 + DIVERGED) * spot.baseline:
        return None
    return loss, spot


def judge_divergence(run: Run) -> Iterator[Finding]:
    """A loss that left its course for good, or jumped near the end; spikes that came back are named as survived."""
    covers = ("S4", "H1")
    loss = series(run, "loss")
    if rl(run):
        if len(loss):
            yield excluded("series.loss-divergence", "training/loss-divergence", covers, loss, reason="rl")
        return
    if len(finite(loss.value)) < MIN_POINTS:
        early = _early_jump(loss)
        if early is not None:
            grad = series(run, "grad_norm")
            beside = index_at(grad, loss.source[early], loss.line[early]) if len(grad) else None
            more = [(grad, beside)] if beside is not None else []
            yield found(
                "series.loss-divergence",
                "training/loss-divergence",
                loss,
                early,
                0.6,
                covers,
                more,
                baseline=short(loss.value[0]),
                final=short(loss.value[early]),
            )
            return
        yield undecided("series.loss-divergence", "training/loss-divergence", covers, "loss")
        return
    hit = _diverged(run)
    if hit is not None:
        _, spot = hit
        rise = spot.factor if spot.baseline > 0 else math.inf
        weight = 0.72 if rise >= 1.5 else 0.6 if rise >= 1.2 else 0.45
        if set(run.names()) & PREFERENCE_NAMES:
            weight -= 0.15  # the margins say it better
        yield found(
            "series.loss-divergence",
            "training/loss-divergence",
            loss,
            spot.index if (early := _early_jump(loss)) is None else min(spot.index, early),
            weight,
            covers,
            baseline=short(spot.baseline),
            final=short(spot.final),
        )
        return
    humps = spikes(loss.value)
    open_end = next((s for s in humps if not s.recovered and s.end >= len(loss) - 3), None)
    if open_end is not None and open_end.peak > 2 * abs(open_end.baseline):
        yield found(
            "series.loss-spike",
            "training/loss-spike",
            loss,
            open_end.start,
            0.45,
            covers,
            baseline=short(open_end.baseline),
            final=short(open_end.peak),
        )
        return
    survived = sum(s.recovered for s in humps)
    yield excluded("series.loss-divergence", "training/loss-divergence", covers, loss, spikes=survived)


def _early_jump(loss: Series) -> int | None:
    """In a run of a few readings: the first one ten times above all before it, with nothing lower after it but zeros and NaN."""
    for i in range(1, len(loss)):
        before = finite(loss.value[:i])
        value = loss.value[i]
        if not before or not math.isfinite(value) or value <= 10 * max(abs(v) for v in before):
            continue
        after = [v for v in loss.value[i + 1 :] if math.isfinite(v) and v != 0]
        if not after or min(after) > 3 * max(abs(v) for v in before):
            return i
    return None


def judge_gradient(run: Run) -> Iterator[Finding]:
    """Explosion, vanishing and dead gradients, clipping that is always on."""
    covers = ("L2.2", "L3.2", "L3.3", "S5")
    grad = series(run, "grad_norm")
    clean = finite(grad.value)
    if len(clean) < 3:
        yield undecided("series.gradient", "training/gradient-explosion", covers, "grad_norm")
        return
    spot = departures(run)["grad_norm"]
    loss_spot = None if rl(run) else departures(run)["loss"]
    said = False
    if spot is not None and spot.factor >= 4:
        first = loss_spot is None or grad.source[spot.index] != series(run, "loss").source[loss_spot.index]
        first = first or loss_spot is None or grad.line[spot.index] <= series(run, "loss").line[loss_spot.index] + 3
        first = first and earlier_departure(run, grad, spot.index, "kl", "entropy", "reward-down") is None
        harmful = loss_spot is not None or spot.final >= EXPLODED or trailing_nonfinite(series(run, "loss").value) is not None
        harmful = harmful or departures(run)["reward-down"] is not None or spot.factor >= 20
        if harmful:
            weight = LATER if not first else 0.65 if spot.factor >= 10 else 0.5
            if rl(run) and any(departures(run)[name] for name in ("kl", "entropy", "entropy-down", "length-down", "reward-down")):
                weight = min(weight, 0.4)  # the policy's own signs say more of the cause
            role = "root" if first else "consequence"
            yield found(
                "series.gradient-explosion",
                "training/gradient-explosion",
                grad,
                spot.index,
                weight,
                covers,
                role=role,
                baseline=short(spot.baseline),
                final=short(spot.final),
            )
            said = True
    dead = constant_run(grad.value, 0.0)
    if dead is not None and dead[1] >= 3 and not rounded(run, grad.source[0]):
        start, count = dead
        spread = series(run, "reward_std")
        moves = any(
            abs(monotone(other.value)) > 0.4
            for name in ("loss", "reward", "kl", "param_norm")
            if len(other := series(run, name)) >= MIN_POINTS
        )
        alive = len(spread) and median(spread.value[-min(count, len(spread)) :]) > 1e-6
        loss = series(run, "loss")
        if not rl(run) and len(loss) >= MIN_POINTS and all(v == 0.0 for v in finite(loss.value)) and not rounded(run, loss.source[0]):
            yield found("series.all-labels-masked", "data/all-labels-masked", loss, 0, 0.6, covers, [(grad, start)], count=len(loss))
            return
        # A loss that falls proves that the norm is not measured (DeepSpeed under Megatron prints 0.000).
        if moves and count >= 0.9 * len(grad):
            pass
        elif count >= max(3, 0.9 * len(grad)) and (alive or not rl(run)):
            yield found("series.gradient-zero", "model/frozen-parameters", grad, start, 0.5 if alive else 0.45, covers, readings=count)
            said = True
        elif count >= MIN_POINTS and (alive or not rl(run)):
            yield found("series.gradient-vanishing", "training/gradient-vanishing", grad, start, 0.5, covers, readings=count)
            said = True
    if not said and len(clean) >= MIN_POINTS and not rl(run):
        early, late = median(clean[: len(clean) // 2]), median(clean[-max(3, len(clean) // 10) :])
        if early > 0 and 0 < late < 1e-4 * early:
            start = next((i for i, v in enumerate(grad.value) if math.isfinite(v) and v < 1e-2 * early), 0)
            yield found("series.gradient-vanishing", "training/gradient-vanishing", grad, start, 0.5, covers, readings=len(grad) - start)
            said = True
    if not said:
        weak = sum(v < 0.1 for v in clean) / len(clean)
        yield excluded("series.gradient", "training/gradient-explosion", covers, grad, low_share=f"{weak:.0%}", median=short(median(clean)))


def judge_loss_scale(run: Run) -> Iterator[Finding]:
    """fp16 loss scaling that never finds a scale: overflow after overflow down to the minimum (a short search is normal)."""
    covers = ("L3.1",)
    scale = series(run, "loss_scale")
    falling = _halvings(scale) if len(scale) else None
    if falling is not None:
        start, count, recovered = falling
        if count >= MANY_OVERFLOWS and not recovered:
            low = min(finite(scale.value[start:]) or [0.0])
            weight = 0.75 if low <= 2 or count >= 12 else 0.55
            at = start
            if start <= 2:  # the search from the first step is normal until the scale reaches its floor
                at = next((i for i in range(start, len(scale)) if scale.value[i] < 1), start)
            finding = found(
                "series.loss-scale", "training/loss-scale-overflow", scale, at, weight, covers, readings=count, final=short(low)
            )
            if at == start:
                _from_first_overflow(run, finding)
            yield finding
            return
    events = run.kind(*OVERFLOW_KINDS) + [
        e for e in run.events if e.signature and "overflow" in e.signature and e.kind not in OVERFLOW_KINDS
    ]
    if len(events) >= MANY_OVERFLOWS and not (
        run.last_progress is not None and events[-1].time is not None and _went_on(run, events[-1].time)
    ):
        tail = events[_last_gap(events) :]
        later = [line for line in run.progress_lines.get(events[-1].source, []) if line > tail[-1].line]
        if len(tail) >= MANY_OVERFLOWS and len(later) < 2 * len(tail):  # a search at the start is over when steps succeed
            first = tail[0]
            yield Finding(
                rule="series.loss-scale",
                cause="training/loss-scale-overflow",
                weight=0.72,
                time=first.time,
                evidence=[run.evidence(first), run.evidence(tail[-1])],
                covers=covers,
                facts={"readings": len(tail), "final": "-", "metric": "overflow", "value": "-", "step": "?"},
                count=len(tail),
            )
            return
    if len(scale):
        yield excluded("series.loss-scale", "training/loss-scale-overflow", covers, scale)


def _from_first_overflow(run: Run, finding: Finding) -> None:
    """Cite the first overflow line of the chain: with hysteresis it stands before the first lower scale."""
    place = finding.evidence[0]
    near = [e for e in run.kind(*OVERFLOW_KINDS) if e.source == place.file and e.line < place.line]
    chain = near[_last_gap(near) :] if near else []
    if chain and place.line - chain[-1].line <= 50 and len(chain) <= 4:
        finding.evidence.insert(0, run.evidence(chain[0]))
        finding.time = chain[0].time if chain[0].time is not None else finding.time


def _halvings(scale: Series) -> tuple[int, int, bool] | None:
    """(start, number of falls, recovered) of the longest stretch in which the scale only fell."""
    best: tuple[int, int, bool] | None = None
    start, falls = 0, 0
    for i in range(1, len(scale)):
        before, now = scale.value[i - 1], scale.value[i]
        if now < before:
            if not falls:
                start = i
            falls += 1
        elif now > before:
            falls = 0
        if falls and (best is None or falls > best[1]):
            best = (start, falls, False)
    if best is None:
        return None
    after = scale.value[best[0] + best[1] :]
    steady = len(after) > 4 * best[1] + 20
    return best[0], best[1], steady or any(b > a for a, b in pairwise(after))


def _last_gap(events: list[Event]) -> int:
    """Start of the last dense run of overflow lines: a gap of more than 200 lines, or another file, ends a run."""
    for i in range(len(events) - 1, 0, -1):
        if events[i].source != events[i - 1].source or events[i].line - events[i - 1].line > 200:
            return i
    return 0


def _went_on(run: Run, moment: float) -> bool:
    """Training went on well after `moment`: many finite, non-zero losses follow."""
    loss = series(run, "loss", "policy_loss")
    later = [v for v, t in zip(loss.value, loss.time, strict=True) if t is not None and t > moment and math.isfinite(v) and v != 0]
    return len(later) >= 10


def overflow_evidence(run: Run) -> list[Evidence]:
    """Lines that report a skipped step (for the checklist)."""
    return [run.evidence(e) for e in run.kind(*OVERFLOW_KINDS)[:3]]


def judge_score(run: Run) -> Iterator[Finding]:
    """A held-out score equal to the last digit at every evaluation: the model answers the same whatever it is trained on."""
    covers = ("L2.1",)
    names = [n for n in sorted(run.names()) if n.startswith(("eval_", "val_score/")) or n in ("accuracy", "f1")]
    seen = 0
    for name in names:
        if name.endswith(("_per_second", "_runtime", "_time", "_samples", "_length", "_per_s")):
            continue
        line = series(run, name)
        clean = finite(line.value)
        seen = max(seen, len(clean))
        fine = len(clean) >= 3 and len(set(clean)) == 1 and abs(clean[0] * 1e4 - round(clean[0] * 1e4)) > 1e-6
        rates = finite(series(run, "learning_rate").value)
        if fine and (not rates or max(rates) > 0) and not rl(run):
            yield found(
                "series.score-still", "model/checkpoint-mismatch", line, 0, 0.42, covers, [(line, len(line) - 1)], readings=len(clean)
            )
            return
    if seen >= 3:
        yield excluded("series.score-still", "model/checkpoint-mismatch", covers)
    else:
        yield undecided("series.score-still", "model/checkpoint-mismatch", covers, "val_score")


RULES = (
    Rule("series.loss-nan", judge_nan, ("L3.1", "S4", "S5")),
    Rule("series.loss-divergence", judge_divergence, ("S4", "H1")),
    Rule("series.gradient", judge_gradient, ("L2.2", "L3.2", "L3.3", "S5")),
    Rule("series.loss-scale", judge_loss_scale, ("L3.1",)),
    Rule("series.score-still", judge_score, ("L2.1",)),
)
