"""Probes for verl: two functions of its driver process are wrapped, the workers stay as they are.

Save as probes.py on the driver's Python path and put these lines at the top of the script that starts training (a copy of
verl/trainer/main_ppo.py; inside the task runner's `run` where that is a Ray actor):

    import probes
    probes.install(peak=1e-6, shape="constant", warmup=0, total=0)

`compute_data_metrics` sees every batch: lengths, tokens, log-probabilities of actor and reference.  `Tracking.log` sees every
step's metrics: parts of the loss, gradient norm, learning rate, KL coefficient.
"""

from __future__ import annotations

import importlib
from typing import Any

from forensics.probes.loop import _now, at, data, kl, loss, number, say, scheduled

PARTS = {
    "policy": ("actor/pg_loss",),
    "value": ("critic/vf_loss",),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl", "actor/ppo_kl"),
    "entropy": ("actor/entropy", "actor/entropy_loss"),
}
TRACKING = "verl.utils.tracking"
TRAINERS = ("verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.metric_utils")


def install(peak: float | None = None, shape: str = "constant", warmup: int = 0, total: int = 0, lowest: float = 0.0) -> None:
    """Wrap verl's functions, once.  With `peak` the learning rate is held against that schedule (see `scheduled`)."""
    plan = None if peak is None else (peak, total, warmup, lowest, shape)
    tracking = importlib.import_module(TRACKING).Tracking
    if not hasattr(tracking.log, "probed"):
        tracking.log = _with_metrics(tracking.log, plan)
    for name in TRAINERS:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        function = getattr(module, "compute_data_metrics", None)
        if function is not None and not hasattr(function, "probed"):
            module.compute_data_metrics = _with_batch(function)  # type: ignore[attr-defined]


def _with_metrics(log: Any, plan: tuple[float, int, int, float, str] | None) -> Any:
    def logged(self: Any, data: Any, step: int, *more: Any, **named: Any) -> Any:
        try:
            report(data, step, plan)
        except Exception as error:  # a probe must never end the training
            say(f"probe failed: {type(error).__name__}: {error}", with_step=False)
        return log(self, data, step, *more, **named)

    logged.probed = True  # type: ignore[attr-defined]
    return logged


def _with_batch(function: Any) -> Any:
    def computed(*positional: Any, **named: Any) -> Any:
        try:
            look(named["batch"] if "batch" in named else positional[0])
        except Exception as error:
            say(f"probe failed: {type(error).__name__}: {error}", with_step=False)
        return function(*positional, **named)

    computed.probed = True  # type: ignore[attr-defined]
    return computed


def report(metrics: dict[str, Any], step: int, plan: tuple[float, int, int, float, str] | None = None) -> None:
    """One step's metrics as probe lines."""
    at(step)
    parts = {part: next((number(metrics[name]) for name in names if name in metrics), None) for part, names in PARTS.items()}
    if any(value is not None for value in parts.values()):
        loss(**parts)
    beta = next((metrics[name] for name in ("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff") if name in metrics), None)
    if beta is not None:
        kl(number(beta))
    if plan is not None and "actor/lr" in metrics:
        actual = number(metrics["actor/lr"])
        peak, total, warmup, lowest, shape = plan
        expected = scheduled(step, peak, total, warmup, lowest, shape)
        say(f"[LR] Actual: {actual:.6e}, Expected: {expected:.6e}, Diff: {abs(actual - expected):.6e}")


def look(batch: Any) -> None:
    """One batch (a DataProto): lengths and tokens; mean log-probability under reference and actor over the response."""
    told = (getattr(batch, "meta_info", None) or {}).get("global_steps")
    at(int(told) if told is not None else _now.get("step", 0) + 1)  # the batch is looked at before its step's metrics are logged
    tensors = batch.batch
    if "input_ids" in tensors and "attention_mask" in tensors:
        data(tensors["input_ids"], tensors["attention_mask"])
    reference = next((tensors[name] for name in ("ref_log_prob", "ref_log_probs") if name in tensors), None)
    if reference is not None and "old_log_probs" in tensors:
        mask = tensors["response_mask"] if "response_mask" in tensors else tensors["attention_mask"][:, -reference.shape[-1] :]
        mask = mask.bool()
        say(f"[SYNC] Ref logits mean: {number(reference[mask]):.4f}, Actor: {number(tensors['old_log_probs'][mask]):.4f}")
