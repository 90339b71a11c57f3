"""Processes of the host: `/proc/PID/status` and `ps` lists (aux, -ef, own columns), with a header or `grep`ped without one.

Events: `proc_status` (fields `pid`, `name`, `state`, `vm_peak_mib`, `vm_rss_mib`, `vm_hwm_mib`, `vm_swap_mib`, `threads`) and `ps_process`
(fields `pid`, `ppid`, `state`, `rss_mib`, `cpu`, `command`), the latter for python and training processes only.
"""

from __future__ import annotations

from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy, mostly
from parsers.prefixes import clean
from parsers.snapshots import number

MAX_PROCESSES = 3000
WORTH = lazy(r"python|torchrun|deepspeed|accelerate|ray::|raylet|vllm|pt_main_thread|pt_data_worker|megatron|mpirun|VLLM")

_STATUS_KEYS = {
    "VmPeak": "vm_peak_mib",
    "VmSize": "vm_size_mib",
    "VmHWM": "vm_hwm_mib",
    "VmRSS": "vm_rss_mib",
    "VmSwap": "vm_swap_mib",
    "RssShmem": "shm_mib",
}


def _status(line: Line, rows: Rows, context: Context) -> None:
    if not line.text.startswith("VmPeak:"):
        return
    fields: dict[str, Any] = {}
    for near in context.preceding(24):
        key, _, value = near.text[:200].partition(":")
        value = value.strip()
        if key == "Pid" and value.isdigit() and len(value) < 10:
            fields["pid"] = int(value)
        elif key == "State":
            fields["state"] = value[:1]
        elif key == "PPid" and value.isdigit() and len(value) < 10:
            fields["ppid"] = int(value)
        elif key == "Name":
            fields["name"] = value[:80]
            break
        elif key.startswith("Vm"):
            break
    for near in (line, *context.following(40)):
        key, _, value = near.text[:200].partition(":")
        amount = number(value)
        if key in _STATUS_KEYS and amount is not None:
            fields[_STATUS_KEYS[key]] = round(amount / 1024, 1)
        elif key == "Threads" and amount is not None:
            fields["threads"] = int(amount)
            break
        elif key == "Name":
            break
    rows.event(line, "proc_status", "info", fields=fields)


_COLUMNS = {
    "USER": "user",
    "UID": "user",
    "PID": "pid",
    "PPID": "ppid",
    "%CPU": "cpu",
    "C": "",
    "%MEM": "",
    "VSZ": "",
    "RSS": "rss",
    "RSZ": "rss",
    "TTY": "",
    "TT": "",
    "STAT": "state",
    "S": "state",
    "START": "",
    "STIME": "",
    "STARTED": "",
    "TIME": "",
    "ELAPSED": "",
    "COMMAND": "command",
    "CMD": "command",
    "ARGS": "command",
    "NLWP": "",
    "LWP": "",
    "WCHAN": "wchan",
    "PRI": "",
    "NI": "",
    "SZ": "",
    "F": "",
    "ADDR": "",
    "PSR": "",
}


def _columns(text: str) -> list[str] | None:
    names = text.split()
    if "PID" not in names or len(names) < 3 or any(name.upper() not in _COLUMNS for name in names):
        return None
    return [_COLUMNS[name.upper()] for name in names] if _COLUMNS[names[-1].upper()] == "command" else None


def _row(line: Line, rows: Rows, columns: list[str]) -> bool:
    cells = line.text[:2000].split(None, len(columns) - 1)
    if len(cells) != len(columns):
        return False
    row = dict(zip(columns, cells, strict=True))
    if not row["pid"].isdigit() or len(row["pid"]) > 9:
        return False
    command = row["command"]
    if not WORTH.search(command) or "grep " in command[:40]:
        return True
    fields: dict[str, Any] = {"pid": int(row["pid"]), "command": command[:300], "state": row.get("state", "")[:4]}
    if row.get("ppid", "").isdigit() and len(row["ppid"]) < 10:
        fields["ppid"] = int(row["ppid"])
    if row.get("wchan"):
        fields["wchan"] = row["wchan"][:60]
    if (rss := number(row.get("rss", ""))) is not None:
        fields["rss_mib"] = round(rss / 1024, 1)
    if (cpu := number(row.get("cpu", ""))) is not None:
        fields["cpu"] = cpu
    rows.event(line, "ps_process", "info", fields=fields)
    return True


def _ps(line: Line, rows: Rows, context: Context) -> None:
    columns = _columns(line.text[:200])
    if columns is None:
        return
    missed = 0
    for near in context.following(MAX_PROCESSES):
        if not _row(near, rows, columns):
            missed += 1
            if missed > 1 or not near.text.strip():
                break


_AUX = lazy(
    r"\A(?P<user>[\w.+$-]{1,40})\s{1,20}(?P<pid>\d{1,9})\s{1,10}\d{1,4}\.\d\s{1,10}\d{1,3}\.\d\s{1,14}\d{1,15}\s{1,14}\d{1,15}\s{1,4}(?:\?|[\w/]{1,12})\s{1,12}[A-Za-z<+]{1,6}\s"
)
_EF = lazy(r"\A[\w.+$-]{1,40}\s{1,20}\d{1,9}\s{1,10}\d{1,9}\s{1,6}\d{1,3}\s{1,4}\S{1,8}\s{1,4}(?:\?|[\w/]{1,12})\s{1,4}[\d:-]{5,14}\s")
_AUX_COLUMNS = ["user", "pid", "cpu", "", "", "rss", "", "state", "", "", "command"]
_EF_COLUMNS = ["user", "pid", "ppid", "", "", "", "", "command"]


def _recognises(head: Head) -> float:
    """`ps aux | grep python`: rows without a header."""
    lines = [line[:300] for line in head.written[:100]]
    if len(lines) < 2:
        return 0.0
    return 0.8 if mostly(lines, _AUX.match) or mostly(lines, _EF.match) else 0.0


def _parse(source: Source, rows: Rows) -> None:
    for at, raw in enumerate(source.text().splitlines()[:MAX_PROCESSES], 1):
        text = clean(raw.encode("utf-8", "replace"))
        line = Line(source.path, at, text, text)
        if _AUX.match(text[:300]):
            _row(line, rows, _AUX_COLUMNS)
        elif _EF.match(text[:300]):
            _row(line, rows, _EF_COLUMNS)


PARSER = (
    LineParser("proc status", ("VmPeak:",), _status),
    LineParser(
        "ps",
        ("PID %CPU", "PID    PPID", "PID   PPID", "PID  PPID", "PID PPID", "PID TTY", " PID STAT", " PID S", "PPID STAT", "PPID S "),
        _ps,
    ),
    FileParser("ps list", "environment", _recognises, _parse),
)
