"""The verdict does not hang on what does not matter; and where evidence is taken away, confidence goes before the layer does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sample_runs import SAMPLES
from test_samples import TRUTH, report

from forensics import analyze

FAILED = [name for name, truth in TRUTH.items() if not truth.cause.startswith("none/")]
CRASHED = ["gpu-lost", "host-oom-two-nodes", "collective-order", "token-id-out-of-range", "checkpoint-shapes", "gpu-oom-fragmentation"]
NOISE = (
    '10.0.4.17 - - [21/Apr/2026:13:02:11 +0000] "GET /healthz HTTP/1.1" 200 2 "-" "kube-probe/1.29"',
    "Downloading shards: 100%|██████████| 3/3 [00:12<00:00,  4.11s/it]",
    "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    "CRON[22110]: (root) CMD (test -x /usr/sbin/anacron || run-parts --report /etc/cron.hourly)",
    "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:617: UserWarning: This DataLoader will create 12 worker processes in total.",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "DEBUG urllib3.connectionpool: Starting new HTTPS connection (1): artifacts.example.org:443",
    "retrying upload of metrics in 2.0 s (attempt 1 of 8); no data was lost",
    "Some weights of the value head were newly initialised, as expected for a fresh critic",
)
CTIME = re.compile(rb"^\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]", re.M)
SYSLOG = re.compile(rb"^(\w{3} [ \d]\d \d\d:\d\d:\d\d) ", re.M)


def cause_of(said: dict[str, Any]) -> str:
    verdict = said["verdict"]
    return f"{verdict['layer']}/{verdict['cause'].rpartition('/')[2]}"


def copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(SAMPLES / name / "logs", folder / "logs"))


def change(folder: Path, pattern: str, edit: Callable[[bytes], bytes]) -> None:
    """Rewrite the files of a folder whose names match."""
    files = [f for f in folder.rglob("*") if f.is_file() and re.search(pattern, f.name)]
    assert files
    for file in files:
        file.write_bytes(edit(file.read_bytes()))


def shifted(hours: float) -> Callable[[bytes], bytes]:
    """Kernel stamps as another zone writes them; epochs inside the lines stay."""

    def ctime(m: re.Match[bytes]) -> bytes:
        t = datetime.strptime(m[1].decode(), "%a %b %d %H:%M:%S %Y") + timedelta(hours=hours)
        return f"[{t:%a %b} {t.day:2d} {t:%H:%M:%S %Y}]".encode()

    def syslog(m: re.Match[bytes]) -> bytes:
        t = datetime.strptime("2026 " + m[1].decode(), "%Y %b %d %H:%M:%S") + timedelta(hours=hours)
        return f"{t:%b} {t.day:2d} {t:%H:%M:%S} ".encode()

    return lambda data: SYSLOG.sub(syslog, CTIME.sub(ctime, data))


def noisy(seed: int) -> Callable[[bytes], bytes]:
    """Other programs' lines in between, one to fifteen lines, never inside a traceback."""

    def edit(data: bytes) -> bytes:
        rng, out = Random(seed), []
        inside = False
        for line in data.split(b"\n"):
            bare = re.sub(rb"^\[rank\d+\]: ", b"", line)
            inside = bare.startswith(b"Traceback") or (inside and bare[:1] in (b" ", b"\t"))
            if not inside and bare[:1] not in (b" ", b"\t", b"|", b"=", b"-", b"") and rng.random() < 1 / 15:
                out.append(rng.choice(NOISE).encode())
            out.append(line)
        return b"\n".join(out)

    return edit


@pytest.mark.parametrize("name", FAILED)
def test_other_file_names(name: str, tmp_path: Path) -> None:
    """Names lie: every file gets one that says nothing."""
    folder = copy(name, tmp_path)
    for number, file in enumerate(sorted(f for f in folder.rglob("*") if f.is_file() and f.suffix in (".log", ".txt"))):
        file.rename(file.with_name(f"part-{number:03d}.out"))
    said = analyze(folder).to_dict()
    assert cause_of(said) == TRUTH[name].cause


@pytest.mark.parametrize("host_first", [True, False])
@pytest.mark.parametrize("name", ["gpu-lost", "token-id-out-of-range"])
def test_one_file_in_either_order(name: str, host_first: bool, tmp_path: Path) -> None:
    """The kernel's log before or behind the training log in one file: time decides, not the order of lines."""
    folder = copy(name, tmp_path)
    kernel, train = (folder / "dmesg.txt").read_bytes(), (folder / "train.log").read_bytes()
    (folder / "dmesg.txt").unlink()
    (folder / "train.log").write_bytes(kernel + train if host_first else train + kernel)
    assert cause_of(analyze(folder).to_dict()) == TRUTH[name].cause


@pytest.mark.parametrize("hours", [-8, 5.5])
@pytest.mark.parametrize("name", ["gpu-lost", "host-oom-two-nodes", "token-id-out-of-range"])
def test_host_in_another_zone(name: str, hours: float, tmp_path: Path) -> None:
    folder = copy(name, tmp_path)
    change(folder, r"dmesg|kern", shifted(hours))
    said, before = analyze(folder).to_dict(), report(name)
    assert cause_of(said) == TRUTH[name].cause
    assert said["verdict"]["culprit"].get("rank") == before["verdict"]["culprit"].get("rank")
    assert said["verdict"]["first_failure"]["line"] == before["verdict"]["first_failure"]["line"]
    offsets = {c["file"]: c["offset_s"] for c in said["clocks"]}
    for clock in before["clocks"]:
        if re.search("dmesg|kern", clock["file"]):
            assert offsets[clock["file"]] == pytest.approx(clock["offset_s"] + hours * 3600, abs=2), clock["file"]


@pytest.mark.parametrize(("name", "old", "new"), [("gpu-lost", 5, 3), ("token-id-out-of-range", 1, 2), ("gpu-oom-fragmentation", 2, 0)])
def test_ranks_renumbered(name: str, old: int, new: int, tmp_path: Path) -> None:
    """Two ranks change places in every line: the culprit changes with them, the cause does not."""
    folder = copy(name, tmp_path)
    swap = {str(old).encode(): str(new).encode(), str(new).encode(): str(old).encode()}
    places = re.compile(rb"((?:\brank|\bRank |\brank |local_rank: |rank      : |cuda:|GPU )\s?)(\d)(?=\D)")

    def edit(data: bytes) -> bytes:
        return places.sub(lambda m: m[1] + swap.get(m[2], m[2]), data)

    change(folder, r"train\.log|nccl\.", edit)
    said = analyze(folder).to_dict()
    assert cause_of(said) == TRUTH[name].cause
    assert said["verdict"]["culprit"]["rank"] == new


@pytest.mark.parametrize("name", [*FAILED, "healthy", "interrupted"])
def test_lines_of_other_programs(name: str, tmp_path: Path) -> None:
    folder = copy(name, tmp_path)
    change(folder, r"\.(log|out)$", noisy(sum(map(ord, name))))
    assert cause_of(analyze(folder).to_dict()) == TRUTH[name].cause


@pytest.mark.parametrize("name", CRASHED)
def test_without_progress_lines(name: str, tmp_path: Path) -> None:
    """A run that logs no step is judged by its failure all the same."""
    folder = copy(name, tmp_path)
    metric = re.compile(rb"'loss'|loss[: ]|iteration +\d+/|memory \(MB\)")
    change(folder, r"\.log$", lambda data: b"\n".join(line for line in data.split(b"\n") if not metric.search(line)))
    assert cause_of(analyze(folder).to_dict()) == TRUTH[name].cause


LESS = {  # what is taken away, in turn; the layers that may still be named then
    "gpu-lost": [("nccl", {"infra"}), ("gpu.csv", {"infra"}), ("dmesg.txt", {"comms", "training", "unknown"})],
    "host-oom-two-nodes": [("trn-11/kern.log", {"infra"}), ("trn-12/kern.log", {"infra", "comms", "unknown"}), ("trn-12/train.log", {"comms", "unknown"})],
    "token-id-out-of-range": [("gpu.csv", {"data"}), ("dmesg.txt", {"data"})],
    "gpu-oom-fragmentation": [("gpu.csv", {"training"})],
    "collective-order": [("torchrun.log", {"comms"}), ("attempt_0/1", {"comms"}), ("attempt_0/2", {"comms", "unknown"})],
}  # fmt: skip


@pytest.mark.parametrize("name", LESS)
def test_less_evidence_makes_less_sure(name: str, tmp_path: Path) -> None:
    folder = copy(name, tmp_path)
    sure = report(name)["verdict"]["confidence"]
    layer = TRUTH[name].cause.split("/")[0]
    for gone, allowed in LESS[name]:
        target = folder / gone
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        verdict = analyze(folder).to_dict()["verdict"]
        assert verdict["layer"] in allowed, gone
        if verdict["layer"] != layer:
            assert verdict["confidence"] < 0.8, gone
        assert verdict["confidence"] <= sure + 0.1, gone
        sure = min(sure, verdict["confidence"])


@pytest.mark.parametrize("keep", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", ["gpu-lost", "token-id-out-of-range", "loss-nan", "gpu-oom-fragmentation"])
def test_a_log_cut_off_before_the_failure_accuses_nobody(name: str, keep: float, tmp_path: Path) -> None:
    """Only the training log, cut while all was well: nothing to name yet."""
    lines = (SAMPLES / name / "logs" / "train.log").read_bytes().split(b"\n")
    first = next(n for n, line in enumerate(lines) if re.search(rb"Assertion|Watchdog|OutOfMemory|'nan'|Traceback", line))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "train.log").write_bytes(b"\n".join(lines[: int(first * keep)]) + b"\n")
    assert analyze(tmp_path / "logs").to_dict()["verdict"]["layer"] in ("none", "unknown")
