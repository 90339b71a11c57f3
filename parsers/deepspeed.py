"""DeepSpeed engine lines: steps, throughput, memory, overflow of the loss scale, and its printed configuration."""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import emit, number, once

_STEP = lazy(r"\bstep=(\d{1,12}), skipped=(\d{1,12}), lr=\[?([^\],\s]{1,40})")
_MOMENTUM = lazy(r"mom=\[\(?([^,\])\s]{1,40})")
_TIMER = lazy(r"global_step=(\d{1,12}),")
_PAIR = lazy(r"\b(RunningAvgSamplesPerSec|CurrSamplesPerSec|MemAllocated|MaxMemAllocated)=([0-9.einfa+-]{1,30})")
_PIPELINE = lazy(r"\bsteps: (\d{1,12}) loss: (\S{1,40}) iter time \(s\): (\S{1,40}) samples/sec: (\S{1,40})")
_SCALE = lazy(r"Attempted loss scale: ([0-9.eE+-]{1,24})(?:, reducing to ([0-9.eE+-]{1,24}))?")
_APEX = lazy(r"[Gg]radient overflow.{0,80}?(?:loss scale to:? ?)([0-9.eE+-]{1,24})")
_MEMORY = lazy(r"\b(MA|Max_MA|CA|Max_CA) ([0-9.]{1,16}) GB")
_RANK = lazy(r"OVERFLOW! Rank (\d{1,6})")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if ", skipped=" in text:
        match = _STEP.search(text)
        if match is None:
            return
        step = float(match[1])
        context.state["step"] = step
        pairs = [("skipped", float(match[2]))]
        for key, value in (("lr", match[3]), ("mom", (_MOMENTUM.search(text) or ["", ""])[1])):
            reading = number(value)
            if reading is not None:
                pairs.append((key, reading))
        emit(line, rows, pairs, step, "deepspeed")
        once(context, rows, line, "framework", "deepspeed")
    elif "RunningAvgSamplesPerSec=" in text:
        match = _TIMER.search(text)
        pairs = [(m[1], value) for m in _PAIR.finditer(text) if (value := number(m[2])) is not None]
        emit(line, rows, pairs, float(match[1]) if match else None, "deepspeed")
    elif "iter time (s): " in text:
        match = _PIPELINE.search(text)
        if match is not None:
            values = zip(("loss", "iter time (s)", "samples/sec"), match.groups()[1:], strict=True)
            emit(
                line,
                rows,
                [(key, value) for key, printed in values if (value := number(printed)) is not None],
                float(match[1]),
                "deepspeed",
            )
    elif "Max_MA " in text:
        memory = [(m[1], value) for m in _MEMORY.finditer(text) if (value := number(m[2])) is not None]
        emit(line, rows, memory, context.state.get("step"), "deepspeed")
    elif "loss scale already at minimum" in text:
        rows.event(line, "loss_scale_minimum", "error")
    else:
        _overflow(line, rows, context)


def _overflow(line: Line, rows: Rows, context: Context) -> None:
    own = _SCALE.search(line.text)
    match = own or _APEX.search(line.text)
    if match is None:
        return
    tried = number(match[1])
    rank = _RANK.search(line.text)
    fields: dict[str, float] = {}
    if tried is not None:
        rows.metric(line, "loss_scale", tried, context.state.get("step"), "Attempted loss scale")
        fields["scale"] = tried
    if own is not None and own[2] and (reduced := number(own[2])) is not None:
        fields["reduced"] = reduced
    more = {"rank": int(rank[1])} if rank is not None else {}
    rows.event(line, "overflow", "warning", fields=fields, **more)


PARSER = LineParser(
    name="deepspeed",
    triggers=(
        ", skipped=",
        "RunningAvgSamplesPerSec=",
        " iter time (s): ",
        "Max_MA ",
        "Attempted loss scale: ",
        "radient overflow",
        "loss scale already at minimum",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
