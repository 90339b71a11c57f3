"""Plain metric lines of any trainer: `step 12 loss 2.31 lr 1e-4`, `loss=0.5, acc=0.6` behind a bar, dicts, tables of names.

Covers what frameworks without a parser of their own print (nanoGPT, Lightning, Keras, fairseq, mmengine, MaxText, PaddleNLP,
Composer, Ultralytics, ImageNet-style `Loss 2.4e+00 (2.5e+00)`) and most home-made loops.  A line counts only when it names a
result of training (loss, reward, KL, gradient norm ...) with a number; prose and settings do not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.canonical import reading
from parsers.hf_trainer import owns
from parsers.values import NUMBER, bars, dict_body, emit, is_training, number, once, quoted_pairs, step_of

# `key: value` / `key=value`; the key is one word, or two or three words for `train loss: 1.2`.
_PAIR = lazy(
    r"(?<![\w/.@-])([A-Za-z_][\w./@%()-]{0,79}(?: (?:[Ll]oss|[Nn]orm|[Rr]ate|[Rr]eward|[Mm]ean|KL|[Aa]ccuracy|[Ll]ength|[Ee]ntropy|[Tt]ime))?)\s{0,2}[=:]\s{0,4}(?:tensor\()?(NUM)(ms|s|%|GiB|GB|MiB|K|M|B)?(?=[\s,;|)\]}(>]|\.?\s|\.?\Z)".replace(
        "NUM", NUMBER
    )
)
# `loss 2.31`: only for names that the table knows or that look like a logger's (`objective/kl`, `reward_mean`).
_SPACED = lazy(
    r"(?<![\w/.@-])((?:(?:train|val|valid|eval|test|grad) )?[A-Za-z_][\w./@-]{0,79})\s{1,6}(NUM)(ms|s|%)?(?=[\s,;|)(>]|\.?\s|\.?\Z)".replace(
        "NUM", NUMBER
    )
)
# A rank that a home-made logger writes into the line (`[rank 3]`, `rank=3`); not a LoRA rank, which stands beside `alpha`.
_RANK_IN_TEXT = lazy(r"(?i)(?<![\w/])(?:global[_ ])?rank[ :=]{1,2}(\d{1,6})(?![\w.])")
_EPOCH = lazy(r"(?i)\bepoch\s{0,2}[=:#]?\s{0,3}(\d{1,9})(?![\d.])")
_STEP = lazy(
    r"(?i)(?<![\w/-])(?:global[_ -]?step|train(?:ing)?[_ ]step|completed step|steps?|it|iter(?:ation)?|num_updates|updates?|batch)\s{0,2}[=:#\[]?\s{0,12}(\d[\d,]{0,14})(?:\s{0,2}(?:/|of)\s{0,4}(\d[\d,]{0,14}))?(?![\w.%])"
)
_BRACKETED = lazy(r"\[(\d{1,9})\]\s{0,2}\[\s{0,12}(\d{1,12})/\s{0,4}(\d{1,12})\]")
_ITER = lazy(r"Iter\((?:train|val)\)\s{1,4}\[\s{0,12}(\d{1,12})/\s{0,4}(\d{1,12})\]")
_KERAS = lazy(r"\A\s{0,4}(\d{1,9})/(\d{1,9}) ?[\[━ ]")
_FAIRSEQ = lazy(r"epoch \d{1,9}:\s{1,8}(\d{1,12}) / (\d{1,12}) ")
_COMPOSER = lazy(r"\[(batch|epoch|iteration)=(\d{1,12})(?:/(\d{1,12}))?\]:?\s{0,4}\Z")
_COMPOSER_ROW = lazy(r"\s{0,8}(Train|Eval) ([^\s:]{1,120}): (\S{1,60})\s{0,4}\Z")
_YOLO = lazy(
    r"\s{0,12}(\d{1,9})/(\d{1,9})\s{1,12}([0-9.]{1,12})G\s{1,12}((?:[0-9.]{1,12}|nan|inf)(?:\s{1,12}(?:[0-9.]{1,12}|nan|inf)){0,12})"
)
# Lines that a framework's own parser reads: told by a literal, or by a pattern where the literal alone is too common.
_CLAIMED = (
    "'training_step': ",
    "][PID ",
    "|Loss: ",
    "elapsed time per iteration",
    "number of nan iterations",
    "| consumed_tokens: ",
    "| reduced_train_loss: ",
    "iter time (s): ",
    " tps: ",
    "| lm loss",
)
_CLAIMED_IF = (
    ("Global step ", lazy(r"Global step \d{1,12}: \{")),
    (": {", lazy(r"\b(?:step|rollout|perf|eval) \d{1,12}: \{")),
    ("step:", lazy(r"\bstep: ?\d{1,12} - ")),
    ("| loss:", lazy(r"\bStep \d{1,12} \| loss:")),
    ("•", lazy(r"\A\s{0,8}•")),
)
_RESULTS = lazy(
    r"(?:eval_)?(?:loss|policy_loss|value_loss|kl_loss|nll_loss|aux_loss|kl|approx_kl|reward(?:_\w+)?(?:/.+)?|entropy|grad_norm|head_grad_norm|accuracy|token_accuracy|perplexity|response_length|logprob_diff|prob_diff|importance_ratio|frac_zero_std|clip_fraction)\Z"
)
_LOSSLIKE = lazy(r"(?:\A|[_/ .-])(?:loss|reward|kl|entropy|acc|accuracy|ppl)(?:\Z|[_/ .-])|_loss\Z", re.IGNORECASE)
_IDENTITY = lazy(
    r"(?i)\A(?:(?:local_|global_|node_)?rank|pid|tid|ip|port|seed|line|node|host|gpu|device|cuda|world_?size|num_gpus|version|v_num|id|worker|thread|exitcode|code|errno|sha|commit|size|shape|timeout|seqnum|numel|done|finished|after|took|info|warning|error|debug|eta|at|in|total_steps|max_steps|[dptce]p|\S{1,70}\.(?:py|cc|cpp|cu|h))\Z"
)
_PROSE = lazy(
    r"(?i)\b(?:expected|should|must|warning|deprecated|please|default|argument|config|hint|if the|will be|set to|instead of|using|traceback|error)\b"
)

_SHORT = ("Time", "Data", "time", "data", "Acc@1", "Acc@5", "mfu", "time")
_SURE = ("modded-nanogpt", "maxtext", "mmengine")  # lines of these count even without a loss


def _pairs(text: str) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        key = match[1].strip()
        value = number(match[2] + (match[3] or "") if match[3] in ("K", "M", "B") else match[2])
        if value is None or _IDENTITY.match(key) or len(found) > 200 or _summary(text, match.start()):
            continue
        found.setdefault(key, value * 0.001 if match[3] == "ms" and key not in ("train_time", "step_avg", "time") else value)
    for match in _SPACED.finditer(text):
        key, value = match[1], number(match[2])
        if value is None or len(found) > 200 or _IDENTITY.match(key) or _summary(text, match.start()):
            continue
        if "/" in key or "_" in key or reading(key).known or key in _SHORT:
            found.setdefault(key, value)
    return list(found.items())


def _summary(text: str, at: int) -> bool:
    """`best loss 1.2`, `final loss 1.1`: a summary of readings, not one of them."""
    return text[max(0, at - 8) : at].lower().endswith(("best ", "final ", "lowest ", "minimum ", "target "))


def _step(text: str) -> tuple[float | None, float | None]:
    """(step, total) as the line names it."""
    match = _BRACKETED.search(text)
    if match is not None:
        epoch, at, total = int(match[1]), int(match[2]), int(match[3])
        first = 1 if re.search(r"Epoch ?(?:\(\w{1,10}\))? {1,4}\[", text) else 0  # mmengine and mmcv count epochs from 1
        return float(max(0, epoch - first) * total + at), None
    match = _ITER.search(text) or _FAIRSEQ.search(text) or _STEP.search(text)
    if match is None:
        return None, None
    return float(match[1].replace(",", "")), float(match[2].replace(",", "")) if match[2] else None


def _framework(text: str) -> str | None:
    if "completed step:" in text and "TFLOP/s/device" in text:
        return "maxtext"
    if "mmengine" in text or "mmcv" in text or ("data_time: " in text and "][" in text):
        return "mmengine"
    if text.startswith("iter ") and ", mfu " in text:
        return "nanogpt"
    if "step_avg:" in text:
        return "modded-nanogpt"
    if "gnorm" in text and "num_updates" in text:
        return "fairseq"
    if "Epoch: [" in text or ("Time " in text and "Data " in text):
        return "imagenet"
    if "chosen_reward=" in text or "act_loss=" in text:
        return "openrlhf"
    if "interval_steps_per_second" in text:
        return "paddlenlp"
    return None


def _claimed(text: str) -> bool:
    return any(literal in text for literal in _CLAIMED) or any(literal in text and pattern.search(text) for literal, pattern in _CLAIMED_IF)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if len(text) > 20_000:
        text = text[:20_000]
    if text.startswith(("[batch=", "[iteration=")):
        _composer(line, rows, context)
        return
    if "box_loss" in text and "Epoch" in text and "=" not in text:
        _yolo(line, rows, context)
        return
    if _claimed(text):
        return
    framework = _framework(text)
    if "{" in text:
        _dict(line, rows, context, framework)
        return
    bar = next((found for found in bars(text)), None)
    if bar is not None:
        _bar(line, text, rows, context, bar, framework)
        return
    _plain(line, text, rows, context, framework)


def _plain(line: Line, text: str, rows: Rows, context: Context, framework: str | None, fallback: float | None = None) -> None:
    """A line of pairs; `fallback` is the step where the line names none."""
    pairs = _pairs(text)
    if not pairs:
        return
    step, total = _step(text)
    if step is None:
        step = step_of(pairs, framework)
    if step is not None:
        step = _over_epochs(text, step, context.state)
    keras = _KERAS.match(text)
    results = [key for key, _ in pairs if _is_result(key, framework)]
    if not results and framework not in _SURE:
        return
    # One pair in a line without a step may be prose about a loss: then the name must open the line.
    epoch = _EPOCH.search(text) if step is None else None
    if results and step is None and keras is None and epoch is None and _is_prose(text, pairs, results[0]):
        return
    if len(text) > 600 and len(pairs) < 3:
        return
    if step is None:
        step = fallback if fallback is not None else float(epoch[1]) if epoch is not None and keras is None else None
    if line.rank is None and "alpha" not in text and (told := _RANK_IN_TEXT.search(text)):
        line.rank = int(told[1])
    emit(line, rows, [(key, value) for key, value in pairs if reading(key, framework).name != "step"], step, framework)
    if framework and framework != "imagenet":
        once(context, rows, line, "framework", framework)
    if total is not None and context.state.get("total") != total:
        context.state["total"] = total


def _is_prose(text: str, pairs: list[tuple[str, float]], first: str) -> bool:
    return _PROSE.search(text) is not None or (len(pairs) < 2 and not re.match(r"\W{0,40}" + re.escape(first), _tail(text)))


def _over_epochs(text: str, step: float, state: dict[str, Any]) -> float:
    """A step counted over the whole run where the line's own counter begins anew with each epoch."""
    match = _EPOCH.search(text)
    if match is None or re.search(r"(?i)global|num_updates|iteration", text):
        return step
    epoch = int(match[1])
    last_epoch, last, every, offset = state.get("epochs", (epoch, step, 0.0, 0.0))
    if epoch == last_epoch + 1 and step < last:
        offset += last + (every or 1.0) - min(step, every)
    elif epoch < last_epoch:
        offset = 0.0
    if epoch == last_epoch and step > last:
        every = step - last
    state["epochs"] = (epoch, step, every, offset)
    return float(step + offset)


def _tail(text: str) -> str:
    """The message behind a logger's `INFO:name:` or `... - INFO - ` head."""
    cut = max(text.rfind(" - ", 0, 200), text.rfind("INFO:", 0, 200), text.rfind("] ", 0, 200), text.rfind(" | ", 0, 200))
    return text[cut + 2 :].lstrip(" :|-") if cut >= 0 else text


@lru_cache(maxsize=20_000)
def _is_result(key: str, framework: str | None) -> bool:
    name = reading(key, framework).name
    return _RESULTS.match(name) is not None or (
        _LOSSLIKE.search(key) is not None and not key.endswith(("coef", "coeff", "weight", "scale", "beta", "type", "fn"))
    )


def _dict(line: Line, rows: Rows, context: Context, framework: str | None) -> None:
    text = line.text
    at = text.find("{")
    body = dict_body(text, at)
    if body is None or ("'" in text[at : at + 2] and owns(text[:at], body)):
        return
    pairs = list(quoted_pairs(body))
    if not any(_is_result(key, framework) for key, _ in pairs):
        return
    step = step_of(pairs, framework)
    if step is None:
        step = _step(text[:at])[0]
    if step is None and (epoch := _EPOCH.search(text[:at])) is not None:
        step = float(epoch[1])
    emit(line, rows, pairs, step, framework)
    if framework:
        once(context, rows, line, "framework", framework)


def _bar(line: Line, text: str, rows: Rows, context: Context, bar: tuple[str, float, float, str], framework: str | None) -> None:
    """Readings in a bar's postfix, or printed behind it."""
    desc, step, total, rest = bar
    pairs = [pair for pair in _pairs(rest) if not pair[0].endswith("/s")]
    if not any(_is_result(key, framework) for key, _ in pairs):
        behind = text.partition(rest + "]")[2]
        if behind.strip() and not any(bars(behind)):
            _plain(line, behind, rows, context, framework, step if is_training(desc) else None)
        return
    own = step_of(pairs, framework)
    emit(line, rows, pairs, own if own is not None else _bar_step(desc, step, total, tuple(pairs), context.state), framework)
    if framework:
        once(context, rows, line, "framework", framework)


def _bar_step(desc: str, step: float, total: float, pairs: tuple[tuple[str, float], ...], state: dict[str, Any]) -> float:
    """The step over the whole run: bars begin anew with each epoch (its number may stand in the description) or rollout."""
    named = re.search(r"(?i)\bepoch[ =:]{0,2}(\d{1,9})(?![\d/])", desc)
    if named is not None and total:
        return int(named[1]) * total + step
    name = re.sub(r"\d+", "#", desc)[-60:]
    bars_seen = state.setdefault("bars", {})
    offset, last, shown = bars_seen.get(name, (0.0, 0.0, ()))
    if step < last or (step == last == total and pairs != shown):
        offset += total or last
    if len(bars_seen) < 200 or name in bars_seen:
        bars_seen[name] = (offset, step, pairs)
    return float(offset + step)


def _composer(line: Line, rows: Rows, context: Context) -> None:
    match = _COMPOSER.match(line.text.strip())
    if match is None:
        return
    step = float(match[2]) if match[1] == "batch" else None
    count = 0
    for near in context.following(120):
        row = _COMPOSER_ROW.match(near.text.replace("\t", " "))
        if row is None:
            if near.text.strip():
                break
            continue
        value = number(row[3])
        if value is not None:
            count += emit(near, rows, [(row[2], value)], step, "composer")
    if count:
        once(context, rows, line, "framework", "composer")


def _yolo(line: Line, rows: Rows, context: Context) -> None:
    names = line.text.split()
    if names[:2] != ["Epoch", "GPU_mem"]:
        return
    latest: dict[float, tuple[Line, re.Match[str]]] = {}
    for near in context.following(120):
        if "box_loss" in near.text:
            break  # the next epoch's header reads its own rows
        row = _YOLO.match(near.text)
        if row is not None:
            latest[float(row[1])] = (near, row)
    for epoch, (near, row) in latest.items():
        values = [number(row[3]), *(number(value) for value in row[4].split())]
        emit(near, rows, [(key, value) for key, value in zip(names[1:], values, strict=False) if value is not None], epoch, "ultralytics")
        rows.event(near, "progress", fields={"step": epoch, "total": float(row[2]), "unit": "epoch", "training": True})
        once(context, rows, line, "framework", "ultralytics")


PARSER = LineParser(
    name="keyvalue",
    triggers=(
        "loss=",
        "loss: ",
        "loss:",
        # A number follows: `loss scale: 512` is printed by every rank at every step.
        *(
            f"{word} {first}"
            for word in ("loss", "Loss")
            for first in ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "-", "n", "i", "|", " ", "=", "(", "[")
        ),
        *(f"{word} {first}" for word in ("reward", "entropy", "grad_norm") for first in "0123456789-"),
        "Loss: ",
        "Loss/",
        "Loss=",
        '"loss": ',
        '_loss": ',
        "_loss': ",
        "'loss': ",
        "{'accuracy': ",
        "{'acc': ",
        "{'f1': ",
        "{'eval_",
        "reward=",
        "reward: ",
        "reward_mean",
        "mean_reward",
        '"reward',
        "Reward: ",
        "grad_norm=",
        "grad_norm: ",
        "gnorm",
        "objective/kl",
        ", rm=",
        ", ret=",
        "kl=",
        "kl: ",
        "entropy=",
        "entropy: ",
        "step_avg:",
        "[batch=",
        "box_loss   cls_loss",
    ),
    parse=_parse,
    kind="train",
    readings=True,
)
