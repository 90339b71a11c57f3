"""Mixture of experts: a router that sends most tokens to few experts (told by printed loads or by the balance loss)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Finding, Rule
from rules.series_view import excluded, found, series, short, undecided
from rules.statistics import MIN_POINTS, departure, finite, tail_level

if TYPE_CHECKING:
    from forensics.run import Run, Series

DEAD = 0.6  # share of experts without work from which the rest must carry nearly everything
SWALLOWED = 0.8  # share of tokens at one expert, where the number of experts is not known
VANISHED = 0.05  # of its level: an even load costs a constant, so a balance loss near nothing is no balance but a gate without gradient
TIMES_FAIR = 4.0  # the busiest expert's load over the fair one (capacity factors are 1 to 2)
FEW = 3  # readings that show a state; fewer may be the first batch
UNBALANCED = 1.8  # rise of the balance loss, which is 1 (times its coefficient) when loads are equal


def judge(run: Run) -> Iterator[Finding]:
    """Expert loads that collapsed, else a balance loss that left its level upward for good."""
    covers = ("L2.1",)
    share, dead, fair = series(run, "expert_max_share"), series(run, "expert_dead_share"), series(run, "expert_fair_share")
    balance = series(run, "aux_loss")
    if len(share) >= FEW:
        late = tail_level(share.value)
        even = tail_level(fair.value) if len(fair) else 0.0
        idle = tail_level(dead.value) if len(dead) >= FEW else 0.0
        if (idle >= DEAD and late >= TIMES_FAIR * even) or late >= SWALLOWED:
            start = _from(share, max(2 * even, 0.6 * late))
            yield found(
                "series.expert-load",
                "model/moe-routing-collapse",
                share,
                start,
                0.7 if idle >= DEAD else 0.62,
                covers,
                share=f"{late:.0%}",
                dead=f"{idle:.0%}" if len(dead) else "?",
            )
            return
    if len(finite(balance.value)) >= MIN_POINTS:
        spot = departure(balance.value, relative=UNBALANCED - 1)
        if spot is not None and spot.baseline > 0 and spot.factor >= UNBALANCED:
            yield found(
                "series.expert-balance",
                "model/moe-routing-collapse",
                balance,
                spot.index,
                0.6,
                covers,
                baseline=short(spot.baseline),
                final=short(spot.final),
            )
            return
        gone = departure(balance.value, up=False, relative=0.5)
        if gone is not None and gone.baseline > 0 and gone.final <= VANISHED * gone.baseline:
            yield found(
                "series.expert-balance-gone",
                "model/moe-routing-collapse",
                balance,
                gone.index,
                0.55,
                covers,
                baseline=short(gone.baseline),
                final=short(gone.final),
            )
            return
    if not len(share) and not len(balance):
        yield undecided("series.expert-load", "model/moe-routing-collapse", covers, "expert_load")
        return
    yield excluded("series.expert-load", "model/moe-routing-collapse", covers, share if len(share) else balance)


def _from(line: Series, limit: float) -> int:
    """First reading from which on the series stays beyond the limit."""
    start = len(line)
    while start and line.value[start - 1] >= limit:
        start -= 1
    return min(start, len(line) - 1)


RULES = (Rule("series.experts", judge, ("L2.1",)),)
