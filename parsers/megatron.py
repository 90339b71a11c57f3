"""Pipe-separated iteration lines: Megatron-LM, Megatron-DeepSpeed, NeMo (Lightning) and nanotron.

`iteration  10/ 5000 | consumed samples: 5120 | ... | lm loss: 6.1E+00 | grad norm: 0.612 |`.  Only the last rank prints
them.  Megatron's timer blocks (per rank, or smallest and largest) become `timer/<name>` readings.
"""

from __future__ import annotations

import re

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import emit, number, once

_ITERATION = lazy(r"iteration:?\s{0,20}(\d{1,12})\s?/\s{0,20}(\d{1,12})\s{0,4}\|")
_VALIDATION = lazy(r"validation loss at iteration\s{1,20}(\d{1,12})|validation loss at the end of training", re.IGNORECASE)
_TIMER = lazy(r"\s{1,12}([A-Za-z][\w./ -]{1,80}?)\s?\.{2,}:\s{0,8}\(([0-9.]{1,20}), ?([0-9.]{1,20})\)")
_SECTION = lazy(r"\s{0,8}([A-Za-z][\w./-]{1,80}):\s{0,4}\Z")
_RANK = lazy(r"\s{1,12}rank\s{1,6}(\d{1,6}): ([0-9.]{1,20})\s{0,4}\Z")
_AT = lazy(r"(?:at|from) iteration\s{1,20}(\d{1,12})")


def _iteration(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    match = _ITERATION.search(text)
    if match is None:
        return
    step, total = float(match[1]), float(match[2])
    pairs: list[tuple[str, float]] = []
    for piece in text[match.end() - 1 :].split("|")[:200]:
        key, colon, value = piece.partition(":")
        if not colon:
            continue
        reading = number(value)
        if reading is not None:
            pairs.append((key.strip()[:160], reading))
    framework = "nanotron" if "consumed_tokens:" in text else "nemo" if "Training epoch" in text else "megatron"
    told = next((value for key, value in pairs if key == "global_step"), None)
    context.state["step"] = step if told is None else told
    if context.state.get("total") != total:
        context.state["total"] = total
        rows.fact(line, "setting.total_steps", total)
    emit(line, rows, pairs, context.state["step"], framework)
    once(context, rows, line, "framework", framework)
    if "tokens per gpu per second" in text or "samples per second:" in text:
        once(context, rows, line, "framework", "megatron-deepspeed")


def _validation(line: Line, rows: Rows, context: Context) -> None:
    match = _VALIDATION.search(line.text)
    if match is None:
        return
    step = float(match[1]) if match[1] else context.state.get("step")
    pairs = []
    for piece in line.text.split("|")[1:60]:
        key, _, value = piece.rpartition(":")
        reading = number(value)
        if reading is not None and key:
            pairs.append((key.strip()[:160], reading))
    emit(line, rows, [(key, value) for key, value in pairs if not key.endswith("PPL")], step, "megatron")
    for key, perplexity in pairs:
        if key.endswith("PPL"):
            rows.metric(line, "eval_perplexity", perplexity, step, key)


def _timers(line: Line, rows: Rows, context: Context) -> None:
    step = context.state.get("step")
    section = ""
    for near in context.following(400):
        text = near.text
        timer = _TIMER.match(text)
        rank = _RANK.match(text)
        if timer is not None:
            low, high = number(timer[2]), number(timer[3])
            if low is not None and high is not None:
                name = timer[1].strip()
                rows.metric(near, f"timer_min/{name}", low / 1000, step, name)
                rows.metric(near, f"timer_max/{name}", high / 1000, step, name)
        elif rank is not None and section:
            value = number(rank[2])
            if value is not None:
                rows.metric(near, f"timer/{section}", value / 1000, step, section, rank=int(rank[1]))
        elif (head := _SECTION.match(text)) is not None:
            section = head[1]
        else:
            break


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "validation loss at " in text:
        _validation(line, rows, context)
    elif "across ranks (ms)" in text:
        _timers(line, rows, context)
    elif "successfully saved checkpoint" in text or "saving checkpoint at iteration" in text:
        match = _AT.search(text)
        kind = "checkpoint_saved" if "successfully" in text else "checkpoint_started"
        rows.event(line, kind, fields={"step": float(match[1])} if match else {})
    elif "successfully loaded checkpoint" in text:
        match = _AT.search(text)
        rows.event(line, "resume", fields={"step": float(match[1])} if match else {})
    elif "[before the start of training step]" in text:
        rows.event(line, "run_start", fields={"banner": "megatron"})
    elif "[after training is done]" in text:
        rows.event(line, "run_end", fields={"reason": "after training is done"})
    elif "exiting program" in text:
        match = re.search(r"exiting program (?:at iteration\s{1,20}(\d{1,12})|after ([^\]]{1,80}))", text)
        if match is not None:
            fields: dict[str, object] = {"reason": "exiting program" + (f" after {match[2]}" if match[2] else "")}
            if match[1]:
                fields["step"] = float(match[1])
            rows.event(line, "run_end", fields=fields)
    else:
        _iteration(line, rows, context)


PARSER = LineParser(
    name="megatron",
    triggers=(
        "elapsed time per iteration (ms)",
        "number of nan iterations",
        "| consumed_tokens: ",
        "| reduced_train_loss: ",
        "| lm loss: ",
        "validation loss at ",
        "across ranks (ms)",
        "successfully saved checkpoint",
        "saving checkpoint at iteration",
        "successfully loaded checkpoint",
        "[before the start of training step]",
        "[after training is done]",
        "exiting program a",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
