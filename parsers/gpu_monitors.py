"""Running monitors in columns: `nvidia-smi dmon`, `nvidia-smi pmon`, and the tables of `rocm-smi`.

dmon's header names the columns and comes again every few dozen rows; they are mapped by name, for drivers differ in which they print.
With `-o T` a row has a time and no day, which cannot be placed on a clock; with `-o DT` it has both.
"""

from __future__ import annotations

import re
from typing import Any

from forensics.stamps import find_stamp
from parsers.base import Context, Line, LineParser, Rows, Stamp, lazy
from parsers.nvidia_smi_views import emit_app
from parsers.snapshots import add_samples, number, once

MAX_ROWS = 400  # between two headers
MAX_APPS = 2000

_DMON = {
    "gpu": "gpu",
    "pwr": "power",
    "gtemp": "temperature",
    "temp": "temperature",
    "mtemp": "memory_temperature",
    "sm": "utilization",
    "pclk": "sm_clock",
    "fb": "memory_used",
    "sbecc": "ecc_corrected",
    "dbecc": "ecc_uncorrected",
}


def _monitor(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:400].lstrip()
    if not text.startswith("#"):
        return
    names = text.replace("#", " ").split()
    lower = [name.lower() for name in names]
    if "gpu" not in lower or len(lower) < 4:
        return
    if "pid" in lower and "command" in lower:
        _pmon(lower, rows, context)
    elif {"sm", "pwr", "fb", "mclk", "pclk"} & set(lower):
        _dmon(lower, rows, context)


def _dmon(names: list[str], rows: Rows, context: Context) -> None:
    group: list[dict[str, Any]] = []
    group_stamp: Stamp | None = None
    first: Line | None = None
    for near in context.following(MAX_ROWS):
        text = near.text[:400].strip()
        if text.startswith("#"):
            if "Idx" in text or "YYYYMMDD" in text or "HH:MM:SS" in text:
                continue
            break
        cells = text.split()
        if len(cells) != len(names):
            break
        row = dict(zip(names, cells, strict=True))
        if not row["gpu"].isdigit():
            break
        stamp = _stamp(row)
        if first is not None and stamp != group_stamp:
            _flush(rows, group, first, group_stamp)
            group, first = [], None
        if first is None:
            first, group_stamp = near, stamp
        sample: dict[str, Any] = {"gpu": row["gpu"], "line": near.number}
        for name, column in _DMON.items():
            if name in row and column != "gpu" and (value := number(row[name])) is not None:
                sample[column] = value
        group.append(sample)
    if first is not None:
        _flush(rows, group, first, group_stamp)


def _flush(rows: Rows, group: list[dict[str, Any]], first: Line, stamp: Stamp | None) -> None:
    add_samples(rows, group, Line(first.source, first.number, first.text, first.full, host=first.host, stamp=stamp))


def _stamp(row: dict[str, str]) -> Stamp | None:
    day, time = row.get("date", ""), row.get("time", "")
    if re.fullmatch(r"\d{8}", day) and re.fullmatch(r"\d\d:\d\d:\d\d", time):
        return find_stamp(f"{day[:4]}-{day[4:6]}-{day[6:]} {time}")
    return None


def _pmon(names: list[str], rows: Rows, context: Context) -> None:
    """Processes seen; of each GPU and process the first and, where the framebuffer column is there, the largest."""
    best: dict[tuple[str, str], tuple[float, Line, str]] = context.state.setdefault("best", {})
    for near in context.following(MAX_ROWS):
        text = near.text[:600].strip()
        if text.startswith("#"):
            if "Idx" in text or "HH:MM:SS" in text:
                continue
            break
        cells = text.split(None, len(names) - 1)
        if len(cells) != len(names):
            break
        row = dict(zip(names, cells, strict=True))
        if not row["gpu"].isdigit():
            break
        if not row["pid"].isdigit() or len(row["pid"]) > 9:
            continue
        memory = number(row.get("fb", "")) or 0.0
        key = (row["gpu"], row["pid"])
        if len(best) < MAX_APPS and (key not in best or memory > 1.5 * best[key][0]):
            best[key] = (memory, near, row["command"])
            if "fb" in row:
                emit_app(near, rows, row["gpu"], int(row["pid"]), row["command"], memory)


# ------------------------------------------------------------------------------------------------------ rocm-smi

_ROCM = lazy(r"\A\s{0,4}GPU\[(?P<gpu>\d{1,3})\]\s{0,8}: (?P<key>[^:\n]{2,80}): (?P<value>[^\n]{1,120})\Z")
_ROCM_KEYS = (
    (lazy(r"Temperature \(Sensor (?:junction|hotspot)\)"), "temperature", 1.0),
    (lazy(r"Temperature \(Sensor memory\)"), "memory_temperature", 1.0),
    (lazy(r"(?:Average|Current Socket) Graphics Package Power"), "power", 1.0),
    (lazy(r"GPU use \(%\)"), "utilization", 1.0),
    (lazy(r"VRAM Total Used Memory \(B\)"), "memory_used", 1 / 2**20),
    (lazy(r"VRAM Total Memory \(B\)"), "memory_total", 1 / 2**20),
    (lazy(r"sclk clock level"), "sm_clock", 1.0),
)


def _rocm(line: Line, rows: Rows, context: Context) -> None:
    cards: dict[str, dict[str, Any]] = {}
    for near in context.following(1200):
        text = near.text[:240]
        if "ROCm System Management Interface" in text or "End of ROCm SMI Log" in text:
            break
        if found := _ROCM.match(text):
            card = cards.setdefault(found["gpu"], {"gpu": found["gpu"], "line": near.number})
            if found["key"].startswith(("Card series", "Card Series")):
                once(rows, context, near, "gpu.name", found["value"].strip())
            for pattern, column, scale in _ROCM_KEYS:
                if pattern.match(found["key"].strip()) and (value := _amount(found["value"])) is not None:
                    card.setdefault(column, value * scale)
                    break
        elif found := re.match(r"\A\s{0,4}Driver version: (\S{1,40})", text):
            once(rows, context, near, "version.amdgpu", found[1])
        else:
            _concise(near, text, cards)
        if len(cards) > 64:
            break
    useful = [card for card in cards.values() if len(card) > 2]
    if useful:
        once(rows, context, line, "gpu.count", len(useful))
        add_samples(rows, useful, line)


def _amount(text: str) -> float | None:
    found = re.search(r"\((\d{2,5})Mhz\)", text)
    return float(found[1]) if found else number(text)


def _concise(line: Line, text: str, cards: dict[str, dict[str, Any]]) -> None:
    """A row of the short table: `0  53.0°C  302.0W  1700Mhz  1300Mhz  0%  auto  560.0W  98%  100%` (ROCm 5) and its relatives."""
    cells = text.split()
    if len(cells) < 8 or not re.fullmatch(r"\d{1,2}", cells[0]):
        return
    heat = next((c for c in cells if re.fullmatch(r"\d{1,3}(?:\.\d)?°?[cC]", c)), None)
    powers = [c for c in cells if re.fullmatch(r"\d{1,4}(?:\.\d{1,3})?W", c)]
    if heat is None or not powers or not text.rstrip().endswith("%"):
        return
    card = cards.setdefault(cells[0], {"gpu": cells[0], "line": line.number})
    card["temperature"], card["power"] = number(heat), number(powers[0])
    if len(powers) > 1:
        card["power_limit"] = number(powers[-1])
    clocks = [c for c in cells if re.fullmatch(r"\d{1,5}Mhz", c)]
    if clocks:
        card["sm_clock"] = number(clocks[0])
    card["utilization"] = number(cells[-1])


PARSER = (
    LineParser("nvidia-smi dmon", ("# gpu ", "#Date ", "#Time "), _monitor),
    LineParser("rocm-smi", ("ROCm System Management Interface =",), _rocm),
)
