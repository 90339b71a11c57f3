"""GPU out of memory read from the allocator's own numbers (S1, S11, S12, Q12): too big, fragmented, leaked, or held by another.

Thresholds: another holder must have at least 5 % of the card and more than was asked for; fragmentation means that what the
allocator held unused would have been enough for the request and is a tenth of the card or four times the request; a leak is a rise
of allocated memory over at least six readings.  The hint about `max_split_size_mb` or `expandable_segments` stands in every message.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.process_view import finding, order, went_on

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

OWN = 4096.0  # MiB above the allocator's reserve that one process of the list may hold and still be this one
OVERHEAD = 1500.0  # MiB a CUDA context and NCCL buffers take outside the allocator
LEAK_NAMES = ("memory_allocated", "gpu_memory_allocated", "max_memory_allocated", "gpu_memory", "memory_reserved")


def reading(fields: dict[str, Any]) -> tuple[str, str, float, dict[str, float]]:
    """(rule id, cause, weight, numbers in MiB) for one allocator message."""
    capacity, free, tried = fields.get("capacity"), fields.get("free"), fields.get("tried")
    reserved, unallocated, used = fields.get("reserved"), fields.get("unallocated"), fields.get("used")
    numbers = {k: round(float(v), 1) for k, v in fields.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    others = sum(float(o["used"]) for o in fields.get("other") or [])
    if used is None and reserved is not None and len(listed := fields.get("other") or []) >= 1:
        # In a container torch sees host pids: its own process then stands in the list like a stranger's.
        own = [float(o["used"]) for o in listed if reserved * 0.99 <= float(o["used"]) <= reserved + OWN]
        if own:
            used = min(own)
            others -= used
    if fields.get("flavour") == "engine":
        return "gpu-oom.engine", "training/gpu-oom", 0.6, numbers
    if capacity and free is not None:
        mine = used if used is not None else (reserved + OVERHEAD if reserved is not None else None)
        foreign = max(others, capacity - free - mine if mine is not None else 0.0)
        numbers["foreign"] = round(foreign, 1)
        wanted = tried or 0.0
        if foreign > max(0.05 * capacity, wanted) and foreign > (0.6 if others else 0.3) * (mine or 0.0):
            return "gpu-oom.other", "infra/gpu-memory-held-by-other", 0.8 if foreign > 0.4 * capacity else 0.6, numbers
    if tried and unallocated and unallocated >= tried and (unallocated >= 4 * tried or (capacity and unallocated >= 0.1 * capacity)):
        large = bool(capacity and unallocated >= 0.1 * capacity)
        return "gpu-oom.fragmented", "training/gpu-oom-fragmentation", 0.78 if large else 0.5, numbers
    return "gpu-oom.full", "training/gpu-oom", 0.72, numbers


def _rising(run: Run) -> tuple[str, list[Evidence], float, float] | None:
    """The memory series that climbs without falling back, with its ends; None where there is none."""
    for name in LEAK_NAMES:
        series = run.series(name)
        values = [v for v in series.value if v == v]
        if len(values) < 6:
            continue
        tail = values[len(values) // 4 :]  # the beginning is warm-up
        ups = sum(b > a for a, b in pairwise(tail))
        falls = sum(b < a * 0.98 for a, b in pairwise(tail))
        if tail[-1] > 1.15 * tail[0] and ups >= 0.5 * (len(tail) - 1) and falls <= 0.1 * len(tail):
            return name, [series.evidence(0), series.evidence(len(series) - 1)], values[0], values[-1]
    return None


def _sampled_rise(run: Run) -> tuple[float, float] | None:
    """First and last GPU memory (MiB) from nvidia-smi samples when it climbs steadily by more than a fifth of the card."""
    if run.samples is None or not run.samples.height or "memory_used" not in run.samples.columns:
        return None
    import polars as pl

    frame = run.samples.filter(pl.col("memory_used").is_not_null())
    if frame.height < 20:
        return None
    for (_,), part in frame.group_by(["gpu"], maintain_order=True):
        values = part["memory_used"].to_list()
        if len(values) < 20:
            continue
        size = max(1, len(values) // 10)
        means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
        tail = means[2:]
        total = part["memory_total"].drop_nulls()
        card = float(total[0]) if total.len() else max(values) * 1.1
        if len(tail) >= 5 and all(b >= a - 0.005 * card for a, b in pairwise(tail)) and tail[-1] - tail[0] > 0.2 * card:
            return float(means[0]), float(means[-1])
    return None


def _judge(run: Run) -> Iterator[Finding]:
    events = sorted((e for e in run.kind("gpu_oom")), key=order)
    if not events:
        return
    live: list[Event] = []
    survived: list[Event] = []
    for event in events:
        (survived if went_on(run, event) else live).append(event)
    if survived and not live:
        yield finding(
            "gpu-oom.survived",
            survived,
            _places(survived),
            outcome="excluded",
            cause="training/gpu-oom",
            role="recovery",
            weight=0.0,
            severity="info",
        )
        return
    if not live:
        return
    first = live[0]
    detailed = next((e for e in live if not e.fields.get("zero_alloc")), first)
    same = [e for e in live if e.fields.get("zero_alloc") == detailed.fields.get("zero_alloc")]
    rule, cause, weight, numbers = reading(detailed.fields)
    if detailed.fields.get("zero_alloc"):
        rule, weight = "gpu-oom.plain", 0.55
    summary = next((e for e in run.kind("memory_summary") if e.fields.get("retries")), None)
    evidence = _places(same)
    if summary is not None:
        evidence.append(Evidence(summary.source, summary.line, summary.text[:200], summary.time))
    lead = finding(
        rule,
        same,
        evidence,
        cause=cause,
        weight=weight,
        facts={**numbers, "flavour": detailed.fields.get("flavour")},
        covers=("S11", "S12", "Q12"),
    )
    lead.ranks = sorted({e.rank for e in same if e.rank is not None})[:64] if detailed is first else lead.ranks
    yield lead
    rise = _rising(run)
    if rise is not None and cause != "infra/gpu-memory-held-by-other":
        name, places, low, high = rise
        yield finding(
            "gpu-memory.rising",
            [first],
            [*_places([first]), *places],
            cause="training/gpu-memory-leak",
            weight=0.8,
            facts={"metric": name, "low": round(low, 2), "high": round(high, 2)},
            covers=("S11",),
        )
    else:
        sampled = _sampled_rise(run)
        if sampled is not None and cause != "infra/gpu-memory-held-by-other":
            yield finding(
                "gpu-memory.rising",
                [first],
                _places([first]),
                cause="training/gpu-memory-leak",
                weight=0.75,
                facts={"metric": "memory.used", "low": round(sampled[0]), "high": round(sampled[1])},
                covers=("S11", "S1"),
            )


def _places(events: list[Event]) -> list[Evidence]:
    return [Evidence(e.source, e.line, e.text[:400], e.time) for e in events[:5]]


RULES = (Rule("gpu-oom", _judge, covers=("S1", "S11", "S12", "Q12")),)
