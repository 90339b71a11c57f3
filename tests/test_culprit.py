"""Who is named: lines that join processes, ranks, hosts and cards, and what is inferred where no line says it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from forensics import culprit, engine, evidence, knowledge, verdict
from forensics.analysis import reader_for
from forensics.join import hosts_and_ranks
from forensics.run import FileInfo, RankInfo, Run
from forensics.timeline import SAMPLES
from parsers.base import Event
from parsers.processes import PARSER as PROCESSES
from parsers.values import bars
from tests.support_lines import feed


def read(folder: Path, **files: str) -> tuple[Run, verdict.Verdict]:
    """The run of these files (`__` in a name stands for `/`, a trailing `_ext` for the extension) and its verdict."""
    for name, text in files.items():
        stem, _, ending = name.replace("__", "/").rpartition("_")
        path = folder / f"{stem}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = knowledge.load(())
    with evidence.gather(folder) as found:
        run = reader_for(()).read(found)
    return run, verdict.decide(run, engine.judge(run, known), known)


def watchdog(rank: int, second: int, seq: int = 77, group: str = "0(default_pg)", inside: int | None = None, op: str = "ALLREDUCE") -> str:
    """torch 2.6: the report of a time-out and the progress pair below it."""
    inside = rank if inside is None else inside
    head = f"[rank{rank}]:[E610 12:40:{second:02d}.123456789 ProcessGroupNCCL.cpp"
    pg = f"[PG ID {group.partition('(')[0]} PG GUID {group} Rank {inside}]"
    return (
        f"{head}:632] [Rank {inside}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=4194304, "
        "NumelOut=4194304, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
        f"{head}:2268] {pg}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: {seq - 1}\n"
    )


@pytest.mark.parametrize(
    ("line", "rank", "pid", "host", "local"),
    [
        ("[rank 6] worker ready, pid 70116", 6, 70116, None, None),
        ("INFO trainer started: global rank: 11 local_rank: 3 PID: 9123 on the node", 11, 9123, None, 3),
        ("Process on hostname gpu-a, pid 811, using GPU 5.", None, 811, "gpu-a", 5),
    ],
)
def test_a_process_introduces_itself(line: str, rank: int | None, pid: int, host: str | None, local: int | None) -> None:
    (event,) = feed(PROCESSES, line + "\n").events
    assert (event.rank, event.pid, event.host, event.fields.get("local_rank")) == (rank, pid, host, local)


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: RuntimeError: DataLoader worker (pid 5518) exited unexpectedly",
        "rank 3 was killed by signal 9, pid 5518",
        "INFO: task python: pid 280 blocked for more than 120 seconds.",
        "Started server process, pid 4711",
    ],
)
def test_other_peoples_pids_are_no_introduction(line: str) -> None:
    assert not feed(PROCESSES, line + "\n").events


OOM = (
    "[Tue Jun 10 12:30:04 2025] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/job,task_memcg=/job,"
    "task=ray::Worker,pid=70118,uid=0\n"
    "[Tue Jun 10 12:30:04 2025] Memory cgroup out of memory: Killed process 70118 (ray::Worker) total-vm:316807600kB, anon-rss:159178800kB, "
    "file-rss:66800kB, shmem-rss:0kB, UID:0 pgtables:3648kB oom_score_adj:0\n"
)


def test_the_killed_pid_is_the_rank_that_introduced_itself(tmp_path: Path) -> None:
    log = "".join(f"2025-06-10 12:00:0{n} [rank {n}] worker ready, pid {70110 + 4 * n}\n" for n in range(4))
    log += "".join(f"2025-06-10 12:{10 + n}:00 step: {n} loss: {2 - n / 40:.3f}\n" for n in range(20))
    log += "2025-06-10 12:30:05 ERROR ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tactor_id: 4be3\n\tpid: 70118\n"
    _, said = read(tmp_path, train_log=log, dmesg_txt=OOM)
    assert (said.layer, said.cause, said.rank) == ("infra", "cgroup-oom-kill", 2)


def seated(*seats: tuple[int, int], world: int | None = 4) -> Run:
    run = Run("r", world_size=world)
    run.files = {"train.log": FileInfo("train.log", 1, kinds=("train",))}
    run.events = [Event("process", "train.log", n, "", host="gpu-a", pid=pid, fields={"local_rank": n}) for pid, n in seats]
    return run


def test_a_pid_between_its_siblings_is_the_rank_left_out() -> None:
    assert culprit.of_pid(seated((810, 0), (812, 2), (813, 3)), 811, None) == (1, "gpu-a")
    assert culprit.of_pid(seated((810, 0), (812, 1), (813, 3)), 811, None) == (None, None)  # no seat is free there
    assert culprit.of_pid(seated((810, 0), (9912, 2)), 811, None) == (None, None)  # not started one after another
    assert culprit.of_pid(seated((810, 0), (812, 2), world=64), 811, None) == (None, "gpu-a")  # a local rank of some node


def test_a_known_pid_outranks_its_place() -> None:
    run = seated((810, 0), (812, 2))
    run.ranks = {9: RankInfo(9, host="gpu-b", pids={811})}
    assert culprit.of_pid(run, 811, None) == (9, "gpu-b")


def cards(*use: float) -> Run:
    run = Run("r")
    rows = [
        {"time": 100.0 + t, "gpu": str(n), "host": None, "utilization": value if t else 97.0}
        for t in range(4)
        for n, value in enumerate(use)
    ]
    run.samples = pl.DataFrame(rows, schema={name: SAMPLES[name] for name in ("time", "gpu", "host", "utilization")})
    return run


def test_the_idle_card_among_spinning_ones() -> None:
    assert culprit.idle_card(cards(100, 100, 0, 100), None) == "2"
    assert culprit.idle_card(cards(100, 0, 0, 100), None) is None
    assert culprit.idle_card(cards(0, 40, 100, 100), None) is None
    assert culprit.idle_card(Run("r"), None) is None


def test_the_rank_still_loading_is_waited_for(tmp_path: Path) -> None:
    """The reporters' own bars are full; others are not: the one that is furthest behind."""
    log = "".join(f"[rank {n}] Loading checkpoint shards: 100%|{'█' * 10}| 60/60 [10:0{n}<00:00, 10.02s/it]\n" for n in range(3))
    log += watchdog(0, 1) + watchdog(2, 2)
    log += f"[rank 5] Loading checkpoint shards:  95%|{'█' * 9} | 57/60 [20:00<01:00, 21.00s/it]\n"
    log += f"[rank 4] Loading checkpoint shards:  90%|{'█' * 9} | 54/60 [20:01<02:13, 22.25s/it]\n"
    _, said = read(tmp_path, train_log=log)
    assert (said.cause, said.rank, said.ranks) == ("collective-timeout", 4, [4])


def test_bars_of_inference_engines() -> None:
    (found,) = bars("Loading safetensors checkpoint shards:  75% Completed | 3/4 [00:12<00:04,  4.10s/it]")
    assert found[0] == "Loading safetensors checkpoint shards"
    assert found[1:3] == (3.0, 4.0)


def test_the_rank_that_enqueued_least_comes_before_silent_ones(tmp_path: Path) -> None:
    """Two groups wait for each other; ranks say themselves that they never came to the first group's collective."""
    log = "".join(watchdog(n, n, 11, "11(shard)", n // 2, "ALLTOALL_BASE") for n in (0, 1, 2, 4, 5, 8, 9, 30))
    for n in (6, 7):
        log += watchdog(n, n + 10, 23, "27(replica)", n - 6, "ALLREDUCE_COALESCED")
        log += (
            f"[rank{n}]:[E610 12:40:{n + 10}.654182767 ProcessGroupNCCL.cpp:1430] [PG ID 2 PG GUID 11(shard) Rank 3] Received a dump signal due to a "
            "collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 10, last completed NCCL work: 10."
            "This is most likely caused by incorrect usages of collectives.\n"
        )
    _, said = read(tmp_path, train_log=log)
    assert (said.layer, said.rank, said.ranks) == ("comms", 6, [6, 7])


def bootstrap(host: str, address: str) -> str:
    return f"{host}:900:900 [0] NCCL INFO Bootstrap : Using eth0:{address}<0>\n"


def failed(host: str, address: str, why: str) -> str:
    return f"{host}:900:931 [0] misc/socket.cc:480 NCCL WARN socketStartConnect: Connect to {address}<40817> failed : {why}\n"


@pytest.mark.parametrize(
    ("own", "why", "accused"),
    [
        ("10.3.0.8", "No route to host", "gpu-a"),  # nothing answers there
        ("10.3.0.7", "Connection refused", "gpu-a"),  # the caller has that address too: it was announced from behind a bridge
        ("10.3.0.8", "Connection refused", "gpu-b"),  # the machine answers: the port is out of date
    ],
)
def test_whose_fault_a_failed_connection_is(tmp_path: Path, own: str, why: str, accused: str) -> None:
    _, said = read(
        tmp_path,
        first_log=bootstrap("gpu-a", "10.3.0.7") + "gpu-a:900:930 [0] NCCL INFO NET/Socket : Using [0]eth0:10.3.0.7<0>\n",
        second_log=bootstrap("gpu-b", own) + failed("gpu-b", "10.3.0.7", why),
    )
    assert (said.cause, said.host) == ("connect-failed", accused)


def test_several_callers_accuse_the_one_they_called(tmp_path: Path) -> None:
    log = bootstrap("gpu-a", "10.3.0.7") + "".join(
        bootstrap(f"gpu-{n}", f"10.3.0.{9 + i}") + failed(f"gpu-{n}", "10.3.0.7", "Connection refused") for i, n in enumerate("bcd")
    )
    _, said = read(tmp_path, train_log=log)
    assert said.host == "gpu-a"


def test_a_local_rank_is_global_beside_the_exit_table(tmp_path: Path) -> None:
    log = "".join(f"2025-06-10 12:{10 + n}:00 step: {n} loss: {2 - n / 40:.3f}\n" for n in range(20))
    log += "[default2]:ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    for local in range(4):
        log += f"[default{local}]:gpu-b:70{local}:71{local} [{local}] NCCL INFO ncclCommInitRank comm 0x8a5e rank {4 + local} nranks 8 cudaDev {local} nvmlDev {local} busId {local}1000 commId 0x3a - Init START\n"
    run, said = read(tmp_path, node_rank_1_log=log)
    assert (said.cause, said.rank, said.host) == ("shm-too-small", 6, "gpu-b")
    assert {e.rank for e in run.signature("worker-bus-error")} == {6}


def test_nccl_lines_of_a_node_count_from_its_first_rank() -> None:
    run = Run("r")
    run.files = {"out": FileInfo("out", 1, kinds=("train", "nccl"))}
    comm = {"nranks": 16, "cudaDev": 1, "rank": 9}
    run.events = [
        Event("nccl_address", "out", 1, "", host="gpu-b", pid=70, rank=0, fields={"ip": "10.0.0.2"}),
        Event("nccl_comm", "out", 2, "", host="gpu-b", pid=71, rank=1, fields=comm),
        Event("nccl_address", "out", 3, "", host="gpu-a", pid=60, rank=0, fields={"ip": "10.0.0.1"}),
    ]
    hosts_and_ranks(run)
    assert {rank: info.host for rank, info in run.ranks.items()} == {8: "gpu-b", 9: "gpu-b", 0: "gpu-a"}


def test_an_address_gets_the_name_of_the_kernel_that_saw_its_process(tmp_path: Path) -> None:
    log = "".join(f"(Driver pid=3) 2025-06-10 12:{10 + n}:00 step: {n} loss: {2 - n / 40:.3f}\n" for n in range(20))
    log += (
        "(Actor pid=51477, ip=10.7.16.4) ../aten/src/ATen/native/cuda/Indexing.cu:1289: indexSelectLargeIndex: block: [4,0,0], thread: [5,0,0] "
        "Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    kernel = "[Tue Jun 10 12:29:30 2025] NVRM: Xid (PCI:0000:1b:00): 43, pid=51477, name=python3, Ch 00000008\n"
    _, said = read(tmp_path, driver_log=log, gpu07__dmesg_txt=kernel)
    assert (said.cause, said.host) == ("token-id-out-of-range", "gpu07")


def test_a_remote_traceback_is_its_innermost_process(tmp_path: Path) -> None:
    """Ray prints the driver's wrapper first and the actor's head below it; the file's name is an experiment's, no host's."""
    log = (
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 930, in get_objects\n'
        "    raise value.as_instanceof_cause()\n"
        "ray.exceptions.RayTaskError(RuntimeError): ray::Runner.run() (pid=51, ip=10.8.1.2, actor_id=ab01, repr=<main.Runner object at 0x7f79>)\n"
        "ray.exceptions.RayTaskError(RuntimeError): ray::Policy.fit() (pid=988, ip=10.8.1.5, actor_id=ab02, repr=<x.Policy object at 0x7f92>)\n"
        '  File "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", line 319, in _lazy_init\n'
        "    torch._C._cuda_init()\n"
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have "
        "already set an error? Error 803: system has unsupported display driver / cuda driver combination\n"
    )
    run, said = read(tmp_path, mix2_log=log)
    assert (said.cause, said.pid, said.host) == ("driver-mismatch", 988, "10.8.1.5")
    assert run.files["mix2.log"].host is None


def test_a_file_named_for_a_host_keeps_it(tmp_path: Path) -> None:
    run, _ = read(tmp_path, node2_log="step: 1 loss: 2.0\n", alpha1_log="step: 1 loss: 2.0\n", alpha2_log="step: 1 loss: 2.0\n")
    assert {path: info.host for path, info in run.files.items()} == {"node2.log": "node2", "alpha1.log": "alpha1", "alpha2.log": "alpha2"}


POD = """Name:             sft-worker-3
Namespace:        ml
Node:             pool-7f3a/10.0.0.5
Status:           Failed
Containers:
  pytorch:
    State:          Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Tue, 10 Jun 2025 10:01:55 +0000
      Finished:     Tue, 10 Jun 2025 12:30:09 +0000
"""


@pytest.mark.parametrize(("other", "accused"), [("sft-worker-0", "sft-worker-3"), ("pool-11ab", "pool-7f3a")])
def test_a_pod_where_hosts_are_pods(tmp_path: Path, other: str, accused: str) -> None:
    log = "".join(f"2025-06-10 12:{10 + n}:00 step: {n} loss: {2 - n / 40:.3f}\n" for n in range(20))
    log += f"{other}:900:900 [0] NCCL INFO Bootstrap : Using eth0:10.3.0.7<0>\n"
    _, said = read(tmp_path, train_log=log, describe_txt=POD)
    assert (said.cause, said.host) == ("cgroup-oom-kill", accused)


def test_one_process_drives_card_0(tmp_path: Path) -> None:
    log = (
        "INFO 09-03 11:03:36 [parallel_state.py:1134] rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0\n"
        "ERROR 09-03 11:03:37 [core.py:712] ValueError: Free memory on device (9.1/79.2 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 71.3 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
    )
    _, said = read(tmp_path, engine_log=log)
    assert (said.cause, said.rank, said.gpu) == ("gpu-memory-held-by-other", 0, "0")


def test_the_only_process_that_failed_is_named_though_no_cause_is(tmp_path: Path) -> None:
    run = Run("r")
    run.files = {"job.err": FileInfo("job.err", 1)}
    run.events = [
        Event("exit", "job.err", 8, "Sending", pid=11, rank=3, fields={"exitcode": None, "by_launcher": True}),
        Event("exit", "job.err", 9, "failed (exitcode: -9)", pid=12, rank=4, fields={"exitcode": -9}),
        Event("exit", "job.err", 30, "exitcode  : -9", pid=12, rank=4, host="gpu-b", fields={"exitcode": -9}),
    ]
    said = verdict.Verdict("unknown", None, 0.5)
    culprit.first_to_fail(said, run)
    assert said.first is not None
    assert (said.rank, said.host, said.pid, said.first.line) == (4, "gpu-b", 12, 9)
    run.events.append(Event("exit", "job.err", 31, "exitcode  : 1", pid=13, rank=5, fields={"exitcode": 1}))
    run = Run("r", events=run.events, files=run.files)
    said = verdict.Verdict("unknown", None, 0.5)
    culprit.first_to_fail(said, run)
    assert (said.rank, said.first) == (None, None)
