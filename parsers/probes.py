"""Probe lines that the guide asks people to print, in the twelve steps' order.

`[DATA] Batch size: 8, Max len: 512`, `[LOSS] {json over several lines}`, `[GRAD] LM head grad norm: x`,
`[KL] beta_kl: b, margin: m`, `[SYNC] Ref logits mean: a, Actor: b`, `[LR] Actual: a, Expected: e, Diff: d`,
`Reward frozen params: 10 / 10`, `Chosen mean: 1.2 ± 0.3`, and the three-colour prefixes.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import NUMBER, bar_near, emit, number, once, quoted_pairs

_STEP = lazy(r"(?i)\b(?:global[_ ]?)?step\s{0,2}[=:#]?\s{0,2}(\d{1,12})\b")
_PAIR = lazy(r"([A-Za-z][A-Za-z_ ]{0,40}?)\s{0,2}[:=]\s{0,2}(?:tensor\()?(NUM)".replace("NUM", NUMBER))
_FROZEN = lazy(r"([A-Za-z][\w .-]{0,60}?) frozen params: ([0-9][0-9,]{0,20}) ?/ ?([0-9][0-9,]{0,20})")
_PREFERENCE = lazy(r"\b(Chosen|Rejected) mean: (NUM)(?: ?(?:±|\+/-|\+-) ?(NUM))?".replace("NUM", NUMBER))
_TOKENS = lazy(r"\(\s{0,2}(\d{1,9})\s{0,2},\s{0,2}(\d{1,12})\s{0,2}\)")
_COLOUR = lazy(r"\[(HARDWARE|MODEL|TRAIN)\]")
_LAYERS = {"HARDWARE": "infra", "MODEL": "model", "TRAIN": "training"}
_TAGS = lazy(r"\[(DATA|GRAD|KL|SYNC|LR)\]")


def _step(line: Line, context: Context) -> float | None:
    """The step on the line, else the last one a probe named, else that of a bar beside it."""
    match = _STEP.search(line.text)
    if match is not None:
        context.state["step"] = float(match[1])
        return float(match[1])
    step: float | None = context.state.get("step")
    if step is None:
        near = bar_near(context, None)
        step = near[0] if near else None
    return step


def _tagged(line: Line, rows: Rows, context: Context, tag: str, body: str) -> None:
    step = _step(line, context)
    if tag == "DATA" and "oken distribution" in body:
        counts = [(int(m[1]), int(m[2])) for m in list(_TOKENS.finditer(body))[:64]]
        rows.event(line, "token_distribution", fields={"step": step, "tokens": counts})
        return
    pairs = []
    for match in list(_PAIR.finditer(body))[:20]:
        value = number(match[2])
        key = match[1].strip()
        if value is not None and key.lower() not in ("step", "global step", "rank"):
            pairs.append(("lr" if tag == "LR" and key == "Actual" else key, value))
    emit(line, rows, pairs, step, "probe")


def _loss(line: Line, rows: Rows, context: Context) -> None:
    """`[LOSS]` and its JSON, which may go on over the next lines."""
    step = _step(line, context)
    text = line.text[line.text.find("[LOSS]") + 6 :]
    pieces = [text[:4000]]
    depth = text.count("{") - text.count("}")
    if "{" in text and depth > 0:
        for near in context.following(40):
            pieces.append(near.text[:2000])
            depth += near.text.count("{") - near.text.count("}")
            if depth <= 0:
                break
    whole = "\n".join(pieces)
    pairs = list(quoted_pairs(whole))
    if not pairs:
        pairs = [(m[1].strip(), value) for m in list(_PAIR.finditer(whole))[:20] if (value := number(m[2])) is not None]
    told = next((value for key, value in pairs if key in ("step", "global_step")), None)
    if told is not None:
        step = context.state["step"] = told
    emit(line, rows, pairs, step, "probe")


def _frozen(line: Line, rows: Rows, context: Context) -> None:
    at, text = -1, line.text
    for _ in range(8):
        before, at = at, text.find(" frozen params: ", at + 1)
        match = _FROZEN.search(text[max(0, before + 1, at - 64) : at + 64]) if at >= 0 else None
        if match is None:
            break
        frozen, total = number(match[2]), number(match[3].rstrip(","))
        if frozen is None or total is None:
            continue
        rows.event(line, "frozen_params", fields={"model": match[1].split("] ")[-1].strip(), "frozen": frozen, "total": total})


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    colour = _COLOUR.match(text.lstrip()) or _COLOUR.search(text[:160])
    if colour is not None:
        rows.event(line, "colour", fields={"colour": colour[1], "layer": _LAYERS[colour[1]]})
        return
    if "frozen params: " in text:
        _frozen(line, rows, context)
        return
    if " mean: " in text and "logits" not in text:
        for match in list(_PREFERENCE.finditer(text))[:8]:
            which = match[1].lower()
            step = _step(line, context)
            value, spread = number(match[2]), number(match[3] or "")
            if value is not None:
                rows.metric(line, f"reward_{which}", value, step, f"{match[1]} mean")
            if spread is not None:
                rows.metric(line, f"reward_{which}_std", spread, step, f"{match[1]} std")
        return
    if "[LOSS]" in text:
        _loss(line, rows, context)
        once(context, rows, line, "probes", "guide")
        return
    tag = _TAGS.search(text[:200])
    if tag is not None:
        _tagged(line, rows, context, tag[1], text[tag.end() : tag.end() + 4000])
        once(context, rows, line, "probes", "guide")


PARSER = LineParser(
    name="probes",
    triggers=(
        "[DATA] ",
        "[LOSS]",
        "[GRAD] ",
        "[KL] ",
        "[SYNC] ",
        "[LR] ",
        "frozen params: ",
        "Chosen mean: ",
        "Rejected mean: ",
        "[HARDWARE]",
        "[MODEL]",
        "[TRAIN]",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
