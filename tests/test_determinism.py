"""The same evidence gives the same bytes: on any number of threads, with any hash seed, in any order of listing."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from forensics import analyze, evidence
from forensics.analysis import reader_for

SCRIPT = (
    "import sys; from forensics import analyze; r = analyze(sys.argv[1]); sys.stdout.write(r.to_json() + r.to_markdown() + r.to_html())"
)
LINES = (
    "INFO step {n} loss {x:.3f} grad_norm {y:.2f}",
    "[rank{r}]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "node{r}:12{r}:99 [{r}] NCCL WARN Call to connect returned Connection timed out",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU {r} has a total capacity of 79.15 GiB of which 1.62 MiB is free.",
    "slurmstepd: error: *** JOB 12 ON node{r} CANCELLED AT 2026-03-01T11:00:00 DUE TO TIME LIMIT ***",
)


def make(folder):
    pick = random.Random(7)
    folder.mkdir()
    for rank in range(6):
        lines = []
        for n in range(200):
            form = LINES[0] if n < 180 else pick.choice(LINES)
            lines.append(f"2026-03-01 10:{n // 60:02d}:{n % 60:02d} " + form.format(n=n, r=rank, x=2 / (n + 1), y=pick.random()))
        (folder / f"node{rank}_rank_{rank}.log").write_text("\n".join(lines) + "\n")
    (folder / "dmesg.txt").write_text(
        "[Sun Mar  1 10:03:01 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=12, GPU has fallen off the bus.\n" * 3
    )
    return folder


def everything(run) -> str:
    report = analyze(run)
    return report.to_json() + report.to_markdown() + report.to_html()


def test_threads_and_the_order_of_listing_change_nothing(tmp_path, monkeypatch):
    from forensics import reading

    run = make(tmp_path / "run")
    first = everything(run)
    monkeypatch.setattr(reading, "SMALL", 0)  # every file goes through the pool
    real = os.scandir
    for threads in (1, 5):
        monkeypatch.setattr(reader_for(()), "threads", threads)
        monkeypatch.setattr(
            evidence.os, "scandir", lambda path, seed=threads: random.Random(seed).sample(found := list(real(path)), len(found))
        )
        assert everything(run) == first


def test_hash_seeds_change_nothing(tmp_path):
    run = make(tmp_path / "run")
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(run)], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "4321")
    }
    assert len(outputs) == 1
