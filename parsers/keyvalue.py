"""Plain metric lines of any trainer: `step 12 loss 2.31 lr 1e-4`, `loss=0.5, acc=0.6` behind a bar, dicts, tables of names.

Covers what frameworks without a parser of their own print (nanoGPT, Lightning, Keras, fairseq, mmengine, MaxText, PaddleNLP,
Composer, Ultralytics, ImageNet-style `Loss 2.4e+00 (2.5e+00)`) and most home-made loops.  A line counts only when it names a
result of training (loss, reward, KL, gradient norm ...) with a number; prose and settings do not.
"""

from __future__ import annotations

import re

from parsers.base import Context, Line, LineParser, Rows
from parsers.canonical import reading
from parsers.values import NUMBER, bars, dict_body, emit, number, once, quoted_pairs, step_of

# `key: value` / `key=value`; the key is one word, or two or three words for `train loss: 1.2`.
_PAIR = re.compile(
    r"(?<![\w/.@-])([A-Za-z_][\w./@%()-]{0,79}(?: (?:[Ll]oss|[Nn]orm|[Rr]ate|[Rr]eward|[Mm]ean|KL|[Aa]ccuracy|[Ll]ength|[Ee]ntropy|[Tt]ime))?)\s{0,2}[=:]\s{0,4}(?:tensor\()?(NUM)(ms|s|%|GiB|GB|MiB|K|M|B)?(?=[\s,;|)\]}(]|\.?\s|\.?\Z)".replace(
        "NUM", NUMBER
    )
)
# `loss 2.31`: only for names that are known results or rates.
_SPACED = re.compile(
    r"(?<![\w/.-])((?:train |val |valid |eval |test )?(?:loss|Loss|lr|LR|grad_norm|grad norm|gradnorm|gnorm|reward|kl|KL|entropy|acc|accuracy|Acc@[15]|ppl|mfu|time|Time|Data|margin|reward_mean|reward_std|val_loss|train_loss|eval_loss|policy_loss|value_loss|tok/s|tokens/s))\s{1,6}(NUM)(ms|s|%)?(?=[\s,;|)(]|\.?\s|\.?\Z)".replace(
        "NUM", NUMBER
    )
)
_STEP = re.compile(
    r"(?i)(?<![\w/-])(?:global[_ -]?step|train(?:ing)?[_ ]step|completed step|steps?|iter(?:ation)?|num_updates|updates?|batch)\s{0,2}[=:#\[]?\s{0,12}(\d[\d,]{0,14})(?:\s{0,2}(?:/|of)\s{0,4}(\d[\d,]{0,14}))?(?![\w.%])"
)
_BRACKETED = re.compile(r"\[(\d{1,9})\]\s{0,2}\[\s{0,12}(\d{1,12})/\s{0,4}(\d{1,12})\]")
_ITER = re.compile(r"Iter\((?:train|val)\)\s{1,4}\[\s{0,12}(\d{1,12})/\s{0,4}(\d{1,12})\]")
_KERAS = re.compile(r"\A\s{0,4}(\d{1,9})/(\d{1,9}) ?[\[━ ]")
_FAIRSEQ = re.compile(r"epoch \d{1,9}:\s{1,8}(\d{1,12}) / (\d{1,12}) ")
_COMPOSER = re.compile(r"\[(batch|epoch|iteration)=(\d{1,12})(?:/(\d{1,12}))?\]:?\s{0,4}\Z")
_COMPOSER_ROW = re.compile(r"\s{0,8}(Train|Eval) ([^\s:]{1,120}): (\S{1,60})\s{0,4}\Z")
_YOLO = re.compile(
    r"\s{0,12}(\d{1,9})/(\d{1,9})\s{1,12}([0-9.]{1,12})G\s{1,12}((?:[0-9.]{1,12}|nan|inf)(?:\s{1,12}(?:[0-9.]{1,12}|nan|inf)){0,12})"
)
_CLAIMED = re.compile(
    r"Global step \d{1,12}: \{|'training_step': |\]\[PID \d|\b(?:step|rollout|perf|eval) \d{1,12}: \{|\bstep: ?\d{1,12} - |\|Loss: |elapsed time per iteration|\biteration:? {1,12}\d{1,12} ?/ {0,12}\d{1,12} \||\A\s{0,8}•|iter time \(s\)| tps: |\| lm loss"
)
_RESULTS = re.compile(
    r"(?:eval_)?(?:loss|policy_loss|value_loss|kl_loss|nll_loss|aux_loss|kl|approx_kl|reward(?:_\w+)?(?:/.+)?|entropy|grad_norm|head_grad_norm|accuracy|token_accuracy|perplexity|response_length|logprob_diff|prob_diff|importance_ratio|frac_zero_std|clip_fraction)\Z"
)
_LOSSLIKE = re.compile(r"(?:\A|[_/ .-])(?:loss|reward|kl|entropy|acc|accuracy|ppl)(?:\Z|[_/ .-])|_loss\Z", re.IGNORECASE)
_IDENTITY = re.compile(
    r"(?i)\A(?:(?:local_|global_|node_)?rank|pid|tid|ip|port|seed|line|node|host|gpu|device|cuda|world_?size|num_gpus|version|v_num|id|worker|thread|exitcode|code|errno|sha|commit|size|shape|timeout|seqnum|numel|info|warning|error|debug|eta|at|in|total_steps|max_steps|[dptce]p|\S{1,70}\.(?:py|cc|cpp|cu|h))\Z"
)
_PROSE = re.compile(
    r"(?i)\b(?:expected|should|must|warning|deprecated|please|default|argument|config|hint|if the|will be|set to|instead of|using|traceback|error)\b"
)

_SURE = ("modded-nanogpt", "maxtext", "mmengine")  # lines of these count even without a loss


def _pairs(text: str) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        key = match[1].strip()
        value = number(match[2] + (match[3] or "") if match[3] in ("K", "M", "B") else match[2])
        if value is None or _IDENTITY.match(key) or len(found) > 200:
            continue
        found.setdefault(key, value * 0.001 if match[3] == "ms" and key not in ("train_time", "step_avg", "time") else value)
    for match in _SPACED.finditer(text):
        value = number(match[2])
        if value is not None and len(found) < 200:
            found.setdefault(match[1], value)
    return list(found.items())


def _step(text: str) -> tuple[float | None, float | None]:
    """(step, total) as the line names it."""
    match = _BRACKETED.search(text)
    if match is not None:
        epoch, at, total = int(match[1]), int(match[2]), int(match[3])
        first = 0 if "Epoch: [" in text else 1
        return float((epoch - first) * total + at), None
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
    if "Epoch: [" in text:
        return "imagenet"
    if "chosen_reward=" in text or "act_loss=" in text:
        return "openrlhf"
    if "interval_steps_per_second" in text:
        return "paddlenlp"
    return None


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
    if _CLAIMED.search(text):
        return
    framework = _framework(text)
    if "{" in text:
        _dict(line, rows, context, framework)
        return
    bar = next((found for found in bars(text)), None)
    if bar is not None:
        _bar(line, rows, context, bar, framework)
        return
    pairs = _pairs(text)
    if not pairs:
        return
    step, total = _step(text)
    own = step_of(pairs, framework)
    if own is not None and step is None:
        step = own
    keras = _KERAS.match(text)
    results = [key for key, _ in pairs if _is_result(key, framework)]
    if not results and framework not in _SURE:
        return
    # One pair in a line without a step may be prose about a loss: then the name must open the line.
    if (
        step is None
        and keras is None
        and (_PROSE.search(text) or (len(pairs) < 2 and not re.match(r"\W{0,40}" + re.escape(results[0]), _tail(text))))
    ):
        return
    if len(text) > 600 and len(pairs) < 3:
        return
    emit(line, rows, [(key, value) for key, value in pairs if reading(key, framework).name != "step"], step, framework)
    if framework:
        once(context, rows, line, "framework", framework)
    if total is not None and context.state.get("total") != total:
        context.state["total"] = total


def _tail(text: str) -> str:
    """The message behind a logger's `INFO:name:` or `... - INFO - ` head."""
    cut = max(text.rfind(" - ", 0, 200), text.rfind("INFO:", 0, 200), text.rfind("] ", 0, 200), text.rfind(" | ", 0, 200))
    return text[cut + 2 :].lstrip(" :|-") if cut >= 0 else text


def _is_result(key: str, framework: str | None) -> bool:
    name = reading(key, framework).name
    return _RESULTS.match(name) is not None or (
        _LOSSLIKE.search(key) is not None and not key.endswith(("coef", "coeff", "weight", "scale", "beta", "type", "fn"))
    )


def _dict(line: Line, rows: Rows, context: Context, framework: str | None) -> None:
    text = line.text
    at = text.find("{")
    before = text[:at].rstrip()
    if "'" in text[at : at + 2] and (not before or before.endswith(("]", "|", ">>"))):
        return  # the Trainer's own dict
    body = dict_body(text, at)
    if body is None:
        return
    pairs = list(quoted_pairs(body))
    if not any(_is_result(key, framework) for key, _ in pairs):
        return
    step = step_of(pairs, framework)
    if step is None:
        step = _step(text[:at])[0]
    emit(line, rows, pairs, step, framework)
    if framework:
        once(context, rows, line, "framework", framework)


def _bar(line: Line, rows: Rows, context: Context, bar: tuple[str, float, float, str], framework: str | None) -> None:
    _, step, _, rest = bar
    pairs = [pair for pair in _pairs(rest) if not pair[0].endswith("/s")]
    if not any(_is_result(key, framework) for key, _ in pairs):
        return
    own = step_of(pairs, framework)
    emit(line, rows, pairs, own if own is not None else step, framework)
    if framework:
        once(context, rows, line, "framework", framework)


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
    for near in context.following(8):
        row = _YOLO.match(near.text)
        if row is None:
            continue
        values = [number(row[3]), *(number(value) for value in row[4].split())]
        epoch = float(row[1])
        emit(near, rows, [(key, value) for key, value in zip(names[1:], values, strict=False) if value is not None], epoch, "ultralytics")
        rows.event(near, "progress", fields={"step": epoch, "total": float(row[2]), "unit": "epoch", "training": True})
        once(context, rows, line, "framework", "ultralytics")
        break


PARSER = LineParser(
    name="keyvalue",
    triggers=(
        "loss=",
        "loss: ",
        "loss:",
        "loss ",
        "Loss ",
        "Loss: ",
        "Loss=",
        '"loss": ',
        '_loss": ',
        "_loss': ",
        "'loss': ",
        "reward=",
        "reward: ",
        "reward_mean",
        "mean_reward",
        '"reward',
        "Reward: ",
        "grad_norm=",
        "grad_norm: ",
        "gnorm",
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
