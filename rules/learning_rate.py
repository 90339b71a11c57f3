"""Learning rate: against the schedule (L3.4, S10), jumps, zero, and a rate that the loss cannot bear."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rules.base import Finding, Rule
from rules.series_view import departures, excluded, found, index_at, rl, rounded, series, setting, short, undecided
from rules.statistics import MIN_POINTS, constant_run, finite, monotone

if TYPE_CHECKING:
    from forensics.run import Run, Series

TOLERANCE = 1e-5  # the guide's; taken relative to the peak where the rate itself is below it
JUMP = 3.0  # a step up by this factor outside warm-up
ABSURD = 0.05  # no optimizer of transformers trains at this rate (plain SGD on small nets may)


def cosine(progress: float, top: float, bottom: float = 0.0) -> float:
    """Cosine decay at `progress` 0..1 of the decay phase."""
    return bottom + (top - bottom) * (1 + math.cos(math.pi * min(1.0, max(0.0, progress)))) / 2


def linear(progress: float, top: float, bottom: float = 0.0) -> float:
    """Linear decay at `progress` 0..1 of the decay phase."""
    return bottom + (top - bottom) * (1 - min(1.0, max(0.0, progress)))


def fit(steps: Sequence[float], rates: Sequence[float], total: float, warmup: float | None = None) -> tuple[str, float, int]:
    """The schedule that fits best: (name, largest relative error, position of it).

    `total`: optimizer steps of the run.  Warm-up ends at the first reading of the peak unless it is given.  Frameworks log the
    rate before or after the scheduler step, so each reading may lie one step off without being an error.
    """
    top = max(rates)
    peak = rates.index(top)
    start = steps[peak] if warmup is None else warmup
    best = ("none", math.inf, 0)
    if total <= start or not top:
        return best
    for name, shape in (("cosine", cosine), ("linear", linear), ("constant", lambda _p, t: t)):
        for bottom in {0.0, 0.1 * top} if name != "constant" else {0.0}:
            worst, place = 0.0, 0
            for i in range(peak, len(steps)):
                error = min(
                    abs(
                        rates[i]
                        - (
                            shape((steps[i] + shift - start) / (total - start), top)
                            if not bottom
                            else bottom + (1 - bottom / top) * shape((steps[i] + shift - start) / (total - start), top)
                        )
                    )
                    for shift in (-1, 0, 1)
                )
                if error > worst:
                    worst, place = error, i
            if worst / top < best[1]:
                best = (name, worst / top, place)
    return best


def _jump(lr: Series) -> int | None:
    """Where the rate first passes its old peak on the way to JUMP times it, after it had begun to fall or stood still for long."""
    highest, since, falling = 0.0, 0, False
    old, crossed = 0.0, -1
    for i, value in enumerate(lr.value):
        if not math.isfinite(value):
            continue
        if crossed >= 0 and value >= JUMP * old:
            return crossed
        if crossed >= 0 and i - crossed > 200:
            crossed = -1
        if value > highest * (1 + 1e-9):
            if highest and crossed < 0 and (falling or since >= 20):
                old, crossed = highest, i
                if value >= JUMP * old:
                    return i
            highest, since, falling = value, 0, False
        else:
            since += 1
            falling = falling or value < 0.98 * highest
    return None


def _restart(lr: Series, jump: int) -> int:
    """The first reading off the old course before the jump: a drop to 0 or the start of a second warm-up."""
    i = jump
    while i > 0 and lr.value[i - 1] < lr.value[i] and jump - i < 200:
        i -= 1
    return i if lr.value[i] < 0.5 * lr.value[max(0, i - 1)] or i < jump else jump


def judge(run: Run) -> Iterator[Finding]:
    """One finding on the learning rate, or why it is in order."""
    covers = ("L3.4", "S10")
    lr = series(run, "learning_rate")
    clean = finite(lr.value)
    if len(clean) < 2:
        yield undecided("series.lr", "training/lr-schedule", covers, "learning_rate")
        return
    loss_spot = None if rl(run) else departures(run)["loss"]
    loss = series(run, "loss")
    configured = setting(run, "learning_rate", "lr", "actor.optim.lr")
    jump = _jump(lr)
    if jump is not None:
        start = _restart(lr, jump)
        old = max(v for v in lr.value[: max(1, start)] if math.isfinite(v))
        top = max(finite(lr.value[start:]))
        harmed = loss_spot is not None or (len(loss) and not math.isfinite(loss.value[-1]))
        yield found(
            "series.lr-jump",
            "training/lr-schedule",
            lr,
            jump,
            0.75 if harmed else 0.6,
            covers,
            [(lr, start)],
            baseline=short(old),
            final=short(top),
        )
        return
    still = constant_run(lr.value, 0.0)
    if still is not None and still[1] >= max(5, 0.9 * len(clean)) and not rounded(run, lr.source[0]) and not configured_zero(configured):
        zero_grad = constant_run(series(run, "grad_norm").value, 0.0)
        if zero_grad is None and not _learns(run):
            skipped = len(run.kind("overflow")) >= 3
            role = "consequence" if skipped else "root"
            yield found(
                "series.lr-zero", "training/lr-schedule", lr, still[0], 0.3 if skipped else 0.5, covers, role=role, readings=still[1]
            )
            return
    peak = max(clean)
    nan = next((i for i, v in enumerate(loss.value) if not math.isfinite(v)), None)
    if peak >= ABSURD and not rl(run) and (loss_spot is not None or nan is not None or _blew_up(loss)):
        at = min(_first_rise(loss), loss_spot.index) if loss_spot is not None else _first_rise(loss)
        beside = index_at(lr, loss.source[at], loss.line[at])
        yield found(
            "series.lr-high",
            "training/lr-schedule",
            loss,
            at,
            0.75,
            covers,
            [(lr, beside or 0)],
            baseline=short(loss.value[0]),
            final=short(peak),
            rate=short(peak),
        )
        return
    if configured and peak > 1.5 * configured and peak - configured > TOLERANCE * configured:
        i = next(n for n, v in enumerate(lr.value) if math.isfinite(v) and v > 1.5 * configured)
        yield found("series.lr-config", "training/lr-schedule", lr, i, 0.5, covers, baseline=short(configured), final=short(peak))
        return
    yield from _against_schedule(run, lr, covers)


def _learns(run: Run) -> bool:
    """Something moves steadily, so a printed 0 is a rounded small rate."""
    for name in ("loss", "reward", "kl", "entropy", "response_length", "grad_norm"):
        line = series(run, name)
        if len(line) >= MIN_POINTS and abs(monotone(line.value)) > 0.4:
            return True
    return False


def configured_zero(value: float | None) -> bool:
    """The configuration itself asks for a rate of zero (a frozen or evaluation-only run)."""
    return value == 0


def _blew_up(loss: Series) -> bool:
    clean = finite(loss.value)
    return len(clean) >= 3 and max(clean[1:]) > 5 * abs(clean[0])


def _first_rise(loss: Series) -> int:
    """The first loss well above all before it, else the first reading that is not finite."""
    highest = None
    for i, value in enumerate(loss.value):
        if not math.isfinite(value):
            return i
        if highest is not None and value > 2 * highest:
            return i
        highest = value if highest is None else max(highest, value)
    return len(loss) - 1


def _against_schedule(run: Run, lr: Series, covers: tuple[str, ...]) -> Iterator[Finding]:
    total = setting(run, "total_steps", "max_steps", "train_iters", "num_training_steps")
    pairs = [(s, v) for s, v in zip(lr.step, lr.value, strict=True) if s is not None and math.isfinite(v)]
    if total and len(pairs) >= MIN_POINTS:
        name, error, place = fit([s for s, _ in pairs], [v for _, v in pairs], total, setting(run, "warmup_steps", "lr_warmup_iters"))
        verdict = "fits" if error < 1e-3 else "off"
        finding = excluded("series.lr", "training/lr-schedule", covers, lr, place, schedule=name, error=f"{error:.1e}", fits=verdict)
        yield finding
        return
    yield excluded("series.lr", "training/lr-schedule", covers, lr, schedule="?", error="?", fits="?")


RULES = (Rule("series.lr", judge, ("L3.4", "S10")),)
