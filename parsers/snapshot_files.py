"""Files that hold nothing but snapshots of tools, told from training logs that begin with one.

The readers of the snapshots work line by line; this only says what kind of file it is, so that its times and texts do not count as
the training's.
"""

from __future__ import annotations

from parsers.base import FileParser, Head, Rows, Source, lazy
from parsers.snapshots import PROMPT

_GPU = lazy(
    r"\|\s*NVIDIA-SMI |=+NVSMI LOG=+|\s{0,12}GPU0\s{1,8}(?:GPU1|CPU Affinity|NIC0)|#\s{0,4}(?:Date\s{1,12}Time\s{1,12}gpu|Time\s{1,12}gpu|gpu\s{1,12}(?:pwr|pid|sm|fb))\b|GPU \d{1,3}: .{2,80}\(UUID: GPU-"
    r"|(?:gpu_uuid, |gpu_bus_id, )?pid, (?:process_name, |name, )?used_(?:gpu_)?memory|=+\s{1,40}ROCm System Management Interface|Failed to initialize NVML"
)
_HOST = lazy(
    r"Collecting environment information|DeepSpeed (?:general environment|C\+\+/CUDA extension op)|nvcc: NVIDIA|Package\s{1,80}Version|# packages in environment at"
    r"|(?:core file size|open files|real-time non-blocking time)\s{1,40}\(|Limit\s{1,30}Soft Limit|-t: cpu time|vm\.swappiness|CA '\w|hca_id:|Infiniband device '|\s{5,20}total\s{1,20}used\s{1,20}free"
    r"|MemTotal:|Architecture:\s{1,40}(?:x86_64|aarch64|ppc64le|arm64)\b|Name:\t|(?:USER|UID|F S UID)\s{1,20}(?:PID|.{0,20} PID)|\s{0,8}PID\s{1,12}(?:PPID|TTY|%CPU|USER|STAT|S)\s|Filesystem\s{1,60}(?:Size|Type|Inodes|1K-blocks|1024-blocks|512-blocks|blocks|kbytes|used)\b|Disk quotas for|(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z0-9][\w /-]{2,40}(?: \[\w{4}\])?: "
    r"|low \d{1,20}\Z|NodeName=\w|Linux \S{1,80} \d"
)
_STAMP = lazy(
    r"(?:\w{3} ){2}[ \d]\d \d\d:\d\d:\d\d(?: \w{2,5})? \d{4}\s{0,20}\Z|\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,+Z-]{5,24}\s{0,8}\Z|[#=+*-]{2,200}\Z|#{1,3} |={2,20} |\[?\w{1,20}@"
)
_LOG = lazy(
    r"Traceback|\bloss\b|\b(?:INFO|WARNING|ERROR|DEBUG)\b|NCCL (?:INFO|WARN)|it/s|\b[Ee]poch\b|\[rank\d|kernel: |NVRM|Error: |Exception|\bKilled\b|\btraining\b|\bforward\b|\bcheckpoint\b"
)


def kind(head: Head) -> str:
    """`gpu` or `environment` for a file of snapshots, else an empty text."""
    lines = (
        [line[:300] for line in head.lines[:1500] if line.strip()] if any(_GPU.match(s) or _HOST.match(s) for s in head.lines[:12]) else []
    )
    if not lines:
        return ""
    found = ""
    for line in lines[:8]:
        if _GPU.match(line):
            found = "gpu"
            break
        if _HOST.match(line):
            found = "environment"
            break
        if not (_STAMP.match(line) or PROMPT.match(line) or len(line) < 12):
            return ""
    if not found:
        return ""
    talk = sum(_LOG.search(line) is not None for line in lines)
    return found if talk <= 0.02 * len(lines) else ""


def _recogniser(wanted: str):  # type: ignore[no-untyped-def]
    return lambda head: 0.6 if kind(head) == wanted else 0.0


def _nothing(source: Source, rows: Rows) -> None:
    """All of it is read line by line."""


PARSER = (
    FileParser("gpu snapshot", "gpu", _recogniser("gpu"), _nothing, scan=True),
    FileParser("host snapshot", "environment", _recogniser("environment"), _nothing, scan=True),
)
