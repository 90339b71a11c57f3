"""Python tracebacks, whole: plain, chained, exception groups, Ray-wrapped, loguru's and rich's drawings, interleaved ranks.

Event `traceback`: `line` is the line of the header, `end_line` the last line read.  Fields: `type`, `message` (joined, at most
1500 characters), `error_line` (where `Type: message` stands), `frames` (at most 60 dicts file, line, func, code, user),
`innermost`, `user_frame` (innermost frame of the user's own code or None), `chain` (earlier exceptions: type, message,
error_line, relation), `reported_late` (a device error that surfaces at some later call), `caught` (printed through a logger),
`ignored` (swallowed by Python in a finalizer), `copy` (inside a launcher's failure table or a log record that repeats it) and `ray` (actor, pid, ip) where the error came from a worker.

Event `exception`: a last line `SomeError: text` that no traceback above announces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.frames import Frame, frame_of, is_error_name, is_noise, rich_frame, strip_margin, user_frame

HEADER = "Traceback (most recent call last)"
MAX_FRAMES = 60
MAX_MESSAGE = 1500
MAX_OWN_LINES = 500  # of one traceback; RecursionError prints three lines a level, cut by Python itself
MAX_NOISE = 40  # foreign lines tolerated between two lines of a traceback (other streams write in between)
MAX_FOREIGN = (2000, 60)  # lines of other writers passed over in a row, before and after a file's budget of them is used up
FOREIGN_BUDGET = 100_000
MAX_EXCEPTIONS = 500  # exception lines without a traceback kept per file

ERROR = lazy_regex(r"^(?P<type>[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,120}\))?)(?:(?P<colon>:)(?: (?P<message>.*)|\s*)|\s*)$")
RAY = lazy_regex(r"^ray::(?P<actor>[^\s(]{1,120})\(\)[^(]{0,20}\(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?")
CHAIN_DURING = "During handling of the above exception, another exception occurred"
CHAIN_CAUSE = "The above exception was the direct cause of the following exception"
LATE = ("might be asynchronously reported at some other API call", "CUDA_LAUNCH_BLOCKING", "device-side assert triggered", "CUDA error:")
CONTINUES = lazy_regex(
    r"^(?:\s|[\])}]|CUDA kernel errors|For debugging consider|Compile with `|Device-side assert|Last error|nccl\w+Error|Exception raised from|"
    r"frame #|Set TORCH|You can suppress|Please |The |If |This |To |In |at::|Hint|hint|Note|\d+ validation error|from user code|and |or )"
)


def _key(line: Line) -> tuple[object, ...]:
    return (line.rank, line.actor, line.pid)


class _Reader:
    """The lines of one writer (rank, actor) below a header, margins of exception groups and boxes taken off."""

    def __init__(self, head: Line, context: Context):
        self.key = _key(head)
        self.state = context.state
        self.lines = self._own(context.following(4000))
        self.back: list[tuple[Line, str]] = []
        self.seen = 0

    def _own(self, lines: Iterator[Line]) -> Iterator[tuple[Line, str]]:
        skipped = 0
        for line in lines:
            if _key(line) != self.key:
                skipped += 1
                used = self.state["foreign"] = self.state.get("foreign", 0) + 1
                if skipped > MAX_FOREIGN[used > FOREIGN_BUDGET]:
                    return
                continue
            skipped = 0
            yield line, strip_margin(line.text.rstrip())

    def next(self) -> tuple[Line, str] | None:
        if self.back:
            return self.back.pop()
        self.seen += 1
        return None if self.seen > MAX_OWN_LINES else next(self.lines, None)

    def push(self, item: tuple[Line, str]) -> None:
        self.back.append(item)


def _frames(reader: _Reader) -> tuple[list[Frame], tuple[Line, str] | None]:
    """Frames until the error line, which is returned too (None: the traceback is cut off)."""
    frames: list[Frame] = []
    noise = 0
    fresh = False  # a frame was read and its code line may follow
    pending = ""  # a path that rich broke over two lines
    while (item := reader.next()) is not None:
        text = item[1]
        frame = frame_of(text) or rich_frame(pending + text if pending else text)
        if frame is not None:
            pending, noise, fresh = "", 0, True
            frames.append(frame)
            if len(frames) > MAX_FRAMES * 4:
                del frames[MAX_FRAMES : MAX_FRAMES + 40]
            continue
        stripped = text.strip()
        if HEADER in text:
            reader.push(item)
            return frames, None
        if not stripped or stripped[0] in "╰╭":
            noise += 1
        elif stripped.startswith("❱") and frames:
            frames[-1]["code"] = stripped.split("│", 1)[-1].strip()[:300]
        elif text[:1] in " \t" or stripped[0] in "│└":
            if fresh and frames and not frames[-1]["code"]:
                frames[-1]["code"] = stripped.strip("│ ")[:300]
            fresh = False
            pending = stripped if stripped.startswith("/") and " " not in stripped else ""
        else:
            found = ERROR.match(text)
            if found and is_error_name(found["type"], bool(frames)) and not is_noise(text):
                return frames, item
            noise += 1
        if noise > MAX_NOISE:
            return frames, None
    return frames, None


def _message(reader: _Reader, first: str) -> tuple[str, int | None]:
    """The message with its further lines, and the last line number taken."""
    parts = [first]
    size = len(first)
    last: int | None = None
    loose = 0
    while size < MAX_MESSAGE and len(parts) < 40 and (item := reader.next()) is not None:
        line, text = item
        own_time = line.stamp is not None and not line.inherited
        if HEADER in text or CHAIN_DURING in text or CHAIN_CAUSE in text or (own_time and not text.startswith(" ")):
            reader.push(item)
            break
        if not text.strip():
            loose += 1
            if loose > 1:
                reader.push(item)
                break
            continue
        found = ERROR.match(text)
        if found and found["colon"] and is_error_name(found["type"], False) and text[:1] not in " \t" and not CONTINUES.match(text):
            reader.push(item)
            break
        if not CONTINUES.match(text) or is_noise(text) or frame_of(text) is not None:
            reader.push(item)
            break
        parts.append(text.strip())
        size += len(text)
        last = line.number
    return "\n".join(parts)[:MAX_MESSAGE], last


def _relation(reader: _Reader) -> tuple[str, Line] | None:
    """How the next traceback of the same writer is tied to the one just read, with its header; None if it is not."""
    kept: list[tuple[Line, str]] = []
    relation = ""
    for _ in range(6):
        item = reader.next()
        if item is None:
            break
        kept.append(item)
        if CHAIN_DURING in item[1]:
            relation = "during"
        elif CHAIN_CAUSE in item[1]:
            relation = "cause"
        elif HEADER in item[1]:
            if relation:
                return relation, item[0]
            break
        elif item[1].strip():
            break
    for item in reversed(kept):
        reader.push(item)
    return None


def _parse_traceback(line: Line, rows: Rows, context: Context) -> None:
    taken: set[int] = context.state.setdefault("taken", set())
    errors: set[int] = context.state.setdefault("errors", set())
    if line.number in taken:
        return
    before = line.text.split(HEADER, 1)[0]
    reader = _Reader(line, context)
    chain: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    end = line.number
    for _ in range(12):
        frames, error = _frames(reader)
        kind, message, error_line = "", "", None
        if error is not None:
            found = ERROR.match(error[1])
            kind = found["type"] if found else ""
            error_line = error[0].number
            errors.add(error_line)
            message, last = _message(reader, (found["message"] or "") if found else "")
            end = max(end, error_line, last or 0)
        if "RayTaskError" in kind or message.startswith("ray::"):
            remote = RAY.match(message)
            if remote:
                fields["ray"] = {"actor": remote["actor"], "pid": int(remote["pid"]), "ip": remote["ip"]}
                inner, deeper = _frames(reader)
                if deeper is not None:
                    chain.append({"type": kind, "message": message[:300], "error_line": error_line, "relation": "wrapped"})
                    found = ERROR.match(deeper[1])
                    if inner or found:
                        frames = inner or frames
                        kind = found["type"] if found else kind
                        error_line = deeper[0].number
                        errors.add(error_line)
                        message, last = _message(reader, (found["message"] or "") if found else "")
                        end = max(end, error_line, last or 0)
        fields.update(type=kind, message=message, error_line=error_line, frames=frames)
        tied = _relation(reader) if error is not None else None
        if tied is None:
            break
        taken.add(tied[1].number)
        chain.append(
            {
                "type": kind,
                "message": message[:500],
                "error_line": error_line,
                "relation": tied[0],
                "user_frame": user_frame(frames),
                "innermost": frames[-1] if frames else None,
            }
        )
    frames = fields["frames"]
    if not frames and not fields["type"]:
        return  # the words stand in prose or the log ends here
    message = fields["message"]
    fields["frames"] = frames if len(frames) <= MAX_FRAMES else frames[: MAX_FRAMES // 2] + frames[-MAX_FRAMES // 2 :]
    fields["innermost"] = frames[-1] if frames else None
    fields["user_frame"] = user_frame(frames)
    fields["chain"] = chain
    fields["reported_late"] = any(text in message for text in LATE)
    fields["group"] = "Exception Group" in before
    bare = before.strip("+|─╭ \t")
    fields["copy"] = regex.search(r"traceback\s*:\s*$", bare) is not None
    fields["caught"] = line.stamp is not None and not line.inherited and not fields["copy"]
    # "Exception ignored in" stands above tracebacks of finalizers: Python swallowed them.
    fields["ignored"] = any("Exception ignored in" in above.text for above in context.preceding(1))
    rank = line.rank
    if fields["copy"]:
        for above in context.preceding(8):
            named = regex.search(r"\brank\s*:\s*(\d+)", above.text)
            if named:
                rank = int(named[1])
                break
    text = f"{fields['type']}: {message}".strip(": ").split("\n", 1)[0] or line.text
    rows.event(line, "traceback", "error", text=text[:2000], rank=rank, fields=fields, end_line=end)


def _parse_bare(line: Line, rows: Rows, context: Context) -> None:
    if line.number in context.state.setdefault("errors", set()):
        return
    count: int = context.state.get("bare", 0)
    if count >= MAX_EXCEPTIONS:
        return
    found = ERROR.match(strip_margin(line.text.rstrip()))
    if not found or not found["colon"] or not is_error_name(found["type"], False):
        return
    # Inside a traceback's chain or message the name was read already; here only lines that stand alone are wanted.
    context.state["bare"] = count + 1
    fields = {"type": found["type"], "message": (found["message"] or "")[:MAX_MESSAGE], "error_line": line.number}
    rows.event(line, "exception", "error", fields=fields)


def _parse(line: Line, rows: Rows, context: Context) -> None:
    if HEADER in line.text:
        _parse_traceback(line, rows, context)
    else:
        _parse_bare(line, rows, context)


PARSER = LineParser(
    name="traceback",
    triggers=(HEADER, "Error: ", "Exception: ", "Interrupt"),
    parse=_parse,
    kind="train",
)


def _lines_as_context(rest: list[Line]) -> Context:
    return Context(lambda limit: iter(rest[:limit]), lambda limit: iter(()))


def parse_text(text: str) -> dict[str, Any] | None:
    """The fields of the first traceback in a text (an error file, a JSON string), or None."""
    lines = [Line("", number, row, row) for number, row in enumerate(text.splitlines()[:2000], 1)]
    for index, line in enumerate(lines):
        if HEADER in line.text:
            rows = Rows("")
            _parse_traceback(line, rows, _lines_as_context(lines[index + 1 :]))
            return rows.events[0].fields if rows.events else None
    return None
