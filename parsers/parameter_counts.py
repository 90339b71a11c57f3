"""Counts of trainable parameters as PEFT, Lightning, Keras, ms-swift, torchtune and home-made loops print them.

`trainable params: 0 || all params: 6,738,415,616 || trainable%: 0.0` (PEFT), `20.5 M    Trainable params` (Lightning's table),
` Trainable params: 1,024 (4.00 KB)` (Keras), `PeftModelForCausalLM: 7635.8M Params (20.1M Trainable [0.26%])` (ms-swift).
Each becomes the fact `setting.trainable_parameters`.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy

_NAMED = lazy(
    r"(?i)(?<!non-)(?<!non )(?<!non_)\b(?:number of )?trainable param(?:eter)?s?(?: count)?\s{0,12}[:=]{1,2}\s{0,12}([\d,_]{1,24}(?:\.\d{1,9})?)\s{0,2}([KMBT]\b)?"
)
_TABLE = lazy(r"^\s{0,12}([\d,]{1,20}(?:\.\d{1,6})?)\s{0,2}([KMBT])?\s{2,12}Trainable params\s{0,4}\Z")
_SWIFT = lazy(r"Params \(([\d.]{1,16})M Trainable \[")
_MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:600]
    if (match := _SWIFT.search(text)) is not None:
        value = float(match[1]) * 1e6 if match[1].count(".") <= 1 and match[1] != "." else None
    else:
        match = _NAMED.search(text) or _TABLE.match(text)
        if match is None:
            return
        digits = match[1].replace(",", "").replace("_", "")
        value = float(digits) * _MULTIPLES[(match[2] or "").upper()] if digits and digits != "." else None
    seen = context.state.setdefault("seen", set())
    if value is not None and value not in seen and len(seen) < 64:
        seen.add(value)
        rows.fact(line, "setting.trainable_parameters", value)


PARSER = LineParser(
    name="parameter-counts",
    triggers=(
        "trainable params: ",
        "Trainable params",
        "trainable parameters: ",
        "trainable parameters = ",
        "Trainable parameters: ",
        "M Trainable [",
    ),
    parse=_parse,
    kind="train",
)
