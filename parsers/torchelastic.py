"""torchrun / torchelastic and what is built on it (accelerate launch, DeepSpeed's torchrun mode): who ended, how, and restarts.

Wordings of torch 1.9 to 2.13: `failed (exitcode: -9) local_rank: 2 (pid: 2103) of binary: …`, the failure table with its
`Root Cause (first observed failure)`, `Sending process N closing signal SIGTERM`, `Received 15 death signal`, restarts.
Events: `exit`, `restart` (fields `attempt`, `left`), `rendezvous`, `failure_table` (fields `script`, `failures`, `root`).
"""

from __future__ import annotations

import json
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy_regex
from parsers.exit_codes import exit_event

FAILED = lazy_regex(r"failed \(exitcode: (?P<code>-?\d{1,9})\) (?:local_rank: (?P<local>\d{1,6}) )?\(pid: (?P<pid>\d{1,9})\)")
CLOSING = lazy_regex(
    r"(?:Sending process (?P<pid>\d{1,9}) closing signal (?P<signal>\w+)|Unable to shutdown process (?P<pid2>\d{1,9}) via)"
)
BLOCK = lazy_regex(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.{0,2000})$")
CODE = lazy_regex(r"(?P<code>-?\d{1,9}) \(pid: (?P<pid>\d{1,9})\)")
RANK = lazy_regex(r"(?P<rank>\d{1,7}) \(local_rank: (?P<local>\d{1,6})\)")
RESTART = lazy_regex(
    r"(?P<left>\d{1,6})/(?P<most>\d{1,6}) attempts left; will restart worker group|restart_count=(?P<count>\d{1,6})|"
    r"(?:Worker group|worker group) (?:FAILED|in UNHEALTHY).{0,80}(?P<left2>\d{1,6})/(?P<most2>\d{1,6}) attempts left"
)
MEMBERSHIP = lazy_regex(r"Detected \d+ new nodes from group_rank=|membership change")
DEATH = lazy_regex(
    r"Received (?P<number>\d{1,3}) death signal, shutting down workers|SignalException: Process (?P<pid>\d{1,9}) got signal: (?P<signal>\d{1,3})"
)
REMOTE = lazy_regex(r"\[(?P<what>[^\]]{1,80})\] .{0,20}?(?:has failed to shutdown the rendezvous|failed to send a keep-alive heartbeat)")


MASTER = lazy_regex(r"\b(?:master_addr ?[=:] ?|MASTER_ADDR[=:] ?)'?\"?(?P<host>[A-Za-z0-9][\w.-]{0,120})")


def _block(line: Line, context: Context) -> dict[str, Any]:
    """The fields of one numbered block of a failure table, around its `exitcode` line."""
    found: dict[str, Any] = {"root": False}
    for above in context.preceding(8):
        row = BLOCK.match(above.text)
        if row:
            found.setdefault(row["key"], row["value"].strip())
        elif "Root Cause (first observed" in above.text:
            found["root"] = True
            break
        elif not above.text.strip().startswith("["):
            break
    for below in context.following(3):
        row = BLOCK.match(below.text)
        if not row:
            break
        found.setdefault(row["key"], row["value"].strip())
    return found


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if not context.state.get("master") and (named := MASTER.search(text)) is not None:
        context.state["master"] = True
        rows.fact(line, "launch.master_addr", named["host"])
    if (found := FAILED.search(text)) is not None:
        exit_event(
            line,
            rows,
            "torchelastic",
            int(found["code"]),
            pid=int(found["pid"]),
            local_rank=int(found["local"]) if found["local"] else None,
        )
    elif "exitcode" in text and (row := BLOCK.match(text)) is not None and row["key"] == "exitcode":
        code = CODE.search(row["value"])
        if code is None:
            return
        block = _block(line, context)
        who = RANK.search(block.get("rank", ""))
        rank = int(who["rank"]) if who else None
        exit_event(
            line,
            rows,
            "torchelastic",
            int(code["code"]),
            rank=rank,
            host=block.get("host") or None,
            pid=int(code["pid"]),
            local_rank=int(who["local"]) if who else None,
            first_observed=block["root"],
            by_launcher=int(code["code"]) == -15 and not block["root"],
            error_file=block.get("error_file"),
            note=block.get("traceback", "")[:300],
            at=block.get("time"),
            table=True,
        )
    elif (found := CLOSING.search(text)) is not None:
        pid = found["pid"] or found["pid2"]
        exit_event(line, rows, "torchelastic", None, pid=int(pid), by_launcher=True, sent=found["signal"])
    elif (found := DEATH.search(text)) is not None:
        number = int(found["number"] or found["signal"])
        rows.event(line, "interrupt", "warning", fields={"what": "signal", "signal": number, "target": "launcher"})
    elif (found := RESTART.search(text)) is not None:
        left = found["left"] or found["left2"]
        most = found["most"] or found["most2"]
        attempt = int(found["count"]) if found["count"] else (int(most) - int(left) + 1 if most else None)
        if attempt:
            rows.event(
                line, "restart", "warning", fields={"attempt": attempt, "left": int(left) if left else None, "source": "torchelastic"}
            )
    elif MEMBERSHIP.search(text):
        rows.event(line, "restart", "warning", fields={"attempt": None, "source": "torchelastic", "why": "membership"})


def _recognises(head: Head) -> float:
    text = head.text.lstrip()
    return 0.95 if text.startswith("{") and '"message"' in text[:200] and '"py_callstack"' in text[:65536] else 0.0


def _error_file(source: Source, rows: Rows) -> None:
    """Torchelastic's error.json: `{"message": {"message": …, "extraInfo": {"py_callstack", "timestamp"}}}`."""
    from parsers.base import Stamp
    from parsers.traceback import parse_text

    data = json.loads(source.text())
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, dict):
        raise ValueError("not an error file of torchelastic")
    given = message.get("extraInfo")
    extra: dict[str, Any] = given if isinstance(given, dict) else {}
    stack = str(extra.get("py_callstack", ""))[:200_000]
    line = Line(source.path, 1, str(message.get("message", ""))[:2000], "")
    stamp = str(extra.get("timestamp", ""))
    if stamp.isdigit() and len(stamp) in (9, 10, 11):
        line.stamp = Stamp("unix", float(stamp), zone=0.0)
    fields = parse_text(stack)
    if fields is None:
        kind, _, rest = line.text.partition(": ")
        fields = {
            "type": kind.strip("()'\" ")[:200],
            "message": rest[:1500],
            "frames": [],
            "innermost": None,
            "user_frame": None,
            "chain": [],
        }
    fields["error_line"] = 1
    fields["copy"] = True
    rows.event(line, "traceback", "error", fields=fields)


PARSER = (
    LineParser(
        name="torchelastic",
        triggers=(
            "failed (exitcode:",
            "exitcode  : ",
            "exitcode : ",
            "Sending process ",
            "Unable to shutdown process ",
            "death signal, shutting down",
            "SignalException: Process",
            "attempts left; will restart",
            "restart_count=",
            "master_addr=",
            "MASTER_ADDR=",
            "new nodes from group_rank",
            "membership change",
        ),
        parse=_parse,
        kind="train",
    ),
    FileParser(name="torchelastic-error", kind="train", recognises=_recognises, parse=_error_file),
)
