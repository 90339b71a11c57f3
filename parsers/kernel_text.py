"""What the kernel-line parsers share: the host a line names, one spelling of PCI ids, and bounded emission of events.

Kernel lines come in many wrappers (dmesg raw, -T, -H, -x, ISO; /dev/kmsg; journalctl; syslog), so bodies are searched inside
the line.  The line's stamp has been read by the reader already.
"""

from __future__ import annotations

from typing import Any

from parsers.base import Context, Event, Line, Rows, Severity, lazy_regex

HOST = lazy_regex(r"(?:^|\s)(?P<host>[A-Za-z0-9][\w.-]{0,63}) kernel: ")
SYSLOG_HOST = lazy_regex(
    r"^(?:<\d+>)?(?:\S{3,6} +\d{1,2} \d\d:\d\d:\d\d\S*|\d{4}-\d\d-\d\dT\S+) (?P<host>[A-Za-z0-9][\w.-]{0,63}) [\w./-]+(?:\[\d+\])?: "
)
NODE = lazy_regex(r"\s(?:Normal|Warning)\s.{1,60}?\snode/(?P<host>[a-z0-9][\w.-]{0,120})\s")
PCI = lazy_regex(r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.(?P<function>[0-7]))?")

KEEP = 60  # events of one kind about one device that are kept apart; later ones are only counted on the last


def canonical_pci(text: str) -> str | None:
    """`dddd:bb:dd.f`, lower case, of any of the spellings in use (`3b:00.0`, `0000:3B:00`, `00000000:3B:00.0`); None if it is none."""
    found = PCI.fullmatch(text.strip())
    if not found:
        return None
    domain = (found["domain"] or "0000")[-4:]
    return f"{domain}:{found['bus']}:{found['device']}.{found['function'] or '0'}".lower()


def host_of(line: Line) -> str | None:
    """The host a syslog or journal line names, else the one the reader knows for the line."""
    found = HOST.search(line.full[:200]) or SYSLOG_HOST.search(line.full[:200])
    if found:
        return str(found["host"])
    if (node := NODE.search(line.full[:200])) is not None:
        return str(node["host"])  # an event of `kubectl get events`
    if line.host and f"{line.host} (" in line.full:
        return None  # `EXT4-fs (nvme1n1):` looks like a host with its process
    return line.host


def number(text: str | None) -> int | None:
    """A decimal number of reasonable length, else None (`<unknown>`, an empty group)."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def emit(
    line: Line,
    rows: Rows,
    context: Context,
    kind: str,
    severity: Severity,
    about: str = "",
    fields: dict[str, Any] | None = None,
    **more: Any,
) -> Event | None:
    """Add an event, or count it on the last one kept when `KEEP` of this kind about `about` are there already.

    Floods (corrected PCIe errors, channel resets) run to tens of thousands of lines.  The last kept event carries `repeats`,
    `last_line` and `last_seconds` (`Stamp.seconds`) of what was left out.
    """
    key = f"kept|{kind}|{about}"
    kept: list[Any] = context.state.setdefault(key, [0, None])
    kept[0] += 1
    if kept[0] > KEEP:
        last: Event = kept[1]
        last.fields["repeats"] = kept[0] - KEEP
        last.fields["last_line"] = line.number
        if line.stamp is not None:
            last.fields["last_seconds"] = line.stamp.seconds
        return None
    if len(context.state) > 20_000:
        return None
    more.setdefault("host", host_of(line))
    event = rows.event(line, kind, severity, fields={k: v for k, v in (fields or {}).items() if v is not None}, **more)
    kept[1] = event
    return event
