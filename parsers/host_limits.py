"""Limits of a process: `ulimit -a` (bash, zsh, dash), `/proc/PID/limits`, single `ulimit -n` answers, and swappiness.

Facts `limit.open_files`, `limit.memlock` (KiB), `limit.processes`, `limit.stack` (KiB): a number or `unlimited`; `swappiness`.
Where soft and hard limit are both printed the soft one counts: it is what the process meets.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy
from parsers.snapshots import once

_BASH = lazy(
    r"\A\s{0,4}(?P<name>[a-z][a-z \-/]{2,40}?)\s{1,40}\((?:(?P<unit>[a-z0-9-]{1,20}), )?-(?P<flag>\w)\)\s{1,40}(?P<value>\d{1,19}|unlimited)\s{0,4}\Z"
)
_ZSH = lazy(r"\A-(?P<flag>\w): [a-z-][a-z \-/()]{1,40}?\s{1,40}(?P<value>\d{1,19}|unlimited)\s{0,4}\Z")
_PROC = lazy(
    r"\AMax (?P<name>[a-z ]{3,30}?)\s{2,40}(?P<soft>\d{1,19}|unlimited)\s{2,40}(?P<hard>\d{1,19}|unlimited)(?:\s{1,40}(?P<unit>\w{1,12}))?\s{0,8}\Z"
)
_ASKED = lazy(r"(?:\A|[\s;&|'\"(])ulimit (?:-[SH]{0,2})?-?(?P<flag>[nlus])(?=[\s;'\")]|\Z)")
_FLAGS = {"n": "limit.open_files", "l": "limit.memlock", "u": "limit.processes", "s": "limit.stack"}
_PROC_NAMES = {
    "open files": "limit.open_files",
    "locked memory": "limit.memlock",
    "processes": "limit.processes",
    "stack size": "limit.stack",
}
_IN_KIB = frozenset({"limit.memlock", "limit.stack"})


def _value(text: str) -> int | str:
    return text if text == "unlimited" else int(text)


def _limits(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:300]
    found: Any = _BASH.match(text) or _ZSH.match(text)
    if found:
        name = _FLAGS.get(found["flag"])
        if name:
            once(rows, context, line, name, _value(found["value"]))
        return
    found = _PROC.match(text)
    if found:
        name = _PROC_NAMES.get(found["name"])
        if name:
            value = _value(found["soft"])
            once(rows, context, line, name, value // 1024 if name in _IN_KIB and isinstance(value, int) else value)
        return
    asked = _ASKED.search(text)
    if asked:
        answer = next(iter(context.following(1)), None)
        if answer is not None and re.fullmatch(r"\s{0,4}(?:\d{1,19}|unlimited)\s{0,4}", answer.text[:60]):
            once(rows, context, answer, _FLAGS[asked["flag"]], _value(answer.text.strip()))


# -------------------------------------------------------------------------------------------------------- swappiness

_SWAPPINESS = lazy(r"\bvm[./]swappiness\s{0,4}[=:]?\s{0,4}(?P<value>\d{1,3})\b")


def _swappiness(line: Line, rows: Rows, context: Context) -> None:
    found = _SWAPPINESS.search(line.text[:300])
    if found is None and "/swappiness" in line.text:
        answer = next(iter(context.following(1)), None)
        found = re.fullmatch(r"\s{0,4}(?P<value>\d{1,3})\s{0,4}", answer.text[:20]) if answer is not None else None
        line = answer or line
    if found and int(found["value"]) <= 200:
        once(rows, context, line, "swappiness", int(found["value"]))


def _lone(name: str) -> Any:
    """Recognises a file that holds one number and is named after it."""
    pattern = re.compile(rf"(?i)(?:\A|[/_.-]){name}(?:\.txt|\.log)?\Z")

    def recognises(head: Head) -> float:
        return 0.8 if pattern.search(head.path) and re.fullmatch(r"\s{0,4}\d{1,4}\s{0,4}", head.text[:20]) and len(head.text) < 20 else 0.0

    return recognises


def _lone_swappiness(source: Source, rows: Rows) -> None:
    rows.fact(1, "swappiness", int(source.text()[:20].strip()))


PARSER = (
    LineParser(
        "limits",
        ("open files ", "max locked memory", "max user processes", "locked-in-memory", "file descriptors ", "-u: processes", "Max open files",
         "Max locked memory", "Max processes", "Max stack size", "stack size ", "ulimit -", "ulimit -S"),
        _limits,
    ),
    LineParser("swappiness", ("swappiness",), _swappiness),
    FileParser("swappiness", "environment", _lone("swappiness"), _lone_swappiness),
)  # fmt: skip
