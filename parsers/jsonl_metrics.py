"""Metric files: trainer_state.json, JSON lines (trainer_log.jsonl, logging.jsonl, home-made), and metrics CSVs.

Every reading keeps the physical line it stands on.  Only numbers are kept; NaN may be written bare, as text or as null.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy
from parsers.canonical import reading
from parsers.values import NOT_METRICS, emit, number, placed

MAX_LINE = 1 << 20
MAX_ROWS = 2_000_000
LARGE = 1_000_000  # readings of one file that are kept whole; beyond them half of the records go, and half again
LAST = 5_000  # records at a file's end that are all kept
WIDE = 16 << 10  # bytes of a record that may wait for the end
ODD = lazy(rb"(?i)\bnan\b|infinity|\binf\b|\bnull\b")
_RESULT = lazy(
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
_ENTRY = lazy(r'\s*"([^"]{1,200})":\s*(.{1,4000}?),?\s*\Z')


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


_EMPTY = object()


def _record(raw: bytes) -> Any:
    """The object of a JSON line; None where it does not parse, `_EMPTY` where nothing stands."""
    line = raw.decode("utf-8", "replace").strip().strip("\x00")
    if not line:
        return _EMPTY
    if not line.startswith("{") or len(line) > MAX_LINE:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _records(text: str) -> Iterator[Any]:
    """The object of each JSON line of a text; None for lines that do not parse."""
    for line in io.StringIO(text):
        record = _record(line.encode("utf-8", "surrogatepass"))
        if record is not _EMPTY:
            yield record


# ------------------------------------------------------------------------------------------------------ JSON lines


def _jsonl_recognises(head: Head) -> float:
    if not head.text.lstrip().startswith("{") or '"log_history"' in head.text:
        return 0.0
    seen = good = 0
    for at, record in enumerate(_records(head.text)):
        if at >= 8:
            break
        seen += 1
        good += _is_metrics(record)
    return 0.85 if good and good * 2 >= seen else 0.0


def lines_of(source: Source) -> Iterator[tuple[int, bytes]]:
    """(line number, bytes) of a file's lines, one at a time; of a line beyond a megabyte only its beginning, which no reader takes."""
    with source.open() as stream:
        at = 0
        while raw := stream.readline(MAX_LINE + 2):
            at += 1
            yield at, raw
            while len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                raw = stream.readline(MAX_LINE + 2)


def spread(rows: Rows, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines of a file of records that are worth reading, while the reader adds their readings to `rows`.

    All of them, until a million readings are there; then every second, fourth, … (those read already are thinned alike), and whatever
    holds a NaN, and the last ones.  So time and memory stay bounded, and the end is never what is left out.
    """
    stride, limit, odd, at = 1, LARGE, 0, 0
    waiting: deque[tuple[int, bytes]] = deque(maxlen=LAST)
    for at, raw in lines:
        if stride > 1 and at % stride and (odd >= LAST or ODD.search(raw, 0, WIDE) is None):
            if len(raw) <= WIDE:
                waiting.append((at, raw))
            continue
        odd += stride > 1 and at % stride > 0
        yield at, raw
        if len(rows.metrics) >= limit:
            stride *= 2
            rows.metrics[:] = [m for m in rows.metrics if m.line % stride == 0 or m.line > at - LAST or not math.isfinite(m.value)]
            limit = max(LARGE, 2 * len(rows.metrics))
    if stride > 1:
        yield from (item for item in waiting if item[0] > at - LAST)
        rows.metrics.sort(key=lambda metric: metric.line)
        rows.note(f"one in {stride} of its records was kept before its last part")


@dataclass(slots=True)
class _Shape:
    """How records of the same keys are read: what is a metric, and where the step stands; `plain` keys hold numbers and nothing else does."""

    metrics: list[tuple[int, str, float, str]]  # position, canonical name, scale, printed name
    step: int | None


def _shape(record: dict[str, Any]) -> _Shape | None:
    """The shape of a flat record of numbers without times, ranks or words of a framework; None for any other."""
    if not all(type(value) in (int, float) for value in record.values()) or record.keys() & {*_TIMES, "rank"} or _framework(record):
        return None
    hows = [(at, reading(key[:200]), key[:200]) for at, key in enumerate(record)]
    if len(hows) > 2000:
        return None
    step = next((at for at, how, _ in hows if how.name == "step"), None)
    return _Shape([(at, how.name, how.scale, key) for at, how, key in hows if how.name not in NOT_METRICS], step)


def _jsonl_parse(source: Source, rows: Rows) -> None:
    broken = 0
    shapes: dict[tuple[str, ...], _Shape | None] = {}
    for at, raw in spread(rows, lines_of(source)):
        if at > MAX_ROWS and len(rows.metrics) >= rows.max_metrics:
            break
        record = _record(raw)
        if record is _EMPTY:
            continue
        if not isinstance(record, dict):
            broken += 1
            continue
        keys = tuple(record)
        if keys in shapes:
            shape = shapes[keys]
        else:
            shape = _shape(record)
            if len(shapes) < 1000:
                shapes[keys] = shape
        if shape is not None:
            values = list(record.values())
            with contextlib.suppress(TypeError, OverflowError):
                numbers = [value + 0.0 for value in values]
                if not any(value is True or value is False for value in values):
                    line = Line(source.path, at, "", "")
                    step = None if shape.step is None else numbers[shape.step]
                    rows.readings(line, [(name, numbers[n] * scale, key) for n, name, scale, key in shape.metrics], step)
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
    place = [0]

    def texts() -> Iterator[str]:
        for place[0], raw in spread(rows, lines_of(source)):
            yield raw[:MAX_LINE].decode("utf-8", "replace").replace("\x00", "")

    reader = csv.reader(texts())
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
            if place[0] > MAX_ROWS and len(rows.metrics) >= rows.max_metrics:
                break
            record = {name: cell.strip() for name, cell, kept in zip(names, row, keep, strict=False) if kept and cell.strip()}
            seconds = seconds_of(
                {key: (number(value) if number(value) is not None else value) for key, value in record.items() if key in _TIMES}
            )
            pairs = [(key, value) for key, cell in record.items() if key not in _TIMES and (value := number(cell)) is not None]
            step = number(row[at_step]) if at_step is not None and at_step < len(row) else None
            emit(placed(source.path, place[0], seconds), rows, pairs, step)
    except csv.Error as error:
        rows.note(f"the CSV breaks off on line {place[0]} ({error})")


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
