"""What is gathered: one entry per file of the collection, with the guide's items it serves.

Forms are the plain ones of each tool, because those are what the parsers know and what people paste.  The GPU query without a
time column is the guide's; the one with a time column is what `--watch` samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The guide's S1 query, and the same with time first and the columns that tell a failing card; older drivers refuse some of these.
FIXED = "index,name,temperature.gpu,utilization.gpu,memory.used,memory.total"
WIDE = f"timestamp,{FIXED},pci.bus_id,power.draw,clocks.sm,clocks_throttle_reasons.active,ecc.errors.uncorrected.volatile.total"
STATIC = (
    "timestamp,index,uuid,pci.bus_id,name,driver_version,memory.used,memory.total,power.limit,pcie.link.gen.current,pcie.link.width.current"
)
APPS = "gpu_uuid,pid,process_name,used_memory"


@dataclass(frozen=True, slots=True)
class Item:
    """One file.  `commands`: alternatives, the first that works is kept.  `talks`: its failure text is evidence too (GPU tools).

    `why`: what is lost without it, for the note.  `after`: taken again when a wrapped command has failed.
    """

    file: str
    covers: tuple[str, ...]
    why: str
    commands: tuple[tuple[str, ...], ...]
    timeout: float = 20.0
    talks: bool = False
    after: bool = False


def _smi(*options: str) -> tuple[str, ...]:
    return ("nvidia-smi", *options)


ITEMS: tuple[Item, ...] = (
    Item(
        "nvidia-smi-query.csv",
        ("L0.1", "S1"),
        "GPU temperature, utilization and memory",
        (_smi(f"--query-gpu={FIXED}", "--format=csv,noheader,nounits"),),
        talks=True,
        after=True,
    ),
    Item(
        "nvidia-smi-gpus.csv",
        ("L0.1",),
        "GPU bus ids, driver and PCIe links",
        (_smi(f"--query-gpu={STATIC}", "--format=csv,nounits"),),
        talks=True,
    ),
    Item(
        "nvidia-smi-compute-apps.csv",
        ("S11",),
        "which process holds how much GPU memory",
        (_smi(f"--query-compute-apps={APPS}", "--format=csv"),),
        talks=True,
        after=True,
    ),
    Item("nvidia-smi.txt", ("L0.1", "S1"), "driver and CUDA version, processes", (_smi(),), talks=True, after=True),
    Item("nvidia-smi-q.txt", ("L0.1", "S1"), "ECC, retired pages, throttle reasons", (_smi("-q"),), timeout=60, talks=True, after=True),
    Item("nvidia-smi-topo.txt", ("L4.2", "S6"), "how GPUs and network cards are joined", (_smi("topo", "-m"),), timeout=60, talks=True),
    Item("nvidia-smi-nvlink.txt", ("L4.2", "S6"), "NVLink error counters", (_smi("nvlink", "-e"),), talks=True, after=True),
    Item("rocm-smi.txt", ("L0.1", "S1"), "AMD GPUs", (("rocm-smi",),), talks=True, after=True),
    Item("nvcc.txt", ("L0.1", "S1"), "the CUDA toolkit's version", (("nvcc", "--version"), ("/usr/local/cuda/bin/nvcc", "--version"))),
    Item(
        "dmesg.log",
        ("L0.6", "S1", "S12"),
        "kernel records: out-of-memory kills, Xid and PCIe errors",
        (
            ("dmesg", "--time-format", "iso"),
            ("dmesg", "-T"),
            ("dmesg",),
            ("journalctl", "--dmesg", "--boot=0", "--output=short-iso-precise", "--no-pager", "--lines=50000"),
        ),
        after=True,
    ),
    Item(
        "dmesg-previous-boot.log",
        ("L0.6", "S12"),
        "the kernel's last words before a reboot",
        (("journalctl", "--dmesg", "--boot=-1", "--output=short-iso-precise", "--no-pager", "--lines=5000"),),
    ),
    Item(
        "ulimit.txt",
        ("L0.4",),
        "limits of open files, locked memory and processes",
        (("bash", "-c", "ulimit -a"), ("sh", "-c", "ulimit -a")),
    ),
    Item("ibstat.txt", ("S6", "L4.2"), "state of the InfiniBand ports", (("ibstat",),), after=True),
    Item("ibv_devinfo.txt", ("S6",), "RDMA devices as programs see them", (("ibv_devinfo",),)),
    Item("ip-link.txt", ("S6",), "network interfaces with their error counters", (("ip", "-s", "link"),), after=True),
    Item("ps.txt", ("L4.4", "S1"), "processes, leaked workers", (("ps", "auxww"), ("ps", "-ef")), after=True),
    Item("df.txt", ("L0.4",), "full file systems", (("df", "-h"),), after=True),
    Item("df-inodes.txt", ("L0.4",), "file systems without free inodes", (("df", "-i"),), after=True),
    Item("free.txt", ("L0.6", "S1"), "host memory", (("free", "-m"),), after=True),
    Item("lscpu.txt", ("L0.1",), "processor model and NUMA nodes", (("lscpu",),)),
    Item("uname.txt", ("L0.1",), "the kernel's version", (("uname", "-a"),)),
    Item("clock.txt", ("S12",), "whether the clock is kept in step", (("chronyc", "tracking"), ("timedatectl", "status"))),
)


def items(variables: Mapping[str, str]) -> tuple[Item, ...]:
    """The items of this machine: within a Slurm job the scheduler's own record of it too."""
    job = variables.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return ITEMS
    columns = "JobIDRaw,JobID,JobName,State,ExitCode,DerivedExitCode,Start,End,Elapsed,NodeList,MaxRSS,ReqMem,Reason"
    return (
        *ITEMS,
        Item("slurm-job.txt", ("S12",), "limits and state of the Slurm job", (("scontrol", "show", "job", "-dd", job),), after=True),
        Item(
            "slurm-sacct.txt",
            ("S12",),
            "what Slurm's accounting knows of the job's steps",
            (("sacct", "-j", job, "-P", f"--format={columns}"),),
            after=True,
        ),
    )
