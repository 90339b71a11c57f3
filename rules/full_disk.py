"""A full file system seen by `df`, tied to a write that failed.

torch's writer says "unexpected pos" or "file write failed" and a C++ stream says "iostream error" where the disk was full;
a `df` table at 99 % or more of a writable mount, or with no inodes left, decides it.  /dev/shm counts as shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.process_view import at_error, finding, order

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

FULL = 99  # percent
WRITES = (
    "PytorchStreamWriter",
    "unexpected pos",
    "iostream error",
    "No space left",
    "file write failed",
    "Errno 28",
    "StorageFull",
    "write failed",
    "Disk quota",
)


def _failed_write(run: Run) -> Event | None:
    for event in sorted(run.kind("traceback", "exception"), key=order):
        text = f"{event.text} {event.fields.get('message', '')} " + " ".join(
            str(c.get("message", "")) for c in event.fields.get("chain") or []
        )
        if any(words in text for words in WRITES):
            return event
    return None


def _judge(run: Run) -> Iterator[Finding]:
    full = [e for e in run.kind("disk_usage") if int(e.fields.get("percent", 0)) >= FULL]
    if not full:
        return
    write = _failed_write(run)
    shm = [e for e in full if str(e.fields.get("mount")).startswith(("/dev/shm", "/run/shm"))]
    disks = [e for e in full if e not in shm]
    for group, cause in ((disks, "infra/disk-full"), (shm, "infra/shm-too-small")):
        if not group:
            continue
        first = group[0]
        named = "infra/inode-exhausted" if first.fields.get("what") == "inodes" and cause == "infra/disk-full" else cause
        places = [Evidence(e.source, e.line, e.text[:300], e.time) for e in group[:3]]
        facts = {"mount": first.fields.get("mount"), "percent": first.fields.get("percent")}
        if write is not None:
            yield finding("full-disk.write", [write], [at_error(write), *places], cause=named, weight=0.88, facts=facts, covers=("S1",))
        else:
            yield finding("full-disk.seen", group, places, cause=named, role="precursor", weight=0.3, severity="warning", facts=facts)


RULES = (Rule("full-disk", _judge),)
