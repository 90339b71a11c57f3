"""Speed: slow steps, throughput that falls, one rank that holds up the rest, waiting for data, recompilation (Q7, L4.3, Q3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Finding, Rule
from rules.series_view import excluded, found, last_attempt, level, series, short, undecided
from rules.statistics import MIN_POINTS, departure, finite, median, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

SLOWER = 0.4  # least relative rise of the step time that is called slow
DATA_SHARE = 0.5  # share of a step spent waiting for data
RECOMPILES = 8  # recompilations of one function; dynamo's own limit is 8 per code object
RATES = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "steps_per_s", "tflops_per_gpu")
OWN_TIME = ("data_time", "own_time", "compute_time", "forward_time")  # a rank's own part of a step; step_time includes waiting


def _per_rank(run: Run, name: str) -> dict[int, Series]:
    """The metric of each rank that printed it (four readings at least, at most 4,096 ranks)."""
    if run.metrics is None or name not in run.names():
        return {}
    import polars as pl

    ranks = run.metrics.filter((pl.col("name") == name) & pl.col("rank").is_not_null())["rank"].unique().sort().to_list()
    found_here = {rank: last_attempt(run.series(name, rank)) for rank in ranks[:4096]}
    return {rank: line for rank, line in found_here.items() if len(line) >= 4}


def judge_straggler(run: Run) -> Iterator[Finding]:
    """One rank whose own part of the step is far above everyone else's while they wait for it."""
    covers = ("L4.3", "Q3", "L4.4")
    names = [n for n in OWN_TIME if n in run.names()] + sorted(
        n for n in run.names() if n.startswith("time/") and n.endswith(("data", "compute", "forward"))
    )
    for name in [*names[:6], "step_time"]:
        lines = _per_rank(run, name)
        if len(lines) < 2:
            continue
        late = {rank: tail_level(line.value) for rank, line in lines.items()}
        middle = median(list(late.values()))
        worst = max(late, key=lambda r: late[r])
        others = [v for r, v in late.items() if r != worst]
        pace = tail_level(series(run, "step_time").value) if "step_time" in run.names() else late[worst]
        alone = (
            late[worst] > max(3 * max(max(others), 1e-9), middle + 0.3 * max(pace, 1e-9))
            if name != "step_time"
            else late[worst] > 1.5 * max(others)
        )
        if not alone or late[worst] < 0.05:
            continue
        line = lines[worst]
        index = _first_slow(line)
        weight = 0.72 if late[worst] > 0.5 * pace else 0.55
        yield found(
            "series.straggler",
            "comms/straggler",
            line,
            index,
            weight,
            covers,
            rank=worst,
            ranks=[worst],
            host=_host(run, worst),
            slow=short(late[worst]),
            others=short(middle),
        )
        return
    yield undecided("series.straggler", "comms/straggler", covers, "step_time_per_rank")


def _first_slow(line: Series) -> int:
    spot = departure(line.value, relative=1.0, floor=0.02)
    if spot is not None:
        return spot.index
    top = tail_level(line.value)
    return next((i for i, v in enumerate(line.value) if v > 0.2 * top), 0)


def _host(run: Run, rank: int) -> str | None:
    info = run.ranks.get(rank)
    return info.host if info is not None else None


def _slow_from(run: Run) -> tuple[Series, int, float, float] | None:
    """(series, position, level before, level after) of the first lasting loss of speed."""
    step = series(run, "step_time")
    if len(step) >= MIN_POINTS:
        spot = departure(step.value, k=8.0, relative=SLOWER)
        if spot is not None:
            return step, spot.index, spot.baseline, spot.final
    for name in RATES:
        line = series(run, name)
        if len(line) < MIN_POINTS:
            continue
        spot = departure(line.value, up=False, k=8.0, relative=SLOWER / (1 + SLOWER))
        if spot is not None:
            return line, spot.index, spot.baseline, spot.final
    return None


def judge_slow(run: Run) -> Iterator[Finding]:
    """Steps that became slower for good (a slow start that speeds up is compilation and caches)."""
    covers = ("Q7",)
    step = series(run, "step_time")
    if not any(len(series(run, name)) >= MIN_POINTS for name in ("step_time", *RATES)):
        yield undecided("series.slow-step", "training/slow-step", covers, "step_time")
        return
    hit = _slow_from(run)
    if hit is None:
        line = step if len(step) else next(series(run, name) for name in RATES if len(series(run, name)))
        yield excluded(
            "series.slow-step", "training/slow-step", covers, line, level=short(level(line)), slow=len(step) > 0 and level(step) > 1.0
        )
        return
    line, index, before, after = hit
    length = departure_of_length(run)
    if length:
        yield excluded("series.slow-step", "training/slow-step", covers, line, index, reason="length", level=short(after))
        return
    yield found("series.slow-step", "training/slow-step", line, index, 0.42, covers, baseline=short(before), final=short(after))


def departure_of_length(run: Run) -> bool:
    """Longer answers or sequences explain longer steps."""
    for name in ("response_length", "total_length", "seq_len"):
        line = series(run, name)
        if len(line) >= MIN_POINTS:
            spot = departure(line.value, relative=0.3)
            if spot is not None:
                return True
    return False


def judge_data(run: Run) -> Iterator[Finding]:
    """Every rank waits for its data through most of the step."""
    covers = ("L1.3",)
    data, step = series(run, "data_time"), series(run, "step_time")
    fraction = series(run, "data_time_fraction")
    if len(fraction) >= MIN_POINTS:
        share = tail_level(fraction.value) / 100
        start = next((i for i, v in enumerate(fraction.value) if v > 100 * DATA_SHARE), 0)
        line = fraction
    elif len(data) >= MIN_POINTS and len(step) >= MIN_POINTS:
        share = tail_level(data.value) / max(tail_level(step.value), 1e-9)
        start = next((i for i, v in enumerate(data.value) if v > DATA_SHARE * tail_level(step.value)), 0)
        line = data
    else:
        yield undecided("series.slow-dataloader", "data/slow-dataloader", covers, "data_time")
        return
    ranks = _per_rank(run, "data_time")
    everyone = len(ranks) < 2 or sum(tail_level(r.value) > 0.3 * max(tail_level(data.value), 1e-9) for r in ranks.values()) > 0.7 * len(
        ranks
    )
    if share >= DATA_SHARE and everyone and tail_level(line.value) > 0.05:
        yield found("series.slow-dataloader", "data/slow-dataloader", line, start, 0.58, covers, share=f"{min(share, 1.0):.0%}")
        return
    yield excluded("series.slow-dataloader", "data/slow-dataloader", covers, line, share=f"{min(max(share, 0.0), 1.0):.0%}")


def judge_recompiles(run: Run) -> Iterator[Finding]:
    """torch.compile compiling again and again because a guard fails at every new shape."""
    covers = ("Q7",)
    events = [e for e in run.events if "recompil" in (e.signature or e.kind)]
    heads = [e for e in events if "Recompiling" in e.text] or events
    if len(heads) >= RECOMPILES:
        first, last = heads[0], heads[-1]
        spread = (
            run.ended is None
            or last.time is None
            or run.started is None
            or last.time - run.started > 0.3 * max(1.0, run.ended - run.started)
        )
        if spread:
            yield Finding(
                rule="series.recompiles",
                cause="training/slow-step",
                weight=0.66,
                time=first.time,
                evidence=[run.evidence(first), run.evidence(last)],
                covers=covers,
                count=len(heads),
                facts={"readings": len(heads)},
            )
            return
    yield excluded("series.recompiles", "training/slow-step", covers)


def recent(line: Series) -> list[float]:
    """The last finite readings (for the checklist)."""
    return finite(line.value)[-5:]


RULES = (
    Rule("series.straggler", judge_straggler, ("L4.3", "Q3", "L4.4")),
    Rule("series.slow-step", judge_slow, ("Q7",)),
    Rule("series.slow-dataloader", judge_data, ("L1.3",)),
    Rule("series.recompiles", judge_recompiles, ("Q7",)),
)
