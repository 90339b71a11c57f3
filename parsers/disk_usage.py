"""`df` tables (blocks and inodes): how full the file systems were when somebody looked.

Event `disk_usage`: fields `mount`, `device`, `percent`, `what` (blocks or inodes).  Read-only images (squashfs, loop devices, /snap)
are always full and left out.
"""

from __future__ import annotations

from parsers.base import Context, Line, LineParser, Rows, lazy_regex

HEADER = lazy_regex(r"^Filesystem\s+.{0,120}(?:Use%|IUse%|Capacity)\s+Mounted on")
ROW = lazy_regex(r"^(?P<device>\S{1,300})(?:\s+\S{1,30}){3,4}\s+(?P<percent>\d{1,3})%\s+(?P<mount>/\S{0,300})\s*$")
ALWAYS_FULL = lazy_regex(r"^(?:/dev/loop|squashfs|iso9660|/snap)|^/(?:snap|cdrom)")


def _parse(line: Line, rows: Rows, context: Context) -> None:
    if not HEADER.match(line.text):
        return
    what = "inodes" if "IUse%" in line.text or "Inodes" in line.text else "blocks"
    for below in context.following(80):
        row = ROW.match(below.text)
        if not row:
            break
        if ALWAYS_FULL.match(row["device"]) or ALWAYS_FULL.match(row["mount"]):
            continue
        percent = int(row["percent"])
        fields = {"mount": row["mount"], "device": row["device"], "percent": percent, "what": what}
        rows.event(below, "disk_usage", "warning" if percent >= 98 else "info", fields=fields)


PARSER = LineParser(name="disk-usage", triggers=("Mounted on",), parse=_parse)
