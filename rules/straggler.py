"""A rank whose own part of the step grows while the others wait for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

#: metrics of a rank's own work (waiting for others is not in them), then of the whole step
OWN = ("data_time", "compute_time", "forward_time", "forward_backward_time", "batch_time", "data_loading_time")
RATIO = 3.0  # the slow rank's own time over the median of the others'
SHARE = 0.25  # of the step that the excess must make up
MIN_POINTS = 3
COVERS = ("L4.4", "S6")


def judge(run: Run) -> Iterable[Finding]:
    """One finding: the rank that is slower than all others in the last part of the run, in its own part of the step."""
    frame = run.metrics
    if frame is None or not frame.height or "rank" not in frame.columns:
        return
    import polars as pl

    names = [name for name in OWN if name in run.names()]
    for name in names:
        rows = frame.filter((pl.col("name") == name) & pl.col("rank").is_not_null() & pl.col("value").is_finite())
        if rows["rank"].n_unique() < 2:
            continue
        last: dict[int, list[tuple[float, str, int, float | None]]] = {}
        for row in rows.iter_rows(named=True):
            last.setdefault(row["rank"], []).append((row["value"], row["source"], row["line"], row["time"]))
        found = _slowest({rank: values for rank, values in last.items() if len(values) >= MIN_POINTS})
        if found is None:
            continue
        rank, own, others, start = found
        step = list(run.series("step_time", rank).value[-5:]) or [own]
        if own - others < SHARE * median(step):
            continue
        value, source, line, time = last[rank][start]
        yield Finding(
            "straggler-own-time",
            cause="comms/straggler",
            weight=0.75,
            time=time,
            evidence=[
                Evidence(source, line, f"{name} = {value:g}", time),
                Evidence(last[rank][-1][1], last[rank][-1][2], f"{name} = {last[rank][-1][0]:g}", last[rank][-1][3]),
            ],
            rank=rank,
            ranks=[rank],
            covers=COVERS,
            facts={"metric": name, "rank": rank, "own": round(own, 3), "others": round(others, 3)},
        )
        return


def _slowest(values: dict[int, list[tuple[float, str, int, float | None]]]) -> tuple[int, float, float, int] | None:
    """(rank, its recent time, the others' median, index where it began to exceed RATIO times that), or None."""
    if len(values) < 2:
        return None
    recent = {rank: median(v[0] for v in rows[-3:]) for rank, rows in values.items()}
    rank = max(recent, key=lambda r: recent[r])
    others = median(v for r, v in recent.items() if r != rank)
    own = recent[rank]
    second = max(v for r, v in recent.items() if r != rank)
    if own < RATIO * max(others, 1e-3) or own < 1.5 * second or own < 0.05:
        return None
    rows = values[rank]
    limit = max(RATIO * others, 0.1 * own)
    start = len(rows) - 1
    while start > 0 and rows[start - 1][0] > limit:
        start -= 1
    return rank, own, others, start


#: names of a rank's own computing in words of the user's own (`fwd_bwd_ms`, `forward_time`)
COMPUTE = re.compile(
    r"(?i)(?:fwd|bwd|forward|backward|compute|matmul|gemm)[\w/.-]{0,30}?(?:_?ms|_?time|_s|secs?|seconds)\b(?!.*(?:comm|sync|wait|reduce|gather))"
)
STEADY_POINTS = 20  # readings of each rank
STEADY_RANKS = 4  # of which one differs
EXCESS = 0.05  # of the others' level; boost clocks of equal cards differ by 2 to 3 %


def judge_steady(run: Run) -> Iterable[Finding]:
    """One rank that needs a little longer for the same work in every step, far outside the spread of all others: a slow card."""
    frame = run.metrics
    if frame is None or not frame.height or "rank" not in frame.columns:
        return
    import polars as pl

    for name in sorted(n for n in run.names() if COMPUTE.search(n) or n in OWN[1:4]):
        rows = frame.filter((pl.col("name") == name) & pl.col("rank").is_not_null() & pl.col("value").is_finite())
        if rows["rank"].n_unique() < STEADY_RANKS:
            continue
        table = rows.group_by("rank").agg(
            pl.col("value").median().alias("level"), pl.col("value").quantile(0.1).alias("low"), pl.len().alias("count")
        )
        if table["count"].min() < STEADY_POINTS:  # type: ignore[operator]
            continue
        ordered = table.sort("level", descending=True)
        rank, own, low = int(ordered["rank"][0]), float(ordered["level"][0]), float(ordered["low"][0])
        rest = ordered["level"][1:]
        others, spread = float(rest.median()), float(rest.max()) - float(rest.min())  # type: ignore[arg-type]
        if others <= 0 or own - others < EXCESS * others or own - others < 4 * spread or low <= float(rest.max()):  # type: ignore[arg-type]
            continue
        mine = rows.filter(pl.col("rank") == rank)
        start = float(mine["value"].head(mine.height // 4).median())  # type: ignore[arg-type]
        if rank in (ordered["rank"].min(), ordered["rank"].max()) and start - others > 0.5 * EXCESS * others:
            continue  # slower from the first step on: rank 0 also logs, the first and last stage of a pipeline also embed
        first = mine.row(0, named=True)
        yield Finding(
            "straggler-steady",
            cause="infra/gpu-slow",
            weight=0.45,
            time=first["time"],
            evidence=[Evidence(first["source"], first["line"], f"{name} = {first['value']:g}", first["time"])],
            rank=rank,
            ranks=[rank],
            covers=COVERS,
            facts={
                "metric": name,
                "rank": rank,
                "own": f"{own:.4g}",
                "others": f"{others:.4g}",
                "spread": f"{spread:.2g}",
                "excess": round(100 * (own / others - 1)),
                "lasting": True,
            },
        )
        return


def judge_spread(run: Run) -> Iterable[Finding]:
    """Timers printed as (min, max) across ranks: the spread of the computing part opened up, so some rank is slow."""
    names = run.names()
    for name in sorted(n for n in names if n.startswith("timer_max/")):
        part = name.partition("/")[2]
        if any(word in part for word in ("sync", "reduce", "gather", "setup", "comm", "wait", "barrier", "send", "recv")):
            continue  # these hold the waiting for others
        high, low = run.series(name), run.series(f"timer_min/{part}")
        if len(high) < MIN_POINTS or len(low) != len(high):
            continue
        ratio = [b / a if a > 0 else 1.0 for a, b in zip(low.value, high.value, strict=True)]
        step = run.series("step_time")
        if (
            ratio[-1] < RATIO
            or min(ratio) > ratio[-1] / 2
            or median(ratio[:-1]) > RATIO * 3
            or high.value[-1] < 0.5 * (step.value[-1] if len(step) else 0.0)
        ):
            continue
        start = len(ratio) - 1
        while start > 0 and ratio[start - 1] > 1.5 * min(ratio):
            start -= 1
        evidence = [high.evidence(start), high.evidence(len(high) - 1)]
        # the iteration line above the table carries the time
        above = [i for i in range(len(step)) if step.source[i] == high.source[start] and step.line[i] <= high.line[start]]
        if above:
            evidence.insert(0, step.evidence(above[-1]))
        yield Finding(
            "straggler-spread",
            cause="comms/straggler",
            weight=0.62,
            time=evidence[0].time,
            evidence=evidence,
            covers=COVERS,
            facts={"metric": part, "before": round(min(ratio), 2), "after": round(ratio[-1], 2)},
        )
        return


#: signatures of detectors' reports on slow ranks
REPORTS = frozenset({"nvrx-straggler", "straggler-named", "straggler-report"})


def judge_reported(run: Run) -> Iterable[Finding]:
    """A detector named the same rank over and over, and the run did not reach its end."""
    events = [e for e in run.events if e.signature in REPORTS]
    named: dict[int, list[Event]] = {}
    for event in events:
        text = event.fields.get("rank") or event.fields.get("rank2")
        if text is not None and str(text).isdigit():
            named.setdefault(int(text), []).append(event)
    if not named or any(f.role in ("done", "stop") and f.outcome == "found" for f in run.findings):
        return
    rank, told = max(named.items(), key=lambda item: len({(e.source, e.line) for e in item[1]}))
    yield Finding(
        "straggler-reported",
        cause="comms/straggler",
        weight=0.55 if len({(e.source, e.line) for e in told}) > 1 else 0.45,
        time=told[0].time,
        evidence=[run.evidence(e) for e in told[:4]],
        rank=rank,
        ranks=[rank],
        covers=COVERS,
        facts={"rank": rank},
        count=len(told),
    )


RULES = (
    Rule("straggler", judge, covers=COVERS),
    Rule("straggler-steady", judge_steady, covers=COVERS),
    Rule("straggler-spread", judge_spread, covers=COVERS),
    Rule("straggler-reported", judge_reported, covers=COVERS),
)
