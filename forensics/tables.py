"""Metric and sample rows of all files as two frames on the common clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from forensics.timeline import METRICS, SAMPLES
from parsers.base import Rows

if TYPE_CHECKING:
    from forensics.clock import Clocks
    from forensics.run import FileInfo


MANY_SAMPLES = 120_000  # rows of one file that are kept whole
LAST_ROWS = 30_000  # at its end: an hour of eight GPUs at one sample a second
HARD_LIMITS = 0x20 | 0x40 | 0x80  # software and hardware thermal, power brake (NVML clocks event reasons)


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
            frames.append(
                thinned(frame.select([pl.col(name).cast(kind, strict=False) for name, kind in SAMPLES.items()]), one, files[path].notes)
            )
    return pl.concat(frames) if frames else pl.DataFrame(schema=SAMPLES)


def thinned(frame: pl.DataFrame, rows: Rows, notes: list[str]) -> pl.DataFrame:
    """Of a file with very many samples every n-th tick, and all that is odd or near the file's end.

    A tick is one row of each GPU.  Odd: an error word, a thermal or brake bit, counted memory errors, the highest memory use.
    """
    total = sum(part.height for part in rows.samples)
    if total <= MANY_SAMPLES:
        return frame
    stride = -(-total // MANY_SAMPLES)
    ticks = (pl.col("line") // max(1, frame["gpu"].n_unique())) % stride == 0
    last = max((int(part["line"][-1]) for part in rows.samples if part.height), default=0)
    odd = (
        pl.col("status").is_not_null()
        | ((pl.col("throttle").fill_null(0) & HARD_LIMITS) != 0)
        | (pl.col("ecc_uncorrected").fill_null(0) > 0)
        | (pl.col("memory_used") >= pl.col("memory_used").max())
    )
    remark = f"one in {stride} of its samples was kept before its last part"
    if remark not in notes:
        notes.append(remark)
    return frame.filter(ticks | odd | (pl.col("line") > last - LAST_ROWS))
