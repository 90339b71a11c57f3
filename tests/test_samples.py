"""The sample runs are judged as they were made: layer, cause, first failing line, culprit, clocks, steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sample_runs import RUNS, SAMPLES

from forensics import analyze


@dataclass
class Truth:
    """layer/cause; `first` = file and a pattern that the cited line must match; culprit and clock offsets where the logs tell them."""

    cause: str
    first: tuple[str, str] | None = None
    culprit: dict[str, Any] = field(default_factory=dict)
    offsets: dict[str, float] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)


TRUTH = {
    "gpu-lost": Truth(
        "infra/gpu-fell-off-bus",
        ("dmesg.txt", r"Xid \(PCI:0000:ab:00\): 79|AER: Corrected error received: 0000:ab"),
        {"rank": 5, "host": "gpu-a07"},
        {"dmesg.txt": -11.0, "gpu.csv": 0.0},
        {"S1": "guilty", "S6": "suspect", "S12": "guilty"},
    ),
    "host-oom-two-nodes": Truth(
        "infra/host-oom-kill",
        ("trn-12/kern.log", r"invoked oom-killer|oom-kill:constraint=CONSTRAINT_NONE|Killed process 7412"),
        {"rank": 6, "host": "trn-12", "pid": 7412},
        {"trn-12/train.log": 97.0, "trn-12/kern.log": 97.0, "trn-11/kern.log": 0.0},
        {"S1": "guilty"},
    ),
    "collective-order": Truth(
        "comms/collective-mismatch", ("attempt_0/2/stderr.log", r"\[Rank 2\] Watchdog caught .*OpType=ALLREDUCE"), {"rank": 2, "host": "dgx-03"}, {}, {"S6": "guilty"}
    ),
    "token-id-out-of-range": Truth("data/token-id-out-of-range", ("train.log", r"block: \[311,0,0\], thread: \[[0-3],0,0\] Assertion"), {"rank": 1, "host": "ws-02"}),
    "checkpoint-shapes": Truth("model/checkpoint-mismatch", ("train.log", r"Error\(s\) in loading state_dict|size mismatch for model\.layers\.0\.mlp\.gate")),
    "gpu-oom-fragmentation": Truth("training/gpu-oom-fragmentation", ("train.log", r"OutOfMemoryError: CUDA out of memory"), {"rank": 2, "host": "mlp-05"}, {}, {"S11": "guilty"}),
    "loss-nan": Truth("training/loss-nan", ("train.log", r"437/900 .*'loss': 'nan'"), {}, {}, {"S4": "guilty"}),
    "entropy-collapse-grpo": Truth("reward/entropy-collapse", ("train.log", r"\b(?:[89]\d|1[0-3]\d)/300 ")),
    "guide-probes": Truth(
        "reward/reward-inverted",
        ("train.log", r"(?:Chosen|Rejected) mean: "),
        {},
        {},
        {"S1": "ok", "S2": "ok", "S3": "ok", "S4": "ok", "S5": "ok", "S7": "guilty", "S8": "suspect", "S9": "ok", "S10": "ok"},
    ),
    "healthy": Truth("none/healthy"),
    "interrupted": Truth("none/interrupted-by-user"),
}  # fmt: skip


@cache
def report(name: str) -> dict[str, Any]:
    """The post-mortem of a sample, made once per test session."""
    return analyze(SAMPLES / name / "logs").to_dict()


def test_every_sample_is_told() -> None:
    """Folders, writers and truths are the same set, and each folder says what happened."""
    folders = {path.name for path in SAMPLES.iterdir() if path.is_dir()}
    assert folders == set(TRUTH) == set(RUNS)
    assert all((SAMPLES / name / "ABOUT.md").stat().st_size > 100 for name in folders)
    layers = {truth.cause.split("/")[0] for truth in TRUTH.values()}
    assert layers == {"infra", "data", "model", "training", "comms", "reward", "none"}


def test_samples_are_small() -> None:
    sizes = {name: sum(f.stat().st_size for f in (SAMPLES / name).rglob("*") if f.is_file()) for name in TRUTH}
    assert all(size < 400_000 for size in sizes.values()), sizes
    assert sum(sizes.values()) < 3_000_000


@pytest.mark.parametrize("name", RUNS)
def test_samples_are_what_their_writers_write(name: str, tmp_path: Path) -> None:
    """The committed files can be made anew, byte for byte."""
    RUNS[name](tmp_path)
    made = {f.relative_to(tmp_path).as_posix(): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    kept = {f.relative_to(SAMPLES / name / "logs").as_posix(): f.read_bytes() for f in (SAMPLES / name / "logs").rglob("*") if f.is_file()}
    assert made == kept


@pytest.mark.parametrize("name", TRUTH)
def test_verdict(name: str) -> None:
    said, truth = report(name)["verdict"], TRUTH[name]
    assert f"{said['layer']}/{said['cause'].rpartition('/')[2]}" == truth.cause
    assert 0.3 < said["confidence"] <= 1


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if truth.first])
def test_first_failure_line(name: str) -> None:
    first, wanted = report(name)["verdict"]["first_failure"], TRUTH[name].first
    assert wanted is not None
    assert first["file"] == wanted[0]
    line = (SAMPLES / name / "logs" / first["file"]).read_bytes().split(b"\n")[first["line"] - 1].decode()
    assert re.search(wanted[1], line), line[:300]


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if truth.culprit])
def test_culprit(name: str) -> None:
    culprit = report(name)["verdict"]["culprit"]
    assert {key: culprit.get(key) for key in TRUTH[name].culprit} == TRUTH[name].culprit


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if truth.offsets])
def test_clocks(name: str) -> None:
    """A host's kernel log shares the clock of the training log written on that host; `dmesg -T` drifts."""
    said = {clock["file"]: clock["offset_s"] for clock in report(name)["clocks"]}
    for file, offset in TRUTH[name].offsets.items():
        assert said[file] == pytest.approx(offset, abs=2.0), file


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if truth.steps])
def test_twelve_steps(name: str) -> None:
    rows = {row["id"]: row["verdict"] for row in report(name)["checklist"]}
    assert list(rows) == [f"S{n}" for n in range(1, 13)]
    assert {step: rows[step] for step in TRUTH[name].steps} == TRUTH[name].steps


def test_coloured_torchtitan_steps_are_read() -> None:
    """Colour codes stand between the words of a torchtitan line."""
    said = report("gpu-lost")
    assert said["run"]["last_step"] == 318
    assert next(row for row in said["checklist"] if row["id"] == "S4")["verdict"] == "ok"


@pytest.mark.parametrize("name", ["healthy", "interrupted"])
def test_nothing_is_accused(name: str) -> None:
    said = report(name)
    assert said["verdict"]["layer"] == "none"
    assert all(row["verdict"] != "guilty" for row in said["checklist"])


@pytest.mark.parametrize("name", TRUTH)
def test_evidence_is_cited_as_it_stands(name: str) -> None:
    """Every quoted text is found on the line that is cited for it."""
    files: dict[str, list[bytes]] = {}
    for finding in report(name)["findings"]:
        for place in finding["evidence"]:
            lines = files.setdefault(place["file"], (SAMPLES / name / "logs" / place["file"]).read_bytes().split(b"\n"))
            assert 1 <= place["line"] <= len(lines)
