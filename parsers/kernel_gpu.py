"""Kernel lines of the NVIDIA and AMD drivers: Xid, SXid, adapter start-up, GSP firmware, version mismatch, resets.

Wordings: open-gpu-kernel-modules 535..595 (kernel_rc.c, osinit.c, osapi.c, kernel_gsp.c, common_nvswitch.h) and the proprietary
390..590 drivers; fabric-manager logs 5xx; amdgpu of Linux 5.15..6.12.

Events: `xid` (code, pci, pid, name, rest, caused_by, action, mig; unit, link, fatal, status for 144..150), `sxid` (code, fatal,
pci, link, switch), `gpu_lost`, `rm_init_failed`, `gsp_timeout`, `driver_mismatch`, `reset_required`, `gpu_identity` (pci, uuid,
serial), `nvlink_setup`, `uvm_fatal`, `amdgpu_fault`.  Facts: `version.driver`, `gpu.uuid.<pci>`.
"""

from __future__ import annotations

from typing import Any

import regex

from parsers.base import Context, Line, LineParser, Rows, Severity, lazy_regex
from parsers.kernel_text import canonical_pci, emit, number

XID = lazy_regex(
    r"Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?: GPU-I:(?P<gi>\d+))?(?: GPU-CI:(?P<ci>\d+))?\): (?P<code>\d{1,4})\b,? ?"
    r"(?:pid='?(?P<pid>\d+|<unknown>|<unavailable>)'?,? ?)?(?:name=(?P<name><unknown>|<unavailable>|[^,]{1,64}),? ?)?(?P<rest>.*)"
)
CAUSED_BY = lazy_regex(r"caused by previous Xid (?P<code>\d{1,4})")
RECOVERY = lazy_regex(r"recovery action changed from 0x[0-9a-f]+ \([^)]*\) to (?P<id>0x[0-9a-f]+) \((?P<name>[^)]*)\)")
NVLINK5 = lazy_regex(
    r"(?P<unit>[A-Z][A-Z0-9_]+) (?P<severity>Non-?fatal|Fatal) XC(?P<xc>\d+) i(?P<instance>\d+) Link (?P<link>-?\d+) \((?P<info>0x[0-9a-f]+) (?P<status>0x[0-9a-f]+)",
    regex.IGNORECASE,
)
MMU = lazy_regex(r"MMU Fault: ENGINE (?P<engine>\w+) (?P<client>(?:GPC\d+ )?\w+) faulted @ (?P<address>0x[0-9a-f_]+)")
SM = lazy_regex(r"\(GPC (?P<gpc>\d+), TPC (?P<tpc>\d+)(?:, SM (?P<sm>\d+))?\)")
SXID = lazy_regex(
    r"(?P<switch>nvswitch\d+|NVSwitch\S*): SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d{4,6}),? ?"
    r"(?:(?P<severity>Fatal|Non-fatal),? ?)?(?:Link (?P<link>-?\d+) ?)?(?P<rest>.*)"
)
FABRIC = lazy_regex(
    r"detected NVSwitch (?P<severity>fatal|non-fatal) error (?P<code>\d{4,6}) on fid:? ?(?P<fid>\d+)(?: on NVSwitch)? pci bus id:? ?(?P<pci>[0-9a-fA-F:.]+)"
    r"(?: physical id:? ?(?P<physical>\d+))?(?: port:? ?(?P<link>\d+))?"
)
LOST = lazy_regex(r"NVRM: (?:GPU (?:at PCI:)?(?P<pci>[0-9a-fA-F:.]+): )?(?:GPU has )?fallen off the bus")
RM_INIT = lazy_regex(
    r"NVRM: (?:GPU (?P<pci>[0-9a-fA-F:.]+): )?(?:RmInitAdapter failed! \((?P<step>[^)]{1,60})\)|rm_init_adapter failed\D{0,40}(?P<minor>\d+))"
)
NO_GPU = lazy_regex(
    r"NVRM: (?:No NVIDIA GPU found|None of the NVIDIA devices were initialized|No NVIDIA devices probed|The NVIDIA probe routine (?:failed|was not called) for \d+ device"
    r"|This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d is 0M)"
)
PROBE = lazy_regex(r"NVRM: The NVIDIA GPU (?P<pci>[0-9a-fA-F:.]+)")
HEARTBEAT = lazy_regex(r"NVRM: (?:GPU(?P<gpu>\d+) )?\w*[Hh]eartbeat\w*:? ?[^\n]{0,80}timed out")
GSP_LIMIT = lazy_regex(r"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:(?P<pci>[0-9a-fA-F:.]+)")
MISMATCH = lazy_regex(
    r"NVRM: API mismatch: the client (?:'?(?P<comm>[^'(]{0,40})'? ?\(pid (?P<pid>\d+)\)|has the version (?P<client>[\d.]+))"
)
VERSION_TAIL = lazy_regex(
    r"NVRM:\s+(?:has the version (?P<client>\d[\d.]+)|the version (?P<kernel>\d[\d.]+)|this kernel module has the version (?P<module>\d[\d.]+))"
)
LOADING = lazy_regex(
    r"NVRM: loading NVIDIA UNIX (?P<flavor>Open Kernel Module for )?\S+\s+(?:Kernel Module\s+)?(?P<version>\d+\.\d+(?:\.\d+)?)"
)
IDENTITY = lazy_regex(r"NVRM: GPU at PCI:(?P<pci>[0-9a-fA-F:.]+): (?P<uuid>GPU-[0-9a-fA-F-]{36})")
SERIAL = lazy_regex(r"NVRM: (?:GPU (?P<pci>[0-9a-fA-F:.]+): GPU serial number is|GPU Board Serial Number:) ?(?P<serial>\w[\w-]{5,30})")
UVM = lazy_regex(r"nvidia-uvm: [^\n]{0,120}global fatal error: (?P<error>[^\n]{1,120})")
NVLINK_SETUP = lazy_regex(
    r"NVRM: (?:knvlinkUpdatePostRxDetectLinkMask_\w+: Failed|knvlinkDiscoverPostRxDetLinks_\w+: Getting peer)"
    r"|failed to find the member GPU handle \S+ in the multicast team setup request"
)
AMD = lazy_regex(
    r"amdgpu (?P<pci>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]): (?:amdgpu: )?(?:\{\d+\})?(?P<what>GPU reset begin|GPU reset\(\d+\) (?:succeeded|failed)"
    r"|ring \S+ timeout|GPU fault detected|\[\w+\] (?:no-retry |retry )?page fault|HW Exception|MODE1 reset|GPU mode1 reset"
    r"|(?:socket: \d+, )?(?:die: \d+,? )?\d+ (?:new )?uncorrectable hardware errors? detected in (?P<block>\w+) block)"
)
AMD_PLAIN = lazy_regex(r"\[drm:amdgpu_job_timedout[^\]]{0,40}\]\s*\*ERROR\* ring (?P<ring>\S+) timeout")

# Codes that can be causes: literals of their own, so that a storm of teardown lines does not thin them out.
CAUSES = (
    13,
    31,
    46,
    48,
    54,
    57,
    58,
    62,
    63,
    64,
    74,
    79,
    80,
    94,
    95,
    109,
    119,
    120,
    136,
    140,
    *range(143, 151),
    158,
    167,
    171,
    172,
    173,
    175,
)


def _xid(line: Line, rows: Rows, context: Context, found: regex.Match[str]) -> None:
    code = int(found["code"])
    rest = found["rest"][:600]
    fields: dict[str, Any] = {"code": code, "pci": canonical_pci(found["pci"]), "name": found["name"], "rest": rest}
    if fields["name"] in ("<unknown>", "<unavailable>"):
        fields["name"] = None
    if found["gi"] is not None:
        fields["mig"] = found["gi"]
    cause = CAUSED_BY.search(rest)
    if cause:
        fields["caused_by"] = int(cause["code"])
    action = RECOVERY.search(rest)
    if action:
        fields["action"] = action["name"]
    link = NVLINK5.search(rest) if 144 <= code <= 150 else None
    if link:
        fields |= {"unit": link["unit"].upper(), "fatal": link["severity"].lower() == "fatal", "link": int(link["link"])}
        fields |= {"status": int(link["status"], 16), "info": int(link["info"], 16)}
    place = MMU.search(rest)
    if place:
        fields |= {"engine": place["engine"], "client": place["client"]}
    sm = SM.search(rest)
    if sm:
        fields["unit"] = f"GPC {sm['gpc']} TPC {sm['tpc']}" + (f" SM {sm['sm']}" if sm["sm"] else "")
    pid = number(found["pid"])
    emit(line, rows, context, "xid", "error", f"{code} {found['pci']} {pid}", fields, gpu=found["pci"], pid=pid)


def _sxid(line: Line, rows: Rows, context: Context, found: regex.Match[str], reporter: str) -> None:
    severity = found["severity"]
    key = f"sxid|{found['code']}|{found['pci']}"
    if severity is None and context.state.get(key):
        return  # the 2nd and 3rd line of one event: "Severity …", "Data {…}"
    context.state[key] = True
    fatal = None if severity is None else severity.lower() == "fatal"
    fields: dict[str, Any] = {
        "code": int(found["code"]),
        "fatal": fatal,
        "pci": canonical_pci(found["pci"].rstrip(".:")),
        "link": number(found["link"]),
    }
    fields["reporter"] = reporter
    named = found.groupdict()
    fields["rest"] = (named.get("rest") or "")[:300]
    fields["switch"] = named.get("switch") or named.get("physical")
    level: Severity = "fatal" if fatal else "warning"
    emit(line, rows, context, "sxid", level, found["code"], fields)


def _mismatch(line: Line, rows: Rows, context: Context, found: regex.Match[str]) -> None:
    fields: dict[str, Any] = {"comm": (found["comm"] or "").strip() or None, "client": found["client"]}
    for below in context.following(3):
        tail = VERSION_TAIL.search(below.text)
        if not tail:
            continue
        fields["client"] = fields.get("client") or tail["client"]
        fields["module"] = fields.get("module") or tail["kernel"] or tail["module"]
    emit(line, rows, context, "driver_mismatch", "error", str(fields["comm"]), fields, pid=number(found["pid"]))


def _probe(line: Line, rows: Rows, context: Context, found: regex.Match[str]) -> None:
    """The driver's text on a GPU it cannot take stands on three lines; the last says why."""
    text = line.text + " " + " ".join(below.text for below in context.following(4) if "NVRM" in below.text)
    pci = found["pci"].rstrip(".:")
    if "fallen off the bus" in text:
        context.state["probed"] = line.number
        emit(line, rows, context, "gpu_lost", "fatal", pci, {"pci": canonical_pci(pci), "when": "probe"}, gpu=pci)
    elif "not supported by" in text or "requires a" in text:
        emit(line, rows, context, "driver_mismatch", "error", pci, {"pci": canonical_pci(pci), "unsupported": True}, gpu=pci)


def _nvrm(line: Line, rows: Rows, context: Context) -> bool:
    text = line.text
    found = LOADING.search(text)
    if found:
        rows.fact(line, "version.driver", found["version"])
        rows.fact(line, "driver.flavor", "open" if found["flavor"] else "proprietary")
        return True
    found = IDENTITY.search(text)
    if found:
        pci = canonical_pci(found["pci"])
        rows.fact(line, f"gpu.uuid.{pci}", found["uuid"])
        emit(line, rows, context, "gpu_identity", "info", found["pci"], {"pci": pci, "uuid": found["uuid"]}, gpu=found["pci"])
        return True
    found = SERIAL.search(text)
    if found:
        pci = canonical_pci(found["pci"].rstrip(".:")) if found["pci"] else None
        emit(line, rows, context, "gpu_identity", "info", found["serial"], {"pci": pci, "serial": found["serial"]}, gpu=found["pci"])
        return True
    found = LOST.search(text)
    if found and "The NVIDIA GPU" not in text:
        pci = (found["pci"] or "").rstrip(".:")
        if not pci and line.number - context.state.get("probed", -9) <= 4:
            return True  # the last line of a text that was read from its first
        emit(line, rows, context, "gpu_lost", "fatal", pci, {"pci": canonical_pci(pci)}, gpu=pci or None)
        return True
    found = RM_INIT.search(text)
    if found:
        pci = (found["pci"] or "").rstrip(".:")
        fields = {"pci": canonical_pci(pci), "step": found["step"], "minor": number(found["minor"])}
        emit(line, rows, context, "rm_init_failed", "error", pci, fields, gpu=pci or None)
        return True
    if NO_GPU.search(text):
        emit(line, rows, context, "rm_init_failed", "error", "none", {"none": True})
        return True
    found = HEARTBEAT.search(text)
    if found:
        emit(line, rows, context, "gsp_timeout", "error", "", {"instance": number(found["gpu"]), "what": "heartbeat"})
        return True
    found = GSP_LIMIT.search(text)
    if found:
        emit(
            line, rows, context, "gsp_timeout", "error", "", {"pci": canonical_pci(found["pci"]), "what": "rate limited"}, gpu=found["pci"]
        )
        return True
    if "NV_ERR_RESET_REQUIRED" in text:
        emit(line, rows, context, "reset_required", "error", "", {})
        return True
    return False


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    found = XID.search(text) if "Xid (" in text and "SXid (" not in text else None
    if found:
        _xid(line, rows, context, found)
        return
    found = SXID.search(text) if "SXid (" in text else None
    if found:
        _sxid(line, rows, context, found, "kernel")
        return
    found = FABRIC.search(text) if "detected NVSwitch" in text else None
    if found:
        _sxid(line, rows, context, found, "fabric-manager")
        return
    found = MISMATCH.search(text)
    if found:
        _mismatch(line, rows, context, found)
        return
    found = PROBE.search(text)
    if found:
        _probe(line, rows, context, found)
        return
    if "NVRM" in text and _nvrm(line, rows, context):
        return
    found = UVM.search(text)
    if found:
        emit(line, rows, context, "uvm_fatal", "fatal", found["error"][:60], {"error": found["error"]})
        return
    if NVLINK_SETUP.search(text):
        emit(line, rows, context, "nvlink_setup", "warning", "", {})
        return
    found = AMD.search(text)
    if found:
        what = found["what"]
        fields = {"pci": canonical_pci(found["pci"]), "what": what[:80], "block": found["block"]}
        emit(line, rows, context, "amdgpu_fault", "error", what[:20], fields, gpu=found["pci"])
        return
    found = AMD_PLAIN.search(text)
    if found:
        emit(line, rows, context, "amdgpu_fault", "error", "ring", {"what": f"ring {found['ring']} timeout"})


PARSER = LineParser(
    name="kernel_gpu",
    kind="kernel",
    triggers=(
        "Xid (",
        *(f"): {code}, " for code in CAUSES),
        "detected NVSwitch ",
        "NVRM: API mismatch",
        "NVRM: The NVIDIA GPU ",
        "fallen off the bus",
        "NVRM: loading NVIDIA UNIX",
        "NVRM: GPU at PCI:",
        "GPU serial number is",
        "GPU Board Serial Number:",
        "RmInitAdapter failed",
        "rm_init_adapter failed",
        "NVRM: No NVIDIA",
        "NVRM: None of the NVIDIA",
        "NVRM: The NVIDIA probe",
        "NVRM: This PCI I/O region",
        "NVRM: BAR",
        "eartbeat",
        "NVRM: Rate limiting GSP RPC",
        "NV_ERR_RESET_REQUIRED",
        "global fatal error: ",
        "knvlinkUpdatePostRxDetectLinkMask",
        "knvlinkDiscoverPostRxDetLinks",
        "in the multicast team setup request",
        "GPU reset",
        " hardware errors detected in ",
        "amdgpu_job_timedout",
        " timeout, signaled seq=",
        "MODE1 reset",
        "mode1 reset",
    ),
    parse=_parse,
)
