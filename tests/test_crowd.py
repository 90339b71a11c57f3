"""A run of very many small logs: the same result on any number of processes, none of it lost with one of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import forensics
from forensics import crowd
from forensics.reading import Reader

RANKS = crowd.CROWD + 40
CULPRIT = RANKS - 7  # far behind the files that are read first


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crowd")
    for rank in range(RANKS):
        lines = [f"2026-03-01 10:00:0{rank % 10},{rank % 1000:03d} INFO rank {rank} world size {RANKS} host node{rank // 8:03d}"]
        for step in range(1, 13):
            lines.append(
                f"node{rank // 8:03d}:{4000 + rank}:{9000 + rank} [{rank % 8}] NCCL INFO Channel {step:02d}/0 : {rank}[0] -> 1[1] via P2P"
            )
            lines.append(f"2026-03-01 10:{step:02d}:00,000 INFO step: {step} loss: {2.5 - step / 40:.3f} grad_norm: 0.8{rank % 10}")
        if rank == CULPRIT:
            lines += [
                "Traceback (most recent call last):",
                '  File "train.py", line 210, in <module>',
                "    loss = model(batch)",
                "RuntimeError: The size of tensor a (4096) must match the size of tensor b (4095) at non-singleton dimension 1",
            ]
        else:
            lines.append(
                f"[rank{rank}]:[E301 10:42:{rank % 60:02d}.100000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=1800000) ran for 1800050 milliseconds before timing out."
            )
        (folder / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
        if rank % 20 == 0:  # a table among the logs: the dataframe engine's threads do not live through a fork
            samples = [f"2026/03/01 10:{m:02d}:00.000, {gpu}, {90 + gpu} %, {61_000 + rank} MiB" for m in range(12) for gpu in range(4)]
            header = "timestamp, index, utilization.gpu [%], memory.used [MiB]"
            (folder / f"node{rank // 8:03d}-gpu.csv").write_text("\n".join([header, *samples]) + "\n")
    return folder


def document(run: Path) -> dict[str, object]:
    out = json.loads(forensics.analyze(run).to_json())
    out.pop("generated", None)
    return out


def test_any_number_of_processes_gives_the_same_document(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "processes", 1)
    alone = document(run)
    monkeypatch.setattr(crowd, "processes", 3)
    assert document(run) == alone
    report = forensics.analyze(run)
    assert report.timeline.samples.height == 48 * len(list(run.glob("*.csv")))
    assert alone["verdict"]["cause"] == "shape-mismatch"
    assert alone["verdict"]["culprit"]["rank"] == CULPRIT
    assert alone["verdict"]["first_failure"]["file"] == f"rank_{CULPRIT}.log"


def test_a_killed_process_costs_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "processes", 1)
    alone = document(run)
    parent, small = os.getpid(), Reader._log

    def fatal(self: Reader, member, shared):
        if os.getpid() != parent and member.path == f"rank_{RANKS - 100}.log":
            os.kill(os.getpid(), signal.SIGKILL)
        return small(self, member, shared)

    monkeypatch.setattr(Reader, "_log", fatal)
    monkeypatch.setattr(crowd, "processes", 2)
    assert document(run) == alone


def test_a_run_of_few_files_forks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with crowd.readers(lambda member, shared: None, wanted=False) as pool:
        assert pool is None
    monkeypatch.setattr(crowd, "processes", 1)
    with crowd.readers(lambda member, shared: None, wanted=True) as pool:
        assert pool is None
