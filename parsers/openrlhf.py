"""RL frameworks that print one dict or block a step: OpenRLHF, slime, ROLL, Open-Instruct, NeMo-RL, AReaL."""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import dict_body, emit, number, once, quoted_pairs, step_of

_GLOBAL = lazy(r"Global step (\d{1,12}): \{")
_SLIME = lazy(r"\b(step|rollout|perf|eval|train) (\d{1,12}): \{")
_ROLL = lazy(r"\]\[PID \d{1,9}\] ?\{")
_INSTRUCT = lazy(r"'training_step': ")
_NEMO_STEP = lazy(r"={5,60} Step (\d{1,12})/(\d{1,12}) ={5,60}")
_NEMO_PAIR = lazy(r"\s{0,8}[•·-] ([A-Za-z][\w ./-]{0,80}): ([0-9.eE+-]{1,30}|nan|inf|-inf)(s?)\b")
_AREAL_STEP = lazy(r"Epoch (\d{1,9})/(\d{1,9}) Step (\d{1,12})/(\d{1,12})(?: Train step (\d{1,12}) done)?")
_CELL = lazy(r"[│|]\s{0,60}([A-Za-z][^│|\s]{0,160})\s{0,80}[│|]\s{0,40}([0-9.eE+-]{1,30}|nan|inf|-inf)\s{0,40}(?=[│|])")
_STARTED = lazy(r"pipeline step (\d{1,12}) start")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "Global step " in text:
        match = _GLOBAL.search(text)
        _dict(line, rows, context, match.end() - 1 if match else -1, float(match[1]) if match else None, "openrlhf")
    elif "Training Results:" in text or "Timing:" in text:
        _block(line, rows, context)
    elif "StatsLogger INFO: " in text:
        _areal(line, rows, context)
    elif "][PID " in text:
        started = _STARTED.search(text)
        if started is not None:
            rows.event(line, "progress", fields={"step": float(started[1]), "training": True})
            return
        match = _ROLL.search(text)
        _dict(line, rows, context, match.end() - 1 if match else -1, None, "roll")
    elif " Step " in text and (match := _NEMO_STEP.search(text)) is not None:
        context.state["step"] = float(match[1])
        rows.event(line, "progress", fields={"step": float(match[1]), "total": float(match[2]), "training": True})
        once(context, rows, line, "framework", "nemo-rl")
    elif "'training_step': " in text:
        _dict(line, rows, context, text.find("{"), None, "open-instruct")
    elif (match := _SLIME.search(text)) is not None:
        _dict(line, rows, context, match.end() - 1, float(match[2]), "slime")


def _dict(line: Line, rows: Rows, context: Context, at: int, step: float | None, framework: str) -> None:
    if at < 0:
        return
    body = dict_body(line.text, at)
    if body is None:
        return
    pairs = list(quoted_pairs(body))
    if not pairs:
        return
    own = step_of(pairs, framework)
    emit(line, rows, pairs, step if step is not None else own, framework)
    once(context, rows, line, "framework", framework)


def _block(line: Line, rows: Rows, context: Context) -> None:
    step = context.state.get("step")
    for near in context.following(40):
        match = _NEMO_PAIR.match(near.text)
        if match is None:
            if near.text.strip():
                break
            continue
        value = number(match[2])
        if value is not None:
            emit(near, rows, [(match[1].strip(), value)], step, "nemo-rl")


def _areal(line: Line, rows: Rows, context: Context) -> None:
    match = _AREAL_STEP.search(line.text)
    if match is not None:
        done = match[5] or match[3]
        context.state["step"] = float(done)
        rows.event(line, "progress", fields={"step": float(done), "training": True})
        once(context, rows, line, "framework", "areal")
        return
    if "Stats (" not in line.text:
        return
    step = context.state.get("step")
    table = False
    for near in context.following(200):
        cells = [(m[1], value) for m in _CELL.finditer(near.text) if (value := number(m[2])) is not None]
        if cells:
            table = True
            emit(near, rows, cells, step, "areal")
        elif (table and near.text[:1] not in "╒├╞╘└┌│+|") or near.text[:1] in "╘└":
            break


PARSER = LineParser(
    name="openrlhf",
    triggers=(
        "Global step ",
        "'train/loss': ",
        "'train/pg_loss': ",
        "'rollout/",
        "'perf/",
        '"system/step": ',
        "pipeline step ",
        "'training_step': ",
        "Training Results:",
        "Timing:",
        "===== Step ",
        "StatsLogger INFO: ",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
