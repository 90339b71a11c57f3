"""Stacks that are no Python exception: faulthandler, py-spy, C++ `terminate`, glog and MPI signal handlers, glibc aborts.

Event `fatal_error`: a native crash (fields: `signal`, `what`, `frames`, `thread`, `source`).
Event `stack_dump`: where threads stood (faulthandler timeouts, py-spy): fields `threads` [{name, frames}], `reason`.
Event `terminate`: an uncaught C++ exception (fields: `exception`, `what`): what aborted the process; judge by its text.
"""

from __future__ import annotations

from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.frames import is_user

FATAL = lazy_regex(r"Fatal Python error: (?P<what>.{1,200})")
SIGNALS = {
    "segmentation fault": "SIGSEGV",
    "bus error": "SIGBUS",
    "aborted": "SIGABRT",
    "floating point exception": "SIGFPE",
    "floating-point exception": "SIGFPE",
    "illegal instruction": "SIGILL",
}
TERMINATE = lazy_regex(
    r"terminate called (?:after throwing an instance of '(?P<exception>[^']{1,200})'|without an active exception|recursively)"
)
HANDLER = lazy_regex(r"\*\*\* (?P<signal>SIG[A-Z]+)\b[^*]{0,200}(?:received by PID (?P<pid>\d+))?")
MPI = lazy_regex(
    r"(?:\*\*\* Process received signal \*\*\*|Signal: (?P<name>[A-Z][a-z ]+) \((?P<number>\d+)\)|Signal code: (?P<code>.{1,80}))"
)
CAUGHT = lazy_regex(r"Caught signal (?P<number>\d+) \((?P<name>[^:)]{1,60})(?:: (?P<detail>[^)]{1,160}))?\)")
WORKER = lazy_regex(r"Unexpected (?P<what>bus error|segmentation fault|floating-point exception) encountered in worker")
HEAP = lazy_regex(
    r"^(?:double free or corruption|free\(\): |malloc\(\): |corrupted (?:size|double-linked)|munmap_chunk\(\)|malloc_consolidate|realloc\(\): )"
)
FRAME = lazy_regex(r'^\s*File "(?P<file>[^"]{1,600})", line (?P<line>\d{1,8}) in (?P<func>.{1,120})$')
SPY = lazy_regex(r"^\s+(?P<func>[\w<>.:\[\] ~*&,()]{1,160}) \((?P<file>[^():]{1,400})(?::(?P<line>\d{1,8}))?\)$")
SPY_THREAD = lazy_regex(r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[\w+]+)\))?: ?"?(?P<name>[^"]{0,100})"?')
THREAD = lazy_regex(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+")
MAX_FRAMES = 60
MAX_THREADS = 64


def _stacks(context: Context, line: Line, limit: int = 600) -> tuple[list[dict[str, Any]], int]:
    """The threads printed below a header, with their frames, and the last line read."""
    threads: list[dict[str, Any]] = []
    last = line.number
    idle = 0
    for below in context.following(limit):
        if below.rank != line.rank and below.rank is not None:
            continue
        text = below.text
        frame = FRAME.match(text) or (SPY.match(text) if text[:1] in " \t" else None)
        if frame:
            idle = 0
            last = below.number
            if not threads:
                threads.append({"name": "", "frames": []})
            if len(threads[-1]["frames"]) < MAX_FRAMES:
                found = frame.groupdict()
                threads[-1]["frames"].append(
                    {
                        "file": found["file"],
                        "line": int(found["line"] or 0),
                        "func": found["func"].strip(),
                        "code": "",
                        "user": is_user(found["file"]) and found["file"].endswith(".py"),
                    }
                )
        elif THREAD.match(text) or SPY_THREAD.match(text):
            idle = 0
            last = below.number
            if len(threads) >= MAX_THREADS:
                break
            threads.append({"name": text.strip()[:120], "frames": []})
        elif text.startswith("Extension modules:"):
            last = below.number
            break
        else:
            idle += 1 if text.strip() else 0
            if idle > 6:
                break
    return threads, last


def _innermost(threads: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The frame at the top of the thread that failed (faulthandler prints the current thread first or last, marked)."""
    current = [thread for thread in threads if "Current thread" in thread["name"]] or [thread for thread in threads if thread["frames"]]
    return current[0]["frames"][0] if current and current[0]["frames"] else None


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if (found := FATAL.search(text)) is not None:
        threads, last = _stacks(context, line)
        context.state["until"] = last
        what = found["what"].strip()
        fields = {
            "what": what,
            "signal": SIGNALS.get(what.lower()),
            "threads": len(threads),
            "innermost": _innermost(threads),
            "source": "faulthandler",
        }
        rows.event(line, "fatal_error", "fatal", fields=fields, end_line=last)
    elif (found := TERMINATE.search(text)) is not None:
        what, last = "", line.number
        for below in context.following(12):
            if "what():" in below.text:
                what, last = below.text.split("what():", 1)[1].strip()[:1500], below.number
                break
        rows.event(line, "terminate", "fatal", fields={"exception": found["exception"] or "", "what": what}, end_line=last)
    elif (found := WORKER.search(text)) is not None:
        rows.event(
            line, "fatal_error", "fatal", fields={"what": found["what"], "signal": SIGNALS.get(found["what"]), "source": "dataloader"}
        )
    elif (found := CAUGHT.search(text)) is not None:
        rows.event(
            line,
            "fatal_error",
            "fatal",
            fields={"what": found["name"], "signal": _by_number(found["number"]), "detail": found["detail"] or "", "source": "ucx"},
        )
    elif (found := MPI.search(text)) is not None and found["number"]:
        rows.event(line, "fatal_error", "fatal", fields={"what": found["name"], "signal": _by_number(found["number"]), "source": "mpi"})
    elif (found := HANDLER.search(text)) is not None and ("received by PID" in text or "@ 0x" in text or "(@0x" in text):
        pid = int(found["pid"]) if found["pid"] else line.pid
        rows.event(line, "fatal_error", "fatal", pid=pid, fields={"what": found["signal"], "signal": found["signal"], "source": "handler"})
    elif HEAP.match(text):
        rows.event(line, "fatal_error", "fatal", fields={"what": text[:200], "signal": "SIGABRT", "source": "glibc"})
    elif text.startswith("Timeout (") or SPY_THREAD.match(text) or THREAD.match(text) or "Stack trace of the failed" in text:
        if context.state.get("until", 0) >= line.number:
            return
        threads, last = _stacks(context, line)
        if THREAD.match(text) or SPY_THREAD.match(text):
            if not threads:
                return
            threads[0]["name"] = threads[0]["name"] or text.strip()[:120]
        context.state["until"] = last
        if any(thread["frames"] for thread in threads):
            rows.event(line, "stack_dump", "warning", fields={"reason": text[:200], "threads": threads}, end_line=last)


def _by_number(number: str) -> str:
    names = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
    return names.get(int(number[:4]), f"signal {number[:4]}")


PARSER = LineParser(
    name="stack-dumps",
    triggers=(
        "Fatal Python error: ",
        "terminate called ",
        "encountered in worker",
        "Caught signal ",
        "Process received signal",
        "Signal: ",
        "*** SIG",
        "double free or corruption",
        "free(): ",
        "malloc(): ",
        "munmap_chunk()",
        "corrupted size",
        "corrupted double-linked",
        "Timeout (",
        "Thread 0x",
        "Current thread 0x",
        "Thread 1 (",
        "(active): ",
        "(idle): ",
        "(active+gil): ",
    ),
    parse=_parse,
    kind="train",
)
