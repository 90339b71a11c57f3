"""CPU quota of the container (L0.6): a run that is slow while its control group is throttled is short of CPU.

Throttling alone accuses nobody: a launcher may idle at its quota.  It becomes a cause where steps, dataloaders or ranks are slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Finding, Rule

if TYPE_CHECKING:
    from forensics.run import Run

PERIODS = 1000  # of 100 ms: below it the counters say little
SHARE = 0.25  # of the periods in which the group was stopped
SLOW = ("training/slow-step", "data/slow-dataloader", "comms/straggler")


def judge(run: Run) -> Iterator[Finding]:
    """The largest share of throttled periods, from the last reading of each file (the counters only grow)."""
    last = {event.source: event for event in sorted(run.kind("cpu_throttling"), key=lambda e: e.line)}
    counted = [(e.fields["throttled"] / e.fields["periods"], e) for e in last.values() if e.fields["periods"] >= PERIODS]
    if not counted:
        return
    share, event = max(counted, key=lambda pair: pair[0])
    told = {"share": f"{share:.0%}", "periods": event.fields["periods"]}
    place = [run.evidence(event)]
    if share < SHARE:
        yield Finding("env.cpu-quota", "excluded", "infra/cpu-overload", "context", 0.0, "info", evidence=place, facts=told)
        return
    slow = next((f for cause in SLOW for f in run.found(cause) if f.role in ("root", "consequence") and f.cause == cause), None)
    if slow is None:
        yield Finding("env.cpu-throttled", "found", None, "context", 0.0, "warning", evidence=place, host=event.host, facts=told)
        return
    yield Finding(
        "env.cpu-throttled",
        cause="infra/cpu-overload",
        weight=0.55,
        time=slow.time,
        evidence=[*place, *slow.evidence[:2]],
        host=event.host,
        facts={**told, "lasting": True},
    )


RULES = (
    Rule(
        "env.cpu-quota",
        judge,
        ("L0.6",),
        after=("series.slow-step", "series.slow-dataloader", "series.straggler", "straggler", "straggler-spread"),
    ),
)
