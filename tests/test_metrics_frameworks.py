"""Metric lines of frameworks with a format of their own, by version, and of home-made loops."""

from __future__ import annotations

import math

import pytest
from support_lines import facts, feed, named, series

from parsers import deepspeed, hf_trainer, jsonl_metrics, keyvalue, megatron, openrlhf, progress, titan, verl
from parsers.base import LineParser, Rows

ALL = (
    deepspeed.PARSER,
    hf_trainer.PARSER,
    *(p for p in jsonl_metrics.PARSER if isinstance(p, LineParser)),
    keyvalue.PARSER,
    megatron.PARSER,
    openrlhf.PARSER,
    progress.PARSER,
    titan.PARSER,
    verl.PARSER,
)


def values(rows: Rows, name: str) -> list[float]:
    return [m.value for m in named(rows, name)]


# ---------------------------------------------------------------------------------------------- verl


def test_verl_0_4_prints_three_decimals():
    line = "\x1b[36m(TaskRunner pid=41233)\x1b[0m step:3 - actor/entropy_loss:0.510 - actor/kl_loss:0.001 - actor/pg_loss:-0.003 - actor/lr:0.000 - training/global_step:3.000 - critic/score/mean:0.220 - response_length/mean:516.200 - response_length/clip_ratio:0.060 - timing_s/step:61.000 - perf/throughput:1164.800"
    rows = feed(ALL, line)
    assert series(rows, "kl") == [(3, 0.001)]
    assert series(rows, "policy_loss") == [(3, -0.003)]
    assert series(rows, "response_clip_ratio") == [(3, 0.06)]
    assert [e.fields["decimals"] for e in rows.events if e.kind == "rounding"] == [3]
    assert facts(rows, "framework") == ["verl"]


def test_verl_0_1_learning_rate_in_units_of_1e_4():
    rows = feed(ALL, "step:1 - actor/lr(1e-4):0.010 - critic/kl:0.020 - critic/score/mean:0.1")
    assert values(rows, "learning_rate") == [pytest.approx(1e-6)]


def test_verl_0_5_repr_of_numpy_2():
    line = "(TaskRunner pid=1) step:12 - actor/pg_loss:np.float64(-0.003) - actor/grad_norm:np.float64(nan) - actor/lr:np.float64(1e-06) - critic/score/mean:np.float64(0.25) - training/rollout_probs_diff_max:0.93 - training/rollout_actor_probs_pearson_corr:0.998"
    rows = feed(ALL, line)
    assert series(rows, "policy_loss") == [(12, -0.003)]
    assert math.isnan(values(rows, "grad_norm")[0])
    assert values(rows, "learning_rate") == [1e-06]
    assert values(rows, "prob_corr") == [0.998]
    assert not [e for e in rows.events if e.kind == "rounding"]


def test_verl_validation_line_and_end():
    rows = feed(
        ALL,
        "step:8 - val-core/openai/gsm8k/reward/mean@1:np.float64(0.412)\n(TaskRunner pid=1) Final validation metrics: {'val-core/openai/gsm8k/reward/mean@1': 0.5}",
    )
    assert values(rows, "val_score/openai/gsm8k/reward/mean@1") == [0.412, 0.5]
    assert [e.fields["reason"] for e in rows.events if e.kind == "run_end"] == ["final validation"]


# ---------------------------------------------------------------------------------------------- Megatron and relatives


@pytest.mark.parametrize("stamp", ["", " [2025-06-12 09:30:23]", " [2025-06-12 09:30:23.120331]"])
def test_megatron_iteration(stamp: str):
    line = f"{stamp} iteration       10/    5000 | consumed samples:         5120 | elapsed time per iteration (ms): 2311.4 | learning rate: 1.500000E-04 | global batch size:   512 | lm loss: 6.123000E+00 | loss scale: 4096.0 | grad norm: 0.612 | number of skipped iterations:   1 | number of nan iterations:   2 |"
    rows = feed(ALL, line)
    assert series(rows, "loss") == [(10, 6.123)]
    assert values(rows, "step_time") == [pytest.approx(2.3114)]
    assert values(rows, "skipped_steps") == [1]
    assert values(rows, "nan_steps") == [2]
    assert facts(rows, "setting.total_steps") == [5000]


def test_megatron_validation_checkpoint_resume_exit():
    text = """ validation loss at iteration 1000 | lm loss value: 6.100000E+00 | lm loss PPL: 4.458577E+02 |
  successfully saved checkpoint from iteration      80 to /ckpt [ t 1/2, p 1/1 ]
 successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration 16800
[exiting program after 1190.0 minutes] datetime: 2021-09-01 10:00:00
exiting program at iteration      16900"""
    rows = feed(ALL, text)
    assert series(rows, "eval_loss") == [(1000, 6.1)]
    assert [(e.kind, e.fields.get("step")) for e in rows.events] == [
        ("checkpoint_saved", 80),
        ("resume", 16800),
        ("run_end", None),
        ("run_end", 16900),
    ]


def test_megatron_timers_by_rank():
    text = """ iteration  80/ 5000 | lm loss: 6.1E+00 | number of nan iterations:   0 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (1700.11, 2210.90)
    train/valid/test-data-iterators-setup ..........: (1230.10, 1502.77)
times across ranks (ms):
  forward-backward:
     rank  0: 1700.11
     rank  1: 2210.90
done"""
    rows = feed(ALL, text)
    assert series(rows, "timer_max/forward-backward") == [(80, pytest.approx(2.2109))]
    assert [(m.rank, m.value) for m in named(rows, "timer/forward-backward")] == [(0, pytest.approx(1.70011)), (1, pytest.approx(2.2109))]


def test_nemo_and_nanotron():
    text = """Training epoch 0, iteration 7/99 | lr: 7e-05 | global_batch_size: 256 | global_step: 7 | max_memory_reserved: 70811385856 | reduced_train_loss: 2.684 | train_step_timing in s: 4.28 | consumed_samples: 2048
\x1b[2;3m06/12 09:30:12 [INFO|DP=0|PP=0|TP=0|node-0]\x1b[0m: iteration: 10 / 1000 | consumed_tokens: 41.9M | time_per_iteration_ms: 2.31K | tokens_per_sec: 1.81M | global_batch_size: 4.19M | grad_norm: 1.22 | lm_loss: 7.57 | lr: 0.0003 | eta: 0:38:20"""
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(7, 2.684), (10, 7.57)]
    assert values(rows, "memory_reserved_peak") == [pytest.approx(65.948, abs=1e-3)]
    assert values(rows, "step_time") == [4.28, pytest.approx(2.31)]
    assert values(rows, "tokens_total") == [pytest.approx(41.9e6)]
    assert set(facts(rows, "framework")) == {"nemo", "nanotron"}


# ---------------------------------------------------------------------------------------------- DeepSpeed


def test_deepspeed_lines():
    text = """[2025-06-12 09:30:36,000] [INFO] [logging.py:128:log_dist] [Rank 0] step=30, skipped=1, lr=[1e-05, 1e-05], mom=[(0.9, 0.999)]
[2025-06-12 09:32:10,120] [INFO] [timer.py:264:stop] epoch=0/micro_step=40/global_step=40, RunningAvgSamplesPerSec=31.2, CurrSamplesPerSec=32.1, MemAllocated=12.31GB, MaxMemAllocated=30.12GB
[2025-06-12 09:32:13,001] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 1 Skipping step. Attempted loss scale: 65536, reducing to 32768
[2025-06-12 09:32:12,001] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1
Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
steps: 10 loss: 6.2101 iter time (s): 4.101 samples/sec: 124.850
MA 12.31 GB         Max_MA 14.2 GB         CA 15.1 GB         Max_CA 15 GB """
    rows = feed(ALL, text)
    assert series(rows, "skipped_steps") == [(30, 1)]
    assert values(rows, "learning_rate") == [1e-05]
    assert values(rows, "memory_allocated_peak") == [30.12, 14.2]
    overflow = [e for e in rows.events if e.kind == "overflow"]
    assert [(e.rank, e.fields.get("reduced")) for e in overflow] == [(1, 32768), (0, None)]
    assert [e.kind for e in rows.events if e.kind == "loss_scale_minimum"]
    assert series(rows, "loss") == [(10, 6.2101)]
    assert values(rows, "step_time") == [4.101]


def test_overflow_of_fairseq_and_apex():
    rows = feed(
        ALL,
        "| NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 4.0\nGradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
    )
    assert values(rows, "loss_scale") == [4, 32768]


# ---------------------------------------------------------------------------------------------- RL frameworks


def test_openrlhf_dict_and_bars_over_rollouts():
    text = """INFO 06-12 09:31:01 ppo_trainer.py:547] ✨ Global step 5: {'policy_loss': -0.0012, 'actor_lr': 5e-07, 'ppo_kl': 0.0003, 'kl': 0.05, 'reward': 0.31, 'response_length': 612.1, 'truncated': 0.03, 'timing/step_total': 86.6}
Train epoch [1/1]: 100%|##########| 16/16 [00:41<00:00,  2.59s/it, pg=0.0760, rm=0.354, ret=0.0219, glen=315, tlen=591, kl=0, act_lr=1e-6]
Train epoch [1/1]: 100%|##########| 16/16 [00:41<00:00,  2.59s/it, pg=0.0115, rm=0.366, ret=0.0137, glen=306, tlen=591, kl=0, act_lr=1e-6]"""
    rows = feed(ALL, text)
    assert series(rows, "reward") == [(5, 0.31), (16, 0.354), (32, 0.366)]
    assert values(rows, "response_clip_ratio") == [0.03]
    assert values(rows, "kl") == [0.05, 0, 0]
    assert values(rows, "step_time") == [86.6]


def test_slime_roll_open_instruct():
    text = """[2025-06-12 09:30:28] model.py:918 - step 4: {'train/loss': 0.0021, 'train/pg_loss': 0.002, 'train/train_rollout_logprob_abs_diff': 0.012, 'train/grad_norm': 1.3, 'train/step': 4}
[2025-06-12 09:30:00] rollout_metrics.py:268 - perf 4: {'rollout/response_len/mean': 812.4, 'rollout/raw_reward': 0.3, 'rollout/truncated_ratio': 0.05}
[2025-06-12 09:32:00] [rlvr_pipeline.py (601)] [INFO] [DRIVER 0 / 1][PID 4123] {"system/step": 2, "actor/total_loss": 0.0021, "critic/kl": 0.004, "critic/score/mean": 0.4, "actor_train/grad_norm": NaN}
2025-06-12 09:31:00,347 - INFO - grpo_utils.py:402 - {'episode': 512, 'training_step': 1, 'objective/kl_avg': 0.001, 'objective/verifiable_reward': 0.31, 'loss/policy_avg': -0.002, 'optim/grad_norm': 1.388}"""
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(4, 0.0021), (2, 0.0021)]
    assert series(rows, "logprob_diff") == [(4, 0.012)]
    assert series(rows, "reward") == [(4, 0.3), (2, 0.4), (1, 0.31)]
    assert math.isnan(values(rows, "grad_norm")[1])
    assert set(facts(rows, "framework")) == {"slime", "roll", "open-instruct"}


def test_nemo_rl_block():
    text = """
========================= Step 7/500 =========================
▶ Training policy...

📊 Training Results:
  • Loss: 0.0012
  • Generation KL Error: 0.0021
  • Avg Reward: 0.3200
  • Mean Generation Length: 512.2000

⏱️  Timing:
  • Total step time: 61.22s
  • generation: 31.10s (50.8%)
"""
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(7, 0.0012)]
    assert series(rows, "rollout_kl") == [(7, 0.0021)]
    assert series(rows, "step_time") == [(7, 61.22)]
    assert series(rows, "generation_time") == [(7, 31.1)]


def test_areal_table():
    text = """(AReaL) 20250612-09:33:00.120 StatsLogger INFO: Epoch 1/10 Step 3/120 Train step 3 done.
(AReaL) 20250612-09:33:00.121 StatsLogger INFO: Stats (1/1):
(AReaL) 20250612-09:33:00.122 StatsLogger INFO:
╒════════════════════════════╤═════════════╤═════════════════════════╤════════════╕
│ ppo_actor/task_reward/avg  │  3.1000e-01 │ ppo_actor/update/loss/avg │ 2.0000e-03 │
├────────────────────────────┼─────────────┼─────────────────────────┼────────────┤
│ ppo_actor/update/grad_norm │  4.8478e-01 │ timeperf/rollout        │ 3.1200e+01 │
╘════════════════════════════╧═════════════╧═════════════════════════╧════════════╛"""
    rows = feed(ALL, text)
    assert series(rows, "reward") == [(3, 0.31)]
    assert series(rows, "grad_norm") == [(3, 0.48478)]
    assert series(rows, "time/rollout") == [(3, 31.2)]


# ---------------------------------------------------------------------------------------------- torchtitan, torchtune


def test_torchtitan_coloured_and_plain():
    text = """[rank0]:[titan] 2025-06-12 09:30:12,347 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  9.3568  \x1b[38;2;180;60;0mgrad_norm:  1.0125  \x1b[38;2;54;234;195mmemory: 61.22GiB(77.31%)  \x1b[34mtps: 7,021  \x1b[36mtflops: 401.21  \x1b[35mmfu: N/A\x1b[39m
[rank0]:[titan] 2025-06-12 09:31:48,000 - root - INFO - \x1b[33mvalidate step: 90  \x1b[32mloss: 6.1021  \x1b[38;2;54;234;195mmemory: 61.22GiB(77.31%)  \x1b[34mtps: 7,101\x1b[39m
[rank0]:[titan] 2025-06-12 09:31:48,000 - root - WARNING - 2 CUDA memory allocation retries."""
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(10, 9.3568)]
    assert series(rows, "eval_loss") == [(90, 6.1021)]
    assert values(rows, "tokens_per_s_per_gpu") == [7021]
    assert values(rows, "memory_reserved_peak") == [61.22]
    assert values(rows, "memory_alloc_retries") == [2]
    assert named(rows, "loss")[0].rank == 0


def test_torchtune_bar_and_log_file():
    rows = feed(
        ALL,
        "\r1|250|Loss: 1.2345:  2%|2         | 250/10000 [00:02<33:11,  2.01s/it]\nStep 251 | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:3121.2 grad_norm:1.35 peak_memory_active:41.2 ",
    )
    assert series(rows, "loss") == [(250, 1.2345), (251, 1.2)]
    assert series(rows, "grad_norm") == [(251, 1.35)]


# ---------------------------------------------------------------------------------------------- plain lines


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("iter 10: loss 5.0664, time 21.10ms, mfu 13.21%", 10, 5.0664),  # nanoGPT
        ("step 250: train loss 1.9621, val loss 2.0601", 250, 1.9621),
        (
            "completed step: 8, seconds: 2.311, TFLOP/s/device: 401.210, Tokens/s/device: 8112.210, total_weights: 1572864, loss: 10.468",
            8,
            10.468,
        ),  # MaxText
        (
            "I0612 09:31:08.230209 140110937163584 metric_logger.py:214] completed step: 9, seconds: 2.3, loss: 10.244, lm_loss: 10.1",
            9,
            10.244,
        ),
        (
            "06/12 09:30:12 - mmengine - INFO - Epoch(train)  [2][  50/1000]  lr: 2.0000e-03  eta: 0:39:00  time: 0.2401  data_time: 0.0042  memory: 8121  grad_norm: 0.7995  loss: 3.0788",
            1050,
            3.0788,
        ),
        (
            "[2025-06-12 09:30:12,347] [    INFO] - loss: 3.16165081, learning_rate: 3e-05, global_step: 10, interval_steps_per_second: 0.83, progress_or_epoch: 0.0100",
            10,
            3.16165081,
        ),
        (
            '2025-06-12 09:30:12 | INFO | train_inner | {"epoch": 1, "update": 0.05, "loss": "12.399", "ppl": "412.21", "num_updates": "100", "gnorm": "0.415"}',
            100,
            12.399,
        ),  # fairseq
        (
            "2025-06-12 09:31:48 | INFO | train_inner | epoch 001:    900 / 2101 loss=9.412, ppl=681.2, num_updates=900, lr=0.0001, gnorm=0.61",
            900,
            9.412,
        ),
        (
            "Epoch: [7][500/1251]\tTime  0.640 ( 0.702)\tData  0.010 ( 0.031)\tLoss 2.4013e+00 (2.5120e+00)\tAcc@1  45.31 ( 44.12)",
            7 * 1251 + 500,
            2.4013,
        ),
        ("[2026-01-02 03:04:05] step 1200/50000 loss 2.3102 lr 1.2e-04 grad_norm 0.91 tok/s 182,001", 1200, 2.3102),
        ("2026-01-02 03:04:05,678 - INFO - step=1200 loss=2.3102 grad_norm=0.9", 1200, 2.3102),
        (
            "[2023-05-19 05:00:00] iteration: 1440/250000 | num_opt_steps: 1440 | per_token_loss: 2.2969 | lr: 3.000E-05 | tflops: 62.22 |",
            1440,
            2.2969,
        ),
        ("step 3 | rollout_time 49.20 s | loss 0.0367 | scores 0.140 | kl 0.013", 3, 0.0367),
        ("INFO it 100 loss 1.980", 100, 1.98),
        ('{"step": 77, "loss": 1.5, "lr": 0.001}', 77, 1.5),
        ("Step 5, Loss: tensor(0.7312, device='cuda:0', grad_fn=<NllLossBackward0>)", 5, 0.7312),
        ("step 12 {'loss': 0.25, 'kl': 0.01}", 12, 0.25),
        ("train: step:125/1770 train_loss:4.6512 train_time:11764ms step_avg:94.11ms", 125, 4.6512),
    ],
)
def test_plain_lines(line: str, step: int, loss: float):
    rows = feed(ALL, line)
    assert series(rows, "loss")[0] == (step, pytest.approx(loss))


def test_nan_in_plain_lines():
    rows = feed(ALL, "step 10 loss nan grad_norm inf\nstep=11 loss=NaN grad_norm=-inf")
    assert [math.isnan(v) for v in values(rows, "loss")] == [True, True]
    assert values(rows, "grad_norm") == [math.inf, -math.inf]


def test_units_of_plain_lines():
    rows = feed(ALL, "iter 10: loss 5.0664, time 21.10ms, mfu 13.21%\nstep:125/1770 val_loss:4.6512 train_time:11764ms step_avg:94.11ms")
    assert values(rows, "step_time") == [pytest.approx(0.0211), pytest.approx(0.09411)]
    assert values(rows, "eval_loss") == [4.6512]


def test_keyed_by_space_as_old_trl_examples_print():
    rows = feed(
        ALL,
        "ppo_epoch 0 step 4: mean_rewards -0.7391 objective/kl -1.28 ppo/mean_non_score_reward 0.003 ppo/loss/total 0.0331 response_len 115.9",
    )
    assert series(rows, "kl") == [(4, -1.28)]
    assert series(rows, "reward") == [(4, -0.7391)]
    assert series(rows, "response_length") == [(4, 115.9)]


def test_readings_behind_a_bar():
    rows = feed(ALL, "  0%|          | 3/2615 [04:12<60:48:43, 84.50s/it] reward_mean 0.259 kl -0.51 ppo/loss/value 0.164 response_len 114")
    assert series(rows, "kl") == [(3, -0.51)]
    assert series(rows, "value_loss") == [(3, 0.164)]


def test_a_line_torn_onto_an_open_bar():
    rows = feed(
        ALL,
        "Validation: |          | 0/? [00:00<?, ?it/s]12/09/24 14:03:31 INFO   Epoch 3: v_recons 4.545e-01  recons 4.626e-01  v_loss 4.591e+00  loss 5.362e+00",
    )
    assert series(rows, "loss") == [(3, 5.362)]


def test_brackets_of_epoch_and_batch_count_from_nought_or_one():
    rows = feed(
        ALL,
        "TRAIN [0][10/3416]\tTime 3.566 (0.000)\tTok/s 538 (0)\tLoss/tok 10.3844 (0.0000)\nEpoch [1][50/1000]\tlr: 2e-3, eta: 1:00:00, time: 0.24, data_time: 0.01, memory: 8121, loss: 3.0788",
    )
    assert series(rows, "loss") == [(10, 10.3844), (50, 3.0788)]


def test_lightning_bars_count_over_epochs():
    text = "\rEpoch 0:  90%|#########| 90/100 [00:36<00:04,  2.41it/s, v_num=3, train_loss=2.609]\n\rEpoch 1:  10%|#| 10/100 [00:04<00:36,  2.41it/s, v_num=3, train_loss=2.5]\nEpoch 0: | 250/? [00:05:27<00:00,  0.76it/s, v_num=4, train_loss=5.180]\n`Trainer.fit` stopped: `max_epochs=1` reached."
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(90, 2.609), (110, 2.5), (250, 5.18)]
    assert "v_num" not in rows.names
    assert [e.fields["reason"] for e in rows.events if e.kind == "run_end"] == ["max_epochs=1"]


def test_a_counter_that_begins_anew_with_each_epoch():
    text = "\n".join(f"epoch {e} step {s:3d} train_loss 0.5 lr 1e-05" for e in (0, 1) for s in (0, 23, 46))
    steps = [step for step, _ in series(feed(ALL, text), "loss")]
    assert steps == sorted(steps)
    assert len(set(steps)) == 6


def test_keras_2_and_3():
    text = "\r 10/100 [===>..........................] - ETA: 9s - loss: 3.1270 - accuracy: 0.6101\r100/100 [==============================] - 11s 101ms/step - loss: 1.2011 - accuracy: 0.6311 - val_loss: 1.2201 - val_accuracy: 0.6204\n\x1b[1m 32/100\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m6s\x1b[0m 98ms/step - accuracy: 0.7012 - loss: 0.9102"
    rows = feed(ALL, text)
    assert values(rows, "loss") == [3.127, 1.2011, 0.9102]
    assert values(rows, "eval_loss") == [1.2201]


def test_composer_block():
    text = "[batch=20/4800]:\n\t Train time/batch: 19\n\t Train loss/train/total: 12.3105\n\t Train l2_norm/grad/global: 0.9001\n\t Train lr-DecoupledAdamW/group0: 0.0002\n\t Eval metrics/eval/LanguagePerplexity: 61.2\nother"
    rows = feed(ALL, text)
    assert series(rows, "loss") == [(20, 12.3105)]
    assert series(rows, "grad_norm") == [(20, 0.9001)]
    assert series(rows, "learning_rate") == [(20, 0.0002)]


def test_ultralytics_rows_under_their_header():
    text = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n\r      1/100      8.11G     3.372     4.481     3.409         31        640:  50%|#####     | 60/120 [00:10<00:10,  5.61it/s]\r      1/100      8.11G     3.172     4.381     3.409         31        640: 100%|##########| 120/120 [00:21<00:00,  5.61it/s]\n                 Class     Images"
    rows = feed(keyvalue.PARSER, text)
    assert series(rows, "box_loss") == [(1, 3.172)]
    assert values(rows, "memory_reserved") == [8.11]


@pytest.mark.parametrize(
    "line",
    [
        "micro_batch 5 seq_len=3238 tokens=71152 fwd=63.25ms",
        "UserWarning: KL divergence is starting to become negative: -0.51 - this might be a precursor for failed training.",
        "The loss: 3 things to know about it when the model should be trained",
        "RuntimeError: expected loss: 1 but got 2 in the default config",
        "INFO 06-12 09:30:00 metrics.py:295] Avg prompt throughput: 12.3 tokens/s, Avg generation throughput: 456.7 tokens/s, Running: 5 reqs",
        "value_loss_coef: 0.5",
        "training finished: 701 steps, final loss 4.0801",
        "Processed prompts: 100%|##########| 8/8 [00:01<00:00,  5.10it/s, est. speed input: 100.00 toks/s, output: 200.00 toks/s]",
        "node-0:123:456 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA",
        '  File "/x/loss.py", line 12, in loss',
        "reward: float = 0.0",
    ],
)
def test_lines_that_are_no_readings(line: str):
    assert feed(ALL, line).metrics == []


def test_no_line_is_read_twice():
    lines = [
        " iteration  10/ 5000 | consumed samples: 5120 | elapsed time per iteration (ms): 2311.4 | lm loss: 6.1E+00 | grad norm: 0.6 | number of nan iterations: 0 |",
        "{'loss': 4.7, 'grad_norm': 12.0, 'learning_rate': 0.0009, 'epoch': 0.12}",
        "INFO 06-12 09:31:01 ppo_trainer.py:547] Global step 5: {'policy_loss': -0.0012, 'loss': 0.5, 'kl': 0.05}",
        "step:3 - actor/pg_loss:-0.003 - critic/score/mean:0.220 - train/loss:0.5",
        "Step 251 | loss:1.2 lr:2e-05 grad_norm:1.35 ",
        "root - INFO - step: 10  loss:  9.2649  memory: 61.22GiB(77.31%)  tps: 7,021  tflops: 401.21  mfu: 40.57%",
        "steps: 10 loss: 6.2101 iter time (s): 4.101 samples/sec: 124.850",
    ]
    for line in lines:
        rows = feed(ALL, line)
        assert rows.metrics
        assert len({(m.name, m.raw) for m in rows.metrics}) == len(rows.metrics), line


# ---------------------------------------------------------------------------------------------- progress


def test_training_bars_and_others():
    rows = feed(
        progress.PARSER,
        "Loading checkpoint shards: 100%|##| 4/4 [00:12<00:00,  3.1s/it]\n 23%|##3       | 451/2000 [01:12<04:07,  6.28it/s]\nTraining Progress: 100%|##########| 435/435 [7:12:41<00:00, 61.02s/it]",
    )
    assert [(e.kind, e.fields["step"]) for e in rows.events] == [("activity", 4), ("progress", 451), ("progress", 435), ("run_end", 435)]
    assert rows.events[1].fields["total"] == 2000
    assert rows.events[2].fields["seconds_per_step"] == pytest.approx(61.02)


@pytest.mark.parametrize(
    ("line", "kind", "step"),
    [
        ("Saving model checkpoint to /ckpt/checkpoint-100", "checkpoint_started", 100),
        ("Checkpoint saved at /out/step_200", "checkpoint_saved", 200),
        ("local_global_step_folder: checkpoints/p/e/global_step_40", "checkpoint_saved", 40),
        ("Resuming from checkpoint /ckpt/checkpoint-300", "resume", 300),
        ("Setting global step to 80", "resume", None),
        ("Restored all states from the checkpoint at /x/epoch=3-step=400.ckpt", "resume", 400),
        ("Training completed.", "run_end", None),
        ("training finished: 701 steps, final loss 4.0801", "run_end", None),
        ("[rank 0] INFO train: done: 2353 steps, best loss 7.6724", "run_end", None),
        ("2026-01-02 03:04:05 - INFO - Training finished", "run_end", None),
    ],
)
def test_milestones(line: str, kind: str, step: float | None):
    rows = feed(progress.PARSER, line)
    assert [(e.kind, e.fields.get("step")) for e in rows.events] == [(kind, step)]


@pytest.mark.parametrize(
    "line",
    [
        "resume_from_checkpoint: None",
        "no checkpoint found, training from scratch; resuming from nothing failed",
        "when training is done, call save()",
    ],
)
def test_no_milestones(line: str):
    assert feed(progress.PARSER, line).events == []


def test_world_size():
    rows = feed(
        progress.PARSER,
        "All distributed processes registered. Starting with 8 processes\nusing world size: 16, data-parallel-size: 8\ninit_process_group: rank=7, world_size=9, group_name=weights\nlocal_world_size: 4",
    )
    assert facts(rows, "world_size") == [8, 16]
