"""Rewards, margins and advantages: what fails silently in GRPO, PPO and preference training (L5.1, L5.2, S7, Q1, Q6, L1.2)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Finding, Role, Rule
from rules.series_view import LATER, departures, excluded, found, index_at, level, rounded, series, short, undecided, where
from rules.statistics import MIN_POINTS, departure, finite, leaves, mad_sigma, median, monotone, noise, settles_at, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

SILENT = 5  # readings of a dead signal that say something when the whole run looks so
ZERO_STD_SHARE = 0.9  # share of groups without spread that leaves nothing to learn from
HELD_OUT = re.compile(
    r"(?i)(?:val(?:idation)?|eval|test)[/_].{0,60}(?:acc|score|reward|pass|win|solve|em\b|f1)(?!.{0,40}(?:std|min|max|time|length))"
)
OVERLAP = 0.4  # the guide's L5.1
MARGIN_LOW = 0.1  # the guide's L5.2


def _dead_tail(line: Series, target: float | None) -> tuple[int, int] | None:
    """The closing run of equal readings when it is long enough to mean something: (first position, count)."""
    last = finite(line.value)[-1:] or [0.0]
    run = settles_at(line.value, last[0] if target is None else target, 5e-4 * abs(last[0]) if target is None else 0.0)
    if run is None:
        return None
    total = len(finite(line.value))
    start, count = run
    if count >= 12 and count >= 0.1 * total:
        return start, count
    return (start, count) if count >= SILENT and count >= 0.8 * total else None


def _at(line: Series, reference: Series, index: int) -> int | None:
    return index_at(line, reference.source[index], reference.line[index]) if len(line) and len(reference) else None


def _gradient_died(run: Run, reward: Series, start: int) -> bool:
    """The gradient norm fell to a hundredth or less together with the reward: the signal died, not the policy."""
    grad = series(run, "grad_norm")
    at = _at(grad, reward, start)
    if at is None or at < 4:
        return False
    return median(grad.value[at + 1 : at + 20]) <= 0.01 * median(grad.value[max(0, at - 20) : at])


def judge_dead(run: Run) -> Iterator[Finding]:
    """Reward 0 throughout or from one step on, constant reward, groups without spread: nothing to learn, and no error."""
    covers = ("Q1", "S7")
    reward, spread, share = series(run, "reward"), series(run, "reward_std"), series(run, "frac_zero_std")
    if not len(reward) and not len(share):
        yield undecided("series.reward-dead", "reward/reward-zero", covers, "reward")
        return
    zero = _dead_tail(reward, 0.0) if len(reward) else None
    flat = _dead_tail(reward, None) if len(reward) else None
    no_spread = _dead_tail(spread, 0.0) if len(spread) else None
    full = None
    if len(share) >= SILENT:
        tail = finite(share.value)[-max(MIN_POINTS, len(share) // 4) :]
        if math.fsum(tail) / len(tail) >= ZERO_STD_SHARE:
            start = len(share) - 1
            while start and share.value[start - 1] >= ZERO_STD_SHARE:
                start -= 1
            full = (start, len(share) - start)
    confirmed = no_spread is not None or full is not None or (not len(spread) and not len(share))
    if zero is not None and confirmed and not (rounded(run, reward.source[0]) and not len(spread)):
        start, count = zero
        weight = 0.78 if count >= 12 else 0.62
        before = finite(reward.value[:start])
        if len(before) >= 4 and abs(before[-1]) < 0.3 * max(abs(v) for v in before):
            weight = 0.45  # it faded away: what made it fade is the cause
        elif not (no_spread or full or _gradient_died(run, reward, start)):
            weight -= 0.1 if not before else 0.04
        more = [(spread, i)] if (i := _at(spread, reward, start)) is not None else []
        yield found("series.reward-zero", "reward/reward-zero", reward, start, weight, covers, more, readings=count, total=len(reward))
        return
    if flat is not None and zero is None and (no_spread or (not len(spread) and flat[1] >= 12 and not rounded(run, reward.source[0]))):
        start, count = flat
        start = min(start, no_spread[0]) if no_spread and no_spread[1] <= count else start
        best = finite(series(run, "reward_max").value)
        top = start > 0.3 * len(reward) and reward.value[start] >= (0.98 * max(best) if best else 0.95)
        weight = 0.5 if top else 0.68
        yield found("series.reward-constant", "reward/zero-advantage", reward, start, weight, covers, readings=count, total=len(reward))
        return
    if no_spread is not None or (full is not None and full[1] >= SILENT):
        line, (start, count) = (spread, no_spread) if no_spread is not None else (share, full or (0, 0))
        yield found("series.zero-advantage", "reward/zero-advantage", line, start, 0.62, covers, readings=count, total=len(line))
        return
    if len(share) >= 12 and median(share.value) >= ZERO_STD_SHARE:
        start = next(i for i, v in enumerate(share.value) if v >= ZERO_STD_SHARE)
        yield found("series.zero-advantage", "reward/zero-advantage", share, start, 0.58, covers, readings=len(share), total=len(share))
        return
    yield excluded("series.reward-dead", "reward/reward-zero", covers, reward if len(reward) else share)


def _components(run: Run, prefix: str) -> list[Series]:
    return [series(run, name) for name in sorted(run.names()) if name.startswith(prefix)][:40]


def _held_out(run: Run) -> list[Series]:
    """Held-out scores under names of the user's own (`val/acc`, `eval_math_pass@1`)."""
    return [series(run, name) for name in sorted(run.names()) if HELD_OUT.match(name)][:40]


def _falls(line: Series, share: float = 0.2) -> int | None:
    """Where this score left its level downward for good (needs few readings: held-out scores are rare)."""
    clean = finite(line.value)
    if len(clean) >= MIN_POINTS:
        spot = leaves(line.value, up=False, k=5.0, relative=share, floor=1e-3)
        if spot is not None:
            return spot.index
        early = median(clean[: max(4, len(clean) // 5)])
        if len(clean) >= 2 * MIN_POINTS and monotone(clean) < -0.6 and tail_level(clean) <= (1 - 1.5 * share) * early:
            return next(i for i, v in enumerate(line.value) if v <= (1 - 0.5 * share) * early)  # down from the first reading on
    if 4 <= len(clean) < 40:
        best = max(range(len(line)), key=lambda i: line.value[i] if math.isfinite(line.value[i]) else -math.inf)
        after = finite(line.value[best + 1 :])
        if len(after) >= 2 and max(after) < line.value[best] and tail_level(after) <= line.value[best] - share * abs(line.value[best]):
            return next(
                (i for i in range(best + 1, len(line)) if line.value[i] <= line.value[best] - 0.5 * share * abs(line.value[best])), best + 1
            )
    return None


def judge_hacking(run: Run) -> Iterator[Finding]:
    """Reward up while held-out scores or other checks fall, or while the answers shrink to nothing: reward hacking."""
    covers = ("S7", "Q10")
    reward = series(run, "reward")
    clean = finite(reward.value)
    if len(clean) < MIN_POINTS:
        yield undecided("series.reward-hacking", "reward/reward-hacking", covers, "reward")
        return
    early = median(clean[: max(4, len(clean) // 5)])
    gained = tail_level(clean) - early
    rising = (
        gained > max(3 * noise(clean) / math.sqrt(max(3, len(clean) // 10)), 0.05 * abs(early)) and departures(run)["reward-down"] is None
    )
    length = series(run, "response_length")
    signs: list[tuple[Series, int]] = []
    for line in _components(run, "val_score/") + _components(run, "reward/") + _held_out(run):
        at = _falls(line)
        if at is not None and not (line.name.startswith("reward/") and tail_level(line.value) > 0.95 * median(line.value)):
            signs.append((line, at))
    shrink = departures(run)["length-down"]
    if shrink is not None and shrink.factor <= (0.75 if signs else 0.35):
        signs.append((length, shrink.index))
    clip = series(run, "response_clip_ratio")
    swell = departures(run)["response_length"]
    clip_jump = departure(clip.value, floor=0.3) if len(clip) >= MIN_POINTS else None
    if swell is not None and clip_jump is not None and clip_jump.final >= 0.6:
        signs.append((length, swell.index))
    if rising and signs:
        # Scores printed every step tell the moment better than a held-out score printed now and then.
        signs.sort(key=lambda pair: (pair[0].source[pair[1]] != reward.source[0], len(pair[0]) < 0.5 * len(reward), pair[0].line[pair[1]]))
        line, at = signs[0]
        weight = 0.75 if len(signs) >= 2 else 0.6
        yield found(
            "series.reward-hacking",
            "reward/reward-hacking",
            line,
            at,
            weight,
            covers,
            [(reward, _at(reward, line, at) or 0), *signs[1:4]],
            signs=", ".join(sorted({other.name for other, _ in signs})),
            reward_from=short(early),
            reward_to=short(tail_level(clean)),
        )
        return
    yield excluded("series.reward-hacking", "reward/reward-hacking", covers, reward)


def judge_collapse(run: Run) -> Iterator[Finding]:
    """A reward that had been there and went for good; what went before it (KL, entropy, mismatch) is the cause, if anything did."""
    covers = ("S7",)
    reward = series(run, "reward")
    clean = finite(reward.value)
    if len(clean) < MIN_POINTS:
        yield undecided("series.reward-collapse", "reward/reward-collapse", covers, "reward")
        return
    spot = departures(run)["reward-down"]
    if spot is None:
        yield from _swing(reward, clean, covers)
        return
    span = max(clean) - min(clean)
    drop = spot.baseline - spot.final
    if drop < 0.3 * max(abs(spot.baseline), 0.5 * span):
        yield excluded(
            "series.reward-collapse", "reward/reward-collapse", covers, reward, baseline=short(spot.baseline), final=short(spot.final)
        )
        return
    weight = 0.66 if drop >= 0.5 * max(abs(spot.baseline), 0.5 * span) else 0.5
    if spot.final == 0 and reward.value[spot.index] == 0:
        weight = 0.5  # gone from one reading to the next: a dead signal rather than a policy that got worse
    role: Role = "root"
    if _out_of_order(run):
        weight, role = LATER, "consequence"  # the reward model itself is shown to fail
    yield found(
        "series.reward-collapse",
        "reward/reward-collapse",
        reward,
        spot.index,
        weight,
        covers,
        role=role,
        baseline=short(spot.baseline),
        final=short(spot.final),
    )


def _out_of_order(run: Run) -> bool:
    """Whether the guide's probe ends with the reward model putting the rejected answers first."""
    chosen, rejected = series(run, "reward_chosen"), series(run, "reward_rejected")
    if "reward_chosen_std" not in run.names() or min(len(chosen), len(rejected)) < MIN_POINTS:
        return False
    return level_tail(chosen) < level_tail(rejected)  # type: ignore[operator]


def _swing(reward: Series, clean: list[float], covers: tuple[str, ...]) -> Iterator[Finding]:
    wide = noise(clean)
    centre = abs(median(clean))
    calm = noise(clean[: max(MIN_POINTS, len(clean) // 4)])
    if len(clean) >= 12 and wide >= 1.2 and wide >= centre and max(clean) > 0 > min(clean):
        start = next((i for i in range(1, len(reward)) if abs(reward.value[i] - reward.value[i - 1]) >= 2.0), 0)
        yield found("series.reward-swing", "reward/reward-swing", reward, start, 0.5, (*covers, "Q6"), spread=short(wide), calm=short(calm))
        return
    yield excluded("series.reward-collapse", "reward/reward-collapse", (*covers, "Q6"), reward, spread=short(wide))


def judge_preference(run: Run) -> Iterator[Finding]:
    """Chosen against rejected: inverted preferences, margins that vanish, pairs that are equal to the last digit."""
    covers = ("L1.2", "L5.1", "L5.2", "S7")
    chosen, rejected = series(run, "reward_chosen"), series(run, "reward_rejected")
    margin, accuracy = series(run, "reward_margin"), series(run, "reward_accuracy", "accuracy")
    if "reward_chosen_std" in run.names():
        return  # the reward-model probe, judged by judge_distributions
    if not len(margin) and not (len(chosen) and len(chosen) == len(rejected)):
        yield undecided("series.preference", "reward/margin-collapse", covers, "reward_margin")
        return
    if len(chosen) and len(chosen) == len(rejected):
        same = sum(a == b for a, b in zip(chosen.value, rejected.value, strict=True))
        if same >= max(MIN_POINTS, 0.95 * len(chosen)) and any(chosen.value) and len(set(chosen.value)) > 2:
            yield found("series.pairs-identical", "data/dataset-format", chosen, 0, 0.66, covers, [(rejected, 0)], readings=same)
            return
        if not len(margin):
            margin = type(chosen)(
                "reward_margin",
                [a - b for a, b in zip(chosen.value, rejected.value, strict=True)],
                chosen.step,
                chosen.time,
                chosen.source,
                chosen.line,
            )
    clean = finite(margin.value)
    if len(clean) < MIN_POINTS:
        yield undecided("series.preference", "reward/margin-collapse", covers, "reward_margin")
        return
    half = clean[len(clean) // 2 :]
    right = level_tail(accuracy)
    if (
        median(half) < 0
        and sum(v < 0 for v in half) >= 0.85 * len(half)
        and -median(half) > 0.5 * mad_sigma(half)
        and (right is None or right < 0.46)
    ):
        start = _inverted_from(margin)
        cause = "data/preference-inverted" if "reward_chosen" in run.names() or len(accuracy) else "reward/reward-inverted"
        more = [(accuracy, i)] if (i := _at(accuracy, margin, start)) is not None else []
        yield found(
            "series.preference-inverted",
            cause,
            margin,
            start,
            0.7,
            covers,
            more,
            final=short(tail_level(half)),
            accuracy="?" if right is None else f"{right:.2f}",
        )
        return
    best = max(clean[: max(4, len(clean) * 4 // 5)])
    spot = leaves(margin.value, up=False, k=5.0, relative=0.3, floor=0.02)
    now = tail_level(accuracy.value) if len(accuracy) >= 4 else None
    if spot is not None and spot.final <= 0.4 * spot.baseline and (now is None or now < 0.62):
        yield found(
            "series.margin-collapse",
            "reward/margin-collapse",
            margin,
            spot.index,
            0.68,
            covers,
            baseline=short(spot.baseline),
            final=short(spot.final),
        )
        return
    yield excluded(
        "series.preference",
        "reward/margin-collapse",
        covers,
        margin,
        best=short(best),
        final=short(tail_level(clean)),
        low=tail_level(clean) < MARGIN_LOW,
    )


def level_tail(line: Series) -> float | None:
    """Level of the last half of a series, None when there are fewer than four readings."""
    clean = finite(line.value)
    return median(clean[len(clean) // 2 :]) if len(clean) >= 4 else None


def _inverted_from(margin: Series) -> int:
    """First reading after the last one that was still on the right side, when that lies in the first half; else the first wrong one."""
    positive = [i for i, v in enumerate(margin.value) if v >= 0]
    early = [i for i in positive if i < len(margin) // 2]
    return min(len(margin) - 1, early[-1] + 1) if early else 0


def judge_distributions(run: Run) -> Iterator[Finding]:
    """The guide's reward-model probe (`Chosen mean: m ± s`): order, overlap and spread of the two distributions (S7)."""
    covers = ("L5.1", "S7", "L2.3")
    chosen, rejected = series(run, "reward_chosen"), series(run, "reward_rejected")
    wide_a, wide_b = series(run, "reward_chosen_std"), series(run, "reward_rejected_std")
    if not len(chosen) or not len(rejected) or not len(wide_a):
        yield undecided("series.reward-distributions", "reward/reward-inverted", covers, "reward_chosen_std")
        return
    count = min(len(chosen), len(rejected))
    below = [i for i in range(count) if chosen.value[i] < rejected.value[i]]
    end = max(MIN_POINTS, count // 3)  # the state at the end counts: most runs begin in order
    late = [i for i in below if i >= count - end]
    if len(below) >= max(1, 0.7 * count) or (count >= 2 * end and len(late) >= 0.85 * end):
        start = below[0] if len(below) >= 0.7 * count else _order_lost(chosen, rejected, count)
        yield found(
            "series.reward-inverted", "reward/reward-inverted", chosen, start, 0.65, covers, [(rejected, start)], readings=len(below)
        )
        return
    spread = max(level(wide_a) if len(wide_a) else 0.0, level(wide_b) if len(wide_b) else 0.0)
    gap = level(chosen) - level(rejected)
    overlap = _overlap(gap, spread) if spread else None
    if spread > 2.0:
        yield found(
            "series.reward-unnormalised",
            "reward/reward-swing",
            wide_a if len(wide_a) else chosen,
            0,
            0.45,
            (*covers, "Q6"),
            spread=short(spread),
        )
        return
    yield excluded(
        "series.reward-distributions",
        "reward/reward-inverted",
        covers,
        chosen,
        gap=short(gap),
        overlap="?" if overlap is None else f"{overlap:.0%}",
    )


def _order_lost(chosen: Series, rejected: Series, count: int) -> int:
    """The reading after the last one at which the chosen answers led over a window of five."""
    for i in range(count - 1, 3, -1):
        if sum(chosen.value[k] > rejected.value[k] for k in range(i - 4, i + 1)) >= 4:
            return min(i + 1, count - 1)
    return 0


def _overlap(gap: float, spread: float) -> float:
    """Overlapping area of two normal curves `gap` apart with standard deviation `spread`."""
    return math.erfc(abs(gap) / (2 * math.sqrt(2) * spread)) if spread else 0.0


def rising(line: Series) -> bool:
    """The series rises on the whole."""
    return monotone(line.value) > 0.3


def cite(line: Series, index: int) -> str:
    """`file:line` of a reading."""
    place = where(line, index)
    return f"{place.file}:{place.line}"


RULES = (
    Rule("series.reward-dead", judge_dead, ("Q1", "S7")),
    Rule("series.reward-hacking", judge_hacking, ("S7", "Q10")),
    Rule("series.reward-collapse", judge_collapse, ("S7", "Q6")),
    Rule("series.preference", judge_preference, ("L1.2", "L5.1", "L5.2", "S7")),
    Rule("series.reward-distributions", judge_distributions, ("L5.1", "S7", "L2.3")),
)
