"""Sample runs whose trouble lies in the machine or between the ranks: a lost GPU, a killed rank, ranks out of step."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from run_text import (
    SITE,
    boot_lines,
    c10,
    chatter,
    dmesg,
    failed_table,
    glog,
    gpu_csv,
    nccl_start,
    save,
    syslog,
    titan,
    titan_step,
    traceback,
)

BUSES = ["18", "2a", "3a", "5d", "9a", "ab", "ba", "db"]


def _watchdog(
    t: datetime, rank: int, seq: int, op: str, numel: tuple[int, int], limit: int, last: tuple[int, int], group: str = "0"
) -> list[str]:
    """What a rank of torch 2.6 to 2.9 prints when one of its collectives ran into the time limit."""
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel[0]}, NumelOut={numel[1]}, Timeout(ms)={limit})"
    group_text = f"PG ID {group} PG GUID {group}(default_pg) Rank {rank}"

    def later(ms: int) -> datetime:
        return t + timedelta(milliseconds=ms)

    return [
        c10(t, rank, f"ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {limit + 31 + rank} milliseconds before timing out."),
        c10(later(90), rank, f"ProcessGroupNCCL.cpp:2271] [{group_text}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {last[0]}, last completed work: {last[1]}"),
        c10(later(91), rank, "ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."),
        c10(later(1900), rank, f"ProcessGroupNCCL.cpp:818] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."),
        c10(later(1901), rank, f"ProcessGroupNCCL.cpp:832] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down."),
        c10(later(1904), rank, f"ProcessGroupNCCL.cpp:2197] [{group_text}] Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {limit + 31 + rank} milliseconds before timing out."),
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  [{group_text}] Process group watchdog thread terminated with exception: [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {limit + 31 + rank} milliseconds before timing out.",
    ]  # fmt: skip


def gpu_lost(folder: Path, seed: int = 11) -> None:
    """torchtitan on one node; the card of rank 5 falls off the bus after PCIe errors, the others wait ten minutes for it."""
    rng = Random(seed)
    host, bad, limit = "gpu-a07", 5, 600_000
    start = datetime(2026, 3, 8, 1, 40, 12, 120_000)
    lines = [
        f"W{start:%m%d %H:%M:%S}.901000 40120 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    ]
    lines += [titan(start + timedelta(seconds=4), r, f"Starting job: llama3 8b pretrain, rank {r} local rank {r}") for r in range(8)]
    lines += [
        titan(start + timedelta(seconds=21), r, f"NVIDIA H100 80GB HBM3 capacity: 79.15GiB, device cuda:{r}, pid {40210 + r}")
        for r in range(8)
    ]
    for r in range(8):
        save(folder, f"nccl/nccl.{host}.{40210 + r}.log", nccl_start(host, 40210 + r, r, r, 8, f"{BUSES[r]}000", 8))
    t, last = start + timedelta(seconds=60), 318
    for step in range(1, last + 1):
        t += timedelta(seconds=6.1 + rng.uniform(-0.2, 0.2))
        loss = 2.6 + 8.2 * math.exp(-step / 90) + rng.gauss(0, 0.02)
        lines.append(titan_step(t, 0, step, loss, 0.8 + 2 * math.exp(-step / 50) + abs(rng.gauss(0, 0.1)), 61.22))
        if step % 100 == 0:
            lines += [
                titan(t + timedelta(milliseconds=200), 0, "Saving the checkpoint (or staging if async is enabled)."),
                titan(t + timedelta(seconds=14), 0, "Finished saving the checkpoint (or staging if async is enabled) in 13.84 seconds."),
            ]
    lost = t + timedelta(seconds=2.4)
    error = traceback(
        bad,
        [
            ("/workspace/torchtitan/train.py", 402, "train", "self.train_step(data_iterator)"),
            (f"{SITE}/torchtitan/distributed/utils.py", 311, "clip_grad_norm_", "total_norm = total_norm.full_tensor()"),
        ],
        "RuntimeError: CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    )
    order = [0, 1, 2, 3, 4, 6, 7]
    for n, r in enumerate(order):
        lines += _watchdog(
            lost + timedelta(milliseconds=limit + 120 + 40 * n),
            r,
            91_204,
            "_REDUCE_SCATTER_BASE",
            (218_112_000, 27_264_000),
            limit,
            (91_206, 91_203),
        )
    lines += error
    end = lost + timedelta(milliseconds=limit + 4200)
    lines += [
        glog(end, "W", 40120, "multiprocessing/api.py:900", f"Sending process {40210 + r} closing signal SIGTERM") for r in range(1, 8)
    ]
    lines.append(
        glog(
            end + timedelta(seconds=1),
            "E",
            40120,
            "multiprocessing/api.py:874",
            "failed (exitcode: -6) local_rank: 0 (pid: 40210) of binary: /opt/venv/bin/python",
        )
    )
    lines += failed_table(end, "torchtitan/train.py", host, 0, 0, 40210, -6, "Signal 6 (SIGABRT) received by PID 40210")
    save(folder, "train.log", lines)

    boot = datetime(2026, 2, 20, 6, 11, 3)
    drift = timedelta(seconds=11)  # what `dmesg -T` loses against the wall clock in sixteen days
    kernel = [*boot_lines(boot, host, BUSES), *chatter(rng, boot + timedelta(days=1), boot + timedelta(days=8), 60, 3.5)]
    kernel += [*chatter(rng, boot + timedelta(days=8), start - drift, 60, 7.5), *chatter(rng, start - drift, lost - drift, 60, 11.0)]
    bus = f"0000:{BUSES[bad]}:00.0"
    port = "0000:a9:01.0"
    shown = lost - drift
    kernel += [
        (shown - timedelta(seconds=8), f"pcieport {port}: AER: Corrected error received: {bus}"),
        (shown - timedelta(seconds=8), f"nvidia {bus}: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"),
        (shown - timedelta(seconds=8), f"nvidia {bus}:   device [10de:2330] error status/mask=00001000/00002000"),
        (shown - timedelta(seconds=8), f"nvidia {bus}:    [12] Timeout"),
        (shown, f"NVRM: GPU at PCI:0000:{BUSES[bad]}:00: GPU-3f1c9e02-77ab-41d6-9d0e-5b6c2f8e4a17"),
        (shown, f"NVRM: Xid (PCI:0000:{BUSES[bad]}:00): 79, pid={40210 + bad}, name=python, GPU has fallen off the bus."),
        (shown, f"NVRM: GPU {bus}: GPU has fallen off the bus."),
        (shown, "NVRM: A GPU crash dump has been created. If possible, please run"),
        (
            shown,
            f"NVRM: Xid (PCI:0000:{BUSES[bad]}:00): 154, pid={40210 + bad}, name=python, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        ),
        (shown + timedelta(seconds=1), f"pcieport {port}: AER: Uncorrected (Fatal) error received: {port}"),
        (
            shown + timedelta(seconds=1),
            f"pcieport {port}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        ),
        (shown + timedelta(seconds=1), f"pcieport {port}:   device [1000:c030] error status/mask=00000020/00000000"),
        (shown + timedelta(seconds=1), f"pcieport {port}:    [ 5] SDES                   (First)"),
        (shown + timedelta(seconds=2), f"pcieport {port}: AER: device recovery failed"),
        *chatter(rng, shown + timedelta(seconds=30), shown + timedelta(seconds=600), 12, 11.0),
    ]
    kernel += [(end - drift, f"NVRM: Xid (PCI:0000:{BUSES[r]}:00): 45, pid={40210 + r}, name=python, Ch 0000000{r % 8}") for r in (0, 1, 2)]
    save(folder, "dmesg.txt", [dmesg(t, text) for t, text in kernel])
    save(folder, "gpu.csv", gpu_csv(start, end, 30, BUSES, rng, gone={bad: lost}, idle_from=lost + timedelta(seconds=5)))


def host_oom(folder: Path, seed: int = 12) -> None:
    """Eight ranks on two nodes; the second node's kernel kills rank 6 for lack of host memory.  Its clock runs 97 s ahead."""
    rng = Random(seed)
    hosts, ahead = ("trn-11", "trn-12"), timedelta(seconds=97)
    start = datetime(2026, 4, 21, 13, 2, 5, 400_000)
    total, last = 1200, 411
    steps = [start + timedelta(seconds=75 + 5.2 * n + rng.uniform(-0.1, 0.1)) for n in range(1, last + 1)]
    killed = steps[-1] + timedelta(seconds=3.1)
    for node, host in enumerate(hosts):
        skew = ahead if node else timedelta(0)
        pids = [7310 + 100 * node + n for n in range(4)]

        def at(t: datetime, rank: int, text: str, skew: timedelta = skew) -> str:
            shown = t + skew
            return f"[{shown:%Y-%m-%d %H:%M:%S},{shown.microsecond // 1000:03d}] [INFO] [trainer.loop] [rank {rank}] {text}"

        lines = []
        for n, pid in enumerate(pids):
            lines += nccl_start(host, pid, n, 4 * node + n, 8, f"{BUSES[n]}000", 4, "2.21.5+cuda12.4")
        lines.append(
            at(
                start + timedelta(seconds=60),
                4 * node,
                f"world size 8, host {host}, resume: none, prefetch 64 batches per worker, 12 workers per rank",
            )
        )
        for step, t in enumerate(steps, 1):
            loss = 1.9 + 2.4 * math.exp(-step / 140) + rng.gauss(0, 0.015)
            shown = [0] if node == 0 else [4]
            lines += [
                at(
                    t + timedelta(milliseconds=rng.randint(0, 40)),
                    r + 0,
                    f"step {step}/{total} loss {loss:.4f} grad_norm {0.6 + abs(rng.gauss(0, 0.08)):.3f} lr {3e-4 * (1 - step / total):.3e} cpu_mem_gib {188 + 0.71 * step:.1f}",
                )
                for r in shown
            ]
        wall = killed + skew
        if node:
            lines.append(
                glog(
                    wall + timedelta(seconds=4),
                    "W",
                    7290,
                    "multiprocessing/api.py:897",
                    f"Sending process {pids[0]} closing signal SIGTERM",
                )
            )
            lines += [
                glog(wall + timedelta(seconds=4), "W", 7290, "multiprocessing/api.py:897", f"Sending process {p} closing signal SIGTERM")
                for p in (pids[1], pids[3])
            ]
            lines.append(
                glog(
                    wall + timedelta(seconds=9),
                    "E",
                    7290,
                    "multiprocessing/api.py:869",
                    f"failed (exitcode: -9) local_rank: 2 (pid: {pids[2]}) of binary: /opt/venv/bin/python",
                )
            )
            lines += failed_table(
                wall + timedelta(seconds=4), "pretrain.py", host, 6, 2, pids[2], -9, f"Signal 9 (SIGKILL) received by PID {pids[2]}"
            )
        else:
            for n, pid in enumerate(pids):
                shown_at = wall + timedelta(milliseconds=300 + 15 * n)
                lines += [
                    "",
                    f"{host}:{pid}:{pid + 900} [{n}] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer {hosts[1]}.cluster<41{n}20>",
                    f"{host}:{pid}:{pid + 900} [{n}] NCCL INFO transport/net_socket.cc:493 -> 6",
                    f"{host}:{pid}:{pid + 900} [{n}] NCCL INFO proxy.cc:735 -> 6 [Progress Thread]",
                ]
                lines += [
                    c10(
                        shown_at,
                        n,
                        f"ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0(default_pg) Rank {n}] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.21.5",
                    )
                ]
                lines += [
                    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
                    "Last error:",
                    f"socketProgress: Connection closed by remote peer {hosts[1]}.cluster<41{n}20>",
                ]
            lines.append(
                glog(
                    wall + timedelta(seconds=6),
                    "E",
                    7190,
                    "multiprocessing/api.py:869",
                    f"failed (exitcode: -6) local_rank: 1 (pid: {pids[1]}) of binary: /opt/venv/bin/python",
                )
            )
            lines += failed_table(
                wall + timedelta(seconds=6), "pretrain.py", host, 1, 1, pids[1], -6, f"Signal 6 (SIGABRT) received by PID {pids[1]}"
            )
        save(folder, f"{host}/train.log", lines)

        boot = datetime(2026, 4, 2, 4, 50, 40) + skew
        kernel = [
            *boot_lines(boot, host, BUSES[:4]),
            *chatter(rng, boot + timedelta(days=2), start + skew, 90),
            *chatter(rng, start + skew, wall, 40),
        ]
        if node:
            victim = pids[2]
            kernel += [
                (wall, "pt_data_worker invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=0"),
                (wall, "CPU: 41 PID: 9120 Comm: pt_data_worker Tainted: P           OE     5.15.0-113-generic #123-Ubuntu"),
                (wall, "Call Trace:"),
                *[(wall, f" {f}") for f in ("dump_stack_lvl+0x4a/0x63", "dump_header+0x53/0x228", "oom_kill_process.cold+0xb/0x10", "out_of_memory+0x106/0x2e0", "__alloc_pages_slowpath.constprop.0+0x9b5/0xa80")],
                (wall, "Mem-Info:"),
                (wall, "active_anon:2104 inactive_anon:121904133 isolated_anon:0"),
                (wall, "Node 0 Normal free:44920kB min:45056kB low:298144kB high:551232kB"),
                (wall, "0 pages in swap cache"),
                (wall, "Tasks state (memory values in pages):"),
                (wall, "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"),
                (wall, "[   1411]     0  1411   410022     2216   184320        0          -999 containerd"),
                *[(wall, f"[{pid:7d}]  1000 {pid:5d} 41207731 {rss:8d} 262144000        0             0 python") for pid, rss in zip(pids, (24_100_311, 23_877_120, 44_901_777, 24_010_998), strict=True)],
                (wall, f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0-1,global_oom,task_memcg=/user.slice/user-1000.slice/session-41.scope,task=python,pid={victim},uid=1000"),
                (wall, f"Out of memory: Killed process {victim} (python) total-vm:164830924kB, anon-rss:179607108kB, file-rss:1204kB, shmem-rss:9216kB, UID:1000 pgtables:256000kB oom_score_adj:0"),
                (wall + timedelta(seconds=2), f"oom_reaper: reaped process {victim} (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:9216kB"),
            ]  # fmt: skip
        kernel += chatter(rng, wall + timedelta(seconds=20), wall + timedelta(seconds=200), 6)
        save(folder, f"{host}/kern.log", [syslog(t, host, boot, text) for t, text in kernel])


def collective_order(folder: Path, seed: int = 13) -> None:
    """Four FSDP ranks; rank 2 alone takes an early-exit branch and enters an all-reduce where the others all-gather."""
    rng = Random(seed)
    host, limit, seq, odd = "dgx-03", 600_000, 24_871, 2
    start = datetime(2026, 5, 14, 9, 12, 44, 500_000)
    last = 233
    stuck = start + timedelta(seconds=50 + 4.4 * last)
    for r in range(4):
        out = nccl_start(host, 3310 + r, r, r, 4, f"{BUSES[r]}000", 4)
        t = start + timedelta(seconds=50)
        for step in range(1, last + 1):
            t += timedelta(seconds=4.4)
            shown = t + timedelta(milliseconds=rng.randint(0, 60))
            loss = 1.4 + 1.8 * math.exp(-step / 60) + rng.gauss(0, 0.02)
            out.append(
                f"{shown:%Y-%m-%d %H:%M:%S},{shown.microsecond // 1000:03d} - sft.train - INFO - rank {r} | step {step} | loss {loss:.4f} | grad_norm {0.9 + abs(rng.gauss(0, 0.1)):.3f} | lr {2e-5 * (1 - step / 900):.3e} | tokens {rng.randint(30200, 32768)}"
            )
            if r == odd and step == last:
                out.append(
                    f"{shown:%Y-%m-%d %H:%M:%S},{shown.microsecond // 1000:03d} - sft.train - WARNING - rank {r} | batch 2331 holds no labelled token, loss averaged over the ranks without it"
                )
        fired = stuck + timedelta(milliseconds=limit + 200 + 70 * r)
        op, numel = ("ALLREDUCE", (131_072, 131_072)) if r == odd else ("_ALLGATHER_BASE", (54_528_000, 218_112_000))
        err = _watchdog(fired, r, seq, op, numel, limit, (seq, seq - 1))
        save(folder, f"attempt_0/{r}/stdout.log", out)
        save(folder, f"attempt_0/{r}/stderr.log", err)
    end = stuck + timedelta(milliseconds=limit + 5000)
    agent = [
        glog(
            start,
            "W",
            3290,
            "run.py:774",
            "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded",
        )
    ]
    agent += [glog(end, "W", 3290, "multiprocessing/api.py:900", f"Sending process {3310 + r} closing signal SIGTERM") for r in (1, 2, 3)]
    agent.append(
        glog(
            end + timedelta(seconds=1),
            "E",
            3290,
            "multiprocessing/api.py:874",
            "failed (exitcode: -6) local_rank: 0 (pid: 3310) of binary: /opt/venv/bin/python",
        )
    )
    agent += failed_table(end, "sft.py", host, 0, 0, 3310, -6, "Signal 6 (SIGABRT) received by PID 3310")
    save(folder, "torchrun.log", agent)
