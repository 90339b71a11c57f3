"""Metric files: trainer_state.json, JSON lines (trainer_log.jsonl, logging.jsonl, home-made), and metrics CSVs.

Every reading keeps the physical line it stands on.  Only numbers are kept; NaN may be written bare, as text or as null.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source
from parsers.canonical import reading
from parsers.values import emit, number, placed

MAX_LINE = 1 << 20
MAX_ROWS = 2_000_000
_RESULT = re.compile(
    r"(?i)(?:\A|[_/ .-])(?:loss|reward|rewards|kl|entropy|grad_norm|gnorm|accuracy|acc|perplexity|ppl|score)(?:\Z|[_/ .-])|loss\Z"
)
_DATA = {
    "prompt",
    "prompts",
    "response",
    "completion",
    "completions",
    "text",
    "messages",
    "question",
    "answer",
    "chosen",
    "rejected",
    "input",
    "output",
    "instruction",
}
_STEPPED = {"step", "epoch", "episode"}
_TIMES = ("_timestamp", "timestamp", "wall_time", "time", "ts", "created_at", "Wall time", "unix_time")
_ENTRY = re.compile(r'\s*"([^"]{1,200})":\s*(.{1,4000}?),?\s*\Z')


def seconds_of(record: dict[str, Any]) -> float | None:
    """Unix seconds of a record: a number in a time field (seconds or milliseconds), or an ISO text with its zone."""
    for key in _TIMES:
        value = record.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if 1e9 < value < 1e10:
                return float(value)
            if 1e12 < value < 1e13:
                return value / 1000
        elif isinstance(value, str) and 19 <= len(value) <= 40 and value[4:5] == "-":
            try:
                told = datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                continue
            if told.tzinfo is not None:
                return told.timestamp()
    return None


def numeric(record: dict[str, Any], depth: int = 0, head: str = "") -> Iterator[tuple[str, float]]:
    """(dotted key, number) of a record's numeric items; numbers written as text count, lists do not."""
    for key, value in list(record.items())[:2000]:
        name = f"{head}{key}"[:200]
        if isinstance(value, bool) or key in _TIMES:
            continue
        if isinstance(value, int | float):
            try:
                yield name, float(value)
            except OverflowError:
                continue
        elif isinstance(value, str) and len(value) < 40:
            told = number(value)
            if told is not None and "/" not in value:
                yield name, told
        elif isinstance(value, dict) and depth < 2:
            yield from numeric(value, depth + 1, f"{name}/")


def record_rows(rows: Rows, line: Line, record: dict[str, Any], framework: str | None = None) -> int:
    """Write one record's numbers as readings at its own step."""
    pairs = list(numeric(record))
    told = record.get("global_step/max_steps")
    step = None
    if isinstance(told, str) and "/" in told:
        step = number(told.partition("/")[0])
    if step is None:
        step = next((value for key, value in pairs if reading(key, framework).name == "step"), None)
    return emit(line, rows, pairs, step, framework)


def _framework(record: dict[str, Any]) -> str | None:
    if "current_steps" in record and "total_steps" in record:
        return "llama-factory"
    if "global_step/max_steps" in record:
        return "ms-swift"
    return None


def _is_metrics(record: Any) -> bool:
    """Whether a JSON object reads as one row of metrics: short, mostly numbers, with a result among them."""
    if not isinstance(record, dict) or len(record) > 2000:
        return False
    if any(isinstance(value, str) and len(value) > 200 for value in record.values()):
        return False
    if _DATA & record.keys():
        return False
    keys = [key for key, _ in numeric(record)]
    if not any(_RESULT.search(key) for key in keys):
        return False
    return len(keys) * 2 >= len(record)


def _records(text: str) -> Iterator[tuple[int, Any]]:
    """(line number, object) of each JSON line; lines that do not parse are None."""
    for at, line in enumerate(io.StringIO(text), 1):
        if at > MAX_ROWS:
            return
        line = line.strip().strip("\x00")
        if not line:
            continue
        if not line.startswith("{") or len(line) > MAX_LINE:
            yield at, None
            continue
        try:
            yield at, json.loads(line)
        except (ValueError, RecursionError):
            yield at, None


# ------------------------------------------------------------------------------------------------------ JSON lines


def _jsonl_recognises(head: Head) -> float:
    if not head.text.lstrip().startswith("{") or '"log_history"' in head.text:
        return 0.0
    seen = good = 0
    for at, (_, record) in enumerate(_records(head.text)):
        if at >= 8:
            break
        seen += 1
        good += _is_metrics(record)
    return 0.85 if good and good * 2 >= seen else 0.0


def _jsonl_parse(source: Source, rows: Rows) -> None:
    broken = 0
    for at, record in _records(source.text()):
        if not isinstance(record, dict):
            broken += 1
            continue
        if any(isinstance(value, str) and len(value) > 4000 for value in record.values()):
            continue
        record_rows(rows, placed(source.path, at, seconds_of(record), _rank(record)), record, _framework(record))
        if at == 1 and (name := _framework(record)):
            rows.fact(at, "framework", name)
    if broken:
        rows.note(f"{broken} lines are not whole JSON objects; they were left out")


def _rank(record: dict[str, Any]) -> int | None:
    rank = record.get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < 10_000_000 else None


# ------------------------------------------------------------------------------------------------------ trainer_state.json


def _state_recognises(head: Head) -> float:
    return (
        0.95 if '"log_history"' in head.text or (head.path.endswith("trainer_state.json") and head.text.lstrip().startswith("{")) else 0.0
    )


def _state_parse(source: Source, rows: Rows) -> None:
    text = source.text()
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = None
        rows.note("trainer_state.json is not whole; what stands before the break was read")
    if isinstance(state, dict):
        for key, name in (
            ("max_steps", "setting.total_steps"),
            ("num_train_epochs", "setting.num_epochs"),
            ("train_batch_size", "setting.batch_per_device"),
        ):
            if isinstance(state.get(key), int | float):
                rows.fact(1, name, state[key])
        step = state.get("global_step")
        if isinstance(step, int | float):
            line = placed(source.path, 1)
            rows.event(line, "checkpoint_saved", text=f"trainer_state.json at step {step}", fields={"step": float(step)})
    rows.fact(1, "framework", "transformers")
    entries = list(_state_entries(text))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not entries and isinstance(history, list):
        entries = [(1, entry) for entry in history[:MAX_ROWS] if isinstance(entry, dict)]
    for at, entry in entries:
        framework = "end" if "train_runtime" in entry else None
        record_rows(rows, placed(source.path, at), entry, framework)


def _state_entries(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Entries of an indented log_history, each with the line of its first item."""
    inside, first = False, 0
    entry: dict[str, Any] | None = None
    for at, line in enumerate(io.StringIO(text), 1):
        if at > MAX_ROWS:
            return
        if not inside:
            inside = '"log_history": [' in line and not line.rstrip().endswith("]")
            continue
        bare = line.strip()
        if bare == "{":
            entry, first = {}, at + 1
        elif bare in ("}", "},"):
            if entry is not None:
                yield first, entry
            entry = None
        elif bare.startswith("]"):
            return
        elif entry is not None:
            match = _ENTRY.match(line[:5000])
            if match is not None and len(entry) < 500:
                value = number(match[2].strip('"'))
                if value is not None:
                    entry[match[1]] = value


# ------------------------------------------------------------------------------------------------------ CSV


def _csv_recognises(head: Head) -> float:
    first, _, rest = head.text.partition("\n")
    if first.count(",") < 1 or len(first) > 20_000 or first.lstrip().startswith(("{", "[", "#")):
        return 0.0
    names = [name.strip().strip('"') for name in first.split(",")]
    if any(not name and at for at, name in enumerate(names)) or any(len(name) > 120 or name[:1].isdigit() for name in names):
        return 0.0
    canonical = {reading(_plain(name)).name for name in names}
    exported = any(name.endswith(("__MIN", "__MAX")) for name in names)  # by a tracker's page: metrics, whatever they are called
    known = any((how := reading(_plain(name))).known and how.name not in _STEPPED for name in names)
    has_result = exported or known or any(_RESULT.search(_plain(name)) for name in names)
    if not has_result or not (canonical & _STEPPED or any(name in _TIMES for name in names)):
        return 0.0
    cells = rest.partition("\n")[0].split(",")
    numbers = sum(number(cell.strip().strip('"')) is not None or not cell.strip() for cell in cells)
    return 0.85 if len(cells) == len(names) and numbers * 2 >= len(cells) else 0.0


def _plain(name: str) -> str:
    """A column's metric name: wandb exports put `run - ` in front and `__MIN` / `__MAX` behind."""
    return name.strip().strip('"').rpartition(" - ")[2]


def _csv_parse(source: Source, rows: Rows) -> None:
    text = source.text().replace("\x00", "")
    reader = csv.reader(io.StringIO(text))
    try:
        header = [name.strip() for name in next(reader)]
    except (StopIteration, csv.Error) as error:
        raise ValueError(f"no header line ({error})") from error
    names = [_plain(name) for name in header]
    keep = [not header[at].endswith(("__MIN", "__MAX")) for at in range(len(header))]
    at_step = next((at for at, name in enumerate(names) if reading(name).name == "step" and name != "_step"), None)
    if at_step is None:
        at_step = next((at for at, name in enumerate(names) if reading(name).name == "step"), None)
    if at_step is None:
        at_step = next((at for at, name in enumerate(names) if reading(name).name == "epoch"), None)
    try:
        for row in reader:
            if reader.line_num > MAX_ROWS:
                break
            record = {name: cell.strip() for name, cell, kept in zip(names, row, keep, strict=False) if kept and cell.strip()}
            seconds = seconds_of(
                {key: (number(value) if number(value) is not None else value) for key, value in record.items() if key in _TIMES}
            )
            pairs = [(key, value) for key, cell in record.items() if key not in _TIMES and (value := number(cell)) is not None]
            step = number(row[at_step]) if at_step is not None and at_step < len(row) else None
            emit(placed(source.path, reader.line_num, seconds), rows, pairs, step)
    except csv.Error as error:
        rows.note(f"the CSV breaks off on line {reader.line_num} ({error})")


# ------------------------------------------------------------------------------------------------------ JSON inside text logs


def _line_parse(line: Line, rows: Rows, context: Context) -> None:
    """A line that is one JSON object of metrics, such as structured loggers print among other text."""
    text = line.text.strip()
    if not text.startswith("{") or not text.endswith("}") or text.count("{") < 2 or len(text) > 20_000:
        return  # flat objects are read by `keyvalue`
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return
    if _is_metrics(record):
        record_rows(rows, line, record, _framework(record))


PARSER = (
    FileParser("trainer-state", "metrics", _state_recognises, _state_parse),
    FileParser("metrics-jsonl", "metrics", _jsonl_recognises, _jsonl_parse),
    FileParser("metrics-csv", "metrics", _csv_recognises, _csv_parse),
    LineParser("json-line", ('"metrics": {', '"loss": {', '"train": {'), _line_parse, kind="train"),
)
