"""How far the run got: progress bars, starts, ends, checkpoints and resumes of any framework."""

from __future__ import annotations

import re

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import bars, is_training, number, once

_SAVED = lazy(
    r"(?i)\b(?:saving (?:model )?checkpoint to|model weights saved in|saved checkpoint|checkpoint saved|saving (?:the )?(?:model|checkpoint)|saving model at step|finished saving the checkpoint|local_global_step_folder:|configuration saved in)\b"
)
_STEP_IN_PATH = lazy(r"(?:checkpoint|global_?step|step|iter)[-_=]?(\d{1,12})(?!\d)|(?:at|from) step (\d{1,12})", re.IGNORECASE)
_RESUME = lazy(
    r"(?i)\b(?:resum(?:e|ing)(?: training)? from|loading (?:the )?checkpoint (?:from|at)|restored all states from|loaded checkpoint|restoring states from|setting global step to|load from checkpoint folder)\b"
)
_NOT_RESUMED = lazy(
    r"(?i)resume_from_checkpoint\W{0,4}(?:none|false|null)|no checkpoint|not found|training from scratch|failed|error|resume_from"
)
_STOPPED = lazy(r"Trainer\.fit`? stopped: `?(max_\w{1,20}=\S{1,20}?)`? reached")
_DONE = lazy(
    r"(?i)\A\W{0,20}(?:.{0,120}(?:- |\] |: |\| |>> ))?\W{0,8}(training (?:is )?(?:completed?|finished|done)(?: successfully)?|finished training|training complete|done training)\W{0,8}(?:\Z|in |after |at |\(|\d{1,12} (?:global )?(?:steps|iterations|epochs)\b)"
    r"|\b(?:done|finished|completed)[:,]? (?:all )?\d{1,12} (?:training )?(?:steps|iterations|epochs)\b(?!/)"
)
_WORLD = lazy(
    r"(?i)\bworld[ _]?size\s?[:=]\s?(\d{1,7})\b|Starting with (\d{1,7}) processes|dist_world_size\s?=\s?(\d{1,7})|using world size: (\d{1,7})|\brank \d{1,7} in world size (\d{1,7})\b"
)
_MEGATRON = lazy(r"(?:successfully (?:saved|loaded) checkpoint|saving checkpoint at iteration)")  # read by `megatron`
_PACE = lazy(r"([\d.]{1,12})\s{0,3}(it/s|s/it)")


def _bar(line: Line, rows: Rows, context: Context) -> None:
    found = list(bars(line.text))
    if not found:
        return
    desc, step, total, rest = found[-1]
    desc = desc[-60:].strip(" |:-")
    training = is_training(desc)
    fields: dict[str, object] = {"step": step, "training": training}
    if total:
        fields["total"] = total
    if desc:
        fields["what"] = desc
    pace = _PACE.search(rest)
    if pace is not None and (value := number(pace[1])) is not None and value > 0:
        fields["seconds_per_step"] = value if pace[2] == "s/it" else round(1 / value, 9)
    rows.event(line, "progress" if training else "activity", "debug", text=line.text[:300], fields=fields)
    if total and step == total and re.fullmatch(r"Training Progress", desc):
        rows.event(line, "run_end", fields={"reason": "progress bar full", "step": step})


def _step_in(text: str) -> dict[str, float]:
    found = list(_STEP_IN_PATH.finditer(text))
    return {"step": float(found[-1][1] or found[-1][2])} if found else {}


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:4000]
    if "it/s" in text or "s/it" in text:
        _bar(line, rows, context)
        if "%|" in text:
            return
    lower = text.lower()
    if ("world" in lower or "Starting with " in text) and "group_name=" not in text:
        world = _WORLD.search(text)
        if world is not None:
            size = int(next(group for group in world.groups() if group))
            if 0 < size < 10_000_000 and context.state.setdefault("worlds", set()) is not None and size not in context.state["worlds"]:
                context.state["worlds"].add(size)
                rows.fact(line, "world_size", size)
    if "checkpoint" in lower and _MEGATRON.search(text) is not None:
        return
    if "stopped: " in text:
        match = _STOPPED.search(text)
        if match is not None:
            rows.event(line, "run_end", fields={"reason": match[1]})
            once(context, rows, line, "framework", "lightning")
            return
    if ("raining" in text or "done: " in text) and _DONE.search(text) is not None:
        rows.event(line, "run_end", fields={"reason": "training completed"})
        return
    if (
        ("esum" in text or "oad" in text or "estor" in text or "etting global step" in text)
        and _RESUME.search(text)
        and not _NOT_RESUMED.search(text)
    ):
        rows.event(line, "resume", fields=_step_in(text))
        return
    if ("av" in lower and _SAVED.search(text) is not None) or "local_global_step_folder: " in text:
        started = re.search(r"(?i)saving", text) is not None
        rows.event(line, "checkpoint_started" if started else "checkpoint_saved", fields=_step_in(text))


PARSER = LineParser(
    name="progress",
    triggers=(
        "stopped: `max_",
        "raining completed",
        "raining complete",
        "raining finished",
        "raining is done",
        "raining done",
        "inished training",
        "done: ",
        "aving model checkpoint to",
        "aving checkpoint",
        "aved checkpoint",
        "heckpoint saved",
        "odel weights saved in",
        "aving model at step",
        "aving the checkpoint",
        "local_global_step_folder: ",
        "esuming from",
        "esuming training from",
        "esume from",
        "oading checkpoint from",
        "oading the checkpoint",
        "oad from checkpoint folder",
        "oaded checkpoint",
        "estored all states from",
        "estoring states from",
        "etting global step to",
        "world size",
        "world_size",
        "World size",
        "WORLD_SIZE",
        "Starting with ",
    ),
    sparse=("it/s]", "s/it]", "it/s, ", "s/it, "),
    parse=_parse,
)
