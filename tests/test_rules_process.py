"""From texts to findings: exceptions, exits, stops and memory, through the real reader and engine."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pytest
import regex

from forensics import engine, evidence, knowledge
from forensics.reading import Reader
from forensics.run import Run
from rules.base import Finding

ROOT = Path(__file__).parent.parent
PACKS = [
    "model/python_errors",
    "data/python_errors",
    "training/python_errors",
    "reward/python_errors",
    "infra/python_errors",
    "infra/libraries",
    "infra/scheduler",
    "infra/finish",
]


@cache
def reader() -> Reader:
    return Reader(knowledge.load(()).signatures)


def judged(tmp_path: Path, **files: str) -> tuple[Run, list[Finding]]:
    """The findings on a run whose files are given as name=text (double underscores stand for dots)."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    with evidence.gather(folder) as found:
        run = reader().read(found, None, None)
        return run, engine.judge(run, knowledge.load(()))


def by_rule(findings: list[Finding], rule: str) -> Finding | None:
    return next((f for f in findings if f.rule == rule), None)


def causes(findings: list[Finding]) -> dict[str, float]:
    out: dict[str, float] = {}
    for f in findings:
        if f.outcome == "found" and f.cause and f.role in ("root", "stop", "done"):
            out[f.cause] = max(out.get(f.cause, 0.0), f.weight)
    return out


STEPS = "".join(f"2026-03-01 10:00:{n:02d},000 INFO step {n} loss: {2.5 - 0.01 * n:.4f} lr: 0.001\n" for n in range(1, 20))


def trace(kind: str, message: str, *frames: tuple[str, int, str], prefix: str = "") -> str:
    rows = ["Traceback (most recent call last):"]
    for file, line, func in frames:
        rows += [f'  File "{file}", line {line}, in {func}', "    call()"]
    return "".join(f"{prefix}{row}\n" for row in [*rows, f"{kind}: {message}"])


LIB = "/opt/env/lib/python3.11/site-packages/"


@pytest.mark.parametrize("pack", PACKS)
def test_signatures_match_their_examples(pack: str) -> None:
    entries = tomllib.loads((ROOT / "rules" / "signatures" / f"{pack}.toml").read_text(encoding="utf-8"))["signature"]
    for entry in entries:
        pattern = regex.compile(entry["regex"]) if entry.get("regex") else None

        def hit(text: str, entry: dict = entry, pattern: regex.Pattern | None = pattern) -> bool:
            return any(word in text for word in entry["literal"]) and (pattern is None or pattern.search(text) is not None)

        assert all(hit(text) for text in entry["hits"]), entry["id"]
        assert not any(hit(text) for text in entry["near_misses"]), entry["id"]
        assert entry["hits"], entry["id"]
        assert entry["near_misses"], entry["id"]
        assert all(entry[part][lang] for part in ("title", "why") for lang in ("en", "zh")), entry["id"]


def test_words_exist_for_every_rule_id() -> None:
    words = tomllib.loads((ROOT / "rules" / "words" / "process.toml").read_text(encoding="utf-8"))
    pattern = regex.compile(r'"((?:stack-trace|gpu-oom|gpu-memory|exits|platform|ray|stops|full-disk)\.[a-z-]+)"')
    for name in ("stack_trace", "gpu_oom", "exits", "platform_kills", "stops", "full_disk"):
        for rule in pattern.findall((ROOT / "rules" / f"{name}.py").read_text(encoding="utf-8")):
            assert set(words[rule]["title"]) == set(words[rule]["why"]) == {"en", "zh"}, rule


def test_own_mistake_names_the_users_line(tmp_path: Path) -> None:
    text = STEPS + trace(
        "ZeroDivisionError", "float division by zero", ("/home/u/job/train.py", 12, "<module>"), ("/home/u/job/metrics.py", 40, "mean")
    )
    _, findings = judged(tmp_path, train__log=text)
    found = by_rule(findings, "stack-trace.code")
    assert found is not None
    assert found.cause == "training/code-exception"
    assert found.evidence[0].line == 25
    assert "metrics.py:40" in found.facts["frame"]
    context = by_rule(findings, "stack-trace.user-frame")
    assert context is not None
    assert context.covers == ("H3",)


def test_one_survived_exception_is_set_aside(tmp_path: Path) -> None:
    later = STEPS.replace("10:00", "10:05").replace("step ", "step 1")
    text = STEPS + "2026-03-01 10:01:00,000 WARNING upload failed\n" + trace("ValueError", "quiet", ("/home/u/up.py", 3, "push")) + later
    _, findings = judged(tmp_path, train__log=text)
    assert "training/code-exception" not in causes(findings)


@pytest.mark.parametrize(
    ("shapes", "rule"),
    [
        ("4x768 and 512x768", "transposed"),
        ("8x4096 and 512x64", "merged"),
        ("8x64 and 512x100", "split"),
        ("549x6656 and 1x22151168", "packed"),
        ("7x100 and 33x5", "width"),
    ],
)
def test_shapes_of_a_failed_product(tmp_path: Path, shapes: str, rule: str) -> None:
    text = STEPS + trace(
        "RuntimeError",
        f"mat1 and mat2 shapes cannot be multiplied ({shapes})",
        ("/home/u/model.py", 31, "forward"),
        (LIB + "torch/nn/linear.py", 125, "forward"),
    )
    _, findings = judged(tmp_path, train__log=text)
    assert by_rule(findings, f"matmul-shapes.{rule}") is not None


def test_reward_frames_name_the_reward_layer(tmp_path: Path) -> None:
    text = STEPS + trace(
        "IndexError",
        "list index out of range",
        (LIB + "trl/trainer/grpo_trainer.py", 900, "_calculate_rewards"),
        ("/home/u/job/fn.py", 9, "accuracy"),
    )
    _, findings = judged(tmp_path, train__log=text)
    assert causes(findings).get("reward/reward-function-exception", 0) > 0.6
    assert "training/code-exception" not in causes(findings)


def test_bad_record_on_one_rank_only(tmp_path: Path) -> None:
    frames = (("/home/u/job/data.py", 14, "encode"), ("/home/u/job/data.py", 20, "__getitem__"))
    alone = (
        trace("KeyError", "'answer'", *frames, prefix="[rank2]: ") + "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:4771\n"
    )
    _, findings = judged(tmp_path, train__log=STEPS + alone)
    assert "data/corrupt-sample" in causes(findings)
    assert "data/dataset-format" not in causes(findings)


def test_waiting_ranks_are_victims(tmp_path: Path) -> None:
    text = STEPS + trace(
        "RuntimeError",
        "Timed out waiting 1800000ms for recv operation to complete",
        ("/home/u/job/train.py", 50, "main"),
        (LIB + "torch/distributed/distributed_c10d.py", 2501, "all_reduce"),
    )
    _, findings = judged(tmp_path, train__log=text)
    assert "training/code-exception" not in causes(findings)
    assert "model/shape-mismatch" not in causes(findings)


OOM = "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {rank} has a total capacity of 79.15 GiB of which {free} is free.{other} Including non-PyTorch memory, this process has {used} memory in use. Of the allocated memory {allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"


@pytest.mark.parametrize(
    ("numbers", "cause"),
    [
        (
            {"tried": "2.00 GiB", "free": "0.50 GiB", "other": "", "used": "78.60 GiB", "allocated": "76.00 GiB", "idle": "0.90 GiB"},
            "training/gpu-oom",
        ),
        (
            {"tried": "2.00 GiB", "free": "0.50 GiB", "other": "", "used": "78.60 GiB", "allocated": "50.00 GiB", "idle": "26.00 GiB"},
            "training/gpu-oom-fragmentation",
        ),
        (
            {
                "tried": "2.00 GiB",
                "free": "0.50 GiB",
                "other": " Process 99 has 60.00 GiB memory in use.",
                "used": "18.60 GiB",
                "allocated": "17.00 GiB",
                "idle": "0.50 GiB",
            },
            "infra/gpu-memory-held-by-other",
        ),
    ],
)
def test_out_of_memory_by_its_own_numbers(tmp_path: Path, numbers: dict[str, str], cause: str) -> None:
    _, findings = judged(tmp_path, train__log=STEPS + OOM.format(rank=3, **numbers))
    found = [f for f in findings if f.rule.startswith("gpu-oom.") and f.outcome == "found"]
    assert [f.cause for f in found] == [cause]
    assert found[0].rank == 3
    assert found[0].gpu == "3"


def test_recovered_out_of_memory_is_no_cause(tmp_path: Path) -> None:
    numbers = {"tried": "2.00 GiB", "free": "0.50 GiB", "other": "", "used": "78.60 GiB", "allocated": "76.00 GiB", "idle": "0.90 GiB"}
    later = STEPS.replace("10:00", "10:05").replace("step ", "step 1")
    _, findings = judged(tmp_path, train__log=STEPS + OOM.format(rank=0, **numbers) + later)
    assert "training/gpu-oom" not in causes(findings)


def test_cancelled_alone_is_the_user_but_not_after_a_failure(tmp_path: Path) -> None:
    cancel = "slurmstepd: error: *** STEP 4242.0 ON n1 CANCELLED AT 2026-03-01T10:00:30 ***\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, plain = judged(tmp_path / "a", train__log=STEPS + cancel)
    assert causes(plain).get("none/interrupted-by-user", 0) >= 0.7
    _, failed = judged(
        tmp_path / "b",
        train__log=STEPS
        + "0: "
        + trace("ZeroDivisionError", "division by zero", ("/home/u/t.py", 3, "main"))
        + "srun: error: n1: task 0: Exited with exit code 1\n"
        + cancel,
    )
    assert "none/interrupted-by-user" not in causes(failed)
    assert by_rule(failed, "stops.torn-down") is not None
    assert "training/code-exception" in causes(failed)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:30 DUE TO TIME LIMIT ***", "infra/time-limit"),
        ("slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-03-01T10:00:30 DUE TO PREEMPTION ***", "infra/preempted"),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed",
            "infra/cgroup-oom-kill",
        ),
        ("srun: error: Node failure on node17", "infra/node-down"),
        ("Warning  Evicted  kubelet  The node was low on resource: ephemeral-storage. Container train was using 72Ki.", "infra/disk-full"),
        ("KeyboardInterrupt", "none/interrupted-by-user"),
    ],
)
def test_stops_and_platform(tmp_path: Path, line: str, cause: str) -> None:
    _, findings = judged(tmp_path, train__log=STEPS + line + "\n")
    assert cause in causes(findings)


def test_time_limit_told_by_the_request(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --time=60\n#SBATCH --signal=USR2@120\n"
    log = "".join(f"2026-03-01 10:{n:02d}:00,000 INFO step {n} loss: {2.5 - 0.01 * n:.4f}\n" for n in range(58))
    log += "submitit WARNING (2026-03-01 10:58:05,000) - Caught signal SIGUSR2 on n2: this job is preempted.\n"
    _, findings = judged(tmp_path, train__log=log, job__sh=script)
    assert "infra/time-limit" in causes(findings)
    assert "infra/preempted" not in causes(findings)


def test_killed_without_a_record_stays_weak(tmp_path: Path) -> None:
    line = "E0301 10:00:25.223000 7001 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 2103) of binary: python\n"
    _, findings = judged(tmp_path, train__log=STEPS + line)
    found = by_rule(findings, "exits.killed")
    assert found is not None
    assert found.weight <= 0.4
    assert found.needs


def test_launchers_report_is_no_code_exception(tmp_path: Path) -> None:
    text = STEPS + trace(
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "", (LIB + "torch/distributed/run.py", 900, "main")
    )
    _, findings = judged(tmp_path, train__log=text)
    assert "training/code-exception" not in causes(findings)


def test_full_disk_behind_a_writer_error(tmp_path: Path) -> None:
    text = STEPS + trace(
        "RuntimeError",
        "[enforce fail at inline_container.cc:603] . unexpected pos 4096 vs 3990",
        ("/home/u/t.py", 3, "save"),
        (LIB + "torch/serialization.py", 440, "save"),
    )
    df = "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme0n1    100G  100G   20K 100% /data\n"
    _, findings = judged(tmp_path, train__log=text, df__txt=df)
    found = by_rule(findings, "full-disk.write")
    assert found is not None
    assert found.cause == "infra/disk-full"


def test_finished_run_says_so(tmp_path: Path) -> None:
    _, findings = judged(tmp_path, train__log=STEPS + "2026-03-01 10:01:00,000 INFO Training finished.\n")
    assert any(f.role == "done" and f.outcome == "found" for f in findings)


def test_trackers_own_thread_is_not_the_failure(tmp_path: Path) -> None:
    text = STEPS + trace(
        "requests.exceptions.SSLError",
        "HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded",
        (LIB + "wandb/sdk/internal/sender.py", 90, "send"),
        (LIB + "requests/adapters.py", 513, "send"),
    )
    _, findings = judged(tmp_path, train__log=text)
    assert not [cause for cause in causes(findings) if cause != "none/healthy"]


def test_attention_frames_under_an_illegal_access(tmp_path: Path) -> None:
    text = STEPS + trace(
        "RuntimeError",
        "CUDA error: an illegal memory access was encountered",
        ("/home/u/model.py", 203, "forward"),
        (LIB + "flash_attn/flash_attn_interface.py", 925, "forward"),
    )
    _, findings = judged(tmp_path, train__log=text)
    assert causes(findings).get("model/attention-kernel", 0) >= 0.5


def test_an_exception_line_alone_is_weak_evidence(tmp_path: Path) -> None:
    _, findings = judged(tmp_path, train__log=STEPS + "ValueError: unknown pooling mode\n")
    assert 0.2 < max(causes(findings).values()) < 0.45
