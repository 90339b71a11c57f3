"""`nvidia-smi --query-gpu=… --format=csv` in every form it is logged (and rocm-smi's CSV): header or none, units or none,
headers repeated when the logger restarts, error words instead of values, whole lines that say why the query failed.

Rows become columns block by block: a day of samples of a node is 700,000 rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from forensics.blocks import blocks
from forensics.stamps import find_stamp
from parsers.base import FileParser, Head, Line, Rows, Source, Stamp, lazy
from parsers.prefixes import clean

# Printed header (unit taken off) or query name -> column of the samples table.  Old and new names: nvidia-smi 470 to 610.
COLUMNS = {
    "timestamp": "stamp",
    "index": "gpu",
    "gpu": "gpu",
    "id": "gpu",
    "device": "gpu",
    "pci.bus_id": "pci",
    "gpu_bus_id": "pci",
    "pci.bus": "pci",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "name": "name",
    "gpu_name": "name",
    "memory.used": "memory_used",
    "memory.total": "memory_total",
    "utilization.gpu": "utilization",
    "gpu_use_pct": "utilization",
    "temperature.gpu": "temperature",
    "temperature.memory": "memory_temperature",
    "power.draw": "power",
    "power.draw.average": "power",
    "power.draw.instant": "power",
    "power_w": "power",
    "power.limit": "power_limit",
    "enforced.power.limit": "power_limit",
    "clocks.current.sm": "sm_clock",
    "clocks.sm": "sm_clock",
    "clocks.gr": "sm_clock",
    "clocks.current.graphics": "sm_clock",
    "clocks_throttle_reasons.active": "throttle",
    "clocks_event_reasons.active": "throttle",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "pcie.link.gen.current": "pcie_gen",
    "pcie.link.gen.gpucurrent": "pcie_gen",
    "pcie.link.width.current": "pcie_width",
    "driver_version": "driver",
    "gpu_recovery_action": "recovery",
    "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure",
    "hostname": "host",
    "host": "host",
    "time": "stamp",
}
# One column per reason (`Active` / `Not Active`) instead of the mask: bits of NVML's clocks event reasons.
REASONS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
COLUMNS |= {f"clocks_{word}_reasons.{name}": f"reason:{name}" for word in ("throttle", "event") for name in REASONS}
NUMBERS = frozenset(
    "memory_used memory_total utilization temperature memory_temperature power power_limit sm_clock ecc_uncorrected ecc_corrected "
    "pcie_gen pcie_width".split()
)
UNITS = lazy(r"\s{0,8}(?:\[[^\[\]]{0,60}\]|\((?:MiB|W|%|C|MHz)\))\s{0,8}$")
FAILURE = lazy(r"\[?(?:GPU is lost|Unknown Error|GPU requires reset|Timeout|Function Not Found)\]?|\bERR!", re.I)
FAILED_LINE = lazy(
    r"Unable to determine the device handle|Failed to initialize NVML|NVIDIA-SMI has failed|No devices were found|GPU is lost|couldn't communicate"
)
HEADER_WORDS = (b"timestamp", b"index", b"memory.", b"utilization", b"_pct", b"power")
STAMP_CELL = lazy(r"\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d")
PCI = lazy(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
MAX_EVENTS = 200
MAX_HEADER = 64 << 10  # bytes of a header line


def canonical_pci(text: str) -> str | None:
    """`00000000:3B:00.0`, `0000:3b:00` -> `0000:3b:00.0`; None where it is no PCI id."""
    match = re.fullmatch(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?", text.strip())
    return f"{(match[1] or '0000')[-4:]}:{match[2]}:{match[3]}.{match[4] or 0}".lower() if match else None


def recognises(head: Head) -> float:
    """A known header, or rows of one width whose cells look like samples."""
    lines = head.written[:40]
    if not lines:
        return 0.0
    for line in lines[:10]:
        if _header(line):
            return 0.95
    rows = [_cells(line) for line in lines if "," in line]
    if len(rows) < max(2, 0.7 * len(lines)):
        return 0.0
    width = max(map(len, rows), key=[len(row) for row in rows].count)
    same = [row for row in rows if len(row) == width]
    if width < 3 or len(same) < 0.8 * len(rows):
        return 0.0
    guessed = guess(same)
    good = {"memory_used", "utilization", "power", "pci"} & set(guessed)
    return 0.8 if len(good) >= 2 and ("stamp" in guessed or "gpu" in guessed or "name" in guessed) else 0.0


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _header(line: str) -> list[str] | None:
    """Column names of a header line, None for any other line."""
    if "," not in line:
        return None
    names = [UNITS.sub("", cell).strip().lower() for cell in _cells(line)]
    known = [COLUMNS.get(name, "") for name in names]
    values = {"memory_used", "utilization", "power", "temperature", "memory_total", "ecc_uncorrected", "sm_clock", "throttle"}
    if len(values & set(known)) >= 1 and sum(map(bool, known)) >= 2 and sum(map(bool, known)) >= 0.3 * len(known):
        return known
    return None


def _headers(data: bytes) -> list[tuple[int, int, int, list[str]]]:
    """Lines that are headers: number (from 0), where each begins and the next line begins, and the names of its columns."""
    array = np.frombuffer(data, dtype=np.uint8)
    begins = np.concatenate(([0], np.flatnonzero(array == 10) + 1))
    begins = begins[begins < len(data)]
    # A header begins with a letter, as few rows do; compared by the column, a day of samples is looked through in no time.
    candidates = np.flatnonzero(((array[begins] | 0x20) >= 97) & ((array[begins] | 0x20) <= 122))
    found: list[tuple[int, int, int, list[str]]] = []
    for number in candidates.tolist():
        begin = int(begins[number])
        end = data.find(b"\n", begin, begin + MAX_HEADER)
        line = data[begin : end if end >= 0 else begin + MAX_HEADER]
        names = _header(line.decode("utf-8", "replace")) if any(word in line for word in HEADER_WORDS) else None
        if names:
            found.append((number, begin, begin + len(line) + 1, names))
    return found


def guess(rows: Sequence[Sequence[str]]) -> list[str]:
    """Column names of rows without a header, from the shapes and ranges of their values."""
    width = len(rows[0])
    columns = list(zip(*[row for row in rows if len(row) == width], strict=True))
    names = [""] * width
    numbers: dict[int, list[float]] = {}
    for at, column in enumerate(columns):
        sample = next((cell for cell in column if cell and not cell.startswith("[")), "")
        if STAMP_CELL.match(sample):
            names[at] = "stamp"
        elif PCI.fullmatch(sample):
            names[at] = "pci"
        elif re.match(r"(?:NVIDIA|Tesla|GeForce|Quadro|A100|H100|AMD|Instinct)\b", sample):
            names[at] = "name"
        elif sample.startswith("GPU-"):
            names[at] = "uuid"
        elif re.fullmatch(r"0x[0-9a-fA-F]{4,16}", sample):
            names[at] = "throttle"
        elif sample.endswith("%"):
            names[at] = "utilization" if "utilization" not in names else ""
        elif sample.endswith(" W"):
            names[at] = "power" if "power" not in names else "power_limit"
        elif sample.endswith("MHz"):
            names[at] = "sm_clock" if "sm_clock" not in names else ""
        else:
            numbers[at] = [value for cell in column if (value := _number(cell.removesuffix(" MiB"))) is not None]
            if sample.endswith("MiB"):
                names[at] = "?mib"
    mib = [at for at in range(width) if names[at] == "?mib"]
    plain = [at for at, values in numbers.items() if values and names[at] == ""]
    if not mib:  # no units: memory is what exceeds every other range
        mib = [at for at in plain if max(numbers[at]) > 1100 and all(float(v).is_integer() for v in numbers[at])]
        plain = [at for at in plain if at not in mib]
    if len(mib) >= 2:
        mib.sort(key=lambda at: max(numbers[at]))
        names[mib[-1]], names[mib[-2]] = "memory_total", "memory_used"
    elif mib:
        names[mib[0]] = "memory_used"
    first = True
    for at in plain:
        values = numbers[at]
        whole = all(v.is_integer() for v in values)
        if first and whole and max(values) < 16 and min(values) >= 0 and (len(set(values)) > 1 or max(values) == 0):
            names[at] = "gpu"
        elif not whole and max(values) > 3 and "power" not in names:
            names[at] = "power"
        elif (
            whole
            and min(values) >= 15
            and max(values) <= 110
            and max(values) - min(values) <= 45
            and "temperature" not in names
            and "utilization" in names
        ) or (whole and min(values) >= 15 and max(values) <= 95 and max(values) - min(values) <= 25 and "temperature" not in names):
            names[at] = "temperature"
        elif whole and max(values) <= 100 and "utilization" not in names:
            names[at] = "utilization"
        first = False
    return ["" if name == "?mib" else name for name in names]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def parse(source: Source, rows: Rows) -> None:
    """All samples of the file, and an event for each GPU's first error word and each line that is no row."""
    names: list[str] | None = None
    seen: set[tuple[str, str]] = set()
    odd = 0
    with source.open() as stream:
        for block in blocks(stream, on_error=rows.note):
            data = block.data
            if names is None:
                lines = data[: MAX_HEADER * 4].decode("utf-8", "replace").split("\n")
                names = next((h for line in lines[:50] if (h := _header(line))), None)
                if names is None:
                    sample = [_cells(line) for line in lines[:200] if "," in line]
                    width = max((len(row) for row in sample), default=0)
                    names = guess([row for row in sample if len(row) == width]) if width else []
                    rows.note("no header: the columns were told by their values")
            # A restarted logger writes its header again, perhaps with other columns.
            at, line = 0, block.first_line
            for number, begin, following, header in _headers(data):
                if begin > at:
                    odd += _rows(data[at:begin], line, names, rows, seen)
                names, at, line = header, following, block.first_line + number + 1
            if at < len(data):
                odd += _rows(data[at:], line, names, rows, seen)
    if odd:
        rows.note(f"{odd} lines are no rows of samples")


def _rows(data: bytes, first_line: int, names: list[str], rows: Rows, seen: set[tuple[str, str]]) -> int:
    """Read whole lines as rows; returns how many are none."""
    if not names or len(names) < 2:
        return data.count(b"\n") + (not data.endswith(b"\n"))
    # The engine cuts the text, so that no Python string is made of a line.
    lines = pl.Series("raw", [data.decode("utf-8", "replace")]).str.split("\n").explode()
    frame = pl.DataFrame({"raw": lines, "line": pl.int_range(first_line, first_line + len(lines), eager=True)})
    wide = pl.col("raw").str.count_matches(",", literal=True) >= max(1, len(names) - 1)
    good = frame.filter(wide)
    bad = frame.filter(~wide & (pl.col("raw").str.strip_chars() != ""))
    for raw, number in bad.head(50).iter_rows():
        text = clean(raw.encode())
        if FAILED_LINE.search(text) and len(rows.events) < MAX_EVENTS:
            line = Line(rows.source, number, text, text, stamp=find_stamp(text))
            rows.event(line, "nvml_error", "error")
    if not good.height:
        return bad.height
    parts = good["raw"].str.split_exact(",", len(names) - 1).struct.unnest()
    columns: dict[str, pl.Expr] = {}
    bare: dict[str, int] = {}  # columns of numbers without a unit
    for at, name in enumerate(names):
        cell = pl.col(f"field_{at}").str.strip_chars()
        if not name or name in columns:
            continue
        if name in NUMBERS:
            columns[name] = cell.cast(pl.Float64, strict=False) if _bare(parts, at) else _united(cell, parts, at)
            if _bare(parts, at):
                bare[name] = at
        elif name == "throttle":
            columns[name] = cell.str.strip_prefix("0x").str.to_integer(base=16, strict=False).cast(pl.Int64, strict=False)
        else:
            columns[name] = cell
    if not columns:
        raise ValueError("no column is known")
    table = parts.select(**columns).with_columns(good["line"])
    for name, at in bare.items():
        if table[name].null_count():  # perhaps a unit in some rows only; looked for there, for it costs as much as all the rest
            number = parts[f"field_{at}"].str.strip_chars().str.extract(r"^(-?[0-9]+(?:\.[0-9]+)?)").cast(pl.Float64, strict=False)
            table = table.with_columns(table[name].fill_null(number))
    active = [name for name in columns if name.startswith("reason:")]
    if active and "throttle" not in columns:
        bits = [pl.when(pl.col(name) == "Active").then(REASONS[name[7:]]).otherwise(0) for name in active]
        table = table.with_columns(pl.sum_horizontal(bits).cast(pl.Int64).alias("throttle"))
    table = table.drop(active)
    table = _clock(table)
    if "pci" in table.columns:
        known = {text: canonical_pci(text or "") for text in table["pci"].unique().to_list()}
        table = table.with_columns(pl.col("pci").replace_strict(known, default=None, return_dtype=pl.String))
    table = _index(table)
    _environment(table, rows)
    table = _failures(table, good["raw"], rows, seen)
    keep = [name for name in table.columns if name in NUMBERS | {"gpu", "pci", "host", "throttle", "status", "line", "local", "form"}]
    rows.samples.append(table.select(keep))
    return bad.height


def _bare(parts: pl.DataFrame, at: int) -> bool:
    sample = parts[f"field_{at}"].head(20).str.strip_chars().to_list()
    return all(cell is None or _number(cell) is not None or cell.startswith("[") for cell in sample)


def _united(cell: pl.Expr, parts: pl.DataFrame, at: int) -> pl.Expr:
    sample = next((c for c in parts[f"field_{at}"].head(50).str.strip_chars().to_list() if c and " " in c and c[0].isdigit()), "")
    unit = " " + sample.rpartition(" ")[2] if sample else ""
    plain = cell.str.strip_suffix(unit) if unit else cell
    return plain.cast(pl.Float64, strict=False)


def _clock(table: pl.DataFrame) -> pl.DataFrame:
    if "stamp" not in table.columns:
        return table
    text = pl.col("stamp")
    sample = "".join(cell for cell in table["stamp"].head(50).to_list() if cell)
    if "-" in sample or "T" in sample or not sample:
        text = text.str.replace_all("-", "/", literal=True).str.replace("T", " ", literal=True)
    # nvidia-smi prints milliseconds, and so fixed a form is read three times as fast.
    parsed = table.select(text.str.to_datetime("%Y/%m/%d %H:%M:%S.%3f", strict=False, time_unit="us", cache=False).dt.epoch("us") / 1e6)
    if parsed.to_series().null_count():
        parsed = table.select(text.str.to_datetime("%Y/%m/%d %H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("us") / 1e6)
    seconds_of = parsed.to_series()
    if seconds_of.null_count() > 0.5 * table.height:
        read = {value: stamp for value in table["stamp"].unique().to_list()[:200_000] if value and (stamp := find_stamp(value))}
        if read:
            forms = {stamp.form for stamp in read.values()}
            seconds = {value: stamp.seconds for value, stamp in read.items()}
            seconds_of = table["stamp"].replace_strict(seconds, default=None, return_dtype=pl.Float64)
            return table.with_columns(seconds_of.alias("local"), pl.lit(sorted(forms)[0]).alias("form"))
    # The form that find_stamp gives such cells: the same clock as that of the file's odd lines.
    first = find_stamp(str(table["stamp"][0]))
    return table.with_columns(seconds_of.alias("local"), pl.lit(first.form if first else "iso").alias("form"))


def _index(table: pl.DataFrame) -> pl.DataFrame:
    """The GPU's index: as printed, from the order of PCI ids, or 0 for a lone GPU."""
    if "gpu" in table.columns:
        lost = pl.col("gpu").str.contains(r"^\d+$").not_() if table["gpu"].dtype == pl.String else pl.lit(False)
        if "pci" in table.columns and table["gpu"].dtype == pl.String:
            plain = table.filter(pl.col("gpu").str.contains(r"^\d+$") & pl.col("pci").is_not_null()).unique(
                "pci", keep="first", maintain_order=True
            )
            known = dict(zip(plain["pci"].to_list(), plain["gpu"].to_list(), strict=True))
            table = table.with_columns(
                pl.when(lost)
                .then(pl.col("pci").replace_strict(known, default=None, return_dtype=pl.String))
                .otherwise(pl.col("gpu"))
                .alias("gpu")
            )
        return table
    if "pci" in table.columns:
        order = {pci: str(n) for n, pci in enumerate(sorted(p for p in table["pci"].unique().to_list() if p))}
        return table.with_columns(pl.col("pci").replace_strict(order, default=None, return_dtype=pl.String).alias("gpu"))
    return table.with_columns(pl.lit(None, dtype=pl.String).alias("gpu"))


def _environment(table: pl.DataFrame, rows: Rows) -> None:
    for column, key in (("name", "gpu.name"), ("driver", "version.driver")):
        if column in table.columns:
            value = table[column].drop_nulls().head(1).to_list()
            if value and value[0] and not value[0].startswith("[") and not any(f[0] == key for f in rows.facts):
                rows.fact(int(table["line"][0]), key, value[0])
    for column in ("recovery", "remap_pending", "remap_failure"):
        if column in table.columns:
            bad = table.filter(~pl.col(column).str.to_lowercase().is_in(["none", "no", "0", "[n/a]", "n/a", ""]))
            for row in (
                bad.unique(["gpu"] if "gpu" in bad.columns else None, keep="first", maintain_order=True).head(16).iter_rows(named=True)
            ):
                text = f"{column.replace('_', ' ')}: {row[column]} on GPU {row.get('gpu')}"
                line = Line(rows.source, row["line"], text, text, stamp=_stamp(row))
                rows.event(
                    line, "gpu_health", "warning", gpu=row.get("gpu"), fields={"what": column, "value": row[column], "pci": row.get("pci")}
                )


def _failures(table: pl.DataFrame, raw: pl.Series, rows: Rows, seen: set[tuple[str, str]]) -> pl.DataFrame:
    """Adds `status`, the error word of rows that hold one, and an event at each GPU's first."""
    numeric = [name for name in ("memory_used", "utilization", "power", "temperature", "sm_clock") if name in table.columns]
    if not numeric:
        return table
    suspect = pl.any_horizontal(pl.col(name).is_null() for name in numeric)
    rows_of = table.select(suspect.alias("suspect")).to_series()
    if not rows_of.any():
        return table.with_columns(pl.lit(None, dtype=pl.String).alias("status"))
    table = table.with_columns(raw.alias("raw"))
    word = r"\[?((?i:GPU is lost|Unknown Error|GPU requires reset|Timeout|Function Not Found)|ERR!)\]?"
    status = raw.filter(rows_of).str.extract(word)
    table = table.with_columns(
        pl.Series("status", [None], dtype=pl.String).new_from_index(0, table.height).scatter(rows_of.arg_true(), status)
    )
    for row in (
        table.filter(pl.col("status").is_not_null())
        .unique([c for c in ("gpu", "pci", "status") if c in table.columns], keep="first", maintain_order=True)
        .head(64)
        .iter_rows(named=True)
    ):
        key = (str(row.get("gpu") or row.get("pci")), row["status"])
        if key in seen or len(rows.events) >= MAX_EVENTS:
            continue
        seen.add(key)
        text = clean(row["raw"].encode())
        line = Line(rows.source, row["line"], text, text, stamp=_stamp(row))
        rows.event(
            line, "gpu_status", "error", gpu=row.get("gpu") or row.get("pci"), fields={"status": row["status"], "pci": row.get("pci")}
        )
    return table.drop("raw")


def _stamp(row: dict[str, Any]) -> Stamp | None:
    return Stamp(row["form"], row["local"], precision=0.001) if row.get("local") is not None else None


PARSER = FileParser("nvidia-smi CSV", "gpu", recognises, parse, scan=True)
