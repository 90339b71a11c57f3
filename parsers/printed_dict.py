"""Dicts of statistics that a user's own loop prints: `step 10: {'objective/kl': 0.13, …}`, `stats {"actor/loss": …}`.

Read last, and only where no framework's reader took the line: the keys' families (TRL PPO 0.4 to 0.11, verl, custom loops)
tell that it is a training step.
"""

from __future__ import annotations

import re

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import dict_body, emit, quoted_pairs, step_of

_STEP = lazy(r"\b(?:global_?step|step|iter(?:ation)?|update|epoch|batch)s?\b[ #:=]{1,3}(\d{1,9})\b", re.I)
_FAMILIES = ("ppo/", "objective/", "env/", "actor/", "critic/", "policy/", "train/", "rewards/", "loss/", "tokens/", "rollout/", "kl/")
FEWEST = 3  # numeric pairs that make a record of statistics


def _parse(line: Line, rows: Rows, context: Context) -> None:
    if rows.metrics and rows.metrics[-1].line == line.number:
        return
    at = line.text.find("{")
    body = dict_body(line.text, at) if at >= 0 else None
    if body is None:
        return
    pairs = list(quoted_pairs(body))
    if len(pairs) < FEWEST or not any(key.startswith(_FAMILIES) for key, _ in pairs):
        return
    step = step_of(pairs)
    if step is None and (match := _STEP.search(line.text[max(0, at - 80) : at])):
        step = float(match[1])
    emit(line, rows, pairs, step, "trl-ppo" if "'objective/kl'" in body or "'ppo/" in body else None)


PARSER = LineParser(
    "printed-dict",
    tuple(f"{quote}{family}" for family in _FAMILIES for quote in ("'", '"')),
    _parse,
    kind="train",
    readings=True,
)
