"""Probes for a plain PyTorch loop.

Save as probes.py beside the training script, `import probes`, and call per step what applies:

    probes.at(step)
    probes.data(batch["input_ids"], batch["attention_mask"])
    ... loss.backward() ...
    probes.grad(model)                                    # before clipping and before optimizer.step()
    probes.loss(policy=pg_loss, value=vf_loss, kl=kl, entropy=entropy)
    probes.preference(chosen_scores, rejected_scores)
    probes.kl(beta, margin)
    probes.sync(reference_logits, actor_logits)
    probes.lr(optimizer, peak=1e-6, total=1000, warmup=50)

and once, after the models and the optimizer are made:

    probes.frozen("Reward", reward_model)
    probes.parameters(model)
    probes.groups(optimizer)

Only rank 0 prints.  Tensors may be on any device and of any precision; each call costs one synchronisation.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import Any

_now: dict[str, int] = {}


def at(step: int) -> None:
    """The step that the lines printed from here on belong to."""
    _now["step"] = int(step)


def say(text: str, with_step: bool = True) -> None:
    """Print one line, on rank 0 only, at once."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{text}, step: {_now['step']}" if with_step and "step" in _now else text, flush=True)


def number(value: Any) -> float:
    """A float of a number or of a tensor (its mean)."""
    if hasattr(value, "detach"):
        value = value.detach().float().mean().item()
    return float(value)


def data(input_ids: Any, attention_mask: Any = None, common: int = 10) -> None:
    """S2: the batch's size, its longest sequence without padding, and its most frequent tokens."""
    if attention_mask is None:
        longest = int(input_ids.shape[-1])
        tokens = input_ids.reshape(-1).tolist()
    else:
        mask = attention_mask.bool()
        longest = int(mask.sum(-1).max().item())
        tokens = input_ids[mask].reshape(-1).tolist()
    say(f"[DATA] Batch size: {int(input_ids.shape[0])}, Max len: {longest}")
    say(f"[DATA] Token distribution: {Counter(tokens).most_common(common)}")


def frozen(name: str, model: Any) -> None:
    """S3: how many parameter tensors of a model are frozen (a reward or reference model: all of them)."""
    flags = [not parameter.requires_grad for parameter in model.parameters()]
    say(f"{name} frozen params: {sum(flags)} / {len(flags)}", with_step=False)


def parameters(model: Any) -> None:
    """How many parameters the model has and how many of them are trained, in the words of PEFT."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    whole, trained = sum(n for n, _ in counts), sum(n for n, trains in counts if trains)
    say(f"trainable params: {trained:,} || all params: {whole:,} || trainable%: {100 * trained / max(1, whole):.4f}", with_step=False)


def loss(**parts: Any) -> None:
    """S4: the parts of the loss, named policy, value, kl, entropy; what a run does not have is left out."""
    values: dict[str, Any] = {"step": _now["step"]} if "step" in _now else {}
    values.update({name: number(value) for name, value in parts.items() if value is not None})
    say(f"[LOSS] {json.dumps(values)}", with_step=False)


def head_of(model: Any) -> Any:
    """The weight of the output head: by the Hugging Face accessor, else the last parameter of that name, else the last of all."""
    get = getattr(model, "get_output_embeddings", None)
    head = get() if callable(get) else None
    if head is not None and hasattr(head, "weight"):
        return head.weight
    named = list(model.named_parameters())
    for name, parameter in reversed(named):
        if name.endswith(("lm_head.weight", "embed_out.weight", "output_layer.weight", "v_head.weight", "score.weight")):
            return parameter
    return named[-1][1] if named else None


def gradient_of(parameter: Any) -> Any:
    """A parameter's gradient; DeepSpeed keeps it in buffers of its own, where only its own function finds it."""
    if getattr(parameter, "grad", None) is None and (hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")):
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(parameter)
    return getattr(parameter, "grad", None)


def grad(model: Any) -> None:
    """S5: the gradient norm of the output head; no gradient at all reads 0.  With a frozen head (LoRA) the last trainable weight is read."""
    head = head_of(model)
    if head is None or not head.requires_grad:
        head = next((parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad), None)
    gradient = gradient_of(head)
    norm = 0.0 if gradient is None else float(gradient.detach().float().norm().item())
    say(f"[GRAD] LM head grad norm: {norm:.6g}")


def preference(chosen: Any, rejected: Any) -> None:
    """S7: mean and spread of the reward model's scores of preferred and of rejected answers."""
    for name, scores in (("Chosen", chosen), ("Rejected", rejected)):
        values = scores.detach().float().reshape(-1)
        spread = float(values.std(unbiased=False).item()) if values.numel() else math.nan
        say(f"{name} mean: {number(values):.4f} ± {spread:.4f}")


def kl(beta: float, margin: Any = None) -> None:
    """S8: the KL coefficient in use and the mean reward margin."""
    say(f"[KL] beta_kl: {float(beta):.6g}" + ("" if margin is None else f", margin: {number(margin):.4f}"))


def sync(reference: Any, actor: Any) -> None:
    """S9: mean logits of the reference model and of the actor on the same tokens."""
    say(f"[SYNC] Ref logits mean: {number(reference):.4f}, Actor: {number(actor):.4f}")


def scheduled(step: int, peak: float, total: int, warmup: int = 0, lowest: float = 0.0, shape: str = "cosine") -> float:
    """The learning rate that the schedule asks for: linear warm-up, then cosine, linear or constant."""
    if warmup and step < warmup:
        return peak * step / warmup
    part = min(1.0, max(0.0, (step - warmup) / max(1, total - warmup)))
    if shape == "cosine":
        return lowest + (peak - lowest) * (1 + math.cos(math.pi * part)) / 2
    if shape == "linear":
        return lowest + (peak - lowest) * (1 - part)
    return peak


def lr(optimizer: Any, peak: float, total: int, warmup: int = 0, lowest: float = 0.0, shape: str = "cosine", group: int = 0) -> None:
    """S10: the optimizer's learning rate against the schedule's formula at this step."""
    actual = float(optimizer.param_groups[group]["lr"])
    expected = scheduled(_now.get("step", 0), peak, total, warmup, lowest, shape)
    say(f"[LR] Actual: {actual:.6e}, Expected: {expected:.6e}, Diff: {abs(actual - expected):.6e}")


def groups(optimizer: Any) -> None:
    """H2: the settings of every parameter group, to be held against the configuration after a jump of the loss."""
    for index, group in enumerate(optimizer.param_groups):
        kept = {
            name: value for name, value in group.items() if name != "params" and isinstance(value, (int, float, bool, str, tuple, list))
        }
        say(f"param_group[{index}] {kept}", with_step=False)


def colour(layer: str, text: str) -> None:
    """A three-colour line: layer HARDWARE (L0), MODEL (L1, L2) or TRAIN (L3)."""
    say(f"[{layer}] {text}")


def memory() -> None:
    """S11: the allocator's table of this process; call it where memory runs short, it cannot be taken from outside."""
    import torch

    if torch.cuda.is_available():
        say(torch.cuda.memory_summary(), with_step=False)
