"""The kernel's out-of-memory killer and the user-space ones: one `oom_kill` event per kill.

Wordings: Linux 2.6.32 to 6.18 (mm/oom_kill.c, mm/memcontrol.c), systemd-oomd 247+, systemd 243+, earlyoom 1.8.

The event stands at the line that says who is killed.  Fields: `victim` (pid), `comm`, `scope` (`host`, `cgroup`, `cpuset`),
`memcg` (the group whose limit was hit), `task_memcg`, `anon_kb`, `file_kb`, `shmem_kb`, `usage_kb`, `limit_kb`, `invoker`,
`invoker_pid`, `uid`, `score`, `killer` (`kernel`, `systemd-oomd`, `earlyoom`, `systemd`), `top` (largest tasks of the table:
pid, name, rss_mb), `first_line` (first line of the block), `kill_line`, `group` (memory.oom.group).
"""

from __future__ import annotations

from typing import Any

import regex

from parsers.base import Context, Event, Line, LineParser, Rows, lazy_regex
from parsers.kernel_text import emit, host_of, number

INVOKED = lazy_regex(r"(?P<comm>[^\]:>;]{1,40}?) invoked oom-killer: gfp_mask=")
CONSTRAINT = lazy_regex(
    r"oom-kill:constraint=(?P<constraint>CONSTRAINT_\w+),nodemask=[^=,]{0,60},cpuset=(?P<cpuset>[^,]*),mems_allowed=[\d,-]*?,"
    r"(?:oom_memcg=(?P<memcg>[^,]*)|global_oom),task_memcg=(?P<task_memcg>[^,]*),task=(?P<comm>.{1,32}?),pid=(?P<pid>\d+),uid=(?P<uid>\d+)"
)
KILLED = lazy_regex(
    r"(?:(?P<scope>Out of memory(?: \([^)]{0,40}\))?|Memory cgroup out of memory): )?Killed process (?P<pid>\d+),?(?: UID (?P<uid>\d+),?)? \((?P<comm>[^)]{0,40})\)"
    r"(?P<tail>.*)"
)
ANNOUNCED = lazy_regex(
    r"(?P<scope>Out of memory|Memory cgroup out of memory): Kill process (?P<pid>\d+) \((?P<comm>[^)]{0,40})\) score (?P<score>\d+) or sacrifice child"
)
SIZES = lazy_regex(r"(?P<what>total-vm|anon-rss|file-rss|shmem-rss): ?(?P<kb>\d{1,15})kB")
OLD_MEMCG = lazy_regex(r"Task in (?P<task_memcg>\S+) killed as a result of limit of (?P<memcg>\S+)")
GROUP = lazy_regex(r"Tasks in (?P<memcg>\S+) are going to be killed due to memory\.oom\.group set")
USAGE = lazy_regex(r"\bmemory: usage (?P<usage>\d{1,15})kB, limit (?P<limit>\d{1,18})kB, failcnt (?P<failcnt>\d+)")
PID_LINE = lazy_regex(r"PID: (?P<pid>\d+) Comm: |\bPid: (?P<oldpid>\d+), comm: ")
ROW = lazy_regex(
    r"\[ *(?P<pid>\d{1,10})\] +(?P<uid>\d{1,10}) +(?P<tgid>\d{1,10}) +(?P<vm>\d{1,15}) +(?P<rss>\d{1,15}) +(?:-?\d{1,15} +){2,8}(?P<name>\S[^\n]{0,40})$"
)
NO_VICTIM = lazy_regex(
    r"Out of memory and no killable processes|System is deadlocked on memory|Out of memory: (?:compulsory|system-wide) panic_on_oom|out of memory\. panic_on_oom is selected"
)
OOMD = lazy_regex(r"systemd-oomd\[\d{1,9}\]: Killed (?P<memcg>\S{1,400}) due to (?P<why>memory (?:pressure|used)[^\n]{0,300})")
UNIT = lazy_regex(
    r"(?<![\w@.:\\-])(?P<unit>[\w@.:\\-]{1,300})(?<=scope|rvice|slice): (?:A process of this unit has been killed by the OOM killer|systemd-oomd killed \d{1,9} process\(es\) in this unit|Failed with result 'oom-kill')"
)
EARLYOOM = lazy_regex(
    r'sending (?P<signal>SIGTERM|SIGKILL) to process (?P<pid>\d+) uid (?P<uid>\d+) "(?P<comm>[^"]{0,60})": oom_score (?P<score>\d+)(?P<tail>[^\n]{0,200})'
)
RSS_MIB = lazy_regex(r"VmRSS (?P<mib>\d+) MiB")

BLOCK = 4000  # lines of a report that are read back at most: a task table of a big node has thousands of rows
PAGE_KB = 4  # the task table counts pages; 4 KiB on x86 and on most arm64 kernels


def _block(context: Context, fields: dict[str, Any]) -> int | None:
    """Read the report above the kill line, nearest first, into `fields`; gives the number of its first line."""
    first = None
    top: list[tuple[int, int, str]] = []
    for above in context.preceding(BLOCK):
        text = above.text
        row = ROW.search(text)
        if row:
            top.append((int(row["rss"][:15]) * PAGE_KB // 1024, int(row["pid"][:12]), row["name"].strip()))
            if len(top) > 400:
                top = sorted(top, reverse=True)[:20]
            continue
        if KILLED.search(text) or ANNOUNCED.search(text):
            if "announced" in fields and fields["announced"] == above.number:
                continue
            break
        constraint = CONSTRAINT.search(text)
        if constraint:
            _constraint(constraint, fields)
            continue
        usage = USAGE.search(text)
        if usage:
            fields["usage_kb"], fields["limit_kb"] = int(usage["usage"]), int(usage["limit"])
            continue
        old = OLD_MEMCG.search(text)
        if old:
            fields.setdefault("memcg", old["memcg"])
            fields.setdefault("task_memcg", old["task_memcg"])
            fields["scope"] = "cgroup"
            continue
        who = PID_LINE.search(text)
        if who:
            fields["invoker_pid"] = number(who["pid"] or who["oldpid"])
            continue
        invoked = INVOKED.search(text)
        if invoked:
            fields["invoker"] = invoked["comm"].strip()
            first = above.number
            break
    if top:
        fields["top"] = [{"pid": pid, "name": name, "rss_mb": rss} for rss, pid, name in sorted(top, reverse=True)[:5]]
    return first


def _constraint(found: regex.Match[str], fields: dict[str, Any]) -> None:
    constraint = found["constraint"]
    scope = "cgroup" if constraint == "CONSTRAINT_MEMCG" else "host" if constraint == "CONSTRAINT_NONE" else "cpuset"
    fields |= {"scope": scope, "constraint": constraint, "task_memcg": found["task_memcg"], "cpuset": found["cpuset"]}
    if found["memcg"]:
        fields["memcg"] = found["memcg"]


def _killed(line: Line, rows: Rows, context: Context, found: regex.Match[str]) -> None:
    victim = number(found["pid"])
    waiting: Event | None = context.state.get("announced")
    if waiting is not None and line.number - waiting.line <= 40:
        # before 5.1 the announcement names the process chosen and this line, perhaps, a child of it
        context.state["announced"] = None
        fields = waiting.fields
        if fields.get("victim") != victim:
            fields["child"], fields["child_comm"] = victim, found["comm"]
        fields["kill_line"] = line.number
        _sizes(found["tail"], fields)
        waiting.end_line = line.number
        return
    fields = {"victim": victim, "comm": found["comm"], "killer": "kernel", "uid": number(found["uid"]), "kill_line": line.number}
    if found["scope"]:
        fields["scope"] = "cgroup" if found["scope"].startswith("Memory cgroup") else "host"
    _sizes(found["tail"], fields)
    fields["first_line"] = _block(context, fields) or line.number
    if found["scope"] and found["scope"].startswith("Memory cgroup"):
        fields["scope"] = "cgroup"
    fields.setdefault("scope", "host")
    emit(line, rows, context, "oom_kill", "fatal", "", fields, pid=victim, end_line=line.number)


def _sizes(text: str, fields: dict[str, Any]) -> None:
    for size in SIZES.finditer(text[:400]):
        fields[{"total-vm": "vm_kb", "anon-rss": "anon_kb", "file-rss": "file_kb", "shmem-rss": "shmem_kb"}[size["what"]]] = int(size["kb"])


def _announced(line: Line, rows: Rows, context: Context, found: regex.Match[str]) -> None:
    victim = number(found["pid"])
    fields: dict[str, Any] = {
        "victim": victim,
        "comm": found["comm"],
        "killer": "kernel",
        "score": number(found["score"]),
        "kill_line": line.number,
    }
    fields["scope"] = "cgroup" if found["scope"].startswith("Memory cgroup") else "host"
    scope = fields["scope"]
    fields["first_line"] = _block(context, fields) or line.number
    if scope == "cgroup":
        fields["scope"] = scope
    context.state["announced"] = emit(line, rows, context, "oom_kill", "fatal", "", fields, pid=victim, end_line=line.number)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    found = KILLED.search(text) if "Killed process" in text else None
    if found:
        _killed(line, rows, context, found)
        return
    found = ANNOUNCED.search(text)
    if found:
        _announced(line, rows, context, found)
        return
    found = CONSTRAINT.search(text) if "oom-kill:constraint" in text else None
    if found:
        for below in context.following(3):
            if "Killed process" in below.text:
                return  # told in full by that line
        fields: dict[str, Any] = {"victim": number(found["pid"]), "comm": found["comm"], "killer": "kernel", "uid": number(found["uid"])}
        _constraint(found, fields)
        fields["first_line"] = _block(context, fields) or line.number
        fields["kill_line"] = line.number
        emit(line, rows, context, "oom_kill", "fatal", "", fields, pid=number(found["pid"]))
        return
    found = GROUP.search(text)
    if found:
        emit(line, rows, context, "oom_group", "fatal", found["memcg"][:80], {"memcg": found["memcg"]})
        return
    if NO_VICTIM.search(text):
        fields = {"killer": "kernel", "scope": "host", "no_victim": True, "kill_line": line.number, "first_line": line.number}
        emit(line, rows, context, "oom_kill", "fatal", "", fields)
        return
    found = OOMD.search(text)
    if found:
        fields = {"killer": "systemd-oomd", "scope": "host", "memcg": found["memcg"], "why": found["why"], "kill_line": line.number}
        emit(line, rows, context, "oom_kill", "fatal", "", fields | {"first_line": line.number}, host=host_of(line))
        return
    found = EARLYOOM.search(text)
    if found:
        fields = {
            "killer": "earlyoom",
            "scope": "host",
            "victim": number(found["pid"]),
            "comm": found["comm"],
            "score": number(found["score"]),
        }
        size = RSS_MIB.search(found["tail"])
        if size:
            fields["anon_kb"] = int(size["mib"][:12]) * 1024
        emit(
            line,
            rows,
            context,
            "oom_kill",
            "fatal",
            "",
            fields | {"kill_line": line.number, "first_line": line.number},
            pid=number(found["pid"]),
        )
        return
    found = UNIT.search(text)
    if found:
        emit(line, rows, context, "oom_unit", "error", found["unit"][:80], {"unit": found["unit"], "oomd": "systemd-oomd" in text})


PARSER = LineParser(
    name="kernel_oom",
    kind="kernel",
    triggers=(
        "Killed process ",
        " or sacrifice child",
        "oom-kill:constraint=",
        "due to memory.oom.group set",
        "no killable processes",
        "System is deadlocked on memory",
        "panic_on_oom is ",
        "systemd-oomd",
        '": oom_score ',
        "killed by the OOM killer",
        "result 'oom-kill'",
    ),
    parse=_parse,
)
