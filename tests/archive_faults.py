"""Work for the pool that goes wrong where a run's path says so, and is the real work everywhere else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from forensics.archive.work import handle as real


def handle(task: dict[str, Any]) -> dict[str, Any]:
    """`killed`, `loops`, `eats`, `raises` in the path do that; `slow` takes a moment first."""
    path = task["path"]
    if "killed" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    if "loops" in path:
        while True:
            pass
    if "eats" in path:
        held = []
        while True:
            held.append(b"\1" * (8 << 20))
            time.sleep(0.002)
    if "raises" in path:
        raise RuntimeError("boom")
    return real(task)


def slow(task: dict[str, Any]) -> dict[str, Any]:
    """The real work after a moment, so that a test can step in between; counts its calls in `calls` beside the output."""
    time.sleep(0.4)
    with (Path(task["out"]).parent / "calls").open("a") as file:
        file.write(task["path"] + "\n")
    return real(task)


def tiny(task: dict[str, Any]) -> dict[str, Any]:
    """No analysis: only what a result looks like, for tests of the machinery with many runs."""
    if "slow" in task["path"]:
        time.sleep(0.3)
    reports = Path(task["out"]) / "reports"
    for suffix in (".html", ".json"):
        (reports / f"{task['run']}{suffix}").write_text("{}")
    row = {
        "started": None,
        "ended": None,
        "duration_s": None,
        "hosts": [],
        "job": None,
        "layer": "none",
        "cause": "healthy",
        "title": "t",
        "world_size": None,
    }
    row |= {
        "gpu_hours": None,
        "gpu_hours_lost": 0.0,
        "message": None,
        "template": None,
        "culprit_host": None,
        "culprit_gpu": None,
        "culprit_rank": None,
    }
    return {
        "hash": "0",
        "runs": [{"run": task["run"], "path": task["path"], "row": {**row, "confidence": 0.9}, "findings": []}],
        "left": [],
    }
