"""`nvidia-smi -q`: the tree of every GPU (names of driver 418 to 590).

One sample per GPU, its processes as `compute_app`, and an event `gpu_health` for each item that is not as it should be; fields:
`what` (recovery, remap_pending, remap_failure, ecc_uncorrected, sram_threshold, channel_repair, tpc_repair, unrepairable, retired_pending,
fabric, link_width, link_generation), `value`, `pci`, and for links `maximum`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forensics.stamps import find_stamp
from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.nvidia_smi import canonical_pci
from parsers.nvidia_smi_views import emit_app
from parsers.snapshots import add_samples, number, once

MAX_LINES = 30_000  # 16 GPUs print about 6,000
MAX_GPUS = 64

_LEAF = lazy(r"(?P<indent>\s{0,40})(?P<key>[A-Za-z][^:\n]{0,60}?)\s{0,60}: ?(?P<value>[^\n]{0,200}?)\s{0,4}\Z")
_HEAD = lazy(r"(?P<indent>\s{0,40})(?P<key>[A-Z][^:\n]{0,60}?)\s{0,4}\Z")
_GPU = lazy(r"\AGPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s{0,4}\Z")
# Reason -> bit of the mask (NVML's clocks event reasons).
_REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
    "Display Clock Setting": 0x100,
}
_FINE = frozenset({"no", "none", "n/a", "0", "", "false", "[n/a]", "not supported"})
# End of the dotted path -> what it says.
_HEALTH = (
    ("GPU Recovery Action", "recovery"),
    ("Remapped Rows/Pending", "remap_pending"),
    ("Remapped Rows/Remapping Failure Occurred", "remap_failure"),
    ("SRAM Threshold Exceeded", "sram_threshold"),
    ("Channel Repair Pending", "channel_repair"),
    ("TPC Repair Pending", "tpc_repair"),
    ("Unrepairable Memory", "unrepairable"),
    ("Retired Pages/Pending Page Blacklist", "retired_pending"),
    ("Retired Pages/Pending", "retired_pending"),
)


def leaves(lines: Iterator[Line]) -> Iterator[tuple[Line, str, str]]:
    """(line, path with `/`, value) of an indented `key : value` tree; a head line `GPU <bus>` gives the path `GPU` and the bus."""
    path: list[tuple[int, str]] = []
    for line in lines:
        text = line.text[:300]
        if bus := _GPU.match(text):
            path.clear()
            yield line, "GPU", bus["bus"]
            continue
        leaf = _LEAF.match(text)
        if leaf is None:
            head = _HEAD.match(text)
            if head is not None:
                depth = len(head["indent"].expandtabs(4))
                while path and path[-1][0] >= depth:
                    path.pop()
                path.append((depth, head["key"].strip()))
            continue
        depth = len(leaf["indent"].expandtabs(4))
        while path and path[-1][0] >= depth:
            path.pop()
        yield line, "/".join([name for _, name in path] + [leaf["key"].strip()]), leaf["value"]
        if not leaf["value"] and len(path) < 12:
            path.append((depth, leaf["key"].strip()))


def _until_end(context: Context) -> Iterator[Line]:
    empty = 0
    for line in context.following(MAX_LINES):
        if "NVSMI LOG" in line.text:
            return
        empty = 0 if line.text.strip() else empty + 1
        if empty > 3 or line.text.startswith("____"):
            return
        yield line


def _parse(line: Line, rows: Rows, context: Context) -> None:
    at, cards, card = line, [], {}  # type: ignore[var-annotated]
    process: dict[str, str] = {}
    for near, path, value in leaves(_until_end(context)):
        if path == "GPU":
            if len(cards) >= MAX_GPUS:
                break
            card = {"gpu": str(len(cards)), "pci": canonical_pci(value), "line": near.number, "throttle": None, "ends": {}}
            cards.append(card)
            continue
        name = path.rsplit("/", 1)[-1]
        if not cards:
            if name == "Timestamp" and (stamp := find_stamp(value)):
                at = Line(near.source, near.number, near.text, near.full, near.rank, near.host, near.pid, stamp=stamp)
            elif name == "Driver Version":
                once(rows, context, near, "version.driver", value)
            elif name == "CUDA Version" and value[:1].isdigit():
                once(rows, context, near, "version.cuda_driver", value)
            elif name == "Attached GPUs" and value.isdigit() and len(value) < 4:
                once(rows, context, near, "gpu.count", int(value))
            continue
        if name == "Product Name":
            once(rows, context, near, "gpu.name", value)
        elif name == "Minor Number" and value.isdigit():
            card["gpu"] = str(int(value)) if len(value) < 4 else card["gpu"]
        elif name == "Process ID":
            process = {"pid": value}
        elif process and name == "Name":
            process["name"] = value
        elif process and name == "Used GPU Memory":
            memory = number(value)
            if memory is not None and process["pid"].isdigit() and len(process["pid"]) < 10:
                emit_app(near, rows, card["gpu"], int(process["pid"]), process.get("name", ""), memory)
            process = {}
        else:
            _reading(near, path, value, card)
    for card in cards:
        _judge(rows, card)
    if cards:
        keep = {"gpu", "pci", "line", "throttle", "memory_used", "memory_total", "utilization", "temperature", "memory_temperature", "power",
                "power_limit", "sm_clock", "ecc_uncorrected", "ecc_corrected", "pcie_gen", "pcie_width"}  # fmt: skip
        add_samples(rows, [{key: value for key, value in card.items() if key in keep} for card in cards], at)


def _reading(line: Line, path: str, value: str, card: dict[str, Any]) -> None:
    parts = path.split("/")
    name, parent = parts[-1], parts[-2] if len(parts) > 1 else ""
    amount = number(value)
    for end, what in _HEALTH:
        if path.endswith(end):
            card["ends"].setdefault(what, (line, value))
            return
    if parent == "FB Memory Usage" and name in ("Used", "Total") and amount is not None:
        card[f"memory_{name.lower()}"] = amount
    elif name in ("Gpu", "GPU") and parent == "Utilization" and amount is not None:
        card["utilization"] = amount
    elif name == "GPU Current Temp" and amount is not None:
        card["temperature"] = amount
    elif name == "Memory Current Temp" and amount is not None:
        card["memory_temperature"] = amount
    elif name in ("Power Draw", "Instantaneous Power Draw", "Average Power Draw") and "GPU" in path and amount is not None:
        card.setdefault("power", amount)
    elif name in ("Power Limit", "Current Power Limit") and amount is not None and "Module" not in path:
        card.setdefault("power_limit", amount)
    elif name == "SM" and parent == "Clocks" and amount is not None:
        card["sm_clock"] = amount
    elif parent in ("Clocks Event Reasons", "Clocks Throttle Reasons") or (name in _REASONS and "Reasons" in path):
        bit = _REASONS.get(name, 0)
        card["throttle"] = (card["throttle"] or 0) | (bit if value == "Active" else 0)
    elif "Volatile" in parts and amount is not None:
        _count(line, name, parent, amount, card)
    elif parent in ("PCIe Generation", "Link Width"):
        card["ends"].setdefault(f"{parent}/{name}", (line, value))
    elif name == "Replays Since Reset" and amount:
        card["ends"].setdefault("replays", (line, value))
    elif parent == "Fabric" and name in ("State", "Status"):
        card["ends"].setdefault(f"Fabric/{name}", (line, value))


def _count(line: Line, name: str, parent: str, amount: float, card: dict[str, Any]) -> None:
    """Volatile error counts; a total given as such (up to driver 450) stands for its parts."""
    if "Uncorrectable" in name or (parent == "Double Bit" and name == "Total"):
        card["ecc_uncorrected"] = card.get("ecc_uncorrected", 0.0) + amount
        if amount:
            card["ends"].setdefault("ecc_uncorrected", (line, f"{amount:g}"))
    elif "Correctable" in name or (parent == "Single Bit" and name == "Total"):
        card["ecc_corrected"] = card.get("ecc_corrected", 0.0) + amount


def _health(rows: Rows, card: dict[str, Any], line: Line, what: str, value: Any, **more: Any) -> None:
    fields = {"what": what, "value": value, "pci": card["pci"], "view": "query", **more}
    rows.event(line, "gpu_health", "warning", gpu=card["gpu"], fields=fields)


def _judge(rows: Rows, card: dict[str, Any]) -> None:
    ends = card["ends"]
    for what in dict.fromkeys([what for _, what in _HEALTH] + ["ecc_uncorrected"]):
        if what in ends and ends[what][1].lower() not in _FINE:
            _health(rows, card, ends[what][0], what, ends[what][1])
    state, status = ends.get("Fabric/State"), ends.get("Fabric/Status")
    if state and state[1] in ("In Progress", "Not Started"):
        _health(rows, card, state[0], "fabric", state[1])
    elif state and status and state[1] == "Completed" and status[1] not in ("Success", "N/A", ""):
        _health(rows, card, status[0], "fabric", status[1])
    width = ends.get("Link Width/Current")
    if width and (now := number(width[1])) is not None:
        card["pcie_width"] = now
        most = number(ends.get("Link Width/Max", ("", ""))[1])
        if most and now < most:
            _health(rows, card, width[0], "link_width", f"{now:g}", maximum=most)
    speed = ends.get("PCIe Generation/Current") or ends.get("PCIe Generation/Device Current")
    if speed and (now := number(speed[1])) is not None:
        card["pcie_gen"] = now
        most = number(ends.get("PCIe Generation/Max", ("", ""))[1])
        # An idle card lowers its link speed; only a working one shows a fault.
        if most and now < most and (card.get("utilization") or 0) >= 50:
            _health(rows, card, speed[0], "link_generation", f"{now:g}", maximum=most)


PARSER = LineParser("nvidia-smi -q", ("===NVSMI LOG===",), _parse)
