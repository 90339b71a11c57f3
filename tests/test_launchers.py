"""What launchers, schedulers and platforms write, version by version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_lines import feed

from parsers import batch_systems, disk_usage, launchers, ray_logs, slurm, torchelastic
from parsers.base import Event, LineParser
from parsers.exit_codes import normal, numbers, signal_of

ELASTIC = next(p for p in torchelastic.PARSER if isinstance(p, LineParser))
ALL = (ELASTIC, launchers.PARSER, slurm.PARSER, ray_logs.PARSER, batch_systems.PARSER, disk_usage.PARSER)


def one(parser: LineParser, text: str) -> Event:
    (event,) = feed(parser, text).events
    return event


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 (pid: 2103) of binary: /opt/venv/bin/python",  # torch 2.0
        "[2024-03-01 10:00:00,223] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 2 (pid: 2103) of binary: /usr/bin/python",  # 2.1
        "E0301 10:00:00.223000 139845127194432 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 2 (pid: 2103) of binary: python",  # 2.3
    ],
)
def test_torchelastic_failed_line(line: str) -> None:
    event = one(ELASTIC, line)
    assert event.kind == "exit"
    assert event.pid == 2103
    assert (event.fields["exitcode"], event.fields["signal"], event.fields["local_rank"]) == (-9, "SIGKILL", 2)


TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_17:51:50
  host      : node-1.cluster
  rank      : 5 (local_rank: 1)
  exitcode  : -15 (pid: 9035)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 9035
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_17:51:49
  host      : node-1.cluster
  rank      : 4 (local_rank: 0)
  exitcode  : -6 (pid: 9034)  (SIGABRT)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 9034
============================================================
"""


def test_torchelastic_table() -> None:
    other, root = feed(ELASTIC, TABLE).events
    assert (other.rank, other.host, other.fields["by_launcher"], other.fields["first_observed"]) == (5, "node-1.cluster", True, False)
    assert (root.rank, root.pid, root.fields["signal"], root.fields["first_observed"]) == (4, 9034, "SIGABRT", True)


def test_torchelastic_survivors_restarts_and_signals() -> None:
    closing = one(
        ELASTIC,
        "W1129 17:51:49.788000 9032 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 9035 closing signal SIGTERM",
    )
    assert closing.fields["by_launcher"]
    assert closing.severity == "info"
    restart = one(
        ELASTIC,
        "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
    )
    assert (restart.kind, restart.fields["attempt"], restart.fields["left"]) == ("restart", 2, 2)
    signal = one(ELASTIC, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 1")
    assert (signal.kind, signal.fields["signal"]) == ("interrupt", 1)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("slurmstepd-n1: error: *** JOB 4242 ON n1 CANCELLED AT 2025-01-06T15:04:05 DUE TO TIME LIMIT ***", "time-limit"),
        ("slurmstepd: error: *** STEP 4242.0 ON n1 CANCELLED AT 2025-01-06T15:04:05 DUE TO PREEMPTION ***", "preempted"),
        (
            "slurmstepd: error: *** JOB 4242 ON n1 CANCELLED AT 2025-01-06T15:04:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
            "node-fail",
        ),
        ("slurmstepd: error: *** JOB 7518 ON n1 CANCELLED AT 2022-06-10T17:11:35 ***", "cancelled"),
        (
            " 10%|# | 4/40 [00:01<00:10]slurmstepd-vm: error: *** STEP 1.0 ON vm CANCELLED AT 2026-11-29T18:01:04 DUE TO TIME LIMIT ***",
            "time-limit",
        ),
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.",
            "oom",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0. Some of the step tasks have been OOM Killed.", "oom"),
        ("slurmstepd: error: StepId=6.0 exceeded memory limit (1727668224 > 1468006400), being killed", "memory-limit"),
        ("srun: error: Node failure on node17", "node-fail"),
        ("srun: error: node107: tasks 1-3: Out Of Memory", "oom"),
        ("srun: sending Ctrl-C to StepId=4242.0", "ctrl-c"),
        ("[2025-01-06T15:04:05.123] Time limit exhausted for JobId=4242", "time-limit"),
    ],
)
def test_slurm_lines(line: str, what: str) -> None:
    event = one(slurm.PARSER, line)
    assert (event.kind, event.fields["what"]) == ("slurm", what)


def test_slurm_tasks_tables_and_requests() -> None:
    event = one(slurm.PARSER, "srun: error: node1: tasks 0,2-3: Segmentation fault (core dumped)")
    assert (event.kind, event.fields["signal"], event.fields["tasks"], event.fields["core"]) == ("exit", "SIGSEGV", [0, 2, 3], True)
    rows = feed(slurm.PARSER, "4242|train|gpu|NODE_FAIL|1:0|\n4242.batch|batch||CANCELLED by 1000|0:15|\n")
    assert [(e.fields["state"], e.fields["uid"]) for e in rows.events] == [("NODE_FAIL", None), ("CANCELLED", "1000")]
    shown = feed(
        slurm.PARSER,
        "JobId=7 JobName=x\n   JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null)\n   ExitCode=0:125 TimeLimit=1-00:00:00\n",
    )
    assert ("slurm.reason", "OutOfMemory", 2) in shown.facts
    request = feed(slurm.PARSER, "#SBATCH --time=1-02:00:00\n#SBATCH --signal=USR2@90\n")
    assert ("slurm.limit_seconds", 93600.0, 1) in request.facts
    assert ("slurm.signal_lead", 90.0, 2) in request.facts
    assert slurm.limit_seconds("30") == 1800
    assert slurm.limit_seconds("2-12") == 60 * 3600
    assert slurm.limit_seconds("none") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "mpirun noticed that process rank 1 with PID 4711 on node vm exited on signal 9 (Killed).",
            {"rank": 1, "exitcode": -9, "source": "mpirun"},
        ),
        ("  Process name: [[13071,1],1]\n  Exit code:    3\n", {"rank": 1, "exitcode": 3}),
        ("=   RANK 2 PID 77 RUNNING AT n3\n=   KILLED BY SIGNAL: 9 (Killed)\n", {"rank": 2, "exitcode": -9}),
        (
            "[2023-05-01 10:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['python', 'x.py'] exits with return code = -9",
            {"exitcode": -9, "source": "deepspeed"},
        ),
        ("[2023-05-01 10:00:00,000] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 4123", {"by_launcher": True}),
        (
            "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py']' returned non-zero exit status 1.",
            {"exitcode": 1, "source": "accelerate"},
        ),
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGSEGV: 11>.", {"exitcode": -11}),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL", {"local_rank": 3, "exitcode": -9}),
        ("./run.sh: line 12: 26121 Killed                  python train.py", {"exitcode": -9, "source": "shell"}),
    ],
)
def test_other_launchers(text: str, expected: dict[str, Any]) -> None:
    event = feed(launchers.PARSER, text).events[0]
    told = {"rank": event.rank, **event.fields}
    assert event.kind == "exit"
    assert {key: told[key] for key in expected} == expected


def test_interrupts() -> None:
    for text, signal in (
        ("KeyboardInterrupt", 2),
        ("^C", 2),
        ("INFO Received SIGTERM, saving checkpoint", 15),
        ("Signal handler called with signal 10", 10),
    ):
        event = one(launchers.PARSER, text)
        assert (event.kind, event.fields["signal"]) == ("interrupt", signal)
    assert not feed(launchers.PARSER, "will save a checkpoint on SIGTERM (15)").events


def test_ray() -> None:
    died = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: WorkerDict
\tactor_id: 5f2c
\tpid: 41877
\tip: 10.0.0.12
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.
"""
    event = feed(ray_logs.PARSER, died).events[0]
    assert (event.kind, event.pid, event.fields["class_name"], event.fields["exit_type"]) == (
        "ray_death",
        41877,
        "WorkerDict",
        "SYSTEM_ERROR",
    )
    memory = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.5, ID: ab) where the task (actor ID: c) was running was 245.10GB / 251.00GB (0.976494), which exceeds the memory usage threshold of 0.95."
    event = feed(ray_logs.PARSER, memory).events[0]
    assert event.kind == "ray_oom"
    assert event.fields["used_gb"] == pytest.approx(245.1)
    assert not feed(ray_logs.PARSER, "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 2 Workers crashed").events


@pytest.mark.parametrize(
    ("line", "system", "what"),
    [
        ("=>> PBS: job killed: walltime 86432 exceeded limit 86400", "pbs", "time-limit"),
        ("=>> PBS: job killed: mem 67109000kb exceeded limit 67108864kb", "pbs", "memory"),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "lsf", "memory"),
        ("TERM_OWNER: job killed by owner.", "lsf", "owner"),
        ("      Reason:       OOMKilled", "k8s", "oom"),
        (
            "The node was low on resource: ephemeral-storage. Container train was using 72Ki, which exceeds its request of 0.",
            "k8s",
            "evicted",
        ),
        (
            "Warning  FailedScheduling  2m  default-scheduler  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
            "k8s",
            "unschedulable",
        ),
        ("Normal  NodeNotReady  5m  node-controller  Node node17 status is now: NodeNotReady", "k8s", "node-fail"),
        (
            "submitit WARNING (2022-08-12 02:06:11,453) - Caught signal SIGUSR2 on n2: this job is preempted.",
            "submitit",
            "claimed-preempted",
        ),
        ("EC2 Spot Instance Interruption Warning: action terminate", "cloud", "preempted"),
    ],
)
def test_batch_systems(line: str, system: str, what: str) -> None:
    event = one(batch_systems.PARSER, line)
    assert (event.kind, event.fields["system"], event.fields["what"]) == ("platform", system, what)


def test_exit_codes() -> None:
    assert [normal(code) for code in (0, 1, 137, 139, 143, 255, -9)] == [0, 1, -9, -11, -15, 255, -9]
    assert signal_of(-7) == "SIGBUS"
    assert signal_of(1) is None
    assert numbers("0-2,7") == [0, 1, 2, 7]
    assert len(numbers("0-99999999")) == 4096
    container = one(batch_systems.PARSER, "    Exit Code:    137")
    assert container.fields["signal"] == "SIGKILL"


def test_df_table() -> None:
    text = "Filesystem      Size  Used Avail Use% Mounted on\n/dev/loop3       64M   64M     0 100% /snap/core\n/dev/nvme0n1    100G  100G   20K 100% /data\ntmpfs            47G     0   47G   0% /dev/shm\n"
    rows = feed(disk_usage.PARSER, text)
    assert [(e.fields["mount"], e.fields["percent"]) for e in rows.events] == [("/data", 100), ("/dev/shm", 0)]


SEEDS = sorted({trigger for parser in ALL for trigger in parser.triggers})


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.sampled_from(SEEDS) | st.text(max_size=30) | st.sampled_from([": ", " 9 ", "(pid: 3)", "=", "{", "\r", "\x00"]), max_size=14
    )
)
def test_nothing_raises_on_any_text(parts: list[str]) -> None:
    feed(ALL, "\n".join(["".join(parts), *parts]))
