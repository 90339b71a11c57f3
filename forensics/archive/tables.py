"""The two tables of an archive: their columns, and writing them in bounded memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from forensics.files import write_whole

BATCH = 512  # runs per row group
TIME = pa.timestamp("ms", tz="UTC")
TEXTS = pa.list_(pa.string())

# docs/archive.md says what each column means.
RUNS = pa.schema(
    [
        ("run", pa.string()),
        ("path", pa.string()),
        ("root", pa.string()),
        ("report", pa.string()),
        ("name", pa.string()),
        ("job", pa.string()),
        ("series", pa.string()),
        ("attempt", pa.int32()),
        ("attempts", pa.int32()),
        ("previous", pa.string()),
        ("repeats", pa.bool_()),
        ("started", TIME),
        ("ended", TIME),
        ("duration_s", pa.float64()),
        ("world_size", pa.int32()),
        ("hosts", TEXTS),
        ("frameworks", TEXTS),
        ("last_step", pa.float64()),
        ("gpu_hours", pa.float64()),
        ("gpu_hours_lost", pa.float64()),
        ("layer", pa.string()),
        ("cause", pa.string()),
        ("title", pa.string()),
        ("summary", pa.string()),
        ("confidence", pa.float64()),
        ("culprit_rank", pa.int32()),
        ("culprit_ranks", pa.list_(pa.int32())),
        ("culprit_host", pa.string()),
        ("culprit_gpu", pa.string()),
        ("first_file", pa.string()),
        ("first_line", pa.int64()),
        ("first_time", TIME),
        ("message", pa.string()),
        ("template", pa.string()),
        ("chain", TEXTS),
        ("restart", pa.string()),
        ("exclude_hosts", TEXTS),
        ("advice", pa.string()),
        ("remedy", pa.string()),
        ("exit_code", pa.int32()),
        ("exit_signal", pa.string()),
        ("fingerprint", pa.string()),
        ("gpu", pa.string()),
        ("driver", pa.string()),
        ("torch", pa.string()),
        ("cuda", pa.string()),
        ("nccl", pa.string()),
        ("saved_to", pa.string()),
        ("resumed_from", pa.string()),
        ("files", pa.int32()),
        ("bytes", pa.int64()),
        ("findings", pa.int32()),
        ("notes", TEXTS),
    ]
)
FINDINGS = pa.schema(
    [
        ("run", pa.string()),
        ("number", pa.int32()),
        ("rule", pa.string()),
        ("outcome", pa.string()),
        ("layer", pa.string()),
        ("cause", pa.string()),
        ("role", pa.string()),
        ("severity", pa.string()),
        ("title", pa.string()),
        ("time", TIME),
        ("count", pa.int64()),
        ("rank", pa.int32()),
        ("host", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("text", pa.string()),
        ("covers", TEXTS),
    ]
)


def write_table(path: Path, schema: pa.Schema, rows: Iterable[list[dict[str, Any]]]) -> None:
    """Write a table whole or not at all.  `rows` comes in pieces; no more than `BATCH` pieces are held at once."""

    def write(target: Path) -> None:
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            held: list[dict[str, Any]] = []
            for count, piece in enumerate(rows, 1):
                held += piece
                if count % BATCH == 0 and held:
                    writer.write_table(_table(schema, held))
                    held = []
            writer.write_table(_table(schema, held))

    write_whole(path, write)


def partition(out: Path) -> None:
    """Write both tables once more as data sets partitioned by layer, `runs/layer=…/` and `findings/layer=…/`, for readers of a cluster."""
    for name in ("runs", "findings"):
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        table = ds.dataset(out / f"{name}.parquet")
        parts = ds.partitioning(pa.schema([("layer", pa.string())]), flavor="hive")
        ds.write_dataset(table, folder, format="parquet", partitioning=parts, basename_template="part-{i}.parquet", use_threads=False)


def _table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if field.type == TIME:
            # Beyond the years 1 to 9999 no reader of Parquet follows.
            values = [round(v * 1000) if isinstance(v, int | float) and -6.2e10 < v < 2.5e11 else None for v in values]
            columns.append(pa.array(values, pa.int64()).cast(TIME))
        elif pa.types.is_integer(field.type):
            top = 2 ** (field.type.bit_width - 1)
            columns.append(
                pa.array([int(v) if isinstance(v, int | float) and v == v and -top < v < top else None for v in values], field.type)
            )
        elif field.type == pa.string():
            columns.append(pa.array([None if v is None else str(v).encode("utf-8", "replace").decode() for v in values], field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
