"""Sample runs whose trouble lies in the program: data, parameters, optimisation, reward; and two in which nothing is wrong."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from run_text import (
    SITE,
    bar,
    boot_lines,
    chatter,
    cosine,
    dmesg,
    failed_table,
    glog,
    gpu_csv,
    hf_line,
    megatron,
    nccl_start,
    save,
    traceback,
)

BUSES = ["1b", "43", "52", "9d"]


def _hf_header(examples: int, steps: int, parameters: int) -> list[str]:
    return [
        "***** Running training *****",
        f"  Num examples = {examples:,}",
        "  Num Epochs = 1",
        "  Instantaneous batch size per device = 4",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
        "  Gradient Accumulation steps = 4",
        f"  Total optimization steps = {steps:,}",
        f"  Number of trainable parameters = {parameters:,}",
    ]


def token_id(folder: Path, seed: int = 21) -> None:
    """Fine-tuning with the Trainer (4.46); a document of a new source brings an id past the embedding: device asserts on rank 1."""
    rng = Random(seed)
    start = datetime(2026, 1, 19, 22, 4, 10)
    total, last, seconds = 640, 274, 3.37
    lines = [f"[INFO|trainer.py:2313] {start:%Y-%m-%d %H:%M:%S},118 >> {line}" for line in _hf_header(40960, total, 6738415616)]
    lines.append("The tokenizer has 32004 entries, the model's embedding 32000 rows (not resized).")
    for step in range(1, last + 1):
        values = {
            "loss": round(1.1 + 1.5 * math.exp(-step / 80) + rng.gauss(0, 0.03), 4),
            "grad_norm": 0.7 + abs(rng.gauss(0, 0.1)),
            "learning_rate": cosine(step, total, 2e-5, 20),
            "epoch": round(step / total, 2),
        }
        lines.append(hf_line(step, total, seconds, values))
    asserts = [
        f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectLargeIndex: block: [{b},0,0], thread: [{t},0,0] Assertion `srcIndex < srcSelectDimSize` failed."
        for b in (311, 312)
        for t in range(64)
    ]
    lines += asserts
    frames = [
        ("/workspace/sft/train.py", 96, "<module>", "trainer.train()"),
        (f"{SITE}/transformers/trainer.py", 2123, "train", "return inner_training_loop("),
        (
            f"{SITE}/transformers/trainer.py",
            3579,
            "training_step",
            "loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)",
        ),
        (f"{SITE}/transformers/models/llama/modeling_llama.py", 923, "forward", "causal_mask = self._update_causal_mask("),
    ]
    error = "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    lines += traceback(1, frames, error)
    end = start + timedelta(seconds=40 + seconds * last)
    lines += [
        glog(end + timedelta(seconds=6), "W", 8100, "multiprocessing/api.py:897", f"Sending process {8140 + r} closing signal SIGTERM")
        for r in (0, 2, 3)
    ]
    lines.append(
        glog(
            end + timedelta(seconds=7),
            "E",
            8100,
            "multiprocessing/api.py:869",
            "failed (exitcode: -6) local_rank: 1 (pid: 8141) of binary: /opt/venv/bin/python",
        )
    )
    lines += failed_table(end + timedelta(seconds=6), "train.py", "ws-02", 1, 1, 8141, -6, "Signal 6 (SIGABRT) received by PID 8141")
    save(folder, "train.log", lines)
    boot = start - timedelta(days=3)
    kernel = [*boot_lines(boot, "ws-02", BUSES), *chatter(rng, boot + timedelta(hours=1), end, 200)]
    kernel.append((end + timedelta(seconds=5), "NVRM: Xid (PCI:0000:43:00): 43, pid=8141, name=python, Ch 00000018"))
    save(folder, "dmesg.txt", [dmesg(t, text) for t, text in kernel])
    save(folder, "gpu.csv", gpu_csv(start, end, 20, BUSES, rng, used=61000))


def checkpoint_shapes(folder: Path, seed: int = 22) -> None:
    """A resumed run whose configuration was changed to a wider feed-forward layer: the saved tensors do not fit, on every rank."""
    start = datetime(2026, 6, 2, 7, 31, 8)
    lines = [glog(start, "W", 5100, "run.py:774", "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default")]
    for r in range(8):
        lines += nccl_start("dgx-11", 5210 + r, r, r, 8, f"{(BUSES * 2)[r]}000", 8)
    config = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "dtype": "bfloat16",
        "lr": 1.5e-4,
        "global_batch_size": 512,
    }
    t = start + timedelta(seconds=31)
    lines += [
        f"{t:%Y-%m-%d %H:%M:%S},004 - pretrain - INFO - config: {json.dumps(config)}",
        f"{t:%Y-%m-%d %H:%M:%S},011 - pretrain - INFO - resume from runs/wide-8b/checkpoints/step_21000 (saved with config hash 71c0e2)",
    ]
    for r in range(8):
        lines += [
            f"{t + timedelta(seconds=2 + n):%Y-%m-%d %H:%M:%S},{100 * r + n:03d} - pretrain - INFO - rank {r} | reading shard {n + 1} of 20"
            for n in range(20)
        ]
    missing = []
    for layer in range(32):
        for part, shape in (("gate_proj", "[11008, 4096]"), ("up_proj", "[11008, 4096]"), ("down_proj", "[4096, 11008]")):
            now = shape.replace("11008", "14336")
            missing.append(
                f"\tsize mismatch for model.layers.{layer}.mlp.{part}.weight: copying a param with shape torch.Size({shape}) from checkpoint, the shape in current model is torch.Size({now})."
            )
    frames = [
        ("/workspace/pretrain/main.py", 212, "<module>", "main(parse())"),
        ("/workspace/pretrain/main.py", 171, "main", "step = restore(model, optimizer, args.resume)"),
        ("/workspace/pretrain/checkpoint.py", 58, "restore", "model.load_state_dict(state['model'])"),
        (f"{SITE}/torch/nn/modules/module.py", 2581, "load_state_dict", "raise RuntimeError("),
    ]
    for r in (3, 0, 1, 2, 4, 5, 6, 7):
        lines += traceback(
            r, frames, "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n" + "\n".join(missing[: 12 if r else 96])
        )
    end = start + timedelta(seconds=66)
    lines.append(
        glog(end, "E", 5100, "multiprocessing/api.py:874", "failed (exitcode: 1) local_rank: 3 (pid: 5213) of binary: /opt/venv/bin/python")
    )
    lines += failed_table(
        end, "main.py", "dgx-11", 3, 3, 5213, 1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    save(folder, "train.log", lines)


def fragmentation(folder: Path, seed: int = 23) -> None:
    """Sequences of very different lengths: the allocator of rank 2 holds 30 GiB in pieces that are too small for one request."""
    rng = Random(seed)
    start = datetime(2026, 2, 11, 18, 20, 31)
    total, last = 3000, 402
    lines = [f"[{start:%Y-%m-%d %H:%M:%S}] packing off, sequence lengths 512 to 32768, 4 ranks on node mlp-05"]
    t = start + timedelta(seconds=80)
    for step in range(1, last + 1):
        ms = rng.choice((2210, 3900, 7450)) * rng.uniform(0.97, 1.03)
        t += timedelta(milliseconds=ms)
        lines.append(
            megatron(
                t,
                step,
                total,
                ms,
                cosine(step, total, 1e-4, 100),
                1.8 + 4 * math.exp(-step / 90) + rng.gauss(0, 0.03),
                0.6 + abs(rng.gauss(0, 0.1)),
            )
        )
        if step % 50 == 0:
            reserved = 52 + 21 * step / last
            lines.append(
                f"[Rank 2] (after {step} iterations) memory (MB) | allocated: {41012 + rng.randint(-900, 900)} | max allocated: {46310 + rng.randint(0, 300)} | reserved: {1024 * reserved:.0f} | max reserved: {1024 * reserved:.0f}"
            )
    frames = [
        ("/workspace/Megatron-LM/pretrain_gpt.py", 291, "<module>", "pretrain("),
        ("/workspace/Megatron-LM/megatron/training/training.py", 1244, "train_step", "losses_reduced = forward_backward_func("),
        (f"{SITE}/torch/nn/functional.py", 3479, "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
    ]
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 2 has a total capacity of 79.15 GiB of which 3.41 GiB is free. "
        "Including non-PyTorch memory, this process has 75.72 GiB memory in use. Of the allocated memory 43.17 GiB is allocated by PyTorch, and 30.94 GiB is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    lines += traceback(2, frames, error)
    end = t + timedelta(seconds=9)
    lines += [glog(end, "W", 6020, "multiprocessing/api.py:900", f"Sending process {6110 + r} closing signal SIGTERM") for r in (0, 1, 3)]
    lines.append(
        glog(
            end + timedelta(seconds=1),
            "E",
            6020,
            "multiprocessing/api.py:874",
            "failed (exitcode: 1) local_rank: 2 (pid: 6112) of binary: /opt/venv/bin/python",
        )
    )
    lines += failed_table(
        end, "pretrain_gpt.py", "mlp-05", 2, 2, 6112, 1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )
    save(folder, "train.log", lines)
    save(
        folder,
        "gpu.csv",
        gpu_csv(
            start, end, 15, BUSES, rng, used=71000, extra={2: [(start + timedelta(seconds=400), 76400), (t - timedelta(seconds=30), 77950)]}
        ),
    )


def loss_nan(folder: Path, seed: int = 24) -> None:
    """Trainer 5.x in fp16 without loss scaling: between two logged steps the gradient norm turns NaN and the loss with it."""
    rng = Random(seed)
    start = datetime(2026, 8, 3, 4, 10, 2)
    total, last, bad, seconds = 900, 521, 437, 2.08
    lines = [f"[INFO|trainer.py:2520] {start:%Y-%m-%d %H:%M:%S},640 >> {line}" for line in _hf_header(57600, total, 1543714304)]
    lines.insert(
        0,
        f"{start:%m/%d/%Y %H:%M:%S} - INFO - __main__ - Training/evaluation parameters: bf16=False, fp16=False, half_precision_weights=True, max_grad_norm=0.0, learning_rate=0.0002",
    )
    history = []
    for step in range(1, last + 1):
        broken = step >= bad
        values = {
            "loss": math.nan if broken else 1.6 + 1.7 * math.exp(-step / 110) + rng.gauss(0, 0.02),
            "grad_norm": math.nan if broken else 0.8 + abs(rng.gauss(0, 0.1)) + (step > bad - 4) * 2.0 * (step - bad + 4),
            "learning_rate": cosine(step, total, 2e-4, 30),
            "epoch": step / total,
        }
        lines.append(hf_line(step, total, seconds, values, strings=True))
        history.append(
            {
                "epoch": round(step / total, 6),
                "grad_norm": values["grad_norm"],
                "learning_rate": values["learning_rate"],
                "loss": values["loss"],
                "step": step,
            }
        )
    end = start + timedelta(seconds=30 + seconds * last)
    frames = [
        ("/workspace/tune/run.py", 88, "<module>", "trainer.train()"),
        ("/workspace/tune/guard.py", 31, "on_step_end", "raise FloatingPointError(f'loss stayed non-finite for {self.patience} steps')"),
    ]
    lines += traceback(None, frames, "FloatingPointError: loss stayed non-finite for 84 steps")
    save(folder, "train.log", lines)
    save(
        folder,
        "checkpoint-500/trainer_state.json",
        json.dumps(
            {
                "epoch": round(500 / total, 6),
                "global_step": 500,
                "log_history": history[:500:10],
                "max_steps": total,
                "best_metric": None,
                "is_world_process_zero": True,
            },
            indent=2,
        ).split("\n"),
    )
    save(folder, "gpu.csv", gpu_csv(start, end, 20, BUSES[:2], rng, used=39000))


def entropy_collapse(folder: Path, seed: int = 25) -> None:
    """TRL GRPO: the policy settles on one answer per prompt; entropy, the spread within groups and then the reward go to nothing.  No error line."""
    rng = Random(seed)
    total, seconds = 300, 31.4
    lines = _hf_header(19200, total, 3085938688)
    for step in range(1, total + 1):
        fall = 1 / (1 + math.exp((step - 110) / 12))
        late = 1 / (1 + math.exp((step - 205) / 12))  # the reward follows some ninety steps later
        entropy = max(0.004, 0.74 * fall + 0.01 * abs(rng.gauss(0, 1)) * fall + 0.004)
        reward = (0.31 + 0.12 * min(1, step / 90)) * late + 0.015 * (1 - late) + rng.gauss(0, 0.015) * late
        spread = 0.24 * fall + abs(rng.gauss(0, 0.01)) * fall
        zero = min(1.0, 0.12 + 0.88 * (1 - fall))
        length = 240 + 40 * rng.uniform(-1, 1) * fall + 60 * (1 - fall)
        values = {
            "loss": round(0.004 * fall * rng.uniform(-1, 1), 4), "grad_norm": 0.35 * fall + 0.002, "learning_rate": 1e-06 * (1 - step / total), "num_tokens": 61234.0 * step,
            "completions/mean_length": round(length, 1), "completions/min_length": 41.0, "completions/max_length": 512.0, "completions/clipped_ratio": 0.03,
            "rewards/accuracy_reward/mean": max(0.0, reward - 0.01), "rewards/accuracy_reward/std": spread, "reward": max(0.0, reward), "reward_std": spread, "frac_reward_zero_std": zero,
            "kl": 0.002 * step / 100 + 0.02 * (1 - fall), "entropy": entropy, "clip_ratio/region_mean": 0.0005 * fall, "epoch": round(step / total, 2),
        }  # fmt: skip
        lines.append(hf_line(step, total, seconds, values))
    values = {
        "train_runtime": seconds * total,
        "train_samples_per_second": 2.04,
        "train_steps_per_second": 0.032,
        "train_loss": 0.00021,
        "epoch": 1.0,
    }
    lines.append(hf_line(total, total, seconds, values))
    save(folder, "train.log", lines)
    save(
        folder,
        "grpo_config.yaml",
        [
            "learning_rate: 1.0e-6",
            "num_generations: 8",
            "per_device_train_batch_size: 8",
            "max_completion_length: 512",
            "beta: 0.001",
            "temperature: 0.6",
            "epsilon: 0.2",
        ],
    )


def _memory_summary() -> list[str]:
    """`torch.cuda.memory_summary(abbreviated=True)` of torch 2.x, taken inside the process."""
    rule = "|" + "-" * 75 + "|"
    rows = [
        ("Allocated memory", "38210 MiB", "52144 MiB", "811263 GiB", "811226 GiB"),
        ("Active memory", "38210 MiB", "52144 MiB", "811263 GiB", "811226 GiB"),
        ("Requested memory", "38104 MiB", "51990 MiB", "809992 GiB", "809955 GiB"),
        ("GPU reserved memory", "57344 MiB", "58112 MiB", "58112 MiB", "768 MiB"),
        ("Non-releasable memory", "2207 MiB", "6110 MiB", "402117 GiB", "402115 GiB"),
    ]
    return [
        "|" + "=" * 75 + "|",
        "|                  PyTorch CUDA memory summary, device ID 0                 |",
        rule,
        "|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |",
        "|" + "=" * 75 + "|",
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |",
        rule,
        *[f"| {name:<21} | {' | '.join(f'{value:>10}' for value in values)} |" for name, *values in rows],
        "|" + "=" * 75 + "|",
    ]


def guide_probes(folder: Path, seed: int = 26) -> None:
    """A PPO run that prints the guide's probes (S1 to S12): the reward model stops telling chosen from rejected and the penalty stays put."""
    rng = Random(seed)
    start = datetime(2026, 7, 9, 10, 0, 0)
    lines = [
        "[HARDWARE] 4x A100-SXM4-80GB, driver 550.90.07, nccl 2.21.5, ulimit -n 1048576",
        "[MODEL] loading actor, critic, reward model and reference",
        "Actor frozen params: 0 / 291",
        "Critic frozen params: 0 / 292",
        "Reward frozen params: 292 / 292",
        "Reference frozen params: 291 / 291",
        "CUDA_VISIBLE_DEVICES=0,1,2,3 world size 4",
        *nccl_start("a100-1", 4410, 0, 0, 4, "1b000", 4, "2.21.5+cuda12.4"),
    ]
    for step in range(1, 241):
        t = start + timedelta(seconds=7.5 * step)
        decay = 1 / (1 + math.exp((step - 120) / 10))
        chosen, rejected = 1.21 * decay + 0.32 * (1 - decay) + rng.gauss(0, 0.02), 0.42 * decay + 0.47 * (1 - decay) + rng.gauss(0, 0.02)
        expected = cosine(step, 240, 1e-5, 10)
        lines.append(f"[TRAIN] {t:%Y-%m-%d %H:%M:%S} step {step} reward {0.85 * decay + rng.gauss(0, 0.03):.4f}")
        lines.append(f"[DATA] Batch size: 16, Max len: {rng.randint(880, 1024)}")
        if step % 10 == 1:
            lines.append(
                f"[DATA] Token distribution: [(220, {rng.randint(800, 900)}), (13, {rng.randint(500, 600)}), (198, {rng.randint(300, 400)}), (50256, 16)]"
            )
        lines += [
            "[LOSS] {",
            f'  "policy": {0.021 + rng.gauss(0, 0.002):.4f},',
            f'  "value": {0.18 + rng.gauss(0, 0.01):.4f},',
            f'  "kl": {0.011 + 0.004 * step / 100 + rng.gauss(0, 0.001):.4f},',
            f'  "entropy": {1.9 - 0.001 * step + rng.gauss(0, 0.02):.4f}',
            "}",
        ]
        lines.append(f"[GRAD] LM head grad norm: {0.62 + abs(rng.gauss(0, 0.06)):.4f}")
        lines.append(f"Chosen mean: {chosen:.3f} ± {0.31 + rng.gauss(0, 0.01):.3f}")
        lines.append(f"Rejected mean: {rejected:.3f} ± {0.29 + rng.gauss(0, 0.01):.3f}")
        lines.append(f"[KL] beta_kl: 0.1000, margin: {chosen - rejected:.4f}")
        lines.append(f"[SYNC] Ref logits mean: {-1.8 + rng.gauss(0, 0.02):.4f}, Actor: {-1.75 - 0.0005 * step + rng.gauss(0, 0.02):.4f}")
        lines.append(f"[LR] Actual: {expected:.8f}, Expected: {expected:.8f}, Diff: 0.00000000")
    lines += _memory_summary()
    lines.append("[TRAIN] last step done, mean reward of the last 20 steps -0.004, saving")
    save(folder, "train.log", lines)
    save(folder, "nvidia-smi.csv", [f"{n}, NVIDIA A100-SXM4-80GB, {61 + n}, 97, {61012 + 37 * n}, 81920" for n in range(4)])
    save(folder, "compute-apps.csv", ["pid, used_memory [MiB]", *[f"{4410 + n}, {60390 + 37 * n} MiB" for n in range(4)]])
    save(
        folder,
        "nvcc.txt",
        [
            "nvcc: NVIDIA (R) Cuda compiler driver",
            "Copyright (c) 2005-2024 NVIDIA Corporation",
            "Built on Thu_Mar_28_02:18:24_PDT_2024",
            "Cuda compilation tools, release 12.4, V12.4.131",
        ],
    )
    boot = start - timedelta(days=2)
    save(
        folder,
        "dmesg.txt",
        [
            dmesg(t, text)
            for t, text in [*boot_lines(boot, "a100-1", BUSES), *chatter(rng, boot + timedelta(hours=1), start + timedelta(hours=1), 150)]
        ],
    )


def healthy(folder: Path, seed: int = 31, steps: int = 420) -> None:
    """Megatron-LM to the end: a slow start, one skipped batch, corrected PCIe errors and a restarted data service, none of which matter."""
    rng = Random(seed)
    start = datetime(2026, 9, 1, 6, 0, 12)
    host = "dgx-21"
    lines = nccl_start(host, 2210, 0, 0, 4, "1b000", 4)
    lines += [
        "> building GPT dataset for train, validation, test",
        f"[before the start of training step] datetime: {start:%Y-%m-%d %H:%M:%S} ",
        "UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly",
    ]
    t = start
    skipped = rng.randint(100, steps - 60)
    for step in range(1, steps + 1):
        ms = 38_410 if step == 1 else rng.uniform(2260, 2390)
        t += timedelta(milliseconds=ms)
        lines.append(
            megatron(
                t,
                step,
                steps,
                ms,
                cosine(step, steps, 1.5e-4, 40),
                2.4 + 8 * math.exp(-step / 70) + rng.gauss(0, 0.04) + (0.6 if step == skipped else 0),
                0.5 + 3 * math.exp(-step / 30) + abs(rng.gauss(0, 0.08)),
            )
        )
        if step == skipped:
            lines.append(f"{t:%Y-%m-%d %H:%M:%S},221 - data.service - WARNING - fetch of shard 118 timed out after 5 s, retrying (1/5)")
            lines.append(f"{t + timedelta(seconds=1):%Y-%m-%d %H:%M:%S},240 - data.service - INFO - fetch of shard 118 done")
        if step % 100 == 0:
            lines += [
                f"saving checkpoint at iteration {step:7d} to checkpoints/base in torch_dist format",
                f"  successfully saved checkpoint from iteration {step:7d} to checkpoints/base [ t 1/1, p 1/1 ]",
            ]
            t += timedelta(seconds=12)
            lines.append("(min, max) time across ranks (ms):\n    save-checkpoint ................................: (11820.12, 12011.40)")
    lines += [
        f"[after training is done] datetime: {t:%Y-%m-%d %H:%M:%S} ",
        f" validation loss at iteration {steps} on validation set | lm loss value: 2.411204E+00 | lm loss PPL: 1.114738E+01 | ",
    ]
    save(folder, "train.log", lines)
    boot = start - timedelta(days=9)
    kernel = [*boot_lines(boot, host, BUSES), *chatter(rng, boot + timedelta(hours=2), start, 150), *chatter(rng, start, t, 40)]
    for n in range(4):
        when = start + timedelta(seconds=120 + 190 * n)
        kernel += [
            (when, "pcieport 0000:41:01.0: AER: Corrected error received: 0000:43:00.0"),
            (when, "nvidia 0000:43:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"),
            (when, "nvidia 0000:43:00.0:   device [10de:2330] error status/mask=00000001/00002000"),
        ]
    save(folder, "dmesg.txt", [dmesg(w, text) for w, text in sorted(kernel)])
    save(folder, "gpu.csv", gpu_csv(start, t, 20, BUSES, rng))


def interrupted(folder: Path, seed: int = 32) -> None:
    """Stopped from the keyboard: torchrun passes the interrupt on, the ranks end in KeyboardInterrupt and broken connections."""
    rng = Random(seed)
    start = datetime(2026, 10, 12, 15, 44, 1)
    total, last, seconds = 2000, 388, 1.91
    lines = [f"[INFO|trainer.py:2313] {start:%Y-%m-%d %H:%M:%S},018 >> {line}" for line in _hf_header(128000, total, 494032768)]
    for step in range(1, last + 1):
        values = {
            "loss": round(1.9 + 1.1 * math.exp(-step / 120) + rng.gauss(0, 0.03), 4),
            "grad_norm": 1.1 + abs(rng.gauss(0, 0.15)),
            "learning_rate": cosine(step, total, 5e-5, 60),
            "epoch": round(step / total, 2),
        }
        lines.append(hf_line(step, total, seconds, values))
    end = start + timedelta(seconds=20 + seconds * last)
    lines.append(
        f"\r{bar(last, total, seconds)}^C"
        + glog(end, "W", 900, "agent/server/api.py:719", "Received Signals.SIGINT death signal, shutting down workers")
    )
    lines += [glog(end, "W", 900, "multiprocessing/api.py:900", f"Sending process {930 + r} closing signal SIGINT") for r in range(4)]
    frames = [
        ("/workspace/tune/run.py", 88, "<module>", "trainer.train()"),
        (f"{SITE}/transformers/trainer.py", 3612, "training_step", "self.accelerator.backward(loss, **kwargs)"),
        (f"{SITE}/torch/autograd/graph.py", 823, "_engine_run_backward", "return Variable._execution_engine.run_backward("),
    ]
    for r in (0, 2, 1, 3):
        lines += traceback(r, frames, "KeyboardInterrupt")
    lines += traceback(
        None,
        [
            (f"{SITE}/torch/distributed/run.py", 883, "main", "run(args)"),
            (
                f"{SITE}/torch/distributed/elastic/multiprocessing/api.py",
                84,
                "_terminate_process_handler",
                'raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)',
            ),
        ],
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 900 got signal: 2",
    )
    save(folder, "train.log", lines)
    save(folder, "gpu.csv", gpu_csv(start, end, 20, BUSES, rng, used=30100))
