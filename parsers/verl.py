"""verl's console logger: `step:12 - actor/pg_loss:0.01 - critic/score/mean:np.float64(0.3)`, one line a step.

Versions up to 0.4 print every value with three decimals (a learning rate of 1e-6 shows as 0.000); 0.5 and later print the
value's repr, which numpy 2 wraps in `np.float64(...)`.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import decimals, dict_body, emit, number, once, quoted_pairs, step_of

_STEP = lazy(r"\bstep: ?(\d{1,12}) - ")
_SURE = ("actor/pg_", "critic/score", "global_seqlen/", "timing_s/", "val-core/", "actor/ppo_kl", "rollout_corr/")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "validation metrics: " in text:
        _validation(line, rows, context)
        return
    match = _STEP.search(text)
    if match is None:
        return
    step = float(match[1])
    pairs: list[tuple[str, float]] = []
    printed: list[str] = []
    for piece in text[match.end() :].split(" - ")[:800]:
        key, colon, value = piece.rpartition(":")
        if not colon or not key or len(key) > 160:
            continue
        reading = number(value)
        if reading is not None:
            pairs.append((key.strip(), reading))
            if "(" not in value:
                printed.append(value.strip())
    if not pairs:
        return
    own = next((value for key, value in pairs if key == "training/global_step"), None)
    emit(line, rows, pairs, own if own is not None and own >= step else step, "verl")
    if any(mark in text for mark in _SURE):
        once(context, rows, line, "framework", "verl")
    if not context.state.get("rounding") and len(printed) >= 8:
        context.state["rounding"] = True
        if decimals(printed) == 3:
            rows.event(line, "rounding", fields={"decimals": 3})


def _validation(line: Line, rows: Rows, context: Context) -> None:
    body = dict_body(line.text)
    if body:
        pairs = list(quoted_pairs(body))
        emit(line, rows, pairs, 0.0 if "Initial validation" in line.text else step_of(pairs), "verl")
    if "Final validation metrics" in line.text:
        rows.event(line, "run_end", fields={"reason": "final validation"})


PARSER = LineParser(
    name="verl",
    triggers=(
        " - actor/",
        " - critic/",
        " - val-core/",
        " - val-aux/",
        " - val/",
        " - timing_s/",
        " - training/",
        " - train/",
        " - global_seqlen/",
        " - perf/",
        " - rollout_corr/",
        " - response_length/",
        "validation metrics: ",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
