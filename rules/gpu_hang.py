"""A run that went silent, told by its GPU samples: the cards spin in a collective while nothing moves (S1, S6, L4.4).

NCCL's kernels poll: a rank that waits for another shows full utilisation at a fraction of the power of work.  Where one card of a
host stands idle meanwhile, that is the rank they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import polars as pl

from forensics.join import rank_of_gpu
from rules.base import Finding, Rule
from rules.gpu_samples import Card, cards

if TYPE_CHECKING:
    from forensics.run import Run

IDLE, SPINNING = 5.0, 90.0  # percent of utilisation
LASTS = 600.0  # seconds: the usual time-outs of collectives are no shorter, evaluation and saving are rarely longer
HELD = 2048.0  # MiB; more than a context without tensors
ROUNDS = 4  # samples a card must have in that time
WEAK = 0.6  # of the power under work; a polling kernel draws about a third of it
COVERS = ("S1", "S6", "L4.4")


def _tail(card: Card, since: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The card's samples before and from an instant on."""
    rows = card.rows.filter(pl.col("time").is_not_null() & pl.col("utilization").is_not_null())
    return rows.filter(pl.col("time") < since), rows.filter(pl.col("time") >= since)


def judge(run: Run) -> Iterable[Finding]:
    """One finding at most: the host whose cards spun to the end of the samples after the last step was logged."""
    if run.last_progress is None or any(f.role in ("done", "stop") and f.outcome == "found" for f in run.findings):
        return
    groups: dict[tuple[str | None, str], list[Card]] = {}
    for card in cards(run):
        groups.setdefault((card.host, card.rows["source"][0]), []).append(card)
    for (host, _), group in groups.items():
        since = run.last_progress + 60.0
        if len(group) < 2:
            continue
        halves = [(card, *_tail(card, since)) for card in group]
        if any(after.height < ROUNDS or float(after["time"][-1]) - since < LASTS for _, _, after in halves):
            continue
        # The first fifth still shows the steps in flight.
        settled = [(card, before, after.slice(after.height // 5)) for card, before, after in halves]
        busy = [s for s in settled if s[2]["utilization"].min() >= SPINNING]  # type: ignore[operator]
        idle = [s for s in settled if s[2]["utilization"].max() <= IDLE]  # type: ignore[operator]
        stood = len(idle) == 1 and len(busy) == len(settled) - 1 and idle[0][1].height and idle[0][1]["utilization"].median() > IDLE  # type: ignore[operator]
        if len(idle) == len(settled) and all(_held(before, after) for _, before, after in idle):
            finding = idle[0][0].finding("hang.all-idle", "", 0.2, idle[0][2].row(0, named=True), minutes=_minutes(run, idle[0][2]))
            finding.cause, finding.role, finding.covers, finding.host, finding.gpu = None, "symptom", COVERS, host, None
            yield finding
            return
        if not stood and not (len(busy) == len(settled) and all(_weaker(before, after) for _, before, after in busy)):
            continue
        card, _, after = idle[0] if stood else busy[0]
        finding = card.finding(
            "hang.idle-card" if stood else "hang.spinning",
            "comms/collective-timeout",
            0.36,  # silence and idle cards do not say what the missing rank was doing
            after.row(0, named=True),
            minutes=_minutes(run, after),
            cards=len(busy),
        )
        finding.role, finding.covers, finding.host = "consequence", COVERS, host
        finding.gpu = finding.gpu if stood else None
        finding.rank = rank_of_gpu(run, host, finding.gpu) if finding.gpu else None
        yield finding
        return


def _minutes(run: Run, after: pl.DataFrame) -> int:
    """Minutes from the last step to the last sample."""
    return round((float(after["time"][-1]) - (run.last_progress or 0.0)) / 60)


def _held(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether the card worked before and its memory was kept to the end: the process lived on without working."""
    memory = after["memory_used"].drop_nulls()
    return bool(before.height and before["utilization"].max() > IDLE and memory.len() and memory.min() >= HELD)  # type: ignore[operator]


def _weaker(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Whether the card drew clearly less power afterwards, all the time, than it did under work."""
    work = before.filter(pl.col("utilization") >= SPINNING)["power"].drop_nulls() if before.height else before["power"]
    rest = after["power"].drop_nulls()
    return work.len() >= ROUNDS and rest.len() >= ROUNDS and float(rest.max()) <= WEAK * float(work.median())  # type: ignore[arg-type]


RULES = (Rule("gpu.hang", judge, COVERS),)
