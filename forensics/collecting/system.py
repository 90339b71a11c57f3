"""What is read from /proc, /sys and the environment instead of from a tool's output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

MAX_PROCESSES = 64
MAX_FILE = 1 << 20
# Variables that decide how training runs; none of these families carries credentials.
FAMILIES = re.compile(
    r"(?:NCCL|TORCH_NCCL|TORCHELASTIC|TORCH|PYTORCH|CUDA|CUBLAS|NVIDIA|OMP|MKL|GLOO|UCX|FI|RDMA|MELLANOX|HSA|HIP|ROCR|RCCL|VLLM|TRITON|XLA|DS|"
    r"DEEPSPEED|ACCELERATE|MALLOC|HCCL|ASCEND)_[A-Z0-9_]{1,80}|LD_LIBRARY_PATH|LD_PRELOAD|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|LOCAL_WORLD_SIZE|RANK|"
    r"LOCAL_RANK|NODE_RANK|GROUP_RANK|HF_HUB_OFFLINE|HF_HOME|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM|PYTHONUNBUFFERED|PYTHONFAULTHANDLER|"
    r"SLURM_(?:JOB_ID|JOB_NAME|JOB_NODELIST|NNODES|NTASKS|NODEID|PROCID|LOCALID|JOB_PARTITION|MEM_PER_NODE|CPUS_PER_TASK|GPUS_ON_NODE)"
)
SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH", re.I)
CGROUP2 = ("memory.max", "memory.high", "memory.current", "memory.peak", "memory.swap.max", "memory.events", "memory.pressure", "cpu.max", "cpu.stat", "pids.max", "pids.current", "pids.events", "cpuset.cpus.effective")  # fmt: skip
CGROUP1 = (
    ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "memory.oom_control")),
    ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat")),
    ("pids", ("pids.max", "pids.current")),
)
TRAINING = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun|deepspeed|accelerate|ray\w*|raylet|pt_main_thread|pt_data_worker)(?:$|[:\s])")


def text(path: str | Path) -> str | None:
    """A small file's text, or None where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return None


def swappiness(root: Path = Path("/proc")) -> str | None:
    """`vm.swappiness = 60`, as sysctl prints it."""
    value = text(root / "sys/vm/swappiness")
    return None if value is None else f"vm.swappiness = {value.strip()}\n"


def environment(variables: dict[str, str] | None = None) -> str:
    """`NAME=value` of the variables that decide how training runs, sorted; names that could hold a secret are left out."""
    values = dict(os.environ) if variables is None else variables
    return "".join(
        f"{name}={values[name].splitlines()[0][:500] if values[name] else ''}\n"
        for name in sorted(values)
        if FAMILIES.fullmatch(name) and not SECRET.search(name)
    )


def container(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> str | None:
    """`path: value` of this process's control group: memory, CPU and process limits; None without control groups."""
    own = text(proc / "self/cgroup") or ""
    folders = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        if number == "0":
            folders.append(root / rest.partition(":")[2].lstrip("/"))
    lines = []
    for folder in dict.fromkeys([*folders, root]):
        for name in CGROUP2:
            lines += _values(folder / name)
    for controller, names in CGROUP1:
        for name in names:
            lines += _values(root / controller / name)
    return "".join(lines) or None


def _values(path: Path) -> list[str]:
    content = text(path)
    return [] if content is None else [f"{path}: {line}\n" for line in content.splitlines()[:40]]


def machine(now: datetime) -> str:
    """Host name, time with zone, boot time: what puts the other files' times onto one axis."""
    lines = [f"hostname: {os.uname().nodename}", f"collected: {now.isoformat(timespec='seconds')}"]
    for line in (text("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            lines.append(f"booted: {datetime.fromtimestamp(int(line.split()[1]), now.tzinfo).isoformat(timespec='seconds')}")
    lines.append(f"uptime: {(text('/proc/uptime') or '?').split()[0]} s")
    lines.append(f"processors: {os.cpu_count()} ({len(os.sched_getaffinity(0))} usable)")
    driver = text("/proc/driver/nvidia/version")
    return "\n".join(lines) + "\n" + (driver or "")


def training_processes(proc: Path = Path("/proc")) -> Iterator[int]:
    """Process ids that look like training: Python or a launcher, or one that has a GPU device file open; at most 64, never ourselves."""
    own = {os.getpid(), os.getppid()}
    found = 0
    for entry in sorted((e for e in proc.iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
        pid = int(entry.name)
        if pid in own or found >= MAX_PROCESSES:
            continue
        words = (text(entry / "cmdline") or "").split("\0")
        if TRAINING.search(words[0]) or TRAINING.search(text(entry / "comm") or "") or _holds_gpu(entry):
            found += 1
            yield pid


def _holds_gpu(process: Path) -> bool:
    try:
        for number, entry in enumerate((process / "fd").iterdir()):
            if number > 4096:
                break
            if os.readlink(entry).startswith(("/dev/nvidia", "/dev/kfd")):
                return True
    except OSError:
        return False
    return False


def process_files(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """`status` (with the wait channel), `limits` and the training variables of one process, as far as they may be read."""
    out = {name: content for name in ("status", "limits") if (content := text(proc / str(pid) / name))}
    waiting = text(proc / str(pid) / "wchan")
    if "status" in out and waiting:
        out["status"] += f"Wchan:\t{waiting.strip()}\n"
    raw = text(proc / str(pid) / "environ")
    if raw:
        pairs = dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)
        if shown := environment(pairs):
            out["environ"] = shown
    return out
