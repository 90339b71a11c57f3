"""Lines that tell two clocks at once, or the beginning of a clock: what forensics.clock joins the sources by.

Events of kind `clock`, severity debug, with fields: `what` (audit, rtc, lustre, mce, pair, boot, date, edge), `epoch` (Unix
seconds in the text), `mono` (seconds since boot on the same line).  Formats: kernel audit, rtc, Lustre and machine-check
bodies; rsyslog and journalctl lines that carry the kernel's own stamp; `date` lines that job scripts print.
"""

from __future__ import annotations

from collections.abc import Callable

from forensics.stamps import find_stamp, find_stamps
from parsers.base import Context, Line, LineParser, Rows, Stamp, lazy
from parsers.prefixes import clean

BODY = frozenset(("audit", "rtc", "lustre", "mce"))
_BANNER = lazy(r"(?:\]|: |^|\d\d:\d\d )\s?Linux version \d{1,2}\.\d{1,3}")
_DATED = lazy(r"(?:[Ss]tart(?:ed|ing|s)?|[Ff]inish(?:ed)?|[Ee]nd(?:ed)?|[Bb]eg[iau]n|[Dd]ate|[Tt]ime)\b(?: (?:at|on|time|date))?\s?[:=]? ")


def parse(line: Line, rows: Rows, context: Context) -> None:
    """Add a `clock` event where the line tells more than its own stamp."""
    full = line.full
    own = None if line.inherited else line.stamp
    if "Linux version " in full and _BANNER.search(full):
        rows.event(line, "clock", "debug", fields={"what": "boot"})
        return
    if own is None:
        return
    stamps = find_stamps(full)
    mono = next((s.seconds for s in stamps if s.mono and s is not own), None)
    for stamp in stamps:
        if stamp.form in BODY:
            rows.event(line, "clock", "debug", fields={"what": stamp.form, "epoch": stamp.seconds, "mono": mono})
            return
    if mono is not None and not own.mono:
        rows.event(line, "clock", "debug", fields={"what": "pair", "mono": mono})


def parse_date(line: Line, rows: Rows, context: Context) -> None:
    """Add a `clock` event for a line in which a job script prints the date (the clock of the host's shell)."""
    if line.inherited or line.stamp is None or line.stamp.mono:
        return
    stamp = find_stamp(line.full)
    if stamp is not None and (stamp.form.endswith("~") or _DATED.search(line.full[:120])):
        rows.event(line, "clock", "debug", fields={"what": "date"})


def edges(rows: Rows, head: str, last: Stamp | None, last_line: int, find: Callable[[str], Stamp | None]) -> None:
    """Add `clock` events (what = edge) for the first and the last stamp of a file, so that its span is known without any event.

    head: the beginning of the text; last, last_line: the last stamp the reader came across.  Times inside sentences do not count.
    """
    for number, text in enumerate(head.split("\n")[:400], 1):
        segment = clean(text[:400].rpartition("\r")[2].encode("utf-8", "replace"))
        stamp = find(segment) if segment else None
        if stamp is not None and not stamp.form.endswith("~"):
            rows.event(Line(rows.source, number, segment, segment, stamp=stamp), "clock", "debug", fields={"what": "edge"})
            break
    if last is not None and last_line and not last.form.endswith("~"):
        rows.event(Line(rows.source, last_line, "", "", stamp=last), "clock", "debug", fields={"what": "edge"})


PARSER = (
    LineParser("anchors", (" setting system clock to ", "[sent 1", " TIME 1", "Linux version "), parse, sparse=(" audit(1", "kernel: [")),
    LineParser(
        "dates",
        ("tarted at ", "tart time", "tarted on ", "tarting at ", "egin at ", "nished at ", "nded at ", "nd time", "egan at "),
        parse_date,
    ),
)
