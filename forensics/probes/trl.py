"""Probes for transformers.Trainer and TRL's trainers: a callback, and a wrapper for the data collator.

    trainer = GRPOTrainer(..., callbacks=[ProbeCallback(reward_model=reward_model, ref_model=ref_model)])
    trainer = SFTTrainer(..., data_collator=probed(collator), callbacks=[ProbeCallback()])

Reads what the trainer logs anyway (policy loss, KL, entropy, chosen and rejected rewards) and adds what it does not: frozen
parameters, the head's gradient, the learning rate against its schedule, the optimizer's parameter groups.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from forensics.probes.loop import at, data, frozen, grad, groups, kl, loss, say, scheduled

# Name in the trainer's log -> part of the loss.
PARTS = {
    "policy": ("loss/policy_avg", "policy_loss", "loss"),
    "value": ("loss/value_avg", "value_loss"),
    "kl": ("kl", "objective/kl"),
    "entropy": ("entropy", "policy/entropy_avg", "objective/entropy"),
}
SHAPES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "constant_with_warmup": "constant"}


class ProbeCallback(TrainerCallback):  # type: ignore[misc]
    """Prints the probe lines every `every` steps; models given by name are scanned for frozen parameters."""

    def __init__(self, every: int = 1, **models: Any):
        self.every = max(1, every)
        self.models = {name: model for name, model in models.items() if model is not None}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
        """Once: frozen parameters and parameter groups."""
        if model is not None:
            frozen("Policy", model)
        for name, other in self.models.items():
            frozen(name.removesuffix("_model").capitalize(), other)
        if optimizer is not None:
            groups(optimizer)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Trainer counts the step after it is made; the lines carry the number that its own log will show."""
        at(state.global_step + 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """After the backward pass; under ZeRO-3 and FSDP a rank holds a shard of the head, and its norm is that shard's."""
        if model is not None and (state.global_step + 1) % self.every == 0:
            grad(model)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """The trainer's own readings as probe lines, and the learning rate against its schedule."""
        values = {name: value for key, value in (logs or {}).items() if (name := key.removeprefix("train/")) and _is_number(value)}
        parts = {part: next((float(values[name]) for name in names if name in values), None) for part, names in PARTS.items()}
        at(state.global_step)
        if parts["policy"] is not None and not any(name.startswith("eval_") for name in values):
            loss(**parts)
        for which in ("chosen", "rejected"):
            if (score := values.get(f"rewards/{which}")) is not None:
                say(f"{which.capitalize()} mean: {float(score):.4f}")
        beta = getattr(args, "beta", None) or getattr(args, "kl_coef", None)
        if beta is not None and (parts["kl"] is not None or "rewards/margins" in values):
            kl(beta, float(values["rewards/margins"]) if "rewards/margins" in values else None)
        shape = SHAPES.get(str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)))
        if "learning_rate" in values and shape and state.max_steps > 0:
            # Trainer reads the scheduler before it moves on: the log of step n holds the rate that step n used.
            warmup = args.get_warmup_steps(state.max_steps)
            actual = float(values["learning_rate"])
            wanted = scheduled(state.global_step, args.learning_rate, state.max_steps, warmup, 0.0, shape)
            before = scheduled(max(0, state.global_step - 1), args.learning_rate, state.max_steps, warmup, 0.0, shape)
            expected = min((wanted, before), key=lambda value: abs(value - actual))
            say(f"[LR] Actual: {actual:.6e}, Expected: {expected:.6e}, Diff: {abs(actual - expected):.6e}")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def probed(collator: Any, every: int = 1) -> Any:
    """The data collator with a `[DATA]` line for every `every`-th batch (with dataloader workers, each prints its own)."""
    count = 0

    def collate(samples: Any) -> Any:
        nonlocal count
        batch = collator(samples)
        ids = batch.get("input_ids") if hasattr(batch, "get") else None
        if ids is not None and count % every == 0:
            data(ids, batch.get("attention_mask"))
        count += 1
        return batch

    return collate
