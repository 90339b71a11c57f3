"""The table of metric names: what it must hold, and how names are looked up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.canonical import canonical, entries, reading, table_markdown, unit

NEEDED = [
    "loss",
    "grad_norm",
    "learning_rate",
    "kl",
    "reward",
    "reward_std",
    "entropy",
    "response_length",
    "response_length_max",
    "response_clip_ratio",
    "clip_fraction",
    "policy_loss",
    "value_loss",
    "kl_loss",
    "advantage_mean",
    "importance_ratio",
    "logprob_diff",
    "frac_zero_std",
    "step_time",
    "tokens_per_s",
    "samples_per_s",
    "memory_allocated",
    "loss_scale",
    "epoch",
    "eval_loss",
    "accuracy",
    "reward_chosen",
    "reward_rejected",
    "reward_margin",
    "reward_accuracy",
    "skipped_steps",
    "nan_steps",
    "kl_coef",
    "ref_logits_mean",
    "actor_logits_mean",
    "batch_max_length",
]


def test_the_names_that_rules_ask_for_exist():
    assert set(NEEDED) <= {entry.name for entry in entries()}


def test_every_entry_is_described_once_in_both_languages():
    names = Counter(entry.name for entry in entries())
    assert [name for name, count in names.items() if count > 1] == []
    for entry in entries():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", entry.name)
        assert entry.en
        assert re.search("[\u4e00-\u9fff]", entry.zh), entry.name


def test_no_printed_name_stands_for_two_things():
    owner: dict[str, str] = {}
    for entry in entries():
        for key in entry.keys:
            assert owner.setdefault(key, entry.name) == entry.name, key


@pytest.mark.parametrize(
    ("framework", "raw", "name"),
    [
        (None, "loss", "loss"),
        ("megatron", "lm loss", "loss"),
        ("nemo", "reduced_train_loss", "loss"),
        ("verl", "actor/kl_loss", "kl"),
        ("roll", "actor/kl_loss", "kl_loss"),
        ("verl", "critic/score/mean", "reward"),
        ("verl", "critic/rewards/mean", "reward_total"),
        ("trl", "completions/clipped_ratio", "response_clip_ratio"),
        ("trl", "rewards/chosen", "reward_chosen"),
        ("trl", "rewards/format_reward/mean", "reward/format_reward"),
        ("trl", "rewards/format_reward/std", "reward_std/format_reward"),
        ("trl", "rewards/format_reward", "reward/format_reward"),
        ("verl", "val-core/openai/gsm8k/acc/mean@1", "val_score/openai/gsm8k/acc/mean@1"),
        ("verl", "timing_s/reshard", "time/reshard"),
        ("composer", "lr-DecoupledAdamW/group0", "learning_rate"),
        (None, "eval_rewards/accuracies", "eval_reward_accuracy"),
        (None, "eval_loss", "eval_loss"),
        (None, "train/loss", "loss"),
        (None, "train/my_own_thing", "train/my_own_thing"),
        ("nanogpt", "time", "step_time"),
        (None, "time", "time"),
        ("trl-reward", "accuracy", "reward_accuracy"),
        ("keras", "accuracy", "accuracy"),
        (None, "something nobody knows", "something nobody knows"),
    ],
)
def test_lookup(framework: str | None, raw: str, name: str):
    assert canonical(raw, framework) == name


def test_scales_turn_printed_numbers_into_the_unit():
    assert reading("elapsed time per iteration (ms)", "megatron").scale == pytest.approx(1e-3)
    assert unit("step_time") == "s"
    assert reading("actor/lr(1e-4)", "verl").scale == pytest.approx(1e-4)
    assert reading("memory", "mmengine").scale == pytest.approx(1 / 1024)
    assert reading("memory", "torchtitan").scale == 1.0


@given(st.text(max_size=300), st.sampled_from([None, "verl", "x"]))
def test_any_name_is_taken(raw: str, framework: str | None):
    assert isinstance(canonical(raw, framework), str)


def test_nested_prefixes_end():
    assert canonical("eval_" * 500 + "loss")


def test_the_documentation_is_up_to_date():
    shown = Path(__file__).parents[1] / "docs" / "metrics.md"
    assert shown.read_text("utf-8") == table_markdown()
