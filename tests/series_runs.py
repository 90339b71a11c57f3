"""Builds a Run with a metrics (or samples) frame by hand, and asks one rule about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import polars as pl

from forensics.run import Run
from forensics.timeline import METRICS, SAMPLES
from rules.base import Finding

FILE = "train.log"


def run_with(settings: dict[str, Any] | None = None, **columns: Sequence[float]) -> Run:
    """One reading a step; reading i of every metric stands in line i + 1 of train.log.  `__` in a name stands for `/`."""
    rows = [
        {"time": 1000.0 + 10 * i, "step": float(i + 1), "rank": None, "name": n, "value": float(v), "raw": n, "source": FILE, "line": i + 1}
        for n, values in ((name.replace("__", "/"), values) for name, values in columns.items())
        for i, v in enumerate(values)
    ]
    return Run("run", metrics=pl.DataFrame(rows, schema=METRICS), settings=settings or {})


def ranks_with(name: str, readings: dict[int, Sequence[float]]) -> Run:
    """The same metric printed by several ranks, one line each."""
    rows = []
    for i in range(max(map(len, readings.values()))):
        for rank, values in readings.items():
            place = {"time": 1000.0 + i, "step": float(i), "source": FILE, "line": i * len(readings) + rank + 1}
            rows.append({**place, "rank": rank, "name": name, "value": float(values[i]), "raw": name})
    return Run("run", metrics=pl.DataFrame(rows, schema=METRICS))


def samples_with(used: Sequence[float], total: float = 81920.0) -> Run:
    """nvidia-smi readings of one card, every ten seconds."""
    blank: dict[str, Any] = dict.fromkeys(SAMPLES)
    rows = [
        {**blank, "time": 1000.0 + 10 * i, "gpu": "0", "memory_used": float(v), "memory_total": total, "source": "gpu.csv", "line": i + 2}
        for i, v in enumerate(used)
    ]
    return Run("run", samples=pl.DataFrame(rows, schema=SAMPLES))


def accused(judge: Callable[[Run], Iterable[Finding]], run: Run) -> dict[str, Finding]:
    """The causes that the rule names, strong enough to name a failure (verdict floor 0.22)."""
    return {f.cause: f for f in judge(run) if f.outcome == "found" and f.cause and f.role in ("root", "consequence") and f.weight > 0.22}
