"""Makes archives of small runs in mixed containers, with the line shapes of the programs that write them.

Every run is a dict of relative path -> bytes; `make` lays many of them out as folders, rank folders, tarballs, zips, compressed single
logs, tarballs of several runs and restarts of one job, nested by date.  The same seed makes the same bytes.
"""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

Files = dict[str, bytes]
START = datetime(2026, 4, 6, 9, 30, tzinfo=UTC)


@dataclass
class Made:
    """One run of an archive: the path that names it, what it should be found to be, its job and attempt where it has one."""

    path: str
    layer: str
    cause: str
    job: str = ""
    attempt: int = 1


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S,") + f"{at.microsecond // 1000:03d}"


def training(rng: random.Random, at: datetime, size: int, host: str, rank: int = 0) -> tuple[list[str], datetime]:
    """Start-up and step lines of a trainer that logs through Python's logging and prints HF Trainer's dicts (transformers 4.4x)."""
    lines = [
        f"{stamp(at)} INFO [launch.py:42] host={host} rank={rank} world_size=8 local_rank={rank % 8}",
        f"{stamp(at)} INFO [train.py:88] torch 2.5.1+cu124 transformers 4.46.3 CUDA 12.4",
        f"{stamp(at)} INFO [train.py:120] ***** Running training *****",
    ]
    step, loss, used = 0, 2.4, 0
    while used < size:
        step += 1
        at += timedelta(seconds=2)
        loss = max(0.4, loss * 0.9995 + rng.uniform(-0.02, 0.02))
        record = {
            "loss": round(loss, 4),
            "grad_norm": round(rng.uniform(0.3, 0.9), 4),
            "learning_rate": 1e-05,
            "epoch": round(step / 900, 3),
        }
        text = f"{stamp(at)} INFO [trainer.py:310] step {step} {record}"
        lines.append(text)
        used += len(text) + 1
        if step % 400 == 0:
            lines.append(f"{stamp(at)} INFO [trainer.py:402] Saving model checkpoint to /ckpt/run/checkpoint-{step}")
    return lines, at


def text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def healthy(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    lines += [
        str({"train_runtime": 4031.2, "train_samples_per_second": 12.1, "train_steps_per_second": 0.378, "train_loss": 0.61, "epoch": 1.0}),
        f"{stamp(at)} INFO [train.py:190] Training completed. Saving final model",
    ]
    return {"train.log": text(lines)}


def oom(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    lines += [
        "Traceback (most recent call last):",
        '  File "/opt/app/train.py", line 214, in <module>',
        "    trainer.train()",
        '  File "/opt/app/model.py", line 77, in forward',
        "    logits = self.lm_head(hidden)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.42 GiB. GPU 3 has a total capacity of 79.11 GiB of which 2.18 GiB is free. "
        "Process 81734 has 76.92 GiB memory in use. Of the allocated memory 73.40 GiB is allocated by PyTorch, and 1.21 GiB is reserved by PyTorch "
        "but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ]
    return {"train.log": text(lines)}


def lost_gpu(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    """A GPU that fell off the bus: kernel log of the host beside rank folders; the peers end in the watchdog (torch 2.5)."""
    out: Files = {}
    for rank in range(2):
        lines, end = training(rng, at, size // 2, host, rank)
        late = end + timedelta(minutes=10)
        if rank == 0:
            lines += [
                f"[rank0]:[E{late:%m%d %H:%M:%S}.431009210 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=8821, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600052 milliseconds before timing out.",
                f"[rank0]:[E{late:%m%d %H:%M:%S}.431313411 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 0] Exception (either an error or timeout) detected "
                "by watchdog at work: 8821, last enqueued NCCL work: 8821, last completed NCCL work: 8820.",
            ]
        out[f"rank_{rank}/train.log"] = text(lines)
    out[f"hosts/{host}.dmesg"] = text(
        [
            f"{(end - timedelta(hours=3)):%Y-%m-%dT%H:%M:%S},103412+00:00 {host} kernel: perf: interrupt took too long (2510 > 2500), lowering rate",
            f"{(end + timedelta(seconds=1)):%Y-%m-%dT%H:%M:%S},310022+00:00 {host} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=81734, name=python, GPU has fallen off the bus.",
            f"{(end + timedelta(seconds=1)):%Y-%m-%dT%H:%M:%S},310055+00:00 {host} kernel: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        ]
    )
    return out


def nan(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    for step in range(40):
        at += timedelta(seconds=2)
        lines.append(
            f"{stamp(at)} INFO [trainer.py:310] step {9000 + step} "
            + "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.98}"
        )
    lines.append(f"{stamp(at)} ERROR [train.py:201] loss is nan, stopping training")
    return {"train.log": text(lines)}


def time_limit(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    lines.append(
        f"slurmstepd: error: *** JOB {480000 + rng.randrange(9999)} ON {host} CANCELLED AT {at:%Y-%m-%dT%H:%M:%S} DUE TO TIME LIMIT ***"
    )
    return {"slurm.out": text(lines)}


def cgroup_kill(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    lines += [
        f"W{at:%m%d %H:%M:%S}.100000 4711 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 81735 closing signal SIGTERM",
        f"E{at:%m%d %H:%M:%S}.200000 4711 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 81734) of binary: /usr/bin/python",
    ]
    kernel = [
        f"{at:%Y-%m-%dT%H:%M:%S},010000+00:00 {host} kernel: python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        f"{at:%Y-%m-%dT%H:%M:%S},010400+00:00 {host} kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_5,task_memcg=/slurm/uid_1000/job_5/step_0,task=python,pid=81734,uid=1000",
        f"{at:%Y-%m-%dT%H:%M:%S},010900+00:00 {host} kernel: Memory cgroup out of memory: Killed process 81734 (python) total-vm:91234567kB, anon-rss:64123456kB, file-rss:1234kB, shmem-rss:0kB, UID:1000 pgtables:1234kB oom_score_adj:0",
    ]
    return {"train.log": text(lines), "dmesg.log": text(kernel)}


def bad_sample(rng: random.Random, at: datetime, size: int, host: str) -> Files:
    lines, at = training(rng, at, size, host)
    lines += [
        "Traceback (most recent call last):",
        '  File "/opt/app/train.py", line 214, in <module>',
        "    trainer.train()",
        '  File "/opt/app/dataset.py", line 31, in __getitem__',
        "    return json.loads(self.lines[index])",
        "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 88 (char 87)",
    ]
    return {"train.log": text(lines)}


KINDS: tuple[tuple[Callable[[random.Random, datetime, int, str], Files], str, str], ...] = (
    (healthy, "none", "healthy"),
    (oom, "training", "gpu-oom"),
    (lost_gpu, "infra", "gpu-fell-off-bus"),
    (nan, "training", "loss-nan"),
    (time_limit, "infra", "time-limit"),
    (cgroup_kill, "infra", "cgroup-oom-kill"),
    (bad_sample, "data", "corrupt-sample"),
)


def tar(files: Files, mode: str = "w:gz", top: str = "") -> bytes:
    """A tarball; `mode` as for tarfile, or `w:zst`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w" if mode == "w:zst" else mode) as archive:  # type: ignore[call-overload]
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(f"{top}/{name}" if top else name)
            info.size, info.mtime = len(data), 1_700_000_000
            archive.addfile(info, io.BytesIO(data))
    if mode == "w:zst":
        import zstandard

        return zstandard.ZstdCompressor().compress(out.getvalue())
    return out.getvalue()


def zipped(files: Files) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def put(folder: Path, files: Files) -> None:
    for name, data in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def make(root: Path, count: int, size: int = 8_000, seed: int = 7) -> list[Made]:
    """Write `count` runs of about `size` bytes below `root`; returns what they are, in order of their making."""
    rng = random.Random(seed)
    made: list[Made] = []
    bundle: Files = {}
    bundled: list[tuple[str, str, str]] = []
    number = 0
    while len(made) + len(bundled) < count:
        number += 1
        write, layer, cause = KINDS[number % len(KINDS)]
        at = START + timedelta(hours=3 * number)
        day, host, name = f"{at:%Y-%m-%d}", f"node{rng.randrange(1, 40):03d}", f"job-{10_000 + number}"
        files = write(rng, at, size, host)
        folder = root / day
        folder.mkdir(parents=True, exist_ok=True)
        shape = number % 8
        if shape in (0, 1):
            put(folder / name, files)
            made.append(Made(f"{day}/{name}", layer, cause))
        elif shape == 2:
            (folder / f"{name}.tar.gz").write_bytes(tar(files, top=name))
            made.append(Made(f"{day}/{name}.tar.gz", layer, cause))
        elif shape == 3:
            (folder / f"{name}.zip").write_bytes(zipped(files))
            made.append(Made(f"{day}/{name}.zip", layer, cause))
        elif shape == 4:
            (folder / f"{name}.tar.zst").write_bytes(tar(files, "w:zst"))
            made.append(Made(f"{day}/{name}.tar.zst", layer, cause))
        elif shape == 5 and len(files) == 1:
            (folder / f"{name}.log.gz").write_bytes(gzip.compress(next(iter(files.values())), mtime=0))
            made.append(Made(f"{day}/{name}.log.gz", layer, cause))
        elif shape == 6:
            # Two attempts of one job, one after the other, that end in the same way.
            for attempt in (1, 2):
                if len(made) + len(bundled) < count:
                    again = write(rng, at + timedelta(hours=2 * attempt), size, host)
                    put(folder / f"{name}-attempt{attempt}", again)
                    made.append(Made(f"{day}/{name}-attempt{attempt}", layer, cause, name, attempt))
        else:
            bundle.update({f"{name}/{path}": data for path, data in files.items()})
            bundled.append((name, layer, cause))
        if bundled and (len(bundled) == 3 or len(made) + len(bundled) >= count):
            (root / day / f"bundle-{number}.tar").write_bytes(tar(bundle, "w"))
            inside = "" if len(bundled) == 1 else "!"
            made += [Made(f"{day}/bundle-{number}.tar" + (f"!{name}" if inside else ""), layer, cause) for name, layer, cause in bundled]
            bundle, bundled = {}, []
    return made
