"""KL, entropy, lengths, policy mismatch, critic and advantages (L2.3, L3.1, L5.3, S4, S8, S9, Q4, Q10)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Role, Rule
from rules.series_view import (
    LATER,
    departures,
    earlier_departure,
    excluded,
    found,
    index_at,
    level,
    rounded,
    series,
    setting,
    short,
    undecided,
)
from rules.statistics import MIN_POINTS, Departure, constant_run, departure, finite, median, monotone, noise, plateau, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

KL_START = 5.0  # nats; policy and reference are the same model before the first update, so the KL starts near 0
KL_NEGATIVE = -1.0  # below the noise of the k1 estimator
SWELLS = 4.0  # times the level of the first fifth from which a steady rise is one without bound
KL_LARGE = 0.5  # nats; from here on the policy is another model, whatever the estimator
LOGPROB_HIGH = 0.15  # nats; a healthy difference between rollout engine and trainer is a few hundredths
RATIO_HIGH = 0.05  # distance from 1 of a mean importance ratio or token probability error
MISMATCH = ("logprob_diff", "prob_diff", "rollout_importance_ratio", "importance_ratio", "rollout_kl")
LARGEST = ("importance_ratio_max",)
TEARS = 10.0  # times its early level from which the largest ratio of a batch is no longer a matter of tails
AROUND_ONE = ("importance_ratio", "token_mult_prob_error")  # metrics whose healthy value is 1


def _kl(run: Run) -> Series:
    return series(run, "kl", "kl_loss")


def _harm(run: Run, source: str) -> list[tuple[str, int]]:
    """Departures that show harm, as (name, line), in the same file and in order of line."""
    spots = departures(run)
    names = {
        "reward-down": "reward",
        "entropy": "entropy",
        "response_length": "response_length",
        "entropy-down": "entropy",
        "length-down": "response_length",
    }
    out: list[tuple[str, int]] = []
    for key, name in (*names.items(), ("grad_norm", "grad_norm")):
        spot = spots[key]
        line = series(run, name)
        if spot is not None and line.source[spot.index] == source:
            out.append((key, line.line[spot.index]))
    return sorted(out, key=lambda pair: pair[1])


def judge_kl(run: Run) -> Iterator[Finding]:
    """KL that explodes, starts large, runs far below zero, or stays 0 although a penalty is configured."""
    covers = ("L3.1", "L5.3", "S4", "S8", "Q4")
    kl = _kl(run)
    clean = finite(kl.value)
    if len(clean) < 3:
        yield undecided("series.kl", "reward/kl-explosion", covers, "kl")
        return
    first_step = kl.step[0]
    lead = clean[:3]
    if min(lead) >= KL_START and (first_step is None or first_step <= 5) and min(clean) >= 0.5 * median(lead):
        yield found("series.kl-start", "model/wrong-reference-model", kl, 0, 0.6, (*covers, "L2.3"), start=short(median(lead)))
        return
    late = clean[-max(3, len(clean) // 3) :]
    if median(late) < KL_NEGATIVE and max(late) < 0 and (monotone(clean) < -0.3 or median(late) < 10 * KL_NEGATIVE):
        start = len(kl) - 1
        while start and kl.value[start - 1] < 0.5 * KL_NEGATIVE:
            start -= 1
        yield found("series.kl-negative", "reward/kl-explosion", kl, start, 0.66, covers, final=short(tail_level(clean)))
        return
    if len(clean) < MIN_POINTS:
        yield undecided("series.kl", "reward/kl-explosion", covers, "kl")
        return
    blow = _kl_explodes(run, kl, clean)
    if blow is not None:
        index, base, harm = blow
        final = tail_level(clean)
        weight = 0.74 if harm and final >= 20 * base else 0.62 if harm else 0.5
        role: Role = "root"
        # In a run that falls apart everything departs; a KL that is still small when entropy or reward turn only follows.
        if kl.value[index] < KL_LARGE:
            weight = min(weight, 0.5)
        elif final < 10 * KL_LARGE and earlier_departure(run, kl, index, "entropy", "entropy-down", "reward-down"):
            weight, role = LATER, "consequence"
        yield found(
            "series.kl-explosion",
            "reward/kl-explosion",
            kl,
            index,
            weight,
            covers,
            role=role,
            baseline=short(base),
            final=short(final),
            harm=", ".join(harm) or "-",
        )
        return
    yield from _kl_zero(run, kl, covers)


def _kl_explodes(run: Run, kl: Series, clean: list[float]) -> tuple[int, float, list[str]] | None:
    early = max(median(clean[: max(4, len(clean) // 5)]), 1e-6)
    final = tail_level(clean)
    harm = _harm(run, kl.source[0])
    names = [name for name, _ in harm]
    hurts = "reward-down" in names or len(set(names)) >= 2
    spot = departures(run)["kl"]
    if spot is not None:
        base = max(spot.baseline, 1e-6)
        large = final >= 10 * base and (final >= 5.0 or (hurts and final >= 0.05))
        if large or (final >= 4 * base and hurts and final >= 0.1) or (final >= 50 * base and final >= 1.0):
            return max(spot.index, _beyond(kl, max(10 * base, KL_LARGE), spot.index)), base, names
    if final >= 50 * early and final >= 0.5 and (hurts or final >= 10):
        # A smooth exponential has no step of its own: the first damage tells where it became one.
        return _beyond(kl, max(10 * early, KL_LARGE), 0), early, names
    return None


def _beyond(kl: Series, limit: float, default: int) -> int:
    """First reading from which the KL stays beyond `limit`; `default` when it never does."""
    for i, value in enumerate(kl.value):
        if value >= limit and median(kl.value[i : i + 5]) >= limit:
            return i
    return default


def _kl_zero(run: Run, kl: Series, covers: tuple[str, ...]) -> Iterator[Finding]:
    still = constant_run(kl.value, 0.0)
    coefficient = series(run, "kl_coef")
    beta = tail_level(coefficient.value) if len(coefficient) else setting(run, "beta", "kl_coef", "init_kl_coef", "kl_loss_coef", "beta_kl")
    if still is not None and still[1] >= max(MIN_POINTS, 0.9 * (len(kl) - 1)) and not rounded(run, kl.source[0]):
        if beta is not None and math.isfinite(beta) and beta > 0:
            dead = constant_run(series(run, "grad_norm").value, 0.0)
            moving = len(series(run, "grad_norm")) > 0 and (dead is None or dead[1] < still[1] // 2)
            yield found(
                "series.kl-zero",
                "reward/kl-zero",
                kl,
                still[0],
                0.55 if moving else 0.4,
                covers,
                role="root" if moving else "consequence",
                readings=still[1],
                beta=short(beta),
            )
            return
        yield excluded("series.kl", "reward/kl-zero", covers, kl, beta="0" if beta == 0 else "?", constant=True)
        return
    yield excluded(
        "series.kl", "reward/kl-explosion", covers, kl, final=short(tail_level(kl.value)), beta="?" if beta is None else short(beta)
    )


def judge_entropy(run: Run) -> Iterator[Finding]:
    """Entropy falling by orders of magnitude, or rising without settling; a rise that settles is normal."""
    covers = ("S4", "Q10")
    entropy = series(run, "entropy")
    clean = finite(entropy.value)
    if len(clean) < MIN_POINTS or median(clean) < 0:
        yield undecided("series.entropy", "reward/entropy-collapse", covers, "entropy")
        return
    early, final = median(clean[: max(4, len(clean) // 5)]), tail_level(clean)
    reward = series(run, "reward")
    reward_gain = _late_gain(reward)
    down = _entropy_down(entropy, clean)
    if down is not None and (final <= 0.15 * max(down.baseline, 1e-9) or (final <= 0.3 * down.baseline and not reward_gain)):
        deep = final <= 0.15 * down.baseline
        weight = 0.72 if deep and not reward_gain else 0.55 if deep else 0.5
        yield found(
            "series.entropy-collapse",
            "reward/entropy-collapse",
            entropy,
            down.index,
            weight,
            covers,
            baseline=short(down.baseline),
            final=short(final),
        )
        return
    if early > 0.05 and final < 0.02 and final < 0.1 * early:
        start = next(i for i, v in enumerate(entropy.value) if v < 0.3 * early)
        yield found(
            "series.entropy-collapse", "reward/entropy-collapse", entropy, start, 0.5, covers, baseline=short(early), final=short(final)
        )
        return
    up = departures(run)["entropy"] or _swells(entropy, clean)
    if up is not None and up.factor >= 1.6:
        clip = series(run, "response_clip_ratio")
        harm = departures(run)["reward-down"] is not None or (
            len(clip) >= MIN_POINTS and tail_level(clip.value) - median(clip.value[: max(4, len(clip) // 5)]) > 0.3
        )
        settled = plateau(clean[up.index :]) and not harm
        if not settled and (harm or up.factor >= 3):
            weight = 0.72 if harm and up.factor >= 2 else 0.55
            yield found(
                "series.entropy-explosion",
                "reward/entropy-explosion",
                entropy,
                up.index,
                weight,
                covers,
                baseline=short(up.baseline),
                final=short(up.final),
            )
            return
    yield excluded("series.entropy", "reward/entropy-collapse", covers, entropy, start=short(early), final=short(final))


def _entropy_down(entropy: Series, clean: list[float]) -> Departure | None:
    """The fall looked for on the logarithm, where a collapse is a straight line down."""
    least = min((v for v in clean if v > 0), default=1e-6)
    spot = departure([math.log(max(v, 0.5 * least)) if math.isfinite(v) else math.nan for v in entropy.value], up=False, k=6.0, floor=0.4)
    if spot is None:
        return None
    base = math.exp(spot.baseline)
    clear = next((i for i in range(spot.index, len(entropy)) if entropy.value[i] <= 0.4 * base), spot.index)
    return Departure(clear, math.exp(spot.baseline), spot.sigma, math.exp(spot.threshold), math.exp(spot.final), spot.worst)


def _swells(line: Series, clean: list[float]) -> Departure | None:
    """A rise from the first step on, without a level to leave: to SWELLS times the first fifth, still going at the end."""
    early, final = median(clean[: max(4, len(clean) // 5)]), tail_level(clean)
    if len(clean) < 2 * MIN_POINTS or early <= 0 or final < SWELLS * early or monotone(clean) < 0.6 or plateau(clean[len(clean) // 2 :]):
        return None
    at = next(i for i, v in enumerate(line.value) if v >= 2 * early and median(line.value[i : i + 5]) >= 2 * early)
    return Departure(at, early, noise(clean), 2 * early, final, len(line) - 1)


def _late_gain(reward: Series) -> bool:
    """The reward is still improving in the last third of the run."""
    clean = finite(reward.value)
    if len(clean) < 12:
        return False
    third = len(clean) // 3
    middle, late = median(clean[third : 2 * third]), median(clean[-third:])
    return late - middle > 2 * noise(clean) / math.sqrt(third)


def judge_length(run: Run) -> Iterator[Finding]:
    """Answers that grow to the cap while the reward does not, or shrink to a few tokens."""
    covers = ("S2",)
    length = series(run, "response_length")
    clean = finite(length.value)
    if len(clean) < MIN_POINTS:
        yield undecided("series.length", "reward/length-explosion", covers, "response_length")
        return
    spots = departures(run)
    clip = series(run, "response_clip_ratio")
    up, down = spots["response_length"] or _swells(length, clean), spots["length-down"]
    gain = _late_gain(series(run, "reward"))
    earlier = {name for name, line in _harm(run, length.source[0])[:1] if name not in ("response_length", "length-down")}
    if up is not None and up.factor >= 1.4 and not gain:
        capped = len(clip) >= 3 and tail_level(clip.value) >= 0.5
        dropped = spots["reward-down"] is not None
        if capped or (dropped and up.factor >= 2):
            role = "consequence" if earlier & {"entropy", "kl"} or spots["kl"] is not None else "root"
            yield found(
                "series.length-explosion",
                "reward/length-explosion",
                length,
                up.index,
                0.58 if dropped else 0.45,
                covers,
                role=role,
                baseline=short(up.baseline),
                final=short(up.final),
            )
            return
    if down is not None and down.factor <= 0.3:
        dropped = spots["reward-down"] is not None
        yield found(
            "series.length-collapse",
            "reward/length-collapse",
            length,
            down.index,
            0.6 if dropped else 0.55,
            covers,
            baseline=short(down.baseline),
            final=short(down.final),
        )
        return
    facts: dict[str, Any] = {"clip": f"{tail_level(clip.value):.0%}"} if len(clip) >= 3 else {}
    yield excluded("series.length", "reward/length-explosion", covers, length, final=short(tail_level(clean)), **facts)


def judge_mismatch(run: Run) -> Iterator[Finding]:
    """Rollout engine and trainer disagree on log-probabilities: from the first step, or drifting apart (S9 for the reference)."""
    covers = ("L2.3", "S9")
    names = [name for name in sorted(run.names()) if name in MISMATCH or name.endswith(AROUND_ONE[1])]
    best: tuple[float, Series, int, str] | None = None
    for name in (*names, *LARGEST):
        line = series(run, name)
        clean = [abs(v) for v in finite(line.value)]
        if len(clean) < 5:
            continue
        hit = _tears(line, clean) if name in LARGEST else _drifts(name, line, clean)
        if hit is not None and (best is None or hit[0] > best[0]):
            best = (hit[0], line, hit[1], hit[2])
    if best is not None:
        weight, line, index, how = best
        yield found(
            "series.policy-mismatch",
            "reward/policy-mismatch",
            line,
            index,
            weight,
            covers,
            how=how,
            final=short(tail_level(line.value)),
            start=short(line.value[0]),
        )
        return
    sync, actor = series(run, "ref_logits_mean"), series(run, "actor_logits_mean")
    if len(sync) and len(actor):
        apart = [i for i, (a, b) in enumerate(zip(sync.value, actor.value, strict=False)) if abs(a - b) > 1.0]
        if len(apart) >= max(1, len(sync) // 2):
            yield found(
                "series.reference-stale",
                "reward/policy-mismatch",
                sync,
                apart[0],
                0.55,
                covers,
                how="sync",
                final=short(sync.value[-1]),
                start=short(sync.value[0]),
            )
            return
    if not names and not len(sync):
        yield undecided("series.policy-mismatch", "reward/policy-mismatch", covers, "logprob_diff")
        return
    line = series(run, names[0]) if names else sync
    yield excluded("series.policy-mismatch", "reward/policy-mismatch", covers, line, level=short(level(line)))


def _tears(line: Series, clean: list[float]) -> tuple[float, int, str] | None:
    """(weight, position, how) when the largest probability ratio of each batch leaves its level by an order of magnitude and stays.

    A batch's largest ratio has a heavy tail: only a level that has risen says that the policies part.
    """
    if len(clean) < 2 * MIN_POINTS:
        return None
    early, final = median(clean[: max(4, len(clean) // 5)]), tail_level(clean)
    if final < TEARS * max(early, 1.0):
        return None
    limit = 0.2 * TEARS * max(early, 1.0)
    index = next((i for i, v in enumerate(line.value) if v >= limit and median(line.value[i : i + 5]) >= limit), 0)
    return 0.66, index, "drift"


def _drifts(name: str, line: Series, clean: list[float]) -> tuple[float, int, str] | None:
    """(weight, position, how) when this mismatch metric is off."""
    around_one = name.endswith(AROUND_ONE)
    off = [abs(v - 1) for v in clean] if around_one else clean
    early = median(off[: max(3, len(off) // 5)])
    final = tail_level(off)
    limit = RATIO_HIGH if around_one else 0.03 if "prob" in name and "log" not in name else 0.05
    grown = final >= 3 * max(early, 1e-6) and final >= limit
    if grown:
        values = [abs(v - 1) if around_one else abs(v) for v in line.value]
        beyond = max(limit, 2.5 * early) if final >= max(limit, 2.5 * early) else limit
        index = next((i for i, v in enumerate(values) if v >= beyond and median(values[i : i + 5]) >= beyond), 0)
        strong = final >= 5 * max(early, 1e-6)
        return (0.76 if strong else 0.62), index, "drift"
    if name.startswith("logprob_diff") and not name.endswith("max") and len(clean) >= MIN_POINTS and median(clean) >= LOGPROB_HIGH:
        return 0.64, 0, "level"
    return None


def judge_critic(run: Run) -> Iterator[Finding]:
    """A value loss that grows by orders of magnitude, or towers over the policy loss from the start."""
    covers = ("S4", "L3.1")
    value = series(run, "value_loss")
    clean = finite(value.value)
    if len(clean) < MIN_POINTS:
        yield undecided("series.critic", "reward/value-loss-divergence", covers, "value_loss")
        return
    spot = departures(run)["value_loss"]
    nan = not math.isfinite(value.value[-1])
    if spot is not None and spot.factor >= 5:
        weight = 0.7 if spot.factor >= 20 or departures(run)["reward-down"] is not None else 0.55
        yield found(
            "series.value-divergence",
            "reward/value-loss-divergence",
            value,
            spot.index,
            weight,
            covers,
            baseline=short(spot.baseline),
            final=short(spot.final),
        )
        return
    if nan:
        start = next(i for i, v in enumerate(value.value) if not math.isfinite(v))
        yield found(
            "series.value-divergence", "reward/value-loss-divergence", value, start, 0.5, covers, baseline=short(median(clean)), final="nan"
        )
        return
    policy = series(run, "policy_loss")
    ratio = median([abs(v) for v in clean]) / max(median([abs(v) for v in finite(policy.value)]), 1e-9) if len(policy) else math.nan
    yield excluded("series.critic", "reward/value-loss-divergence", covers, value, ratio=short(ratio))


def judge_advantage(run: Run) -> Iterator[Finding]:
    """Advantages that are not numbers: the deviation of a single sample, or a NaN score."""
    covers = ("L5.1",)
    for name in ("advantage", "advantage_mean", "advantages", "reward_std", "reward"):
        line = series(run, name)
        bad = [i for i, v in enumerate(line.value) if not math.isfinite(v)]
        if not bad:
            continue
        lasting = len(bad) >= 2 or len(line) <= 2 or not math.isfinite(line.value[-1])
        others = [series(run, other) for other in ("loss", "policy_loss", "grad_norm")]
        spoiled = any(
            not math.isfinite(other.value[i])
            for other in others
            if len(other) and (i := index_at(other, line.source[bad[0]], line.line[bad[0]])) is not None
        )
        single = setting(run, "num_generations", "group_size", "n_samples_per_prompt", "rollout.n")
        if lasting or spoiled:
            yield found(
                "series.advantage-nan",
                "reward/advantage-nan",
                line,
                bad[0],
                0.82 if single == 1 or spoiled else 0.65,
                covers,
                group="?" if single is None else f"{single:g}",
            )
            return
    if not {"reward_std", "advantage", "advantages", "advantage_mean"} & run.names():
        yield undecided("series.advantage-nan", "reward/advantage-nan", covers, "reward_std")
        return
    line = series(run, "reward_std", "advantage", "advantage_mean", "advantages")
    yield excluded("series.advantage-nan", "reward/advantage-nan", covers, line)


def judge_coefficient(run: Run) -> Iterator[Finding]:
    """S8, L5.3, Q4: a KL coefficient that stands still while margins are low, or is so large that nothing is learnt."""
    covers = ("L5.3", "S8", "Q4")
    beta, margin = series(run, "kl_coef"), series(run, "reward_margin")
    if not len(beta):
        yield undecided("series.kl-coefficient", None, covers, "kl_coef")
        return
    still = constant_run(beta.value)
    late = margin.value[-max(3, len(margin) // 3) :]  # margins that stay low, not ones that were low at the start
    low = [v for v in late if v < 0.2]
    fixed = still is not None and still[1] >= max(3, 0.9 * len(beta))
    stuck = fixed and len(margin) >= 3 and len(low) >= 0.8 * len(late)
    high = tail_level(beta.value) > 0.5
    if stuck or high:
        yield found(
            "series.kl-coefficient",
            None,
            beta,
            len(beta) - 1,
            0.2,
            covers,
            role="context",
            severity="warning",
            beta=short(beta.value[-1]),
            how="fixed" if stuck else "high",
        )
        return
    yield excluded("series.kl-coefficient", None, covers, beta, beta=short(beta.value[-1]))


RULES = (
    Rule("series.kl", judge_kl, ("L3.1", "L5.3", "S4", "S8", "Q4", "L2.3")),
    Rule("series.entropy", judge_entropy, ("S4", "Q10")),
    Rule("series.length", judge_length, ("S2",)),
    Rule("series.policy-mismatch", judge_mismatch, ("L2.3", "S9")),
    Rule("series.critic", judge_critic, ("S4", "L3.1")),
    Rule("series.advantage-nan", judge_advantage, ("L5.1",)),
    Rule("series.kl-coefficient", judge_coefficient, ("L5.3", "S8", "Q4")),
)
