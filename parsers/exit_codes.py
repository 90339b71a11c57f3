"""Exit statuses read alike for all launchers, and the one event that every launcher parser writes.

Event `exit`: one process ended.  Fields: `exitcode` (negative = signal, as Python's subprocess counts), `signal` (SIGKILL …),
`local_rank`, `source` (torchelastic srun mpirun deepspeed ray accelerate k8s docker spawn), `by_launcher` (the launcher itself
ended it because another had failed), `first_observed` (the launcher saw this one first, which is the order of its polling).
"""

from __future__ import annotations

from typing import Any

from parsers.base import Event, Line, Rows

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
}
WORDS = {
    "Killed": 9,
    "Terminated": 15,
    "Aborted": 6,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
    "Broken pipe": 13,
    "Hangup": 1,
    "Interrupt": 2,
    "User defined signal 1": 10,
    "User defined signal 2": 12,
    "Quit": 3,
    "CPU time limit exceeded": 24,
    "File size limit exceeded": 25,
}


def normal(code: int) -> int:
    """An exit status with signals as negative numbers: the shell's 128+n becomes -n where n is a signal programs die of."""
    return -(code - 128) if 128 < code <= 128 + 31 and code - 128 in SIGNALS else code


def signal_of(code: int) -> str | None:
    """The signal's name of a normalised exit code, or None."""
    return SIGNALS.get(-code) if code < 0 else None


def exit_event(line: Line, rows: Rows, source: str, code: int | None, **more: Any) -> Event:
    """Write an `exit` event; `more`: rank, host, pid go to the event, the rest into its fields."""
    places = {name: more.pop(name) for name in ("rank", "host", "pid", "end_line") if more.get(name) is not None}
    for name in ("rank", "host", "pid", "end_line"):
        more.pop(name, None)
    code = None if code is None else normal(code)
    fields: dict[str, Any] = {
        "source": source,
        "exitcode": code,
        "signal": None if code is None else signal_of(code),
        "by_launcher": False,
        "first_observed": False,
    }
    fields.update(more)
    severity: Any = "info" if code == 0 or fields["by_launcher"] else "error"
    return rows.event(line, "exit", severity, fields=fields, **places)


def numbers(text: str, most: int = 4096) -> list[int]:
    """The numbers of a Slurm list such as `0,2-5`, at most `most` of them."""
    out: list[int] = []
    for part in text.split(",")[:most]:
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            first, last = int(low[:9]), int((high or low)[:9])
            out.extend(range(first, min(last, first + most) + 1))
        if len(out) >= most:
            return out[:most]
    return out
