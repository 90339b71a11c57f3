"""Metric and sample rows of all files as two frames on the common clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from forensics.timeline import METRICS, SAMPLES
from parsers.base import Rows

if TYPE_CHECKING:
    from forensics.clock import Clocks
    from forensics.run import FileInfo


def metric_frame(rows: dict[str, Rows], clocks: Clocks) -> pl.DataFrame:
    """All metric readings, in order of file and line."""
    found = [metric for one in rows.values() for metric in one.metrics]
    times: list[float | None] = []
    last_stamp, last_time = None, None
    for metric in found:
        if metric.stamp is None:
            times.append(None)
            continue
        if metric.stamp is not last_stamp:
            last_stamp, last_time = metric.stamp, clocks.time(metric.source, metric.stamp, metric.line)
        times.append(last_time)
    return pl.DataFrame(
        {
            "time": times,
            "step": [m.step for m in found],
            "rank": [m.rank for m in found],
            "name": [m.name for m in found],
            "value": [m.value for m in found],
            "raw": [m.raw for m in found],
            "source": [m.source for m in found],
            "line": [m.line for m in found],
        },
        schema=METRICS,
    )


def sample_frame(rows: dict[str, Rows], clocks: Clocks, files: dict[str, FileInfo]) -> pl.DataFrame:
    """All GPU samples, on the common clock where their form of stamp could be placed."""
    frames = []
    for path, one in rows.items():
        for frame in one.samples:
            if not frame.height:
                continue
            missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in SAMPLES.items() if name not in frame.columns]
            frame = frame.with_columns(missing)
            if "local" in frame.columns:
                form = str(frame["form"][0]) if "form" in frame.columns else ""
                offset = pl.lit(None, dtype=pl.Float64)
                for start, value in clocks.offset_table(path, form):
                    offset = pl.when(pl.col("line") >= start).then(pl.lit(value)).otherwise(offset)
                frame = frame.with_columns((pl.col("local").cast(pl.Float64) + offset).alias("time"))
            frame = frame.with_columns(
                pl.lit(path).alias("source"), pl.col("host").fill_null(pl.lit(files[path].host, dtype=pl.String)).alias("host")
            )
            frames.append(frame.select([pl.col(name).cast(kind, strict=False) for name, kind in SAMPLES.items()]))
    return pl.concat(frames) if frames else pl.DataFrame(schema=SAMPLES)
