"""Kernel lines about the host: boots, panics, lock-ups, hung tasks, crashes of processes, machine checks, PCIe, disks,
file systems, network and InfiniBand, temperature.

Wordings: Linux 3.10 to 6.18, Lustre 2.12..2.16 client, mlx5_core and ice drivers, GPFS daemon lines, RHEL/Ubuntu kernels.

Every event of this module has kind and fields as its form in `parsers.kernel_forms` says.  The floods among them (corrected PCIe and memory errors) are
counted on the last event kept, see `kernel_text.emit`.  Facts: `version.kernel`, `kernel.command_line`.
"""

from __future__ import annotations

from typing import Any

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.kernel_forms import FORMS, NUMBERS, VIRTUAL, Form
from parsers.kernel_text import canonical_pci, emit, number

RESTART = 60.0  # seconds a monotonic stamp may go back before it is a new boot (out-of-order printk is milliseconds)
BANNER = lazy_regex(r"Linux version (?P<release>\d\S{2,80}) \(")
COMMAND = lazy_regex(r"(?:Kernel c|C)ommand line: (?P<line>[^\n]{1,1500})")
REBOOT = lazy_regex(r"-- (?:Reboot|Boot [0-9a-f]{32}) --")

BY_TRIGGER: dict[str, list[Form]] = {}
for _item in FORMS:
    for _trigger in _item.triggers:
        BY_TRIGGER.setdefault(_trigger, []).append(_item)


def _boots(text: str) -> bool:
    """Whether a command line is a kernel's."""
    return any(word in text for word in ("BOOT_IMAGE=", "root=", "console=", "initrd="))


def _is_banner(line: Line, context: Context) -> bool:
    """Whether the line is a boot's first: by its wrapper, its stamp near zero, or the command line printed right below it."""
    if " kernel: " in line.full or (line.stamp is not None and line.stamp.mono and not line.inherited and line.stamp.seconds < 10):
        return True
    return any("ommand line: " in below.text and _boots(below.text) for below in context.following(6))


def _boot(line: Line, rows: Rows, context: Context) -> bool:
    found = BANNER.search(line.text)
    if found:
        rows.fact(line, "version.kernel", found["release"])
        state = context.state
        if not _is_banner(line, context):
            return True  # /proc/version in an environment dump
        if line.number - state.get("boot_line", -1000) > 50:
            emit(
                line,
                rows,
                context,
                "boot",
                "warning",
                "",
                {"release": found["release"], "how": "banner", "first": line.number <= 3 and not state.get("marked")},
            )
        state["boot_line"] = line.number
        if line.stamp is not None and line.stamp.mono:
            state["mono"] = line.stamp.seconds
        return True
    found = COMMAND.search(line.text)
    if found and _boots(found["line"]):
        rows.fact(line, "kernel.command_line", found["line"].strip())
        return True
    if REBOOT.search(line.text):
        if any("Linux version " in below.text for below in context.following(12)):
            context.state["marked"] = line.number > 1
            return True  # the banner below has the boot's own time
        if line.number - context.state.get("boot_line", -1000) > 50:
            emit(line, rows, context, "boot", "warning", "", {"how": "marker", "first": line.number <= 1})
        context.state["boot_line"] = line.number
        return True
    return False


def _restart(line: Line, rows: Rows, context: Context) -> None:
    """A monotonic stamp that goes back by much is a boot nobody announced."""
    stamp = line.stamp
    if stamp is None or not stamp.mono or line.inherited:
        return
    before = context.state.get("mono")
    if before is not None and stamp.seconds < before - RESTART and line.number - context.state.get("boot_line", -1000) > 50:
        emit(line, rows, context, "boot", "warning", "", {"how": "stamps restart", "first": False})
        context.state["boot_line"] = line.number
    context.state["mono"] = stamp.seconds


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if ("ommand line: " in text or "Linux version " in text or "-- " in text) and _boot(line, rows, context):
        return
    for trigger, forms in BY_TRIGGER.items():
        if trigger not in text:
            continue
        for form in forms:
            found = form.pattern.search(text)
            if found:
                _restart(line, rows, context)
                _add(line, rows, context, form, found)
                return


def _add(line: Line, rows: Rows, context: Context, form: Form, found: regex.Match[str]) -> None:
    fields: dict[str, Any] = {k: v.strip() for k, v in found.groupdict().items() if v is not None}
    for twin in ("pid", "comm"):
        if f"{twin}2" in fields:
            fields[twin] = fields.pop(f"{twin}2")
    fields |= dict(form.extra)
    for name in NUMBERS & fields.keys():
        fields[name] = number(str(fields[name]))
    if form.kind == "nic_link" and fields["device"].startswith(VIRTUAL):
        return  # container plumbing goes up and down all day
    severity = form.severity
    if form.finish is not None:
        severity = form.finish(line, context, fields) or severity
    about = (
        f"{severity} {fields.get('state', '')} "
        + str(fields.get("device") or fields.get("dev") or fields.get("server") or fields.get("pci") or "")[:60]
    )
    if "pci" in fields:
        fields["pci_text"] = fields["pci"]
        fields["pci"] = canonical_pci(fields["pci"])
    emit(line, rows, context, form.kind, severity, about, fields, pid=fields.get("pid"))


PARSER = LineParser(
    name="kernel_log",
    kind="kernel",
    triggers=(*BY_TRIGGER, "Linux version ", "ommand line: ", "-- Reboot --", "-- Boot "),
    parse=_parse,
)
