"""Every signature and rule over runs in which nothing is wrong: an accusation fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import sample_training as training
from run_text import cosine, gpu_csv, hf_line, megatron, nccl_start, save, titan, titan_step
from sample_runs import SAMPLES

from forensics import analyze


def grpo(folder: Path, seed: int) -> None:
    """TRL GRPO that learns: the loss is about zero, as it should be; entropy sinks and settles, lengths grow within the limit."""
    rng = Random(seed)
    total = 160
    lines = []
    for step in range(1, total + 1):
        learnt = 1 - math.exp(-step / 70)
        reward = 0.22 + 0.4 * learnt + rng.gauss(0, 0.03)
        values = {
            "loss": round(rng.gauss(0, 0.003), 4), "grad_norm": 0.3 + abs(rng.gauss(0, 0.08)), "learning_rate": 1e-06 * min(1, step / 10), "num_tokens": 70123.0 * step,
            "completions/mean_length": 260 + 60 * learnt + rng.gauss(0, 8), "completions/max_length": 1024.0, "completions/clipped_ratio": max(0.0, 0.02 + rng.gauss(0, 0.005)),
            "rewards/accuracy/mean": reward - 0.1, "rewards/accuracy/std": 0.35, "reward": reward, "reward_std": 0.27 - 0.08 * learnt + rng.gauss(0, 0.01), "frac_reward_zero_std": 0.1 + 0.2 * learnt,
            "kl": 0.004 * learnt + abs(rng.gauss(0, 0.0004)), "entropy": 0.42 - 0.12 * learnt + rng.gauss(0, 0.01), "epoch": round(step / total, 2),
        }  # fmt: skip
        lines.append(hf_line(step, total, 21.7, values))
    lines.append(
        hf_line(
            total,
            total,
            21.7,
            {"train_runtime": 3472.1, "train_samples_per_second": 1.5, "train_steps_per_second": 0.046, "train_loss": 0.0004, "epoch": 1.0},
        )
    )
    save(folder, "train.log", lines)


def dpo(folder: Path, seed: int) -> None:
    """DPO from the start: 0.6931 with margin 0; the chosen reward falls while the margin grows, which is usual."""
    rng = Random(seed)
    total = 200
    lines = []
    for step in range(1, total + 1):
        grown = 1 - math.exp(-step / 60)
        margin = 1.6 * grown + rng.gauss(0, 0.05) * min(1, step / 5)
        values = {
            "loss": round(0.6931 - 0.38 * grown + rng.gauss(0, 0.01) * min(1, step - 1), 4),
            "grad_norm": 2.1 + abs(rng.gauss(0, 0.3)),
            "learning_rate": cosine(step, total, 5e-07, 20),
            "rewards/chosen": -0.4 * grown,
            "rewards/rejected": -0.4 * grown - margin,
            "rewards/accuracies": min(1.0, 0.5 + 0.32 * grown + rng.gauss(0, 0.02)),
            "rewards/margins": margin,
            "logps/chosen": -281.0 - 9 * grown,
            "logps/rejected": -252.0 - 30 * grown,
            "epoch": round(step / total, 2),
        }
        lines.append(hf_line(step, total, 4.2, values, strings=bool(seed % 2)))
    lines.append(hf_line(total, total, 4.2, {"train_runtime": 840.0, "train_loss": 0.41, "epoch": 1.0}))
    save(folder, "train.log", lines)


def titan_full(folder: Path, seed: int) -> None:
    """torchtitan at 99 % of GPU memory (a caching allocator), allocation retries, NCCL at INFO, a validation."""
    rng = Random(seed)
    start = datetime(2026, 3, 30, 11, 2, 1)
    lines = nccl_start("n-3", 5100, 0, 0, 8, "18000", 8)
    t = start
    for step in range(1, 181):
        t += timedelta(seconds=5 + rng.uniform(-0.1, 0.1))
        lines.append(
            titan_step(
                t,
                0,
                step,
                2.2 + 8 * math.exp(-step / 40) + rng.gauss(0, 0.03),
                0.5 + 2 * math.exp(-step / 20) + abs(rng.gauss(0, 0.05)),
                78.4,
            )
        )
        if step == 90:
            lines += [
                f"[rank0]:[titan] {t:%Y-%m-%d %H:%M:%S},411 - root - WARNING - 2 CUDA memory allocation retries.",
                titan(t, 0, "Saving the checkpoint (or staging if async is enabled)."),
                titan(t, 0, "Finished saving the checkpoint (or staging if async is enabled) in 9.02 seconds."),
            ]
    lines += [titan(t, 0, "Sleeping 2 seconds for other ranks to complete"), titan(t + timedelta(seconds=3), 0, "Training completed")]
    save(folder, "train.log", lines)
    save(folder, "gpu.csv", gpu_csv(start, t, 15, ["18", "2a"], rng, used=80900))


def fp16(folder: Path, seed: int) -> None:
    """Megatron in fp16: the loss scaler skips a step now and then, which is its work."""
    rng = Random(seed)
    t = datetime(2026, 12, 30, 23, 50, 0)  # over New Year's night
    lines, scale = [], 65536.0
    for step in range(1, 301):
        t += timedelta(seconds=9.5)
        if step in (3, 4, 61, 190):
            scale /= 2
        elif step % 100 == 0:
            scale *= 2
        lines.append(
            megatron(
                t,
                step,
                300,
                rng.uniform(9400, 9600),
                cosine(step, 300, 2e-4, 30),
                2.9 + 7 * math.exp(-step / 60) + rng.gauss(0, 0.03),
                0.7 + abs(rng.gauss(0, 0.1)),
                scale=scale,
            )
        )
    lines.append(f"[after training is done] datetime: {t:%Y-%m-%d %H:%M:%S} ")
    save(folder, "train.log", lines)


MADE: dict[str, Callable[[Path, int], None]] = {
    "megatron": training.healthy,
    "interrupted": training.interrupted,
    "grpo": grpo,
    "dpo": dpo,
    "titan": titan_full,
    "fp16": fp16,
}


def accusations(folder: Path) -> list[str]:
    report = analyze(folder).to_dict()
    layer = report["verdict"]["layer"]
    named = [] if layer == "none" else [f"verdict: {layer}/{report['verdict']['cause']}"]
    return named + [f"{row['id']}: {row['reading']}" for row in report["checklist"] if row["verdict"] == "guilty"]


@pytest.mark.parametrize("name", ["healthy", "interrupted"])
def test_healthy_samples(name: str) -> None:
    assert accusations(SAMPLES / name / "logs") == []


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", MADE)
def test_made_runs(kind: str, seed: int, tmp_path: Path) -> None:
    MADE[kind](tmp_path / "run", seed)
    assert accusations(tmp_path / "run") == []
