"""Hugging Face Trainer and what builds on it: TRL, axolotl, ms-swift, LLaMA-Factory, unsloth, open-r1.

One Python dict a log step, `{'loss': 4.7836, 'grad_norm': 12.03, ...}`; transformers 5 prints the numbers as strings.  The
dict holds no step: it stands in the progress bar redrawn after it, or in ms-swift's `'global_step/max_steps': '3/94'`.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import bar_after, dict_body, emit, fraction, number, once, quoted_pairs, step_of

# What may stand before the dict: nothing, a progress bar, a logger's `>> `, or an axolotl/swift tag.
_BEFORE = lazy(r"(?:\s*|.{0,2000}[\]|]\s*|.{0,300}(?:>> |INFO:swift\] |[0-9]%\|.{0,600}\]\s*))\Z")
_CLAIMED = lazy(r"(?:Global step|step|rollout|perf|eval|train|metrics) [0-9]+: \Z|\]\[PID [0-9]+\] \Z|\.py:[0-9]+ - \Z|train_inner \| \Z")
_OWN = lazy(r"'(?:learning_rate|eval_\w+|train_runtime)': ")
_TRL = lazy(r"'(?:completions?/|completion_length|frac_reward_zero_std|rewards/|logps/|objective/|clip_ratio/|sampling/|reward_std)")
_SETTINGS = {
    "Num examples": "setting.num_examples",
    "Num Epochs": "setting.num_epochs",
    "Instantaneous batch size per device": "setting.batch_per_device",
    "Batch size per device": "setting.batch_per_device",
    "Training with DataParallel so batch size has been adjusted to": "setting.batch_adjusted",
    "Total train batch size (w. parallel, distributed & accumulation)": "setting.global_batch",
    "Total batch size": "setting.global_batch",
    "Gradient Accumulation steps": "setting.gradient_accumulation",
    "Gradient accumulation steps": "setting.gradient_accumulation",
    "Total optimization steps": "setting.total_steps",
    "Total steps": "setting.total_steps",
    "Number of trainable parameters": "setting.trainable_parameters",
    "Trainable parameters": "setting.trainable_parameters",
}
_SETTING = lazy(r"([A-Z][A-Za-z&.,() ]{4,70}?) ?= ?([0-9][0-9,]*)")
_RESUMED = lazy(r"Continuing training from (epoch|global step) (\d+)")


def owns(before: str, body: str) -> bool:
    """Whether a printed dict is the Trainer's, by what stands before it and by its keys."""
    if _CLAIMED.search(before[-80:]):
        return False
    return _BEFORE.match(before) is not None or ("'epoch': " in body and _OWN.search(body) is not None)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    at = text.find("{")
    if at < 0:
        return
    body = dict_body(text, at)
    if body is None or not owns(text[:at], body):
        return
    pairs = list(quoted_pairs(body))
    if not pairs:
        return
    keys = {key for key, _ in pairs}
    framework = "transformers"
    if "'mean_reward'" in body and "'margin'" in body:
        framework = "trl-reward"
    if "train_runtime" in keys:
        emit(line, rows, pairs, _step(body, pairs, context), "end")
        rows.event(line, "run_end", fields={"reason": "train_runtime", "seconds": dict(pairs)["train_runtime"]})
        return
    if not (keys & _MARKS or any(key.startswith(("eval_", "rewards/", "objective/")) for key in keys)):
        return
    emit(line, rows, pairs, _step(body, pairs, context), framework)
    once(context, rows, line, "framework", "transformers")
    if not context.state.get("trl") and _TRL.search(body):
        context.state["trl"] = True
        once(context, rows, line, "framework", "trl")
    if "global_step/max_steps" in body:
        once(context, rows, line, "framework", "ms-swift")


_MARKS = {"loss", "grad_norm", "reward", "kl", "train_loss", "rewards/chosen", "entropy", "completion_length"}


def _step(body: str, pairs: list[tuple[str, float]], context: Context) -> float | None:
    told = fraction(body)
    if told is not None:
        return told[0]
    step = step_of(pairs)
    if step is not None:
        return step
    return _from_bar(dict(pairs).get("epoch"), "eval_runtime" in body or "train_runtime" in body, context)


_TRUSTED = 32  # lines in one rhythm before bars are looked up more rarely


def _from_bar(epoch: float | None, repeated: bool, context: Context) -> float | None:
    """The step in the bar redrawn after the dict.

    Streams that were forwarded apart put other bars there: a step that does not grow, or that leaves the ratio of step to
    epoch of the lines before, is not believed, and from then on no bar of the file is.
    """
    state = context.state
    if state.get("torn"):
        return None
    last: float = state.get("last", 0.0)
    trust: int = state.get("trust", 0)
    if trust >= _TRUSTED and not repeated:
        # The rhythm has held for long: only every sixteenth line is checked against its bar.
        state["trust"] = trust + 1
        if trust % 16:
            state["last"] = last + state["every"]
            return last + float(state["every"])
    found = bar_after(context, state.get("total"))
    if found is None:
        # The file may end before the redraw: go on in the rhythm of the lines above.
        every: float = state.get("every", 0.0)
        step = last if repeated else last + every
        return step if last and (every or repeated) else None
    step, total = found
    if step < 1 or step < last:
        state["torn"] = step > 0 or last > 0
        return None
    if epoch is not None and epoch >= 0.1:
        ratio, known = step / epoch, state.get("ratio")
        if known is not None and abs(ratio - known) > (0.15 + 0.01 / epoch) * known:
            state["torn"] = True
            return None
        state["ratio"] = ratio
    if step > last:
        state["trust"] = trust + 1 if step - last == state.get("every") else 0
        state["every"] = step - last
    state["last"], state["total"] = step, total
    return step


def _started(line: Line, rows: Rows, context: Context) -> None:
    fields: dict[str, float] = {}
    for near in context.following(14):
        told = False
        for match in _SETTING.finditer(near.text[:600]):
            key = _SETTINGS.get(match[1].strip(" |"))
            value = number(match[2])
            if key is None or value is None:
                continue
            told = True
            fields[key.removeprefix("setting.")] = value
            rows.fact(near, key, value)
        if not told and near.text.strip() and fields:
            break
    for key in ("last", "every", "trust", "ratio", "torn", "total"):
        context.state.pop(key, None)  # a new attempt counts anew
    if "total_steps" in fields:
        context.state["total"] = fields["total_steps"]
    rows.event(line, "run_start", fields={"banner": "trainer", **fields})
    once(context, rows, line, "framework", "unsloth" if "Unsloth" in line.text else "transformers")


def _line(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "Running training *****" in text or "==((====))==  Unsloth - " in text:
        _started(line, rows, context)
    elif "Continuing training from " in text:
        match = _RESUMED.search(text)
        if match is not None and match[1] == "global step":
            rows.event(line, "resume", fields={"step": float(match[2])})
    else:
        _parse(line, rows, context)


PARSER = LineParser(
    name="hf-trainer",
    triggers=(
        "'loss': ",
        "'grad_norm': ",
        "{'eval_",
        "'train_runtime': ",
        "'reward': ",
        "'rewards/",
        "'objective/",
        "Running training *****",
        "==((====))==  Unsloth - ",
        "Continuing training from ",
    ),
    parse=_line,
    kind="train",
    readings=True,
)
