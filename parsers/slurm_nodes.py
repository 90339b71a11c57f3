"""`scontrol show node` and `scontrol show node -o`: state, reason, processors and memory of Slurm's nodes.

Event `node_state`: fields `node`, `state` (`DOWN*`, `IDLE+DRAIN` …), `reason`, `cpus`, `memory_mib`, `gres`.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy

MAX_NODES = 5000

_NODE = lazy(r"\A\s{0,4}NodeName=(?P<node>[\w.-]{1,80})\s")
_PAIR = lazy(r"(?:\A|\s)(?P<key>CPUTot|RealMemory|State|Gres|AllocMem|CPULoad|BootTime)=(?P<value>\S{1,160})")
_REASON = lazy(r"(?:\A|\s)Reason=(?P<reason>[^\n]{1,200}?)\s{0,4}\Z")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    begin = _NODE.match(line.text[:200])
    if begin is None:
        return
    count = context.state["count"] = context.state.get("count", 0) + 1
    if count > MAX_NODES:
        return
    fields: dict[str, Any] = {"node": begin["node"]}
    at = line
    for near in (line, *context.following(24)):
        text = near.text[:2000]
        if near is not line and (_NODE.match(text) or not text.strip()):
            break
        for found in _PAIR.finditer(text):
            key, value = found["key"], found["value"]
            if key == "State":
                fields["state"], at = value, near
            elif key == "CPUTot" and value.isdigit() and len(value) < 6:
                fields["cpus"] = int(value)
            elif key == "RealMemory" and value.isdigit() and len(value) < 12:
                fields["memory_mib"] = int(value)
            elif key == "Gres":
                fields["gres"] = value
        if reason := _REASON.search(text):
            fields["reason"] = reason["reason"]
    if "state" not in fields:
        return
    bad = re.search(r"DOWN|FAIL|DRAIN|NOT_RESPONDING|\*", fields["state"]) is not None
    rows.event(at, "node_state", "warning" if bad else "info", host=None, fields=fields)


PARSER = LineParser("slurm nodes", ("NodeName=",), _parse)
