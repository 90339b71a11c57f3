"""Probe lines of the guide, printed settings and parameter groups; and every line parser on hostile text."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import facts, feed, named, series

from parsers import deepspeed, hf_trainer, jsonl_metrics, keyvalue, megatron, openrlhf, probes, progress, titan, verl
from parsers import settings as printed
from parsers.base import LineParser

EVERY = (
    deepspeed.PARSER,
    hf_trainer.PARSER,
    *(p for p in jsonl_metrics.PARSER if isinstance(p, LineParser)),
    keyvalue.PARSER,
    megatron.PARSER,
    openrlhf.PARSER,
    probes.PARSER,
    progress.PARSER,
    printed.PARSER,
    titan.PARSER,
    verl.PARSER,
)


def test_the_guides_probes():
    text = """[DATA] Batch size: 8, Max len: 512
[DATA] Token distribution: [(151643, 12), (198, 40)]
step 12
[LOSS] {
  "policy": 0.12,
  "value": 1.5,
  "kl": 0.0,
  "entropy": NaN
}
[GRAD] LM head grad norm: 0.0
[KL] beta_kl: 0.1, margin: 0.15
[SYNC] Ref logits mean: 1.25, Actor: 3.5
[LR] Actual: 1.0e-05, Expected: 9.0e-06, Diff: 1.0e-06
Reward frozen params: 199 / 200
Chosen mean: 1.21 ± 0.34
Rejected mean: 0.42 +/- 0.6"""
    rows = feed(EVERY, text)
    got = {m.name: m.value for m in rows.metrics}
    assert got["batch_size"] == 8
    assert got["batch_max_length"] == 512
    assert got["policy_loss"] == 0.12
    assert got["value_loss"] == 1.5
    assert got["kl"] == 0
    assert math.isnan(got["entropy"])
    assert got["head_grad_norm"] == 0
    assert got["kl_coef"] == 0.1
    assert got["reward_margin"] == 0.15
    assert (got["ref_logits_mean"], got["actor_logits_mean"]) == (1.25, 3.5)
    assert (got["learning_rate"], got["learning_rate_expected"], got["learning_rate_diff"]) == (1e-5, 9e-6, 1e-6)
    assert (got["reward_chosen"], got["reward_chosen_std"], got["reward_rejected"], got["reward_rejected_std"]) == (1.21, 0.34, 0.42, 0.6)
    frozen = [e.fields for e in rows.events if e.kind == "frozen_params"]
    assert frozen == [{"model": "Reward", "frozen": 199, "total": 200}]
    assert [e.fields["tokens"] for e in rows.events if e.kind == "token_distribution"] == [[(151643, 12), (198, 40)]]


def test_probe_on_one_line_with_a_step():
    rows = feed(probes.PARSER, '[LOSS] step 40 {"policy": 0.1, "kl": 0.2}\n[KL] step=41 beta_kl: 0.2, margin: nan')
    assert series(rows, "kl") == [(40, 0.2)]
    assert series(rows, "kl_coef") == [(41, 0.2)]
    assert math.isnan(named(rows, "reward_margin")[0].value)


def test_three_colours():
    rows = feed(probes.PARSER, "2026-01-02 03:04:05 [HARDWARE] ECC counter 3\n[MODEL] shapes differ\n[TRAIN] loss rising")
    assert [(e.fields["colour"], e.fields["layer"]) for e in rows.events] == [
        ("HARDWARE", "infra"),
        ("MODEL", "model"),
        ("TRAIN", "training"),
    ]


def test_adam_repr_of_torch():
    text = "AdamW (\nParameter Group 0\n    amsgrad: False\n    betas: (0.9, 0.999)\n    eps: 1e-08\n    lr: 1e-05\n    weight_decay: 0.01\n\nParameter Group 1\n    lr: 2e-05\n    weight_decay: 0.0\n)"
    rows = feed(printed.PARSER, text)
    assert [e.fields for e in rows.events] == [
        {"group": 0, "amsgrad": False, "betas": "(0.9, 0.999)", "eps": 1e-08, "lr": 1e-05, "weight_decay": 0.01},
        {"group": 1, "lr": 2e-05, "weight_decay": 0.0},
    ]


def test_param_groups_as_a_dict():
    rows = feed(
        printed.PARSER, "param_group[1]: {'lr': 0.0003, 'betas': (0.9, 0.95), 'weight_decay': 0.1, 'eps': 1e-08, 'params': [1, 2, 3]}"
    )
    assert rows.events[0].fields == {"group": 1, "lr": 0.0003, "betas": "(0.9, 0.95)", "weight_decay": 0.1, "eps": 1e-08}


def test_megatron_arguments():
    text = "------------------------ arguments ------------------------\n  adam_beta1 ...................................... 0.9\n  clip_grad ....................................... 1.0\n  global_batch_size ............................... 512\n  lr .............................................. 0.00015\n  lr_warmup_iters ................................. 2000\n  micro_batch_size ................................ 2\n-------------------- end of arguments ---------------------"
    rows = feed(printed.PARSER, text)
    assert facts(rows, "setting.learning_rate") == [0.00015]
    assert facts(rows, "setting.warmup_steps") == [2000]
    assert facts(rows, "setting.batch_per_device") == [2]
    assert facts(rows, "setting.max_grad_norm") == [1.0]


def test_training_arguments_over_lines_and_on_one():
    text = "GRPOConfig(\n_n_gpu=1,\nbeta=0.04,\nlearning_rate=1e-06,\nnum_generations=8,\nmax_completion_length=1024,\nwarmup_ratio=0.1,\n)"
    rows = feed(printed.PARSER, text)
    assert facts(rows, "setting.beta") == [0.04]
    assert facts(rows, "setting.num_generations") == [8]
    one = feed(
        printed.PARSER,
        "args: TrainingArguments(output_dir='x', learning_rate=5e-05, per_device_train_batch_size=8, gradient_accumulation_steps=4)",
    )
    assert facts(one, "setting.learning_rate") == [5e-05]
    assert facts(one, "setting.gradient_accumulation") == [4]


def test_verl_configuration_dump_and_overrides():
    text = "(TaskRunner pid=1) {'actor_rollout_ref': {'actor': {'kl_loss_coef': 0.001,\n(TaskRunner pid=1)                                  'optim': {'lr': 1e-06, 'weight_decay': 0.01}},\n(TaskRunner pid=1)                        'rollout': {'n': 5, 'temperature': 1.0}},\n(TaskRunner pid=1)  'critic': {'optim': {'lr': 1e-05}},\n(TaskRunner pid=1)  'data': {'train_batch_size': 1024, 'max_response_length': 1024}}"
    rows = feed(printed.PARSER, text)
    assert facts(rows, "setting.learning_rate") == [1e-06]
    assert facts(rows, "setting.critic_learning_rate") == [1e-05]
    assert facts(rows, "setting.num_generations") == [5]
    assert facts(rows, "setting.global_batch") == [1024]
    command = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.rollout.n=5 algorithm.kl_ctrl.kl_coef=0.001"
    told = feed(printed.PARSER, command)
    assert facts(told, "setting.kl_coef") == [0.001]
    assert facts(told, "setting.learning_rate") == [1e-6]
    assert facts(told, "setting.num_generations") == [5]


def test_command_line_options():
    rows = feed(
        printed.PARSER,
        "accelerate launch train.py --learning_rate 1e-6 --num_generations=8 --per_device_train_batch_size 4 --bf16 --beta 0.04",
    )
    assert facts(rows, "setting.learning_rate") == [1e-6]
    assert facts(rows, "setting.batch_per_device") == [4]
    assert facts(rows, "setting.beta") == [0.04]


SEEDS = [
    "{'loss': 4.7, 'grad_norm': 12.0, 'learning_rate': 0.0009, 'epoch': 0.12, 'global_step/max_steps': '1/2'}",
    " iteration  10/ 5000 | consumed samples: 5120 | elapsed time per iteration (ms): 2311.4 | lm loss: 6.1E+00 | number of nan iterations: 0 |",
    "step:3 - actor/pg_loss:np.float64(-0.003) - critic/score/mean:0.220 - timing_s/step:61.0",
    "✨ Global step 5: {'policy_loss': -0.0012, 'reward': 0.31}",
    '[LOSS] {"policy": 0.1, "kl": 0.2}',
    "step: 10  loss:  9.2649  memory: 61.22GiB(77.31%)  tps: 7,021",
    "epoch 0 step 172/5005 loss 6.7 lr=1e-5 reward: nan kl=0.1",
    " 23%|##3 | 451/2000 [01:12<04:07,  6.28it/s, loss=0.5]",
    "Parameter Group 0",
    "TrainingArguments(learning_rate=5e-05)",
    "(min, max) time across ranks (ms):",
    "    all-grads-sync ....: (3.10, 402.77)",
    "[batch=10/4800]:",
    "Train loss/train/total: 1.0",
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "Resuming from checkpoint /x/checkpoint-300",
]


@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 400), st.text(max_size=12)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_mutated_lines_never_raise(lines: list[str], edits: list[tuple[int, str]]):
    text = "\n".join(lines)
    for at, piece in edits:
        at = at % (len(text) + 1)
        text = text[:at] + piece + text[at + 3 :]
    rows = feed(EVERY, text)
    assert all(isinstance(m.value, float) and (m.step is None or isinstance(m.step, float)) for m in rows.metrics)


@pytest.mark.parametrize(
    "text",
    [
        "loss= " + "a" * 60_000,
        "loss: " + "1" * 60_000,
        "'loss': " + "{'a': " * 10_000,
        "loss=" + "a.b/" * 15_000,
        "'loss': " + "'" * 60_000,
        "loss " * 12_000,
        "step " * 12_000 + "loss=1",
        "{'loss': " + "1, 'x': " * 8_000,
        " - actor/" + " - a:" * 12_000,
        "| lm loss: " + "|" * 60_000,
        "it/s] " + "%|" * 30_000,
        "[LOSS] " + "{" * 30_000,
        "--learning_rate " + "--" * 30_000,
        "Config(" + "a=" * 30_000,
        "param_group " + "'a': (" * 10_000,
        "loss=" + " " * 60_000 + "1",
    ],
)
def test_long_hostile_lines_are_quick(text: str):
    started = time.process_time()
    feed(EVERY, text[:64_000])
    assert time.process_time() - started < 1.5


def test_forty_thousand_lines_cost_little():
    """Bound with much room: the work itself is well under half of it."""
    line = "{'loss': 4.7836, 'grad_norm': 12.039358139038086, 'learning_rate': 0.0009, 'reward': 0.5, 'kl': 0.01, 'epoch': 0.12}"
    text = "\n".join([line] * 4_000)
    started = time.process_time()
    rows = feed(hf_trainer.PARSER, text)
    assert len(rows.metrics) == 24_000
    assert time.process_time() - started < 2.0
