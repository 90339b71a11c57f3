"""How full the file systems are, as facts (`disk.<mount>.used_pct`, `.inodes_pct`), and quotas (`quota -s`, `lfs quota`).

Event `quota_usage`: fields `what` (blocks, files), `used`, `limit` (both as printed, in the same unit), `percent`, `mount`, `over`.
The rows of `df` themselves are events of parsers.disk_usage.
"""

from __future__ import annotations

from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.disk_usage import ALWAYS_FULL, HEADER, ROW
from parsers.snapshots import once, size_bytes

_HEAD = lazy(r"\A\s{0,8}Filesystem\s{1,40}(?:blocks|kbytes|space|used|KB)\s{1,20}(?:quota|soft)\s{1,20}(?:limit|hard)\s{1,20}grace\b")
_CELL = lazy(r"(?P<size>\d{1,18}(?:\.\d{1,3})?[KMGTPkmgtp]?)(?P<over>\*)?\Z")
_NO_GRACE = frozenset({"-", "none"})


def _disks(line: Line, rows: Rows, context: Context) -> None:
    if not HEADER.match(line.text):
        return
    what = "inodes_pct" if "IUse%" in line.text or "Inodes" in line.text else "used_pct"
    for near in context.following(80):
        row = ROW.match(near.text)
        if not row:
            break
        if not ALWAYS_FULL.match(row["device"]) and not ALWAYS_FULL.match(row["mount"]):
            once(rows, context, near, f"disk.{row['mount'][:120]}.{what}", int(row["percent"]))
            if row["mount"] == "/dev/shm" and what == "used_pct":
                total = size_bytes(near.text[len(row["device"]) :].split()[0])
                if total and not near.text[len(row["device"]) :].split()[0].isdigit():
                    once(rows, context, near, "shm.size", round(total / 2**30, 2))


def _quota(line: Line, rows: Rows, context: Context) -> None:
    if not _HEAD.match(line.text[:200]):
        return
    mount = ""
    for near in context.following(40):
        cells = near.text[:400].split()
        if not cells:
            break
        if cells[0].startswith("/") or ":" in cells[0]:
            mount, cells = cells[0], cells[1:]
            if not cells:
                continue  # a long name has its numbers on the next line
        elif not _CELL.match(cells[0]):
            break
        for what in ("blocks", "files"):
            if len(cells) < 3:
                break
            used, soft, hard = (_CELL.match(cell) for cell in cells[:3])
            if not (used and soft and hard):
                break
            _emit(near, rows, mount, what, used, soft, hard)
            cells = cells[4:] if len(cells) > 3 and (cells[3] in _NO_GRACE or not _CELL.match(cells[3]) or len(cells) >= 8) else cells[3:]


def _emit(line: Line, rows: Rows, mount: str, what: str, used: Any, soft: Any, hard: Any) -> None:
    amounts = [size_bytes(found["size"]) or 0.0 for found in (used, soft, hard)]
    limit = amounts[2] or amounts[1]
    if limit <= 0:
        return
    percent = round(100 * amounts[0] / limit, 1)
    fields = {
        "mount": mount,
        "what": what,
        "used": used["size"],
        "limit": (hard if amounts[2] else soft)["size"],
        "percent": percent,
        "over": bool(used["over"]) or amounts[0] >= limit,
    }
    rows.event(line, "quota_usage", "warning" if percent >= 98 or fields["over"] else "info", fields=fields)


PARSER = (
    LineParser("disk facts", ("Mounted on",), _disks),
    LineParser("quota", (" grace",), _quota),
)
