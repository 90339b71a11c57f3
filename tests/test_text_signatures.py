"""Warnings are circumstances: a wall of them neither makes a healthy run sick nor hides the reason of a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.analysis import analyze
from forensics.knowledge import load

TEXT_PACKS = {"text_tokens", "text_pipeline", "text_loading", "text_numeric", "text_loop", "text_reward", "text_policy", "recovery"}
QUIET = {
    role: [s.hits[0] for s in load().signatures if s.role == role and s.pack in TEXT_PACKS] for role in ("context", "precursor", "recovery")
}
END = "{'train_runtime': 812.1, 'train_samples_per_second': 12.3, 'train_steps_per_second': 0.25, 'train_loss': 2.01, 'epoch': 2.0}"
CRASH = """Traceback (most recent call last):
  File "/app/train.py", line 210, in <module>
    main()
  File "/app/train.py", line 188, in main
    metrics = report(batch, step)
  File "/app/metrics.py", line 41, in report
    return total / count
ZeroDivisionError: division by zero""".splitlines()


def steps(first: int, last: int) -> list[str]:
    """Lines of the Hugging Face trainer (4.x) of an unremarkable run."""
    return [
        f"{{'loss': {2.4 - 0.004 * i + 0.01 * (i * 7 % 5):.4f}, 'grad_norm': {0.9 + 0.02 * (i * 3 % 7):.4f}, "
        f"'learning_rate': {2e-5 * (1 - i / 210):.3e}, 'epoch': {i / 100:.2f}}}"
        for i in range(first, last)
    ]


def verdict_of(folder: Path, lines: list[str]) -> str:
    run = folder / "run"
    run.mkdir()
    (run / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    verdict = analyze(run).verdict
    return f"{verdict.layer}/{verdict.cause}"


@pytest.mark.parametrize("role", QUIET)
def test_a_wall_of_warnings_leaves_a_healthy_run_healthy(tmp_path: Path, role: str) -> None:
    assert len(QUIET[role]) > 5
    assert verdict_of(tmp_path, [*QUIET[role], *steps(1, 200), END]) == "none/healthy"


@pytest.mark.parametrize("role", QUIET)
def test_a_wall_of_warnings_does_not_hide_a_crash(tmp_path: Path, role: str) -> None:
    assert verdict_of(tmp_path, [*QUIET[role], *steps(1, 100), *CRASH]) == "training/code-exception"


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("Loss is nan, stopping training", "training/loss-nan"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "training/loss-scale-overflow"),
        (
            "ValueError: num_gen_batches=10 >= max_num_gen_batches=10. Generated too many. Please check if your data are too difficult.",
            "reward/zero-advantage",
        ),
        ("RuntimeError: Cannot find valid samples, check `data/README.md` for the data format.", "data/empty-dataset"),
        (
            "nv-fabricmanager[88]: fabric manager NVIDIA GPU driver interface version 570.86.10 don't match with driver version 570.86.15.",
            "infra/fabric-manager",
        ),
    ],
)
def test_decisive_lines_name_their_cause(tmp_path: Path, last: str, cause: str) -> None:
    assert verdict_of(tmp_path, [*QUIET["context"], *steps(1, 30), last]) == cause
