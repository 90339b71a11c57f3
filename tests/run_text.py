"""Line shapes of the sources that a run directory holds, each as its program prints it (the version stands in the docstring).

`tests/sample_runs.py` puts them together into whole runs.  Times are naive `datetime` values of the printing machine's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

SITE = "/opt/venv/lib/python3.11/site-packages"


def save(folder: Path, name: str, lines: Iterable[str]) -> None:
    """Write a log; line ends are LF."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("\n".join(lines) + "\n").encode())


def ctime(t: datetime) -> str:
    """`Sun Mar  8 02:11:09 2026`."""
    return f"{t:%a %b} {t.day:2d} {t:%H:%M:%S %Y}"


def dmesg(t: datetime, text: str) -> str:
    """`dmesg -T` (util-linux 2.38)."""
    return f"[{ctime(t)}] {text}"


def syslog(t: datetime, host: str, boot: datetime, text: str) -> str:
    """A kernel line in rsyslog's kern.log: traditional stamp and printk's own seconds since boot."""
    return f"{t:%b} {t.day:2d} {t:%H:%M:%S} {host} kernel: [{(t - boot).total_seconds():12.6f}] {text}"


def c10(t: datetime, rank: int, text: str, level: str = "E") -> str:
    """A c10 log line of torch 2.4 and later: month without leading zero, nanoseconds."""
    return f"[rank{rank}]:[{level}{t.month}{t:%d %H:%M:%S}.{t.microsecond:06d}{(rank * 137 + 211) % 1000:03d} {text}"


def glog(t: datetime, level: str, pid: int, where: str, text: str) -> str:
    """torch.distributed.elastic since torch 2.3."""
    return f"{level}{t:%m%d %H:%M:%S}.{t.microsecond // 1000:03d}000 {pid} torch/distributed/elastic/{where}] {text}"


def failed_table(t: datetime, script: str, host: str, rank: int, local: int, pid: int, code: int, why: str) -> list[str]:
    """torchrun's closing table with one failure."""
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        f"{script} FAILED",
        "-" * 60,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {t:%Y-%m-%d_%H:%M:%S}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid})",
        "  error_file: <N/A>",
        f"  traceback : {why}",
        "=" * 60,
    ]


def traceback(rank: int | None, frames: Iterable[tuple[str, int, str, str]], error: str) -> list[str]:
    """A Python 3.11 traceback, behind torch's `[rankN]: ` prefix where a rank is given."""
    lines = ["Traceback (most recent call last):"]
    for file, number, function, code in frames:
        lines += [f'  File "{file}", line {number}, in {function}', f"    {code}"]
    lines += error.split("\n")
    return lines if rank is None else [f"[rank{rank}]: {line}" for line in lines]


def nccl_start(host: str, pid: int, gpu: int, rank: int, world: int, bus: str, peers: int, version: str = "2.27.3+cuda12.9") -> list[str]:
    """NCCL 2.27 with NCCL_DEBUG=INFO: what one rank prints while its communicator comes up."""
    head = f"{host}:{pid}:{pid + 411} [{gpu}] NCCL INFO "
    comm = (
        f"comm 0x{0x55D0AC10 + rank * 4096:x} rank {rank} nranks {world} cudaDev {gpu} nvmlDev {gpu} busId {bus} commId 0x7d1e60a4c2b9f318"
    )
    lines = [
        head + "Bootstrap: Using eth0:10.20.0.17<0>",
        head + f"NCCL version {version}",
        head + "NCCL_DEBUG set by environment to INFO",
        head + "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
        head + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.20.0.17<0>",
        head + "Using network IB",
        head + f"ncclCommInitRankConfig {comm} - Init START",
        head + f"Setting affinity for GPU {gpu} to 0-47",
    ]
    for channel in range(8):
        lines.append(head + f"Channel {channel:02d}/0 : {rank}[{gpu}] -> {(rank + 1) % world}[{(gpu + 1) % peers}] via P2P/IPC")
    return [
        *lines,
        head + "Connected all rings, use ring PXN 0 GDR 1",
        head + f"ncclCommInitRankConfig {comm} - Init COMPLETE",
    ]


def gpu_csv(
    start: datetime,
    end: datetime,
    seconds: float,
    buses: list[str],
    rng: Random,
    used: float = 70000,
    gone: dict[int, datetime] | None = None,
    idle_from: datetime | None = None,
    extra: dict[int, list[tuple[datetime, float]]] | None = None,
) -> list[str]:
    """`nvidia-smi --query-gpu=… --format=csv -l N` (driver 550): rows of a lost GPU stop; `extra` raises one card's memory from a time on."""
    lines = [
        "timestamp, index, pci.bus_id, temperature.gpu, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], clocks_event_reasons.active"
    ]
    t = start
    while t <= end:
        for gpu, bus in enumerate(buses):
            if gone and gpu in gone and t >= gone[gpu]:
                continue
            waiting = idle_from is not None and t >= idle_from
            memory = used + rng.uniform(-300, 300)
            for since, mib in (extra or {}).get(gpu, []):
                if t >= since:
                    memory = mib + rng.uniform(-40, 40)
            busy = 100 if waiting else rng.randint(91, 100)
            watts = rng.uniform(148, 160) if waiting else rng.uniform(560, 668)
            moment = t + timedelta(milliseconds=3 * gpu + rng.randint(0, 2))
            lines.append(
                f"{moment:%Y/%m/%d %H:%M:%S}.{moment.microsecond // 1000:03d}, {gpu}, 00000000:{bus.upper()}:00.0, "
                f"{rng.randint(54, 66) if not waiting else 44}, {busy} %, {memory:.0f} MiB, 81559 MiB, {watts:.2f} W, 0x0000000000000004"
            )
        t += timedelta(seconds=seconds)
    return lines


def boot_lines(t: datetime, host: str, buses: list[str]) -> list[tuple[datetime, str]]:
    """The kernel's lines at boot that tell hardware and driver (Ubuntu 22.04, driver 550)."""
    lines = [
        (t, "Linux version 5.15.0-113-generic (buildd@lcy02) (gcc (Ubuntu 11.4.0) 11.4.0, GNU ld 2.38) #123-Ubuntu SMP"),
        (t, "Command line: BOOT_IMAGE=/vmlinuz-5.15.0-113-generic root=/dev/mapper/vg-root ro iommu=pt"),
        (
            t + timedelta(seconds=1),
            f"rtc_cmos 00:01: setting system clock to {t:%Y-%m-%dT%H:%M:%S} UTC ({int((t - datetime(1970, 1, 1)).total_seconds())})",
        ),
        (t + timedelta(seconds=4), "mlx5_core 0000:18:00.0: firmware version: 28.39.2048"),
        (t + timedelta(seconds=9), "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build  (dvs-builder@U16)"),
        (t + timedelta(seconds=11), f"systemd[1]: Set hostname to <{host}>."),
    ]
    lines += [(t + timedelta(seconds=12), f"nvidia 0000:{bus}:00.0: enabling device (0140 -> 0142)") for bus in buses]
    return lines


def chatter(rng: Random, start: datetime, end: datetime, count: int, behind: float = 0.0) -> list[tuple[datetime, str]]:
    """Ordinary kernel lines between two times, in order: what a healthy node prints.  behind: seconds that the stamps lag behind the epochs."""
    span = (end - start).total_seconds()
    pool = (
        "audit: type=1400 audit({epoch}.{ms:03d}:{n}): apparmor=\"STATUS\" operation=\"profile_replace\" profile=\"unconfined\" name=\"docker-default\" pid={pid} comm=\"apparmor_parser\"",
        "veth{n:06x}: renamed from eth0",
        "br-4c1f: port 3(veth{n:06x}) entered disabled state",
        "nfs: server store-2 OK",
        "perf: interrupt took too long ({n} > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
        "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n:06x}: link becomes ready",
    )  # fmt: skip
    lines = []
    for second in sorted(rng.uniform(0, span) for _ in range(count)):
        t = start + timedelta(seconds=second)
        epoch = int((t - datetime(1970, 1, 1)).total_seconds() + behind)
        lines.append(
            (t, rng.choice(pool).format(epoch=epoch, ms=t.microsecond // 1000, n=rng.randint(2600, 60000), pid=rng.randint(900, 9000)))
        )
    return lines


def bar(done: int, total: int, seconds: float) -> str:
    """A tqdm bar without its carriage return."""
    full = int(10 * done / total)

    def clock(s: float) -> str:
        return f"{int(s) // 3600}:{int(s) % 3600 // 60:02d}:{int(s) % 60:02d}" if s >= 3600 else f"{int(s) // 60:02d}:{int(s) % 60:02d}"

    return f"{100 * done // total:3d}%|{'█' * full}{' ' * (10 - full)}| {done}/{total} [{clock(done * seconds)}<{clock((total - done) * seconds)}, {seconds:5.2f}s/it]"


def cosine(step: int, total: int, top: float, warm: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < warm:
        return top * step / warm
    return top * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def megatron(
    t: datetime, step: int, total: int, ms: float, lr: float, loss: float, norm: float, batch: int = 256, scale: float = 1.0
) -> str:
    """Megatron-LM core 0.8 to 0.14."""
    return (
        f" [{t:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/{total:8d} | consumed samples: {step * batch:12d} | elapsed time per iteration (ms): {ms:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): {811000 / ms:.1f} | learning rate: {lr:.6E} | global batch size: {batch:5d} | lm loss: {loss:.6E} | "
        f"loss scale: {scale:.1f} | grad norm: {norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def titan(t: datetime, rank: int, text: str) -> str:
    """torchtitan 0.1 behind torchrun's tee prefix."""
    return f"[rank{rank}]:[titan] {t:%Y-%m-%d %H:%M:%S},{t.microsecond // 1000:03d} - root - INFO - {text}"


def titan_step(t: datetime, rank: int, step: int, loss: float, norm: float, gib: float) -> str:
    return titan(
        t,
        rank,
        f"\x1b[31mstep: {step:2d}  \x1b[32mloss: {loss:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {norm:7.4f}  "
        f"\x1b[38;2;54;234;195mmemory: {gib:.2f}GiB({gib / 0.7915:.2f}%)  \x1b[34mtps: {6900 + step % 37:,}  \x1b[36mtflops: 398.{step % 90 + 10}  \x1b[35mmfu: 40.{step % 60 + 10}%\x1b[39m",
    )


def hf_dict(values: dict[str, float], strings: bool = False) -> str:
    """The dictionary of the Transformers Trainer: floats up to 4.x, strings of four digits in 5.x."""
    if strings:
        return "{" + ", ".join(f"'{k}': '{v:.4g}'" for k, v in values.items()) + "}"
    return str(dict(values))


def hf_line(done: int, total: int, seconds: float, values: dict[str, float], strings: bool = False) -> str:
    """One line of a captured Trainer run: the bar redrawn, drawn again one step on, wiped, and the step's dictionary."""
    return f"\r{bar(done - 1, total, seconds)}\r{bar(done, total, seconds)}\r{' ' * 46}\r{hf_dict(values, strings)}"
