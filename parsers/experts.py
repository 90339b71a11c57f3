"""How a router spreads tokens over experts: `tokens_per_expert: [812, 3, 0, …]`, `expert load: tensor([…])`, `topk_idx: [30, 30, …]`.

Two readings come of each list: `expert_max_share` (share of the busiest expert, 1/experts when balanced) and
`expert_dead_share` (share of experts that get less than a tenth of their fair part).
"""

from __future__ import annotations

import re
from collections import Counter

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import emit

LEAST = 4  # experts (or routed tokens) below which a list says nothing
_COUNTS = lazy(
    r"(?i)\b(?:tokens?[_ ]per[_ ]expert|(?:per[_ -])?expert[_ ](?:token[_ ])?(?:counts?|loads?|usage|util\w{0,8}|fractions?|tokens|dist\w{0,10}|hist\w{0,6})|routing[_ ](?:counts?|distribution))\b[^\[\n]{0,60}\[\s{0,4}([-\d.,eE+ ]{3,6000})"
)
_CHOSEN = lazy(
    r"(?i)\b(?:topk_id(?:x|s)?|top_?k_indices|selected_experts?|expert_(?:ids|idx|indices))\b[^\[\n]{0,40}\[{1,3}\s{0,4}([\d, ]{3,6000})"
)
_STEP = lazy(r"(?i)(?<![\w/-])(?:global[_ -]?step|step|iter(?:ation)?)\s{0,2}[=:#\[]?\s{0,8}(\d{1,12})")


def _numbers(text: str) -> list[float]:
    out: list[float] = []
    for part in re.split(r"[,\s]+", text.strip())[:2048]:
        try:
            out.append(float(part))
        except ValueError:
            continue
    return out


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:8000]
    match = _COUNTS.search(text)
    if match is not None:
        loads = [v for v in _numbers(match[1]) if v >= 0]
        experts = len(loads)
    else:
        match = _CHOSEN.search(text)
        if match is None:
            return
        counts = Counter(_numbers(match[1]))
        loads = [float(v) for v in counts.values()]
        if sum(loads) < 2 * LEAST:
            return
        # How many experts there are is not said; that all tokens of a batch chose the same one is.
        emit(line, rows, [("expert_max_share", max(loads) / sum(loads))], _step(text, context), "experts")
        return
    total = sum(loads)
    if experts < LEAST or total <= 0:
        return
    dead = sum(v < 0.1 * total / experts for v in loads) / experts
    emit(
        line,
        rows,
        [("expert_max_share", max(loads) / total), ("expert_dead_share", dead), ("expert_fair_share", 1 / experts)],
        _step(text, context),
        "experts",
    )


def _step(text: str, context: Context) -> float | None:
    found = _STEP.search(text)
    return float(found[1]) if found is not None else None


PARSER = LineParser(
    name="experts",
    triggers=(
        "okens_per_expert",
        "okens per expert",
        "xpert_counts",
        "xpert counts",
        "xpert_count:",
        "xpert_load",
        "xpert load",
        "xpert usage",
        "xpert_usage",
        "xpert utili",
        "xpert token counts",
        "xpert distribution",
        "routing distribution",
        "topk_idx",
        "topk_ids",
        "topk_indices",
        "selected_experts",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
