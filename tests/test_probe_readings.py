"""The guide's limits on probe lines: each fault in its step, and a sound run accused of nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forensics


def analysed(tmp_path: Path, steps: int = 30, **planted: Callable[[int], float]) -> dict[str, Any]:
    def value(name: str, step: int, sound: float) -> float:
        return planted[name](step) if name in planted else sound

    lines = ["Reward frozen params: 12 / 12"]
    for s in range(steps):
        expected = 1e-4 * (1 - s / steps)
        actual = value("actual", s, expected)
        lines += [
            f"[DATA] Batch size: 8, Max len: {value('longest', s, 512 + s):g}, step: {s}",
            f'[LOSS] {{"step": {s}, "policy": {value("policy", s, 0.3 - 0.001 * s)}, "value": {value("value", s, 0.5)}, "kl": {0.02 + 0.001 * s}, "entropy": 1.2}}',
            f"[GRAD] LM head grad norm: {value('grad', s, 1 + 0.01 * (s % 7))}, step: {s}",
            f"[LR] Actual: {actual:.6e}, Expected: {expected:.6e}, Diff: {abs(actual - expected):.6e}, step: {s}",
        ]
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return forensics.analyze(run).to_dict()


def found(report: dict[str, Any]) -> set[str]:
    return {f["rule"] for f in report["findings"] if f["outcome"] == "found" and f["rule"].startswith("probe.")}


def step(report: dict[str, Any], name: str) -> str:
    return next(str(item["verdict"]) for item in report["checklist"] if item["id"] == name)


def test_a_sound_run(tmp_path: Path) -> None:
    report = analysed(tmp_path)
    assert found(report) == set()
    assert {step(report, name) for name in ("S2", "S3", "S4", "S5", "S10")} == {"ok"}
    assert {f["rule"] for f in report["findings"] if f["outcome"] == "excluded"} >= {"probe.head-gradient", "probe.lr"}


def test_a_head_without_gradient(tmp_path: Path) -> None:
    report = analysed(tmp_path, grad=lambda s: 0.0)
    assert (report["verdict"]["layer"], report["verdict"]["cause"]) == ("training", "autograd-error")
    assert report["verdict"]["first_failure"]["line"] == 4
    assert step(report, "S5") == "guilty"


def test_a_head_that_explodes(tmp_path: Path) -> None:
    report = analysed(tmp_path, grad=lambda s: 1.0 if s < 15 else 10.0 * s)
    assert (report["verdict"]["layer"], report["verdict"]["cause"]) == ("training", "gradient-explosion")
    assert "150" in report["verdict"]["first_failure"]["text"]


def test_a_norm_that_was_always_large_accuses_nobody(tmp_path: Path) -> None:
    report = analysed(tmp_path, grad=lambda s: 300.0 + s % 5)
    assert found(report) == {"probe.head-gradient-large"}
    assert report["verdict"]["layer"] == "none"
    assert step(report, "S5") == "suspect"


@pytest.mark.parametrize("actual", [lambda s: 5e-4, lambda s: 0.0 if s > 9 else 1e-4 * (1 - s / 30)], ids=["peak", "zero"])
def test_a_rate_off_its_schedule(actual: Callable[[int], float], tmp_path: Path) -> None:
    report = analysed(tmp_path, actual=actual)
    assert "probe.lr-off-schedule" in found(report)
    assert report["verdict"]["cause"] == "lr-schedule"


def test_a_rate_read_one_step_later_is_in_order(tmp_path: Path) -> None:
    report = analysed(tmp_path, actual=lambda s: 1e-4 * (1 - max(0, s - 1) / 30))
    assert found(report) == set()


def test_swings_and_ratios_are_circumstances(tmp_path: Path) -> None:
    report = analysed(tmp_path, longest=lambda s: 512 if s % 3 else 1900, value=lambda s: 40.0)
    assert found(report) == {"probe.length-swing", "probe.value-loss-large"}
    assert report["verdict"]["layer"] == "none"
    assert (step(report, "S2"), step(report, "S4")) == ("suspect", "suspect")


def test_frameworks_own_readings_are_not_judged_here(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    rows = [
        f"{{'loss': 0.1, 'grad_norm': 0.0, 'learning_rate': 0.5, 'policy_loss': 0.001, 'value_loss': 9.0, 'step': {s}}}" for s in range(20)
    ]
    (run / "train.log").write_text("\n".join(rows), encoding="utf-8")
    assert found(forensics.analyze(run).to_dict()) == set()
