"""Each series rule: it fires on the failure, and stays silent on what looks like it and is healthy."""

from __future__ import annotations

import math
import random

import pytest
from series_runs import accused, ranks_with, run_with, samples_with

from rules import learning_rate, loss_health, memory_growth, policy_health, resume, reward_health, speed

N = 80
NAN = math.nan


def noisy(levels: list[float], sigma: float, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [v + rng.gauss(0, sigma) for v in levels]


def falling_loss(n: int = N, seed: int = 0) -> list[float]:
    return noisy([1.5 + 2 * math.exp(-i / 15) for i in range(n)], 0.03, seed)


# ---- loss and gradient


def test_nan_that_lasts() -> None:
    run = run_with(loss=[*falling_loss(40), *[NAN] * 6], grad_norm=[1.0] * 40 + [NAN] * 6)
    found = accused(loss_health.judge_nan, run)
    assert set(found) == {"training/loss-nan"}
    assert found["training/loss-nan"].evidence[0].line == 41


def test_trainer_hides_nan_behind_zero() -> None:
    run = run_with(loss=[*falling_loss(40), *[0.0] * 6], grad_norm=[1.0] * 40 + [NAN] * 6)
    assert accused(loss_health.judge_nan, run)["training/loss-nan"].evidence[0].line == 41


def test_one_skipped_step_is_not_nan() -> None:
    grad = [1.0] * N
    grad[20] = math.inf
    assert not accused(loss_health.judge_nan, run_with(loss=falling_loss(), grad_norm=grad))


def test_masked_labels() -> None:
    run = run_with(loss=[NAN] * 6, grad_norm=[0.0] * 6)
    assert set(accused(loss_health.judge_nan, run)) == {"data/all-labels-masked"}


def test_divergence_and_its_look_alikes() -> None:
    bad = falling_loss(50) + noisy([1.6 + 0.1 * i for i in range(40)], 0.03)
    found = accused(loss_health.judge_divergence, run_with(loss=bad))
    assert 51 <= found["training/loss-divergence"].evidence[0].line <= 66
    spike = falling_loss()
    spike[40:43] = [6.0, 7.0, 5.0]
    assert not accused(loss_health.judge_divergence, run_with(loss=spike))
    assert not accused(loss_health.judge_divergence, run_with(loss=falling_loss()))
    grpo = noisy([0.02 * i / N for i in range(N)], 0.01)
    assert not accused(loss_health.judge_divergence, run_with(loss=grpo, reward_std=[0.3] * N, kl=[0.001] * N))


def test_gradient_zero_needs_a_signal() -> None:
    dead = {"reward": noisy([0.5] * 20, 0.1), "loss": [0.0] * 20, "grad_norm": [0.0] * 20}
    assert "model/frozen-parameters" in accused(loss_health.judge_gradient, run_with(**dead, reward_std=[0.23456] * 20))
    assert not accused(loss_health.judge_gradient, run_with(**dead, reward_std=[0.0] * 20))


def test_gradient_explosion() -> None:
    grad = noisy([1.0] * 50, 0.1) + noisy([1 + 2.0 * i for i in range(1, 31)], 0.5)
    bad = run_with(loss=falling_loss(50) + noisy([1.6 + 0.1 * i for i in range(30)], 0.03), grad_norm=grad)
    assert accused(loss_health.judge_gradient, bad)["training/gradient-explosion"].evidence[0].line == pytest.approx(52, abs=3)
    assert not accused(loss_health.judge_gradient, run_with(loss=falling_loss(), grad_norm=noisy([1.0] * N, 0.3)))


def test_loss_scale() -> None:
    falls = [65536.0] * 30 + [65536.0 / 2**i for i in range(1, 18)]
    assert "training/loss-scale-overflow" in accused(loss_health.judge_loss_scale, run_with(loss_scale=falls))
    search = [65536.0, 32768.0, 16384.0, 8192.0, *[8192.0] * 60, 16384.0]
    assert not accused(loss_health.judge_loss_scale, run_with(loss_scale=search))


# ---- learning rate


def cosine(n: int = N, top: float = 1e-4) -> list[float]:
    return [learning_rate.cosine(i / n, top) for i in range(n)]


def test_schedule_starts_anew() -> None:
    rates = cosine()[:60] + [3e-4 * i / 10 for i in range(20)]
    assert accused(learning_rate.judge, run_with(learning_rate=rates))["training/lr-schedule"].evidence[0].line == pytest.approx(64, abs=3)


def test_schedules_in_order() -> None:
    warm = [1e-4 * i / 10 for i in range(10)] + cosine()
    assert not accused(learning_rate.judge, run_with(learning_rate=warm))
    assert not accused(learning_rate.judge, run_with(learning_rate=[0.0, *cosine()]))
    rounded = [0.0] * 20
    assert not accused(
        learning_rate.judge, run_with(learning_rate=rounded, reward=noisy([0.01 * i for i in range(20)], 0.001), entropy=[0.123] * 20)
    )
    name, error, _ = learning_rate.fit([float(i) for i in range(N)], cosine(), N)
    assert (name, error < 1e-6) == ("cosine", True)


def test_rate_zero_and_rate_absurd() -> None:
    assert "training/lr-schedule" in accused(learning_rate.judge, run_with(learning_rate=[0.0] * 12, loss=noisy([2.0] * 12, 0.05)))
    high = run_with(learning_rate=[3.0 * i for i in range(10)], loss=[4.8, 4.9, 80.0, 540.0, 700.0, 1400.0, 1200.0, 2600.0, NAN, NAN])
    assert accused(learning_rate.judge, high)["training/lr-schedule"].evidence[0].line == 3


# ---- rewards


def test_reward_zero_from_a_step_on() -> None:
    reward = noisy([0.3 + 0.003 * i for i in range(50)], 0.02) + [0.0] * 30
    run = run_with(reward=reward, reward_std=[0.2] * 50 + [0.0] * 30)
    assert accused(reward_health.judge_dead, run)["reward/reward-zero"].evidence[0].line == 51


def test_sparse_rewards_are_no_zero() -> None:
    rng = random.Random(4)
    reward = [float(rng.random() < 0.3) for _ in range(N)]
    run = run_with(
        reward=reward, reward_std=[0.0 if r in (0.0, 1.0) and i % 3 else 0.5 for i, r in enumerate(reward)], frac_zero_std=[0.5] * N
    )
    assert not accused(reward_health.judge_dead, run)


def test_constant_reward() -> None:
    run = run_with(reward=noisy([0.3] * 40, 0.03) + [0.5] * 30, reward_std=[0.2] * 40 + [0.0] * 30)
    assert accused(reward_health.judge_dead, run)["reward/zero-advantage"].evidence[0].line == 41
    solved = run_with(frac_zero_std=noisy([0.6] * N, 0.05), reward=noisy([0.8] * N, 0.02), reward_std=noisy([0.1] * N, 0.01))
    assert not accused(reward_health.judge_dead, solved)


def test_reward_collapse() -> None:
    reward = noisy([0.3 + 0.005 * i for i in range(60)], 0.02) + noisy([0.6 - 0.02 * i for i in range(30)], 0.02)
    assert "reward/reward-collapse" in accused(reward_health.judge_collapse, run_with(reward=reward))
    assert not accused(reward_health.judge_collapse, run_with(reward=noisy([0.5] * N, 0.1)))


def test_reward_hacking() -> None:
    reward = noisy([0.2 + 0.01 * i for i in range(N)], 0.02)
    length = noisy([500.0] * 40 + [max(20.0, 500 - 25 * i) for i in range(40)], 5)
    score = [0.2, 0.25, 0.3, 0.33, 0.25, 0.15, 0.1, 0.08]
    run = run_with(reward=reward, response_length=length, val_score__gsm8k=score)
    assert "reward/reward-hacking" in accused(reward_health.judge_hacking, run)
    fine = run_with(
        reward=reward,
        response_length=noisy([500.0 + 2 * i for i in range(N)], 5),
        val_score__gsm8k=[0.2, 0.25, 0.3, 0.31, 0.33, 0.32, 0.35],
    )
    assert not accused(reward_health.judge_hacking, fine)


def dpo(margins: list[float], accuracy: list[float]) -> dict[str, list[float]]:
    chosen = [-0.01 * i for i in range(len(margins))]
    return {
        "reward_margin": margins,
        "reward_accuracy": accuracy,
        "reward_chosen": chosen,
        "reward_rejected": [c - m for c, m in zip(chosen, margins, strict=True)],
    }


def test_preferences() -> None:
    growing = noisy([1.2 * (1 - math.exp(-i / 20)) for i in range(N)], 0.1)
    good = noisy([0.5 + 0.3 * (1 - math.exp(-i / 20)) for i in range(N)], 0.03)
    assert not accused(reward_health.judge_preference, run_with(**dpo(growing, good)))
    inverted = noisy([-0.3] * N, 0.1)
    assert "data/preference-inverted" in accused(reward_health.judge_preference, run_with(**dpo(inverted, noisy([0.35] * N, 0.05))))
    coin = noisy([0.0] * N, 0.1)
    assert not accused(reward_health.judge_preference, run_with(**dpo(coin, noisy([0.5] * N, 0.05))))
    lost = growing[:50] + noisy([max(0.02, 1.1 - 0.06 * i) for i in range(40)], 0.05)
    found = accused(reward_health.judge_preference, run_with(**dpo(lost, good[:50] + noisy([0.52] * 40, 0.02))))
    assert "reward/margin-collapse" in found


def test_identical_pairs() -> None:
    same = noisy([0.0] * 20, 0.01)
    run = run_with(reward_chosen=same, reward_rejected=same)
    assert "data/dataset-format" in accused(reward_health.judge_preference, run)


# ---- policy


def test_kl() -> None:
    explode = noisy([0.01] * 40, 0.001) + [0.02 * 1.3**i for i in range(40)]
    assert "reward/kl-explosion" in accused(policy_health.judge_kl, run_with(kl=explode, reward=noisy([0.5] * N, 0.02)))
    slow = noisy([0.001 + 0.0008 * i for i in range(N)], 0.0005)
    assert not accused(policy_health.judge_kl, run_with(kl=slow))
    spike = list(slow)
    spike[30] = 8.0
    assert not accused(policy_health.judge_kl, run_with(kl=spike))
    assert "model/wrong-reference-model" in accused(policy_health.judge_kl, run_with(kl=noisy([47.0] * 20, 1)))
    assert "reward/kl-explosion" in accused(policy_health.judge_kl, run_with(kl=[-1.0 - 0.1 * i * i for i in range(20)]))
    assert not accused(policy_health.judge_kl, run_with(kl=noisy([-0.2, -0.1, -0.4, *[0.05 + 0.01 * i for i in range(20)]], 0.02)))


def test_kl_zero_only_with_a_penalty() -> None:
    moving = noisy([0.3] * N, 0.05)
    assert "reward/kl-zero" in accused(policy_health.judge_kl, run_with({"beta": 0.04}, kl=[0.0] * N, grad_norm=moving))
    assert not accused(policy_health.judge_kl, run_with({"beta": 0.0}, kl=[0.0] * N, grad_norm=moving))
    assert not accused(policy_health.judge_kl, run_with(kl=[0.0] * N, grad_norm=moving))


def test_entropy() -> None:
    collapse = noisy([0.5] * 40, 0.02) + [0.5 * 0.8**i for i in range(40)]
    assert "reward/entropy-collapse" in accused(policy_health.judge_entropy, run_with(entropy=collapse, reward=noisy([0.5] * N, 0.02)))
    explode = noisy([0.3] * 40, 0.01) + noisy([0.3 + 0.1 * i for i in range(40)], 0.01)
    bad = run_with(entropy=explode, reward=noisy([0.5] * 45 + [0.5 - 0.014 * i for i in range(35)], 0.01))
    assert "reward/entropy-explosion" in accused(policy_health.judge_entropy, bad)
    settles = noisy([0.3 + 0.3 * (1 - math.exp(-i / 10)) for i in range(N)], 0.01)
    assert not accused(policy_health.judge_entropy, run_with(entropy=settles, reward=noisy([0.3 + 0.005 * i for i in range(N)], 0.02)))
    sharpens = noisy([0.8 * math.exp(-i / 60) for i in range(N)], 0.02)
    assert not accused(policy_health.judge_entropy, run_with(entropy=sharpens, reward=noisy([0.3 + 0.005 * i for i in range(N)], 0.02)))


def test_lengths() -> None:
    grows = noisy([500.0] * 40 + [500.0 + 90 * i for i in range(40)], 10)
    bad = run_with(
        response_length=grows, response_clip_ratio=[0.02] * 40 + [min(1.0, 0.03 * i) for i in range(40)], reward=noisy([0.5] * N, 0.02)
    )
    assert "reward/length-explosion" in accused(policy_health.judge_length, bad)
    reasoning = run_with(response_length=grows, response_clip_ratio=[0.05] * N, reward=noisy([0.2 + 0.01 * i for i in range(N)], 0.02))
    assert not accused(policy_health.judge_length, reasoning)
    shrinks = run_with(response_length=noisy([500.0] * 40 + [12.0] * 40, 1), reward=noisy([0.5] * 40 + [0.1] * 40, 0.01))
    assert "reward/length-collapse" in accused(policy_health.judge_length, shrinks)


def test_mismatch() -> None:
    drift = noisy([0.012] * 30, 0.001) + noisy([0.012 + 0.01 * i for i in range(50)], 0.001)
    assert "reward/policy-mismatch" in accused(policy_health.judge_mismatch, run_with(prob_diff=drift))
    assert "reward/policy-mismatch" in accused(policy_health.judge_mismatch, run_with(logprob_diff=noisy([0.3] * N, 0.04)))
    assert not accused(policy_health.judge_mismatch, run_with(prob_diff=noisy([0.012] * N, 0.002), logprob_diff=noisy([0.03] * N, 0.005)))


def test_advantage_and_critic() -> None:
    bad = run_with({"num_generations": 1}, reward_std=[NAN, NAN], loss=[NAN, NAN], reward=[1.0, 0.0])
    assert "reward/advantage-nan" in accused(policy_health.judge_advantage, bad)
    assert not accused(policy_health.judge_advantage, run_with(reward_std=[0.2] * 10))
    value = noisy([0.2] * 40, 0.02) + [0.3 * 1.2**i for i in range(40)]
    assert "reward/value-loss-divergence" in accused(policy_health.judge_critic, run_with(value_loss=value))
    assert not accused(policy_health.judge_critic, run_with(value_loss=noisy([2 * math.exp(-i / 20) + 0.2 for i in range(N)], 0.02)))


# ---- speed and memory


def test_straggler() -> None:
    quick, late = [0.01] * 20, [0.01] * 10 + [1.0 * i for i in range(1, 11)]
    found = accused(speed.judge_straggler, ranks_with("data_time", {0: quick, 1: quick, 2: late, 3: quick}))
    assert found["comms/straggler"].rank == 2
    assert found["comms/straggler"].evidence[0].line == 43
    assert not accused(speed.judge_straggler, ranks_with("data_time", dict.fromkeys(range(4), quick)))


def test_slow_steps() -> None:
    assert "training/slow-step" in accused(speed.judge_slow, run_with(step_time=noisy([2.0] * 50 + [4.0] * 30, 0.05)))
    warm_up = noisy([60.0] * 3 + [2.0] * 60, 0.05)
    assert not accused(speed.judge_slow, run_with(step_time=warm_up))
    longer = run_with(step_time=noisy([2.0] * 50 + [4.0] * 30, 0.05), response_length=noisy([300.0] * 50 + [700.0] * 30, 5))
    assert not accused(speed.judge_slow, longer)


def test_waiting_for_data() -> None:
    assert "data/slow-dataloader" in accused(
        speed.judge_data, run_with(data_time=noisy([1.5] * 20, 0.05), step_time=noisy([2.0] * 20, 0.05))
    )
    assert not accused(speed.judge_data, run_with(data_time=noisy([0.1] * 20, 0.01), step_time=noisy([2.0] * 20, 0.05)))


@pytest.mark.parametrize("start", [0, 40])
def test_memory_leak(start: int) -> None:
    used = [30000.0] * start + [30000.0 + 500 * i for i in range(100)]
    assert "training/gpu-memory-leak" in accused(memory_growth.judge_samples, samples_with(used))
    assert "training/gpu-memory-leak" in accused(memory_growth.judge_metrics, run_with(memory_allocated=[v / 1000 for v in used]))


def test_memory_that_is_no_leak() -> None:
    filling = [min(78000.0, 20000 + 6000.0 * i) for i in range(100)]
    assert not accused(memory_growth.judge_samples, samples_with(filling))
    lengths = noisy([60000.0] * 100, 4000)
    assert not accused(memory_growth.judge_samples, samples_with(lengths))
    peak = [60 + 5 * (1 - math.exp(-i / 5)) for i in range(100)]
    assert not accused(memory_growth.judge_metrics, run_with(memory_allocated_peak=peak))


# ---- resume


def resumed(loss: list[float], at: int, **more: list[float]):  # type: ignore[no-untyped-def]
    from parsers.base import Event

    run = run_with(loss=loss, **more)
    run.events = [Event("resume", "train.log", at, "Resuming from checkpoint", time=1000.0 + 10 * at)]
    assert run.metrics is not None
    import polars as pl

    run.metrics = run.metrics.with_columns(pl.when(pl.col("line") > at).then(pl.col("line") + 1).otherwise(pl.col("line")).alias("line"))
    run.metrics = run.metrics.with_columns(pl.when(pl.col("line") == at).then(pl.col("line") - 1).otherwise(pl.col("line")).alias("line"))
    return run


def test_resume_jump() -> None:
    jump = noisy([2.0] * 40, 0.02) + noisy([3.5 - 0.02 * i for i in range(30)], 0.02)
    assert "training/optimizer-state" in accused(resume.judge, resumed(jump, 40))
    assert not accused(resume.judge, resumed(noisy([2.0] * 70, 0.02), 40))


def test_resume_repeats_data() -> None:
    low = noisy([2.3] * 40, 0.02) + noisy([2.0] * 30, 0.02)
    assert "data/data-order-after-resume" in accused(resume.judge, resumed(low, 40))


def test_change_of_logging() -> None:
    loss = noisy([2.0] * 40, 0.02) + noisy([16.0] * 30, 0.1)
    grad = noisy([1.0] * 40, 0.02) + noisy([8.0] * 30, 0.1)
    assert not accused(resume.judge, resumed(loss, 40, grad_norm=grad))
