"""Lines of the Hugging Face Trainer and the libraries on top of it, by version."""

from __future__ import annotations

import math

import pytest
from support_lines import facts, feed, named, series

from parsers import hf_trainer, keyvalue, progress

ALL = (hf_trainer.PARSER, keyvalue.PARSER, progress.PARSER)


def bar(step: int, total: int = 100) -> str:
    return f" {100 * step // total:2d}%|##        | {step}/{total} [00:{step:02d}<01:00,  1.00it/s]"


def test_transformers_4_floats_with_the_step_of_the_redrawn_bar():
    text = (
        f"\r{bar(1)}\r{bar(10)}\r{' ' * 46}\r"
        "{'loss': 4.7836, 'grad_norm': 12.039358139038086, 'learning_rate': 0.0009, 'epoch': 0.12}\n"
        f"\r{bar(10)}\r{bar(20)}\r{' ' * 46}\r"
        "{'loss': 4.5, 'grad_norm': 11.0, 'learning_rate': 0.0008, 'epoch': 0.24}\n"
        f"\r{bar(20)}"
    )
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(10, 4.7836), (20, 4.5)]
    assert series(rows, "learning_rate") == [(10, 0.0009), (20, 0.0008)]
    assert [m.line for m in named(rows, "grad_norm")] == [1, 2]
    assert facts(rows, "framework") == ["transformers"]


def test_the_last_line_goes_on_in_the_rhythm_when_the_file_ends_there():
    dicts = [f"{{'loss': {4 - k / 10}, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': {0.2 * k}}}" for k in (1, 2, 3)]
    rows = feed(ALL, f"{dicts[0]}\n\r{bar(20)}\n{dicts[1]}\n\r{bar(40)}\n{dicts[2]}")
    assert [step for step, _ in series(rows, "loss")] == [20, 40, 60]


def test_bars_of_a_stream_forwarded_apart_are_not_believed():
    """srun forwards stdout and stderr apart: bars that fell behind the dicts give no steps."""
    lines = []
    for k in range(1, 6):
        lines.append(f"{{'loss': 3.0, 'grad_norm': 1.0, 'learning_rate': 0.1, 'epoch': {k / 4}}}")
        lines.append(bar(8 if k == 1 else 9 + k))
    rows = feed(ALL, "\n".join(lines))
    assert [step for step, _ in series(rows, "loss")][1:] == [None] * 4


def test_an_evaluation_bar_gives_no_step():
    text = f"{{'loss': 2.0, 'learning_rate': 0.1, 'epoch': 0.5}}\n\r{bar(50)}\n{{'eval_loss': 1.5, 'eval_runtime': 3.2, 'epoch': 0.5}}\n\r{bar(8, 8)}\n"
    rows = feed(ALL, text)
    assert series(rows, "eval_loss") == [(50, 1.5)]
    assert series(rows, "eval_time") == [(50, 3.2)]


def test_transformers_5_prints_strings():
    rows = feed(ALL, "{'loss': '4.834', 'grad_norm': '1.694', 'learning_rate': '0.00095', 'epoch': '0.125'}")
    assert [m.value for m in named(rows, "loss")] == [4.834]
    assert [m.value for m in named(rows, "learning_rate")] == [0.00095]


@pytest.mark.parametrize("printed", ["nan", "'nan'", "NaN", "np.float64(nan)", "tensor(nan, device='cuda:0')"])
def test_every_spelling_of_nan(printed: str):
    rows = feed(ALL, f"{{'loss': 0.0, 'grad_norm': {printed}, 'learning_rate': 0.0, 'epoch': 0.1}}")
    assert math.isnan(named(rows, "grad_norm")[0].value)
    assert named(rows, "loss")[0].value == 0.0


def test_infinity():
    rows = feed(ALL, "{'loss': inf, 'grad_norm': '-inf', 'learning_rate': 0.0, 'epoch': 0.1}")
    assert named(rows, "loss")[0].value == math.inf
    assert named(rows, "grad_norm")[0].value == -math.inf


def test_the_end_of_a_run():
    rows = feed(
        ALL, "{'train_runtime': 144.5, 'train_samples_per_second': 2.65, 'train_steps_per_second': 0.083, 'train_loss': 2.04, 'epoch': 1.0}"
    )
    assert [e.fields["reason"] for e in rows.events if e.kind == "run_end"] == ["train_runtime"]
    assert [m.value for m in named(rows, "final_loss")] == [2.04]
    assert named(rows, "loss") == []


def test_the_opening_banner_and_its_settings():
    text = """[INFO|trainer.py:2409] 2025-06-12 09:31:44,120 >> ***** Running training *****
[INFO|trainer.py:2410] 2025-06-12 09:31:44,120 >>   Num examples = 9,120
[INFO|trainer.py:2411] 2025-06-12 09:31:44,120 >>   Num Epochs = 3
[INFO|trainer.py:2412] 2025-06-12 09:31:44,120 >>   Instantaneous batch size per device = 4
[INFO|trainer.py:2415] 2025-06-12 09:31:44,120 >>   Total train batch size (w. parallel, distributed & accumulation) = 64
[INFO|trainer.py:2416] 2025-06-12 09:31:44,120 >>   Gradient Accumulation steps = 2
[INFO|trainer.py:2417] 2025-06-12 09:31:44,120 >>   Total optimization steps = 426
[INFO|trainer.py:2418] 2025-06-12 09:31:44,120 >>   Number of trainable parameters = 1,543,714,304"""
    rows = feed(ALL, text)
    assert facts(rows, "setting.num_examples") == [9120]
    assert facts(rows, "setting.batch_per_device") == [4]
    assert facts(rows, "setting.global_batch") == [64]
    assert facts(rows, "setting.gradient_accumulation") == [2]
    assert facts(rows, "setting.total_steps") == [426]
    assert facts(rows, "setting.trainable_parameters") == [1543714304]
    assert [e.line for e in rows.events if e.kind == "run_start"] == [1]


def test_trl_grpo_0_14_and_0_20():
    old = "{'loss': 0.0, 'grad_norm': 0.5, 'learning_rate': 1e-06, 'completion_length': 209.5, 'rewards/accuracy_reward': 0.1, 'reward': 0.2, 'reward_std': 0.21, 'kl': 0.0005, 'epoch': 0.01}"
    new = "{'loss': '0.0021', 'num_tokens': '6.123e+04', 'completions/mean_length': '313.2', 'completions/max_length': '512', 'completions/clipped_ratio': '0.06', 'rewards/accuracy_reward/mean': '0.3', 'rewards/accuracy_reward/std': '0.31', 'reward': '0.4', 'reward_std': '0.2', 'frac_reward_zero_std': '0.25', 'entropy': '0.6', 'sampling/sampling_logp_difference/mean': '0.013', 'clip_ratio/region_mean': '0.0012', 'epoch': '0.04'}"
    rows = feed(ALL, f"{old}\n{new}")
    assert [m.value for m in named(rows, "response_length")] == [209.5, 313.2]
    assert [m.value for m in named(rows, "reward/accuracy_reward")] == [0.1, 0.3]
    assert [m.value for m in named(rows, "frac_zero_std")] == [0.25]
    assert [m.value for m in named(rows, "logprob_diff")] == [0.013]
    assert [m.value for m in named(rows, "clip_fraction")] == [0.0012]
    assert "trl" in facts(rows, "framework")


def test_trl_dpo_and_reward_trainer():
    dpo = "{'loss': 0.6931, 'learning_rate': 5e-07, 'rewards/chosen': 0.01, 'rewards/rejected': -0.03, 'rewards/accuracies': 0.54, 'rewards/margins': 0.04, 'logps/chosen': -210.4, 'epoch': 0.01}"
    rm = "{'loss': 0.5, 'accuracy': 0.75, 'margin': 1.1, 'mean_reward': 0.2, 'min_reward': -2.0, 'max_reward': 3.0, 'learning_rate': 1e-05, 'epoch': 0.1}"
    rows = feed(ALL, f"{dpo}\n{rm}")
    assert [m.value for m in named(rows, "reward_accuracy")] == [0.54, 0.75]
    assert [m.value for m in named(rows, "reward_margin")] == [0.04, 1.1]
    assert [m.value for m in named(rows, "reward_rejected")] == [-0.03]


def test_trl_ppo_v2_0_12():
    rows = feed(
        ALL,
        "{'eps': 0.4, 'objective/kl': 2.3, 'objective/entropy': 60.2, 'objective/scores': 0.52, 'policy/clipfrac_avg': 0.03, 'loss/policy_avg': -0.01, 'loss/value_avg': 0.2, 'val/ratio': 1.002, 'val/num_eos_tokens': 12, 'lr': 3e-06, 'episode': 64, 'epoch': 0.01}",
    )
    assert [m.value for m in named(rows, "kl")] == [2.3]
    assert [m.value for m in named(rows, "reward")] == [0.52]
    assert [m.value for m in named(rows, "value_loss")] == [0.2]
    assert [m.value for m in named(rows, "importance_ratio")] == [1.002]


def test_ms_swift_tells_its_step():
    rows = feed(
        ALL,
        "{'loss': 3.15, 'grad_norm': 1.26, 'learning_rate': 2e-06, 'token_acc': 0.65, 'epoch': 0.01, 'global_step/max_steps': '17/94', 'percentage': '18.1%', 'elapsed_time': '2m 3s', 'memory(GiB)': 42.87, 'train_speed(iter/s)': 0.345}",
    )
    assert series(rows, "loss") == [(17, 3.15)]
    assert [m.value for m in named(rows, "memory_reserved_peak")] == [42.87]
    assert "ms-swift" in facts(rows, "framework")
    assert not {"percentage", "elapsed_time"} & set(rows.names)


def test_llama_factory_logger_line_and_srun_label():
    rows = feed(
        ALL,
        "[INFO|2025-06-12 09:40:10] llamafactory.train.callbacks:143 >> {'loss': 1.0021, 'learning_rate': 1.0e-04, 'epoch': 0.90}\n0: {'loss': '4.7', 'grad_norm': '1.6', 'learning_rate': '0.0009', 'epoch': '0.15'}",
    )
    assert [m.value for m in named(rows, "loss")] == [1.0021, 4.7]


def test_unsloth_banner():
    text = """==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1
   \\\\   /|    Num examples = 7,473 | Num Epochs = 1 | Total steps = 250
O^O/ \\_/ \\    Batch size per device = 1 | Gradient accumulation steps = 4"""
    rows = feed(ALL, text)
    assert facts(rows, "setting.total_steps") == [250]
    assert facts(rows, "setting.gradient_accumulation") == [4]
    assert facts(rows, "framework") == ["unsloth"]


@pytest.mark.parametrize(
    "line",
    [
        "config = {'learning_rate': 1e-5, 'optimizer': {'lr': 1.0}, 'reward': 'accuracy'}",
        "{'loss': 0.5",
        "{'loss': }",
        "The 'loss': is computed below",
        "{'model': 'x', 'learning_rate': 1e-05}",
    ],
)
def test_lines_that_are_no_readings(line: str):
    assert feed(ALL, line).metrics == []


def test_a_dict_cut_off_keeps_its_whole_items():
    rows = feed(hf_trainer.PARSER, "{'loss': 4.5, 'grad_norm': 1.25, 'learning_rate': 0.00")
    assert [m.value for m in named(rows, "loss")] == [4.5]
    assert named(rows, "learning_rate") == []
