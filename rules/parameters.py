"""Settings and parameter sets: frozen/trainable (L2.1, S3), param groups against the config (H2), pitfalls P1..P5, Q5, Q8."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.series_view import excluded, number, setting, short, undecided

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

FROZEN_ENOUGH = 0.95  # the guide's S3; its intent is all of the reward model
MUST_FREEZE = re.compile(r"(?i)\b(?:reward|reference|ref)\b")
MUST_TRAIN = re.compile(r"(?i)\b(?:actor|policy|lm_?head|critic|value)\b")
MICRO = ("micro_batch_size", "batch_per_device", "per_device_train_batch_size", "train_micro_batch_size_per_gpu")
ACCUMULATION = ("gradient_accumulation", "gradient_accumulation_steps")
GLOBAL = ("global_batch", "global_batch_size", "train_batch_size")


def _evidence(run: Run, key: str) -> list[Evidence]:
    for name, source, value, line in run.facts:
        if name in (key, f"setting.{key}", f"config.{key}"):
            return [Evidence(source, line, f"{key} = {value}")]
    return []


def judge_frozen(run: Run) -> Iterator[Finding]:
    """`<Name> frozen params: F / T` lines and trainable-parameter counts: who must be frozen, who must learn."""
    covers = ("L2.1", "S3")
    events = run.kind("frozen_params")
    trainable = [
        (value, source, line) for name, source, value, line in run.facts if name.removeprefix("setting.") == "trainable_parameters"
    ]
    none_left = next(((s, n) for v, s, n in trainable if number(v) == 0), None)
    # A reference or reward model beside the policy rightly has none.
    if none_left is not None and not any((number(v) or 0.0) > 0 for v, _, _ in trainable):
        yield Finding(
            rule="series.nothing-trainable",
            cause="model/frozen-parameters",
            weight=0.75,
            evidence=[Evidence(none_left[0], none_left[1], "trainable parameters = 0")],
            covers=covers,
        )
        return
    shrunk = _shrunk(trainable)
    if shrunk is not None:
        yield Finding(
            rule="series.fewer-trainable", cause="model/frozen-parameters", weight=0.6, evidence=shrunk[0], covers=covers, facts=shrunk[1]
        )
        return
    bad = [(event, how) for event in events if (how := _frozen_wrong(event))]
    if bad:
        event, how = bad[0]
        yield Finding(
            rule=f"series.frozen-{how}",
            cause="model/frozen-parameters",
            weight=0.6 if how == "policy" else 0.4,
            time=event.time,
            evidence=[run.evidence(e) for e, _ in bad[:3]],
            rank=event.rank,
            covers=covers,
            facts=dict(event.fields),
        )
        return
    if events or trainable:
        place = (
            [run.evidence(events[0])]
            if events
            else [Evidence(trainable[0][1], trainable[0][2], f"trainable parameters = {trainable[0][0]}")]
        )
        finding = excluded("series.frozen", "model/frozen-parameters", covers)
        finding.evidence = place
        yield finding
        return
    yield undecided("series.frozen", "model/frozen-parameters", covers, "frozen_params")


def _shrunk(trainable: list[tuple[Any, str, int]]) -> tuple[list[Evidence], dict[str, str]] | None:
    """A later attempt trains less than half of the parameters that an earlier one trained."""
    counts = [(value, source, line) for told, source, line in trainable if (value := number(told))]
    for earlier, later in pairwise(counts):
        first, second = (earlier, later) if "resume" not in earlier[1].lower() else (later, earlier)
        if 0 < second[0] < 0.5 * first[0]:
            places = [Evidence(c[1], c[2], f"trainable parameters = {c[0]:,.0f}") for c in (second, first)]
            return places, {"before": f"{first[0]:,.0f}", "after": f"{second[0]:,.0f}"}
    return None


def _frozen_wrong(event: Event) -> str:
    """`reward` when a model that must be frozen is not, `policy` when one that must learn is wholly frozen, else empty."""
    frozen, total = number(event.fields.get("frozen")), number(event.fields.get("total"))
    name = str(event.fields.get("model", ""))
    if not total or frozen is None:
        return ""
    if MUST_FREEZE.search(name) and frozen < FROZEN_ENOUGH * total:
        return "reward"
    if MUST_TRAIN.search(name) and not MUST_FREEZE.search(name) and frozen >= total:
        return "policy"
    return ""


def judge_groups(run: Run) -> Iterator[Finding]:
    """H2: optimizer parameter groups as dumped against the configuration of the run."""
    covers = ("H2",)
    groups = run.kind("param_group")
    keys = ("lr", "betas", "weight_decay", "eps")
    if not groups:
        yield undecided("series.param-groups", "training/optimizer-state", covers, "param_group")
        return
    names = {
        "lr": ("learning_rate", "lr"),
        "weight_decay": ("weight_decay",),
        "eps": ("adam_epsilon", "adam_eps", "eps"),
        "betas": ("adam_betas", "betas"),
    }
    first: dict[tuple[Any, str], Event] = {}
    for event in groups:
        for key in keys:
            value = event.fields.get(key)
            if value is None or key == "lr":
                continue
            before = first.setdefault((event.fields.get("group"), key), event)
            if before.fields.get(key) != value:
                yield _changed(run, before, event, key, covers)
                return
    for event in groups[:1]:
        for key in ("weight_decay", "eps"):
            told, want = number(event.fields.get(key)), setting(run, *names[key])
            if told is not None and want is not None and abs(told - want) > 1e-6 * max(abs(want), 1e-12) and told != 0.0:
                yield _differs(run, event, key, told, want, covers)
                return
    finding = excluded("series.param-groups", "training/optimizer-state", covers)
    finding.evidence = [run.evidence(groups[0])]
    yield finding


def _changed(run: Run, before: Event, event: Event, key: str, covers: tuple[str, ...]) -> Finding:
    return Finding(
        rule="series.param-group-changed",
        cause="training/optimizer-state",
        weight=0.5,
        time=event.time,
        evidence=[run.evidence(event), run.evidence(before)],
        covers=covers,
        facts={"key": key, "before": str(before.fields.get(key)), "after": str(event.fields.get(key))},
    )


def _differs(run: Run, event: Event, key: str, told: float, want: float, covers: tuple[str, ...]) -> Finding:
    return Finding(
        rule="series.param-group-config",
        cause=None,
        role="context",
        weight=0.2,
        severity="warning",
        time=event.time,
        evidence=[run.evidence(event)],
        covers=covers,
        facts={"key": key, "before": short(want), "after": short(told)},
    )


def judge_batches(run: Run) -> Iterator[Finding]:
    """P5: global batch = micro batch x accumulation x world size; the generation batch divisible by the group size."""
    covers = ("P5",)
    micro, steps, total = setting(run, *MICRO), setting(run, *ACCUMULATION), setting(run, *GLOBAL)
    world = float(run.world_size) if run.world_size else setting(run, "world_size")
    group = setting(run, "num_generations", "rollout.n", "n_samples_per_prompt")
    # Model parallelism divides the ranks that hold different samples; without its degree the product proves nothing.
    split = 1.0
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel_size"):
        split *= setting(run, name) or 1.0
    if micro and total and world and steps:
        product = micro * steps * world / split
        if abs(product - total) > 0.5 and total % max(micro, 1) == 0:
            yield Finding(
                rule="series.batch-product",
                cause="data/batch-size-mismatch",
                role="context",
                weight=0.15,
                severity="warning",
                evidence=_evidence(run, "global_batch") + _evidence(run, "global_batch_size"),
                covers=covers,
                facts={"product": short(product), "total": short(total)},
            )
            return
    generation = setting(run, "generation_batch_size") or (micro * steps * world if micro and steps and world else None)
    if group and generation:
        if generation % group:
            yield Finding(
                rule="series.batch-groups",
                cause="data/batch-size-mismatch",
                role="precursor",
                weight=0.2,
                severity="warning",
                evidence=_evidence(run, "num_generations"),
                covers=covers,
                facts={"generation": short(generation), "group": short(group)},
            )
            return
        yield excluded("series.batches", "data/batch-size-mismatch", covers, generation=short(generation), group=short(group))
        return
    if micro and total and world and steps:
        yield excluded("series.batches", "data/batch-size-mismatch", covers, generation=short(total), group="-")
        return
    yield undecided("series.batches", "data/batch-size-mismatch", covers, "batch_settings")


def _texts(run: Run, *parts: str) -> list[tuple[str, str, Any, int]]:
    return [item for item in run.facts if any(part in item[0].lower() for part in parts)]


def judge_pitfalls(run: Run) -> Iterator[Finding]:
    """P1..P4: what the logs can tell of tokenizers, masks, critic targets and averaged weights."""
    yield from _tokenizers(run)
    for item, words, needs in (
        ("P2", ("kl_mask", "attention_mask"), "kl_mask"),
        ("P3", ("critic_target", "value_target"), "critic_target"),
        ("P4", ("ema",), "ema_order"),
    ):
        told = _texts(run, *words)
        finding = undecided(f"series.pitfall-{item.lower()}", None, (item,), needs)
        if told:
            finding.evidence = [Evidence(told[0][1], told[0][3], f"{told[0][0]} = {told[0][2]}"[:300])]
        yield finding


def _tokenizers(run: Run) -> Iterator[Finding]:
    """P1: vocabulary sizes or special token ids that differ between the policy's and the reward model's tokenizer."""
    covers = ("P1",)
    for what in ("vocab_size", "eos_token_id", "pad_token_id"):
        by_model: dict[str, tuple[float, str, int]] = {}
        for name, source, value, line in run.facts:
            lower = name.lower()
            if what not in lower:
                continue
            who = (
                "reward"
                if "reward" in lower or ".rm" in lower
                else "policy"
                if any(w in lower for w in ("policy", "actor", "model.vocab"))
                else ""
            )
            size = number(value)
            if who and size is not None:
                by_model.setdefault(who, (size, source, line))
        if len(by_model) == 2 and by_model["reward"][0] != by_model["policy"][0]:
            ours, theirs = by_model["policy"], by_model["reward"]
            yield Finding(
                rule="series.tokenizers-differ",
                cause="data/tokenizer-mismatch",
                weight=0.45 if what == "vocab_size" else 0.3,
                severity="warning",
                evidence=[
                    Evidence(theirs[1], theirs[2], f"reward model {what} = {theirs[0]:g}"),
                    Evidence(ours[1], ours[2], f"policy {what} = {ours[0]:g}"),
                ],
                role="precursor",
                covers=covers,
                facts={"what": what, "policy": f"{ours[0]:g}", "reward": f"{theirs[0]:g}"},
            )
            return
    yield undecided("series.tokenizers", "data/tokenizer-mismatch", covers, "tokenizer_facts")


def judge_tokens(run: Run) -> Iterator[Finding]:
    """L1.1, L1.3, S2: swings of the longest sequence, special tokens, padding waste, from the data probe."""
    from rules.series_view import found, series
    from rules.statistics import finite, median

    covers = ("L1.1", "L1.3", "S2")
    longest, shortest = series(run, "batch_max_length"), series(run, "batch_min_length")
    counts = run.kind("token_distribution")
    if not len(longest) and not counts:
        yield undecided("series.tokens", "data/length-imbalance", covers, "data_probe")
        return
    clean = finite(longest.value)
    if len(clean) >= 3:
        middle = median(clean)
        wild = [i for i, v in enumerate(longest.value) if abs(v - middle) > 0.5 * middle]
        if wild:
            huge = longest.value[wild[-1]] > 4 * middle and wild[-1] >= len(longest) - 2
            yield found(
                "series.length-swing", "data/length-imbalance", longest, wild[-1] if huge else wild[0], 0.55 if huge else 0.15, covers,
                role="root" if huge else "context", severity="warning", middle=short(middle), count=len(wild),
            )  # fmt: skip
            return
        if len(shortest) and middle > 3.5 * max(median(finite(shortest.value)), 1.0):
            yield found(
                "series.padding-waste",
                None,
                longest,
                0,
                0.1,
                covers,
                [(shortest, 0)],
                role="context",
                severity="warning",
                middle=short(middle),
            )
            return
    finding = excluded("series.tokens", "data/length-imbalance", covers, longest if len(longest) else None)
    if counts and not finding.evidence:
        finding.evidence = [run.evidence(counts[0])]
    yield finding


def judge_pointers(run: Run) -> Iterator[Finding]:
    """Q5 and Q8: device and batch-size errors are read from the traceback; here only that none was printed."""
    for item, cause, words in (
        ("Q5", "model/device-mismatch", "Expected all tensors to be on the same device"),
        ("Q8", "data/batch-size-mismatch", "to match target batch_size"),
    ):
        hits = [e for e in run.events if e.severity in ("error", "fatal") and words in e.text]
        finding = excluded(f"series.pointer-{item.lower()}", cause, (item,))
        if hits:
            finding.outcome, finding.role, finding.evidence, finding.time = "found", "precursor", [run.evidence(hits[0])], hits[0].time
        yield finding


RULES = (
    Rule("series.frozen", judge_frozen, ("L2.1", "S3")),
    Rule("series.param-groups", judge_groups, ("H2",)),
    Rule("series.batches", judge_batches, ("P5",)),
    Rule("series.pitfalls", judge_pitfalls, ("P1", "P2", "P3", "P4")),
    Rule("series.tokens", judge_tokens, ("L1.1", "L1.3", "S2")),
    Rule("series.pointers", judge_pointers, ("Q5", "Q8")),
)
