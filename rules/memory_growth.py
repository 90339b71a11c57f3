"""Memory that grows from step to step: GPU memory by metrics and by nvidia-smi samples, host memory (L5, S1, S11, Q2, Q3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.series_view import excluded, found, last_attempt, series, short, undecided
from rules.statistics import finite, growth, median, plateau, sawtooth, slope_onset, tail_level

if TYPE_CHECKING:
    import polars as pl

    from forensics.run import Run, Series

READINGS = 10  # fewer do not show a slope
STEADY = 0.85  # Kendall's tau of a leak; a caching allocator that fills up and stays has a plateau instead
MOST = 2000  # readings of one card that are looked at
RISE = 0.10  # least rise, as a share of the first level or of the card
METRICS = ("memory_allocated", "memory_allocated_peak", "memory_active_peak", "memory_reserved", "memory_reserved_peak")
OOM_KINDS = ("gpu_oom", "cuda_oom", "torch_oom", "oom")


def leaks(values: Sequence[float], capacity: float | None = None) -> tuple[int, float, float, float] | None:
    """(position where growth shows, first level, last level, tau) of a steady climb, or None."""
    clean = finite(values)
    if len(clean) < READINGS:
        return None
    first = median(clean[:3])
    # A flat first part (the leak starts with some feature, or after warm-up) is not part of the climb.
    flat = 0
    while flat < len(clean) and clean[flat] <= first * 1.01:
        flat += 1
    flat = max(0, flat - 1)
    skipped = flat if len(clean) - flat >= READINGS else 0
    clean = clean[skipped:]
    _, tau, rise = growth(clean)
    if tau < STEADY or rise <= RISE * max(first, 0.3 * capacity if capacity else 0.0, 1e-9):
        return None
    if plateau(clean) or sawtooth(clean) > 0.05 or len({round(v, 3) for v in clean}) < max(6, min(20, len(clean) // 4)):
        return None
    largest = max(b - a for a, b in pairwise(clean))
    if largest > 0.5 * (clean[-1] - clean[0]):
        return None  # one step up: another phase began
    return slope_onset(values), first, tail_level(clean), tau


def _ooms(run: Run) -> bool:
    return bool(run.kind(*OOM_KINDS)) or any("oom" in (e.signature or "") for e in run.events)


def judge_metrics(run: Run) -> Iterator[Finding]:
    """The framework's own memory readings climb steadily at constant batch shape."""
    covers = ("S11", "Q12")
    lines = [line for name in METRICS if len(line := series(run, name)) >= READINGS]
    if not lines:
        yield undecided("series.memory-leak", "training/gpu-memory-leak", covers, "memory_allocated")
        return
    length = series(run, "response_length", "batch_max_length", "seq_len")
    for line in lines:
        hit = leaks(line.value)
        if hit is None or (line.name.endswith("_peak") and not _steadily(line.value[hit[0] :])):
            continue
        index, first, last, tau = hit
        if len(length) >= READINGS and growth(length.value)[1] > 0.7:
            continue  # longer sequences need more memory
        weight = 0.85 if _ooms(run) else 0.5
        yield found(
            "series.memory-leak",
            "training/gpu-memory-leak",
            line,
            index,
            weight,
            covers,
            first=short(first),
            last=short(last),
            tau=f"{tau:.2f}",
            unit="GB",
        )
        return
    yield excluded("series.memory-leak", "training/gpu-memory-leak", covers, lines[0], last=short(tail_level(lines[0].value)))


def _steadily(values: Sequence[float]) -> bool:
    """A running maximum of noise rises too, but ever more slowly: a leak's peak rises as much in its last half as in its first."""
    clean = finite(values)
    half = len(clean) // 2
    return clean[-1] - clean[half] > 0.5 * (clean[half] - clean[0])


def _cards(run: Run) -> Iterator[tuple[str | None, str | None, pl.DataFrame]]:
    """(host, gpu, samples in order of reading) of each card, at most 512."""
    if run.samples is None or not run.samples.height:
        return
    import polars as pl

    rows = run.samples.filter(pl.col("memory_used").is_not_null())
    if not rows.height:
        return
    for number, (_, part) in enumerate(rows.group_by(["host", "gpu", "pci", "source"], maintain_order=True)):
        if number >= 512:
            return
        if part.height > 2 * MOST:
            part = part.gather_every(-(-part.height // MOST))  # a climb shows in a sample of the samples
        head = part.row(0, named=True)
        yield head["host"], head["gpu"] or head["pci"], part


def judge_samples(run: Run) -> Iterator[Finding]:
    """nvidia-smi readings of one card climb steadily to its limit."""
    covers = ("S1", "S11", "Q2", "S12")
    seen = 0
    best: tuple[float, Finding] | None = None
    for host, gpu, part in _cards(run):
        used = [math.nan if v is None else v for v in part["memory_used"].to_list()]
        total = part["memory_total"].max()
        capacity = float(total) if isinstance(total, (int, float)) else None
        seen = max(seen, len(used))
        hit = leaks(used, capacity)
        if hit is None:
            hit = _slow_climb(used, capacity)
        if hit is None:
            continue
        index, first, last, tau = hit
        near = capacity is not None and last > 0.9 * capacity
        weight = 0.8 if near and _ooms(run) else 0.74 if near else 0.5 if _ooms(run) else 0.42
        row = part.row(index, named=True)
        text = f"memory.used = {row['memory_used']:g} MiB" + (f" of {capacity:g}" if capacity else "")
        finding = Finding(
            rule="series.memory-climb",
            cause="training/gpu-memory-leak",
            weight=weight,
            time=row["time"],
            evidence=[Evidence(row["source"], row["line"], text, row["time"])],
            host=host,
            gpu=gpu,
            covers=covers,
            facts={"first": short(first), "last": short(last), "tau": f"{tau:.2f}", "unit": "MiB", "gpu": gpu or "?"},
        )
        if best is None or weight > best[0]:
            best = (weight, finding)
    if best is not None:
        yield best[1]
    elif seen >= READINGS:
        yield excluded("series.memory-climb", "training/gpu-memory-leak", covers)
    else:
        yield undecided("series.memory-climb", "training/gpu-memory-leak", covers, "gpu_samples")


def _slow_climb(used: Sequence[float], capacity: float | None) -> tuple[int, float, float, float] | None:
    """A climb that starts high: small against the first level, yet steady and ending at the card's limit."""
    clean = finite(used)
    if capacity is None or len(clean) < 3 * READINGS or tail_level(clean) < 0.97 * capacity:
        return None
    _, tau, rise = growth(used)
    if tau < STEADY or rise < 0.03 * capacity or plateau(clean) or sawtooth(clean) > 0.1:
        return None
    return slope_onset(used, 0.12), median(clean[:3]), tail_level(clean), tau


def judge_host(run: Run) -> Iterator[Finding]:
    """Host memory of the process or the node climbs steadily: the precursor of an OOM kill."""
    covers = ("Q2",)
    for name in ("process_rss", "host_memory_used", "host_memory_percent"):
        line = last_attempt(run.series(name))
        hit = leaks(line.value)
        if hit is not None:
            index, first, last, tau = hit
            yield found(
                "series.host-memory",
                "infra/host-memory-exhausted",
                line,
                index,
                0.35,
                covers,
                role="precursor",
                severity="warning",
                first=short(first),
                last=short(last),
                tau=f"{tau:.2f}",
            )
            return
        if len(line) >= READINGS:
            yield excluded("series.host-memory", "infra/host-memory-exhausted", covers, line)
            return
    yield undecided("series.host-memory", "infra/host-memory-exhausted", covers, "host_memory_used")


def judge_balance(run: Run) -> Iterator[Finding]:
    """Q3: some cards of the run use far less memory than the others (uneven batches or a rank that did not start)."""
    covers = ("Q3",)
    levels: dict[str, tuple[float, Evidence]] = {}
    for host, gpu, part in _cards(run):
        used = finite([math.nan if v is None else v for v in part["memory_used"].to_list()])
        if used:
            row = part.row(part.height // 2, named=True)
            levels[f"{host or ''}:{gpu}"] = (
                median(used),
                Evidence(row["source"], row["line"], f"memory.used = {row['memory_used']:g} MiB", row["time"]),
            )
    if len(levels) < 2:
        yield undecided("series.memory-balance", "data/uneven-batches", covers, "gpu_samples")
        return
    middle = median([v for v, _ in levels.values()])
    low = [place for v, place in levels.values() if v < 0.5 * middle and v > 500]
    if low and len(low) < len(levels) / 2 and middle > 2000:
        yield Finding(
            rule="series.memory-balance",
            cause="data/uneven-batches",
            role="context",
            weight=0.2,
            severity="warning",
            time=low[0].time,
            evidence=low[:3],
            covers=covers,
            facts={"low": len(low), "of": len(levels), "middle": short(middle)},
        )
        return
    yield excluded("series.memory-balance", "data/uneven-batches", covers)


def last_level(line: Series) -> str:
    """The last level of a memory series in words (for the checklist)."""
    return short(tail_level(line.value)) if len(line) else "?"


RULES = (
    Rule("series.memory-leak", judge_metrics, ("S11", "Q12")),
    Rule("series.memory-climb", judge_samples, ("S1", "S11", "Q2", "S12")),
    Rule("series.host-memory", judge_host, ("Q2",)),
    Rule("series.memory-balance", judge_balance, ("Q3",)),
)
