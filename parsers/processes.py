"""Lines in which a process says who it is: its pid together with its rank, its host or its GPU.

Frameworks print such a line once at the start (`[rank 1] actor started, pid 5275`, `Hostname node-b, pid 15276, using GPU 0`,
`rank: 3 local_rank: 3 pid: 881`).  Event `process`: rank, host and pid as told, `local_rank` in fields where a device is named.  Kernel
lines, whose pids come with no rank, give none.  Event `ray_frame`: the head `ray::Actor.method() (pid=…, ip=…)` of a remote traceback.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy

MAX_PROCESSES = 4096

_PID = lazy(r"\b(?:pid|PID)[ =:]{1,3}(?P<pid>[1-9]\d{0,8})\b")
_RAY = lazy(r"\bray::[\w.<>\[\]]{1,120}\(\).{0,12}?\(pid=(?P<pid>[1-9]\d{0,8}), ip=(?P<ip>[\w.:]{2,45})")
_RANK = lazy(r"(?<![A-Za-z_-])(?:global[ _-]?)?rank[ =:]{0,3}(?P<rank>\d{1,6})\b(?!/\w)", re.IGNORECASE)
_DEVICE = lazy(r"\b(?:local[ _-]?rank|using (?:GPU|gpu|device|NPU)|on (?:GPU|gpu)|cuda)[ =:]{1,3}(?P<device>\d{1,3})\b", re.IGNORECASE)
_HOST = lazy(r"\b(?:host ?name|host|node ?name|node)[ =:]{1,3}(?P<host>[A-Za-z][\w.-]{0,80})", re.IGNORECASE)
# Who ends, or is ended by another, is told elsewhere; a traceback's pid may be a child's.
_OTHER = lazy(r"kill|signal|exitcode|exit code|failed|blocked for|Xid|worker \(pid|Sending process|NVRM|error", re.IGNORECASE)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:400]
    if "ray::" in text:
        if (frame := _RAY.search(text)) is not None and line.actor is None:
            count = context.state["frames"] = context.state.get("frames", 0) + 1
            if count <= MAX_PROCESSES:
                rows.event(line, "ray_frame", "debug", text="", pid=int(frame["pid"]), host=frame["ip"])
        return
    told = _PID.search(text)
    if told is None or _OTHER.search(text):
        return
    rank = line.rank
    if rank is None and (found := _RANK.search(text)) is not None:
        rank = int(found["rank"])
    device, host = _DEVICE.search(text), _HOST.search(text)
    if rank is None and (device is None or host is None):
        return
    seen: set[tuple[int | None, int]] = context.state.setdefault("seen", set())
    key = (rank, int(told["pid"]))
    if key in seen or len(seen) >= MAX_PROCESSES:
        return
    seen.add(key)
    fields: dict[str, Any] = {"local_rank": int(device["device"])} if device else {}
    rows.event(
        line,
        "process",
        "debug",
        text="",
        rank=rank,
        pid=int(told["pid"]),
        host=host["host"] if host else line.host,
        fields=fields,
    )


PARSER = LineParser("processes", (" pid ", " pid: ", " PID: ", " PID ", " (pid="), _parse)
