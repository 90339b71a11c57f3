"""torchtitan's coloured step lines and torchtune's bar and log-file lines."""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import emit, number, once

_STEP = lazy(r"\b(validate )?step:\s{0,8}(\d{1,12})\s{1,8}(?=\w)")
_PAIR = lazy(r"\b([a-z][\w/]{1,40}):\s{0,8}([-+]?[0-9][0-9.,eE+-]{0,24}|nan|inf|-inf)(?:GiB|%)?(?=[\s(%]|\Z)")
_TUNE_BAR = lazy(r"(\d{1,9})\|(\d{1,12})\|Loss: ([^\s:]{1,40}):")
_TUNE_LINE = lazy(r"\bStep (\d{1,12}) \|")
_TUNE_PAIR = lazy(r"([A-Za-z][\w/]{0,80}):([^\s:]{1,40})(?=\s|\Z)")
_RETRIES = lazy(r"\b(\d{1,9}) CUDA memory allocation retries")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "|Loss: " in text:
        for shown in list(_TUNE_BAR.finditer(text))[-4:]:
            value = number(shown[3])
            if value is not None:
                emit(line, rows, [("loss", value)], float(shown[2]), "torchtune")
                once(context, rows, line, "framework", "torchtune")
        return
    if "CUDA memory allocation retries" in text:
        retries = _RETRIES.search(text)
        if retries is not None:
            rows.metric(line, "memory_alloc_retries", float(retries[1]), context.state.get("step"), "CUDA memory allocation retries")
        return
    match = _STEP.search(text)
    if match is not None and "tps:" in text:
        step = float(match[2])
        pairs = [(m[1], value) for m in _PAIR.finditer(text, match.end()) if (value := number(m[2])) is not None]
        if match[1]:
            emit(
                line,
                rows,
                [("eval_" + key if key == "loss" else "eval/" + key, value) for key, value in pairs if key == "loss"],
                step,
                "torchtitan",
            )
        else:
            context.state["step"] = step
            emit(line, rows, pairs, step, "torchtitan")
        once(context, rows, line, "framework", "torchtitan")
        return
    match = _TUNE_LINE.search(text)
    if match is not None:
        pairs = [(m[1], value) for m in _TUNE_PAIR.finditer(text, match.end()) if (value := number(m[2])) is not None]
        emit(line, rows, pairs, float(match[1]), "torchtune")
        once(context, rows, line, "framework", "torchtune")


PARSER = LineParser(
    name="titan",
    triggers=("tps: ", "|Loss: ", " | loss:", "CUDA memory allocation retries"),
    parse=_parse,
    kind="train",
    readings=True,
)
