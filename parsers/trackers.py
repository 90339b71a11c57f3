"""Experiment trackers' own files: wandb run folders, TensorBoard event files and MLflow metric files.

Formats: wandb transaction log (`:W&B` header, LevelDB log blocks, protobuf records: history 2, stats 7, run 17, exit 18,
environment 26), TensorBoard event files (TFRecord + Event proto), MLflow file store (`milliseconds value step` lines).
Binary files have no lines: the record's number stands in for it.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from parsers.base import FileParser, Head, Rows, Source, lazy
from parsers.canonical import reading
from parsers.jsonl_metrics import numeric, record_rows, seconds_of
from parsers.values import placed
from parsers.wire import double, fields, first, level_records, text, tf_records

MAX_READINGS = 2_000_000

# ------------------------------------------------------------------------------------------------------ TensorBoard


def _events_recognises(head: Head) -> float:
    if len(head.data) < 24:
        return 0.0
    (length,) = struct.unpack_from("<Q", head.data)
    if length > 4096 or b"brain.Event:" not in head.data[:200]:
        return 0.9 if "events.out.tfevents" in head.path and length < 1 << 20 else 0.0
    return 1.0


def _events_parse(source: Source, rows: Rows) -> None:
    count = 0
    for at, record in enumerate(tf_records(source.read()), 1):
        seconds, step, summary = None, 0.0, None
        for field, _, value in fields(record):
            if field == 1:
                seconds = double(value)
            elif field == 2 and isinstance(value, int):
                step = float(value)
            elif field == 5 and isinstance(value, bytes):
                summary = value
        if summary is None:
            continue
        line = placed(source.path, at, seconds)
        for field, _, value in fields(summary):
            if field != 1 or not isinstance(value, bytes):
                continue
            tag, scalar = text(value, 1), _scalar(value)
            if tag and scalar is not None:
                how = reading(tag)
                if how.name != "step":
                    rows.metric(line, how.name, scalar * how.scale, step, tag)
                    count += 1
        if count > MAX_READINGS:
            rows.note("the event file holds more readings than are kept")
            return
    if not count:
        rows.note("the TensorBoard event file holds no scalars")


def _scalar(value: bytes) -> float | None:
    simple = double(first(value, 2))
    if simple is not None:
        return simple
    tensor = first(value, 8)
    if not isinstance(tensor, bytes):
        return None
    kind = first(tensor, 1)
    content = first(tensor, 4)
    if isinstance(content, bytes) and content:
        if kind == 1 and len(content) == 4:
            return double(content)
        if kind == 2 and len(content) == 8:
            return double(content)
    for number, size in ((5, 4), (6, 8)):
        packed = first(tensor, number)
        if isinstance(packed, bytes) and len(packed) == size:
            return double(packed)
    return None


# ------------------------------------------------------------------------------------------------------ wandb


def _wandb_recognises(head: Head) -> float:
    return 1.0 if head.data[:4] == b":W&B" else 0.0


def _wandb_parse(source: Source, rows: Rows) -> None:
    finished = False
    count = 0
    for at, record in enumerate(level_records(source.read(), 7), 1):
        for field, _, value in fields(record):
            if not isinstance(value, bytes):
                continue
            if field == 2:
                count += _history(rows, source.path, at, value)
            elif field == 7:
                _stats(rows, source.path, at, value)
            elif field == 17:
                _run(rows, at, value)
            elif field == 18:
                finished = True
                code = first(value, 1)
                status = code if isinstance(code, int) else 0
                line = placed(source.path, at)
                rows.event(line, "tracker_exit", text=f"wandb exit record, code {status}", fields={"exit_code": status})
            elif field == 26:
                _environment(rows, at, value)
        if count > MAX_READINGS:
            rows.note("the wandb file holds more readings than are kept")
            break
    rows.fact(1, "tracker.wandb_finished", finished)


def _items(message: bytes, field: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for number, _, item in fields(message):
        if number != field or not isinstance(item, bytes) or len(out) > 5000:
            continue
        key = text(item, 1)
        if not key:
            key = "/".join(part.decode("utf-8", "replace") for n, _, part in fields(item) if n == 2 and isinstance(part, bytes))
        raw = text(item, 16)
        try:
            out[key] = json.loads(raw) if raw else None
        except (ValueError, RecursionError):
            continue
    return out


def _history(rows: Rows, path: str, at: int, message: bytes) -> int:
    record = _items(message, 1)
    if "_step" not in record:
        step = first(message, 2)
        number = first(step, 1) if isinstance(step, bytes) else None
        if isinstance(number, int):
            record["_step"] = number
    own = next((key for key in ("train/global_step", "trainer/global_step", "global_step", "training/global_step") if key in record), None)
    if own is not None:
        record.pop("_step", None)
    return record_rows(rows, placed(path, at, seconds_of(record)), record)


def _stats(rows: Rows, path: str, at: int, message: bytes) -> None:
    seconds = None
    stamp = first(message, 2)
    if isinstance(stamp, bytes):
        whole = first(stamp, 1)
        seconds = float(whole) if isinstance(whole, int) else None
    line = placed(path, at, seconds)
    for number, _, item in fields(message):
        if number != 3 or not isinstance(item, bytes):
            continue
        key, raw = text(item, 1), text(item, 16)
        try:
            value = float(json.loads(raw))
        except (ValueError, TypeError, RecursionError):
            continue
        how = reading(key)
        rows.metric(line, how.name if how.known else f"system/{key}", value, None, key)


def _run(rows: Rows, at: int, message: bytes) -> None:
    host = text(message, 13)
    if host:
        rows.fact(at, "host", host)
    config = first(message, 4)
    if isinstance(config, bytes):
        from parsers.settings import flatten_settings

        for key, value in flatten_settings(_items(config, 1)):
            rows.fact(at, key, value)


def _environment(rows: Rows, at: int, message: bytes) -> None:
    for number, key in ((1, "os"), (2, "version.python")):
        value = text(message, number)
        if value and len(value) < 200 and value.isprintable():
            rows.fact(at, key, value)


def _json_named(*names: str) -> Any:
    def recognises(head: Head) -> float:
        return 0.95 if head.path.rsplit("/", 1)[-1] in names and head.text.lstrip().startswith("{") else 0.0

    return recognises


def _load(source: Source) -> dict[str, Any]:
    try:
        data = json.loads(source.text())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("no JSON object")
    return data


def _summary_parse(source: Source, rows: Rows) -> None:
    """The last value of every metric; they are kept apart from the history as `last/<name>` facts, and read as one row."""
    data = _load(source)
    for key, value in list(numeric(data))[:500]:
        name = reading(key).name
        if not math.isfinite(value) or name in ("loss", "reward", "kl", "grad_norm", "step", "epoch", "entropy", "response_length"):
            rows.fact(1, f"last.{name}", value)
    record_rows(rows, placed(source.path, 1, seconds_of(data)), {key: value for key, value in data.items() if not isinstance(value, dict)})


_METADATA = {
    "host": "host",
    "python": "version.python",
    "cudaVersion": "version.cuda_driver",  # what the driver offers, not what torch was built with
    "cuda": "version.cuda",
    "os": "os",
    "gpu": "gpu.name",
    "gpu_count": "gpu.count",
    "cpu_count": "cpu.count",
    "program": "program",
    "startedAt": "started_at",
}


def _metadata_parse(source: Source, rows: Rows) -> None:
    data = _load(source)
    for key, name in _METADATA.items():
        value = data.get(key)
        if isinstance(value, str | int | float) and len(str(value)) < 500:
            rows.fact(1, name, value)
    arguments = data.get("args")
    if isinstance(arguments, list):
        from parsers.settings import command_settings

        for key, value in command_settings(" ".join(str(item) for item in arguments[:500])):
            rows.fact(1, key, value)


# ------------------------------------------------------------------------------------------------------ MLflow

_MLFLOW = lazy(r"\A(\d{12,14}) (\S{1,40}) (-?\d{1,12})\s*\Z")


def _mlflow_recognises(head: Head) -> float:
    lines = head.lines[:5]
    return 0.9 if lines and "metrics/" in head.path.replace("\\", "/") and all(_MLFLOW.match(line) for line in lines) else 0.0


def _mlflow_parse(source: Source, rows: Rows) -> None:
    raw = source.path.replace("\\", "/").rpartition("metrics/")[2] or source.path
    how = reading(raw)
    for at, line in enumerate(source.text().splitlines(), 1):
        match = _MLFLOW.match(line)
        if match is None or at > MAX_READINGS:
            continue
        try:
            value = float(match[2])
        except ValueError:
            continue
        rows.metric(placed(source.path, at, int(match[1]) / 1000), how.name, value * how.scale, float(match[3]), raw)


PARSER = (
    FileParser("tensorboard", "metrics", _events_recognises, _events_parse),
    FileParser("wandb", "metrics", _wandb_recognises, _wandb_parse),
    FileParser("wandb-summary", "metrics", _json_named("wandb-summary.json"), _summary_parse),
    FileParser("wandb-metadata", "environment", _json_named("wandb-metadata.json"), _metadata_parse),
    FileParser("mlflow", "metrics", _mlflow_recognises, _mlflow_parse),
)
