"""Small text helpers of the renderers: times, sizes, offsets, and evidence lines made safe to look at."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

LINE_LIMIT = 600  # characters of one evidence line that are shown

# Control characters, and the marks that reorder text (a quoted line must not be able to reorder the page around it).
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,32}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
COLOUR = re.compile(r"\[(HARDWARE|MODEL|TRAIN)\]")


def visible(text: str, limit: int = LINE_LIMIT) -> str:
    """`text` on one line: colour escapes removed, other control characters replaced by visible signs, cut at `limit`."""
    text = _ESCAPES.sub("", text[: limit * 4].rstrip("\r\n"))
    text = _CONTROL.sub(_sign, text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def moment(value: Any) -> datetime | None:
    """A time given as RFC 3339 text or Unix seconds; None where there is none or it cannot be read."""
    try:
        if isinstance(value, str):
            stamp = datetime.fromisoformat(value)
            return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        if isinstance(value, int | float) and math.isfinite(value):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def clock(value: Any, zone: float | None = None, seconds_only: bool = False) -> str:
    """`2026-03-01 14:02:11 UTC`; `zone` in hours, else the zone the text was written with.  Empty where there is no time."""
    stamp = moment(value)
    if stamp is None:
        return ""
    if zone is not None and -24 < zone < 24:
        stamp = stamp.astimezone(timezone(timedelta(hours=zone)))
    body = stamp.strftime("%H:%M:%S" if seconds_only else "%Y-%m-%d %H:%M:%S")
    if seconds_only:
        return body
    offset = stamp.strftime("%z")
    return f"{body} UTC" if offset in ("+0000", "") else f"{body} {offset[:3]}:{offset[3:5]}"


def offset(seconds: float) -> str:
    """`+12.4`, `−0.3`, `+1,204`: seconds, with decimals only where they matter."""
    size = abs(seconds)
    digits = f"{size:,.0f}" if size >= 600 else f"{size:.1f}"
    return ("−" if seconds < 0 and float(digits.replace(",", "")) else "+") + digits


def size(count: float) -> str:
    """Bytes as `512 B`, `3.2 MB` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: Any) -> str:
    """A number without trailing zeros; other values as text; empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:g}"
    return str(value)


def ranges(numbers: list[int], limit: int = 12) -> str:
    """Ascending integers as `0–3, 7, 9–15`; beyond `limit` parts the rest is shown as `…`."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for index, value in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != value + 1:
            first = ordered[start]
            parts.append(str(first) if first == value else f"{first}–{value}" if value > first + 1 else f"{first}, {value}")
            start = index + 1
    return ", ".join(parts[:limit]) + (", …" if len(parts) > limit else "")
