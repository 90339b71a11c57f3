"""The three tables of a run, one schema each, and nothing else.

Times are microseconds UTC on the run's common axis; null where no time could be given.  Steps, ranks and values are numbers;
bytes are MiB as nvidia-smi prints them; power is watts, temperature degrees Celsius, clocks MHz, utilization percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from forensics.run import Run

TIME = pl.Datetime("us", "UTC")

EVENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "time": TIME,
    "clock": pl.String,  # form of the stamp the time was read from; null = no stamp; suffix "*" = inherited from a line above
    "source": pl.String,  # file, relative to the run
    "line": pl.Int64,  # 1-based, as `sed -n Np` counts
    "host": pl.String,  # machine that wrote the line, where told
    "rank": pl.Int64,  # global rank
    "pid": pl.Int64,  # process id as the line says it
    "gpu": pl.String,  # index or PCI bus id as the line says it
    "severity": pl.String,  # debug, info, warning, error or fatal
    "kind": pl.String,  # the parser's name for it, or `signature`
    "signature": pl.String,  # id of the signature that was confirmed
    "fields": pl.String,  # JSON object
    "text": pl.String,  # the line, cleaned, at most 2,000 characters
}
METRICS: dict[str, pl.DataType | type[pl.DataType]] = {
    "time": pl.Float64,  # Unix seconds while rules run; written as TIME
    "step": pl.Float64,  # optimizer step
    "rank": pl.Int64,  # global rank, where told
    "name": pl.String,  # canonical name
    "value": pl.Float64,
    "raw": pl.String,  # name as printed
    "source": pl.String,  # file, relative to the run
    "line": pl.Int64,  # 1-based
}
SAMPLES: dict[str, pl.DataType | type[pl.DataType]] = {
    "time": pl.Float64,
    "host": pl.String,  # machine, where told
    "gpu": pl.String,  # index
    "pci": pl.String,  # canonical dddd:bb:dd.f, lower case
    "memory_used": pl.Float64,  # MiB
    "memory_total": pl.Float64,  # MiB
    "utilization": pl.Float64,  # percent
    "temperature": pl.Float64,  # degrees Celsius
    "memory_temperature": pl.Float64,  # degrees Celsius
    "power": pl.Float64,  # watts
    "power_limit": pl.Float64,  # watts
    "sm_clock": pl.Float64,  # MHz
    "throttle": pl.Int64,  # bit mask of clocks_event_reasons.active
    "ecc_uncorrected": pl.Float64,  # volatile count
    "ecc_corrected": pl.Float64,  # volatile count
    "pcie_gen": pl.Float64,  # current link generation
    "pcie_width": pl.Float64,  # current link lanes
    "status": pl.String,  # the error token printed instead of values, such as "GPU is lost"
    "source": pl.String,  # file, relative to the run
    "line": pl.Int64,  # 1-based
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The three tables of one run as polars frames, times in UTC; texts are as the logs have them, not redacted."""

    events: pl.DataFrame
    metrics: pl.DataFrame
    samples: pl.DataFrame


def write(run: Run, folder: Path, redact: bool = True) -> None:
    """Write `events.parquet`, `metrics.parquet` and `samples.parquet` into `folder` (made where missing)."""
    from forensics.files import write_whole

    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables(run).items():
        if redact and name == "events":
            from forensics.redact import Redactor

            take = Redactor().text
            table = table.with_columns(
                pl.Series("text", [take(text) for text in table["text"]], pl.String),
                pl.Series("fields", [take(text) for text in table["fields"]], pl.String),
            )
        write_whole(folder / f"{name}.parquet", table.write_parquet)


def tables(run: Run) -> dict[str, pl.DataFrame]:
    """The run's three tables with the documented schemas."""
    import json

    events = pl.DataFrame(
        {
            "time": [None if e.time is None else round(e.time * 1e6) for e in run.events],
            "clock": [None if e.stamp is None else e.stamp.form + ("*" if e.inherited else "") for e in run.events],
            "source": [e.source for e in run.events],
            "line": [e.line for e in run.events],
            "host": [e.host for e in run.events],
            "rank": [e.rank for e in run.events],
            "pid": [e.pid for e in run.events],
            "gpu": [e.gpu for e in run.events],
            "severity": [e.severity for e in run.events],
            "kind": [e.kind for e in run.events],
            "signature": [e.signature for e in run.events],
            "fields": [json.dumps(e.fields, default=str, ensure_ascii=False) for e in run.events],
            "text": [e.text for e in run.events],
        },
        schema={**EVENTS, "time": pl.Int64},
    ).with_columns(pl.col("time").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))
    out = {"events": events}
    for name, frame, schema in (("metrics", run.metrics, METRICS), ("samples", run.samples, SAMPLES)):
        table = frame if frame is not None else pl.DataFrame(schema=schema)
        out[name] = table.with_columns((pl.col("time") * 1e6).round().cast(pl.Int64).cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))
    return out
