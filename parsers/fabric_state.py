"""State of network and PCIe links: `ibstat`, `ibstatus`, `ibv_devinfo`, and `lspci -vv`.

Events: `ib_port` (fields `device`, `port`, `state`, `physical`, `rate` in Gb/s, `layer`), `lspci_link` (fields `pci`, `speed`, `width`,
`width_cap`, `downgraded`), `lspci_acs` (fields `pci`, `redirect`: whether the bridge sends peer traffic up to the root).
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.nvidia_smi import canonical_pci
from parsers.snapshots import number

MAX_PORTS = 64

_STATE = lazy(
    r"(?i)(?:\d: )?(?:PORT_)?(?P<state>ACTIVE|DOWN|INIT(?:IALIZING)?|ARMED|ACTIVE_DEFER|LINKUP|DISABLED|POLLING|SLEEP|LINKERRORRECOVERY)"
)
_WORDS = {"INIT": "Initializing", "INITIALIZING": "Initializing", "LINKUP": "LinkUp", "LINKERRORRECOVERY": "LinkErrorRecovery"}


def _word(text: str) -> str:
    found = _STATE.search(text[:80])
    return _WORDS.get(found["state"].upper(), found["state"].capitalize()) if found else ""


def _emit(rows: Rows, line: Line | None, port: dict[str, Any]) -> None:
    if line is None or not port.get("state"):
        return
    bad = port["state"] != "Active"
    rows.event(line, "ib_port", "warning" if bad else "info", fields=dict(port))


def _ports(line: Line, rows: Rows, context: Context) -> None:
    """One adapter: its ports, each begun by a line `port: 1` or `Port 1:`."""
    text = line.text[:200]
    found = (
        re.match(r"\ACA '(?P<device>[\w.-]{1,40})'", text)
        or re.match(r"\Ahca_id:\s{1,8}(?P<device>[\w.-]{1,40})", text)
        or re.match(r"\AInfiniband device '(?P<device>[\w.-]{1,40})' port (?P<port>\d{1,3}) status:", text)
    )
    if found is None:
        return
    port: dict[str, Any] = {"device": found["device"], "port": int(found.groupdict().get("port") or 1)}
    at: Line | None = line if "port" in found.groupdict() else None
    for near in context.following(80):
        content = near.text[:200].strip()
        if content.startswith(("CA '", "hca_id:", "Infiniband device '")):
            break
        if begin := re.match(r"(?:Port (\d{1,3}):|port:\s{1,8}(\d{1,3}))\Z", content):
            _emit(rows, at, port)
            port = {"device": found["device"], "port": int(begin[1] or begin[2])}
            at = None
            continue
        key, _, value = content.partition(":")
        key, value = key.strip().lower(), value.strip()
        if key == "state":
            port["state"] = _word(value)
            at = near
        elif key in ("physical state", "phys state", "phys_state"):
            port["physical"] = _word(value)
        elif key == "rate" and (rate := number(value)) is not None:
            port["rate"] = rate
        elif key in ("link layer", "link_layer"):
            port["layer"] = value[:20]
    _emit(rows, at, port)


# ------------------------------------------------------------------------------------------------------------- lspci

_DEVICE = lazy(r"\A(?P<pci>(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s{1,4}(?P<what>[A-Z0-9][^:\n]{2,60})(?: \[\w{4}\])?:")
_ASKED = lazy(r"lspci[^\n]{0,60}? -s ?(?P<pci>(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_LINK = lazy(r"Speed (?P<speed>\d{1,3}(?:\.\d)?)GT/s(?P<slow> \(downgraded\))?, Width x(?P<width>\d{1,2})(?P<narrow> \(downgraded\))?")


def _device(context: Context, limit: int = 60) -> tuple[str | None, str, float | None]:
    """(PCI id, kind of device, width the link is capable of) from the lines above."""
    cap: float | None = None
    for near in context.preceding(limit):
        text = near.text[:300]
        if cap is None and "LnkCap:" in text and (found := re.search(r"Width x(\d{1,2})", text)):
            cap = float(found[1])
        if device := _DEVICE.match(text):
            return canonical_pci(device["pci"]), device["what"], cap
        if asked := _ASKED.search(text):
            return canonical_pci(asked["pci"]), "", cap
    return None, "", cap


def _lspci(line: Line, rows: Rows, context: Context) -> None:
    text = line.text[:300]
    if "ACSCtl:" in text:
        pci, what, _ = _device(context)
        # Request or completion redirect sends peer traffic up to the root complex: direct transfers fail or crawl.
        redirect = "ReqRedir+" in text or "CmpltRedir+" in text
        rows.event(line, "lspci_acs", "info", gpu=None, fields={"pci": pci, "device": what, "redirect": redirect})
        return
    found = _LINK.search(text)
    if found and "LnkSta:" in text:
        pci, what, cap = _device(context)
        if not re.search(r"(?i)3D controller|VGA|network|infiniband|ethernet|processing accel", what):
            return
        width = float(found["width"])
        narrow = bool(found["narrow"]) or (cap is not None and width < cap)
        fields = {"pci": pci, "device": what, "speed": float(found["speed"]), "width": width, "width_cap": cap, "downgraded": narrow}
        rows.event(line, "lspci_link", "warning" if narrow else "info", fields=fields)


PARSER = (
    LineParser("ib ports", ("CA '", "hca_id:", "Infiniband device '"), _ports),
    LineParser("lspci", ("LnkSta:", "ACSCtl:"), _lspci),
)
