"""Run configuration as logs print it: argument dumps, configuration dicts, command lines, optimizer parameter groups.

Facts `setting.<name>`, one name per meaning (see `NAMES`), whatever the framework calls it.  Parameter groups become events
`param_group` with the fields group, lr, betas, weight_decay, eps, amsgrad.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.values import number

MAX_LINES = 900
MAX_DUMP = 300_000

# Printed name (the last parts of a dotted one, lower case, `-` as `_`) -> setting.
NAMES: dict[str, str] = {
    **{
        name: name
        for name in [
            "learning_rate",
            "min_lr",
            "lr_scheduler_type",
            "warmup_steps",
            "warmup_ratio",
            "weight_decay",
            "adam_beta1",
            "adam_beta2",
            "betas",
            "max_grad_norm",
            "num_generations",
            "max_completion_length",
            "max_prompt_length",
            "max_seq_length",
            "max_length",
            "beta",
            "kl_coef",
            "temperature",
            "top_p",
            "seed",
            "gradient_checkpointing",
            "bf16",
            "fp16",
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_drop_last",
            "label_smoothing",
            "torch_compile",
            "ddp_bucket_cap_mb",
            "bucket_cap_mb",
            "ddp_find_unused_parameters",
            "ddp_timeout",
            "logging_nan_inf_filter",
            "num_iterations",
            "epsilon",
            "epsilon_high",
            "loss_type",
            "scale_rewards",
            "use_vllm",
            "vllm_gpu_memory_utilization",
            "vllm_mode",
            "gpu_memory_utilization",
            "sync_ref_model",
            "ref_model_sync_steps",
            "ref_model_mixup_alpha",
            "reward_weights",
            "resume_from_checkpoint",
            "save_steps",
            "logging_steps",
            "eval_steps",
            "gradient_accumulation",
            "global_batch",
            "batch_per_device",
            "total_steps",
            "world_size",
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "sequence_parallel",
            "entropy_coeff",
            "use_kl_loss",
            "kl_loss_coef",
            "adv_estimator",
            "generation_batch_size",
            "steps_per_generation",
            "vocab_size",
            "pad_token_id",
            "eos_token_id",
            "bos_token_id",
            "attn_implementation",
            "initial_loss_scale",
            "loss_scale_window",
            "init_kl_coef",
            "freeze_vision_tower",
            "finetuning_type",
            "lora_rank",
            "lora_r",
            "cliprange",
            "clip_range",
        ]
    },
    "lr": "learning_rate",
    "optim.lr": "learning_rate",
    "actor.optim.lr": "learning_rate",
    "actor_learning_rate": "learning_rate",
    "critic_learning_rate": "critic_learning_rate",
    "critic.optim.lr": "critic_learning_rate",
    "adam_epsilon": "adam_eps",
    "adam_eps": "adam_eps",
    "eps": "adam_eps",
    "clip_grad": "max_grad_norm",
    "gradient_clipping": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "max_norm": "max_grad_norm",
    "gradient_accumulation_steps": "gradient_accumulation",
    "train_micro_batch_size_per_gpu": "batch_per_device",
    "per_device_train_batch_size": "batch_per_device",
    "micro_batch_size": "batch_per_device",
    "micro_train_batch_size": "batch_per_device",
    "train_batch_size": "global_batch",
    "global_batch_size": "global_batch",
    "data.train_batch_size": "global_batch",
    "max_steps": "total_steps",
    "train_iters": "total_steps",
    "num_training_steps": "total_steps",
    "total_training_steps": "total_steps",
    "lr_warmup_iters": "warmup_steps",
    "lr_warmup_steps": "warmup_steps",
    "num_warmup_steps": "warmup_steps",
    "lr_warmup_fraction": "warmup_ratio",
    "lr_warmup_steps_ratio": "warmup_ratio",
    "lr_decay_style": "lr_scheduler_type",
    "rollout.n": "num_generations",
    "n_samples_per_prompt": "num_generations",
    "group_size": "num_generations",
    "num_train_epochs": "num_epochs",
    "total_epochs": "num_epochs",
    "kl_ctrl.kl_coef": "kl_coef",
    "max_response_length": "max_completion_length",
    "generate_max_len": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "response_length": "max_completion_length",
    "num_workers": "dataloader_num_workers",
    "pin_memory": "dataloader_pin_memory",
    "initial_scale_power": "initial_scale_power",
    "beta_kl": "beta",
    "entropy_coef": "entropy_coeff",
    "tensor_parallel_size": "tensor_parallel_size",
    "zero_stage": "zero_stage",
    "zero_optimization.stage": "zero_stage",
    "reward_model_path": "reward_model_path",
    "model_name_or_path": "model",
    "actor_rollout_ref.model.path": "model",
    "per_gpu_train_batch_size": "batch_per_device",
    "ppo_mini_batch_size": "ppo_mini_batch_size",
    "ppo_micro_batch_size_per_gpu": "ppo_micro_batch_size",
}
# In a nested dump these short names mean other things outside their section; only the dotted form counts there.
_SECTIONED = {
    "lr",
    "eps",
    "betas",
    "weight_decay",
    "temperature",
    "top_p",
    "max_length",
    "stage",
    "seed",
    "response_length",
    "max_norm",
    "beta",
    "warmup_steps",
}
_FOREIGN = lazy(r"(?:critic|reward_model|rollout|val_kwargs|ref|vllm|data|tokenizer|teacher|discriminator)\.")

_TEXTS = {
    "lr_scheduler_type", "model", "loss_type", "adv_estimator", "attn_implementation", "vllm_mode", "reward_model_path", "resume_from_checkpoint",
    "finetuning_type", "betas", "scale_rewards", "reward_weights",
}  # fmt: skip

_CLASS = lazy(r"\b(\w{0,60}(?:Config|Arguments|Args))\(\s{0,4}\Z")
_ASSIGN = lazy(r"\s{0,40}([A-Za-z_]\w{0,80})\s?=\s?(.{0,400}?),?\s{0,4}\Z")
_DOTTED = lazy(r"\s{0,40}([A-Za-z_][\w.-]{0,80}) \.{3,120} ?(.{0,400}?)\s{0,4}\Z")
_OVERRIDE = lazy(
    r"(?<![\w./-])(?:\+{0,2})((?:actor_rollout_ref|algorithm|critic|data|trainer|reward_model|actor|optim|rollout)\.[\w.]{1,120})=([^\s'\"\\]{1,200}|'[^'\n]{0,200}'|\"[^\"\n]{0,200}\")"
)
_OPTION = lazy(r"(?<![\w-])--([A-Za-z][\w.-]{1,80})(?:=|\s{1,4})([^\s'\"\\-][^\s'\"\\]{0,200}|-[0-9.][^\s\\]{0,40})")
_LEAF = lazy(
    r"""['"]([A-Za-z_][\w.]{0,80})['"]\s?:\s?([-+0-9.eE]{1,40}|True|False|true|false|None|null|['"][^'"\n]{0,200}['"])\s{0,4}[,}\]]?"""
)
_GROUP = lazy(r"Parameter Group (\d{1,6})")
_GROUP_ITEM = lazy(r"\s{0,12}(\w{1,40}): (.{1,200})\Z")
_GROUP_DICT = lazy(r"param_?groups?\s?(?:\[(\d{1,6})\]|(\d{1,6}))?\W{0,12}(\{.{0,4000})", re.IGNORECASE)
_KEPT = ("lr", "betas", "weight_decay", "eps", "amsgrad", "initial_lr", "momentum", "maximize", "fused", "foreach")


def value_of(text: str) -> Any:
    """A printed value: number, truth value, None or the text itself (quotes taken off)."""
    text = text.strip().rstrip(",").strip()
    if text in ("None", "null", "~", ""):
        return None
    if text in ("True", "true"):
        return True
    if text in ("False", "false"):
        return False
    told = number(text) if len(text) < 40 else None
    if told is not None and not text.startswith(("'", '"')):
        return int(told) if told == told // 1 and abs(told) < 1e15 and "." not in text and "e" not in text.lower() else told
    return text.strip("'\"")[:300]


def name_of(key: str) -> str | None:
    """The setting that a printed, possibly dotted, name means; None where it is none we keep."""
    key = key.strip().lower().replace("-", "_").replace("/", ".")
    parts = key.split(".")
    for size in (3, 2):
        if len(parts) >= size and (name := NAMES.get(".".join(parts[-size:]))) is not None:
            return name
    last = parts[-1]
    if len(parts) > 1 and (last in _SECTIONED or _FOREIGN.search(key[: -len(last)])):
        return None
    return NAMES.get(last)


def flatten_settings(data: Any, head: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(`setting.<name>`, value) of each kept item of a nested configuration; wandb's {"value": x} wrappers are seen through."""
    if not isinstance(data, dict) or depth > 8:
        return
    for key, value in list(data.items())[:3000]:
        dotted = f"{head}{key}"[:300]
        if isinstance(value, dict):
            if set(value) <= {"value", "desc"} and "value" in value and not isinstance(value["value"], dict):
                value = value["value"]
            else:
                inner = value["value"] if set(value) <= {"value", "desc"} and "value" in value else value
                yield from flatten_settings(inner, f"{dotted}.", depth + 1)
                continue
        name = name_of(dotted)
        if name is not None and isinstance(value, str | int | float | bool | list | tuple) and len(str(value)) < 300:
            told = kept(name, value_of(value) if isinstance(value, str) else list(value) if isinstance(value, tuple) else value)
            if told is not None:
                yield f"setting.{name}", told


def command_settings(text: str) -> Iterator[tuple[str, Any]]:
    """Settings of a command line: `--learning_rate 1e-6`, `algorithm.kl_ctrl.kl_coef=0.001`."""
    for pattern in (_OPTION, _OVERRIDE):
        for match in islice(pattern.finditer(text[:40_000]), 600):
            name = name_of(match[1])
            value = kept(name or "", value_of(match[2]))
            if name is not None and value is not None:
                yield f"setting.{name}", value


def _facts(rows: Rows, line: Line, context: Context, pairs: Iterator[tuple[str, Any]] | list[tuple[str, Any]]) -> None:
    seen = context.state.setdefault("seen", set())
    for key, value in pairs:
        if value is None or len(seen) > 2000:
            continue
        mark = (key, str(value))
        if mark not in seen:
            seen.add(mark)
            rows.fact(line, key, value)


def kept(name: str, value: Any) -> Any:
    """The value if it is of the setting's kind, else None: a text where a number belongs is source code or a placeholder."""
    return None if isinstance(value, str) and name not in _TEXTS else value


def _named(key: str, text: str) -> list[tuple[str, Any]]:
    name = name_of(key)
    return [] if name is None else [(f"setting.{name}", kept(name, value_of(text)))]


def _block(line: Line, rows: Rows, context: Context, pattern: re.Pattern[str], stop: str) -> None:
    misses = 0
    for near in context.following(MAX_LINES):
        if stop in near.text and pattern.match(near.text) is None:
            break
        match = pattern.match(near.text[:800])
        if match is None:
            misses += 1
            if misses > 12:
                break
            continue
        misses = 0
        _facts(rows, near, context, _named(match[1], match[2]))


def _dump(line: Line, rows: Rows, context: Context) -> None:
    """A pretty-printed nested dict that begins on this line; read as a literal where it is whole, else leaf by leaf."""
    text = line.text[line.text.find("{") :]
    pieces, lines, size = [text], [line], len(text)
    depth = text.count("{") - text.count("}")
    for near in context.following(MAX_LINES) if depth > 0 else ():
        pieces.append(near.text)
        lines.append(near)
        size += len(near.text)
        depth += near.text.count("{") - near.text.count("}")
        if depth <= 0 or size > MAX_DUMP:
            break
    whole = "\n".join(pieces)
    if depth == 0 and size <= MAX_DUMP and whole.rstrip().endswith("}"):
        try:
            data = ast.literal_eval(whole.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            data = None
        if isinstance(data, dict):
            _facts(rows, line, context, list(flatten_settings(data)))
            return
    for near, piece in zip(lines, pieces, strict=True):
        for match in islice(_LEAF.finditer(piece[:4000]), 50):
            if match[1].lower() not in _SECTIONED:
                _facts(rows, near, context, _named(match[1], match[2]))


def _group(line: Line, rows: Rows, context: Context) -> None:
    match = _GROUP.search(line.text)
    if match is not None:
        fields: dict[str, Any] = {"group": int(match[1])}
        for near in context.following(24):
            item = _GROUP_ITEM.match(near.text)
            if item is None:
                break
            if item[1] in _KEPT:
                fields[item[1]] = item[2].strip() if item[1] == "betas" else value_of(item[2])
        if len(fields) > 1:
            rows.event(line, "param_group", fields=fields)
        return
    match = _GROUP_DICT.search(line.text[:6000])
    if match is None:
        return
    fields = {"group": int(match[1] or match[2] or 0)}
    for item in re.finditer(r"""['"](\w{1,40})['"]\s?:\s?(\([^()]{1,80}\)|\[[^\[\]]{1,80}\]|[^,{}\[\]()]{1,80})""", match[3]):
        if item[1] in _KEPT:
            fields[item[1]] = item[2].strip() if item[1] == "betas" else value_of(item[2])
    if len(fields) > 1:
        rows.event(line, "param_group", fields=fields)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if "Parameter Group " in text or "param_group" in text:
        _group(line, rows, context)
    elif " arguments ---" in text and not text.lstrip("- ").startswith("end of"):
        _block(line, rows, context, _DOTTED, "end of arguments")
    elif ":print]" in text:
        match = _DOTTED.match(text[text.find(":print]") + 7 :][:800])
        if match is not None:
            _facts(rows, line, context, _named(match[1], match[2]))
    elif _CLASS.search(text):
        _block(line, rows, context, _ASSIGN, ")")
    elif "'actor_rollout_ref': {" in text or "'algorithm': {" in text:
        _dump(line, rows, context)
    else:
        pairs = list(command_settings(text))
        if "(" in text and re.search(r"\w(?:Config|Arguments|Args)\(", text):
            pairs += [
                pair
                for match in islice(re.finditer(r"\b([a-z_]\w{1,80})=([^,()]{1,200})", text[:30_000]), 400)
                for pair in _named(match[1], match[2])
            ]
        _facts(rows, line, context, pairs)


PARSER = LineParser(
    name="settings",
    triggers=(
        "Parameter Group ",
        "param_group",
        " arguments ---",
        ":print]   ",
        "Arguments(",
        "Config(",
        "'actor_rollout_ref': {",
        "algorithm.adv_estimator=",
        "data.train_batch_size=",
        "--learning_rate",
        "--learning-rate",
        "--per_device_train_batch_size",
        "--micro-batch-size",
        "--num_generations",
        "--lr ",
        "--beta ",
    ),
    parse=_parse,
)
