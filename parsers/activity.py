"""Lines that say what a process is busy with beside training steps: saving, evaluating, preprocessing.

They matter when a collective times out: the rank the others waited for is often still at such work.  One event `activity` opens a
stretch of the same work and one more, moved along, marks its latest line; fields: `what` (save, evaluate, preprocess),
`phase` (start, end).  The texts are those of the common frameworks in their general form, English and Chinese.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Event, Line, LineParser, Rows, lazy

MAX_EVENTS = 3000
_LIMIT = 500

_RANK = lazy(r"\[?\b[Rr]ank[ :=]{0,2}(?P<rank>\d{1,6})\b")
# Advice, settings and errors speak of the same things without doing them.
_TALK = lazy(
    r"\b(?:Error|Exception|Traceback|Warning:|WARN(?:ING)?\b|deprecated|should|please|consider|Watchdog|File \")|^\s*[\w.\-]{1,60}(?:_strategy|_steps|_interval|_dir)\b"
)

_SAVE_START = lazy(
    r"\b[Ss]aving\b.{0,100}\b(?:checkpoints?|ckpt|model|state|optimizer|weights|snapshot)\b|\b[Ss]aving (?:to|at|latest|final|best)\b|"
    r"\b(?:is about to be saved|[Ww]riting checkpoint|[Ss]tart(?:ing|ed)? (?:to )?(?:save|saving|checkpoint\w*))|saving checkpoint at iteration|"
    r"正在保存|开始保存|保存(?:模型|检查点|权重)"
)
_SAVE_END = lazy(
    r"(?<!to be )\b[Ss]aved\b|\b[Cc]heckpoint\b.{0,80}\b(?:is ready now|(?<!to be )saved|written)\b|\b(?:[Ff]inished|[Dd]one|[Cc]ompleted) (?:saving|writing)|\b[Ss]av(?:e|ing) (?:finished|done|completed?)\b|successfully saved|保存完成|已保存|保存成功"
)
_EVALUATE_START = lazy(
    r"\b[Rr]unning (?:[Ee]valuation|[Vv]alidation|[Pp]rediction|eval\b|validation)|\b[Ss]tart(?:ing|ed)? (?:the )?(?:[Ee]valuat\w+|[Vv]alidat\w+)\b|"
    r"\b[Ee]valuating\b|\b[Ee]val(?:uation)? (?:dataset|batch|step|progress|set|on)\b|\bValidat(?:ion DataLoader|ing)\b|开始评估|开始验证|正在评估"
)
_EVALUATE_END = lazy(
    r"\b(?:[Ee]val(?:uation)?|[Vv]alidation)\b.{0,40}\b(?:finished|done|completed?|took)\b|['\"]?eval_(?:loss|runtime)\b|\bvalidation loss\b|评估完成|验证完成"
)
_PREPARE_START = lazy(
    r"\b(?:[Rr]unning tokenizer|[Tt]okenizing|[Pp]re-?process(?:ing)?\b|[Pp]acking (?:dataset|samples|sequences)|[Bb]uilding (?:dataset )?(?:index|cache)|"
    r"[Gg]enerating \w+ split)|(?:^|\s)(?:Map|Filter|Grouping texts|Converting format)\b.{0,60}?:? +\d{1,3}%|正在(?:处理|分词|预处理)|数据预处理"
)
_PREPARE_END = lazy(
    r"\b(?:[Tt]okeniz\w+|[Pp]re-?process\w*|[Pp]acking|index)\b.{0,40}\b(?:finished|done|completed?|took)\b|预处理完成|:? +100%\|"
)

_KINDS = (
    ("save", "end", _SAVE_END),
    ("save", "start", _SAVE_START),
    ("evaluate", "end", _EVALUATE_END),
    ("evaluate", "start", _EVALUATE_START),
    ("preprocess", "end", _PREPARE_END),
    ("preprocess", "start", _PREPARE_START),
)


def activity(text: str) -> tuple[str, str] | None:
    """(what, phase) of a line, or None.  A part of a larger work that is finished (`3/30 finished`) is still that work."""
    head = text[:_LIMIT]
    if _TALK.search(head):
        return None
    for what, phase, test in _KINDS:
        if test.search(head):
            part = re.search(r"\b(\d{1,7})/(\d{1,7})\b", head)
            if phase == "end" and part and int(part[1]) < int(part[2]):
                phase = "start"
            if what == "preprocess" and phase == "end" and not re.search(_PREPARE_START.pattern + "|okeniz|rocess", head):
                continue
            return what, phase
    return None


def _parse(line: Line, rows: Rows, context: Context) -> None:
    found = activity(line.text)
    if found is None:
        return
    what, phase = found
    rank = line.rank
    if rank is None and (told := _RANK.search(line.text[:200])):
        rank = int(told["rank"])
    state: dict[str, Any] = context.state
    key = f"last {rank}"
    last: tuple[str, str, Event, bool] | None = state.get(key)
    if last and last[0] == what and last[1] == phase:
        event, moved = last[2], last[3]
        if moved:  # the second event of a stretch follows its latest line
            event.line, event.text, event.stamp, event.inherited = line.number, line.text[:400], line.stamp, line.inherited
            return
    count = state["count"] = state.get("count", 0) + 1
    if count > MAX_EVENTS:
        return
    event = rows.event(line, "activity", "debug", rank=rank, text=line.text[:400], fields={"what": what, "phase": phase})
    state[key] = (what, phase, event, bool(last and last[0] == what and last[1] == phase))


PARSER = LineParser(
    "activity",
    triggers=(
        "aving ",
        "aved ",
        "heckpoint",
        "alidation",
        "alidating",
        "valuation",
        "valuating",
        "eval dataset",
        "eval_loss",
        "eval_runtime",
        "okeniz",
        "reprocess",
        "re-process",
        "Packing",
        "uilding dataset",
        "uilding index",
        " split:",
        "Map:",
        "Map (num",
        "Filter:",
        "保存",
        "评估",
        "验证",
        "预处理",
    ),
    parse=_parse,
)
