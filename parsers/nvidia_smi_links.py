"""How the GPUs of a host are connected: `nvidia-smi topo -m` and `nvidia-smi nvlink -s` (or `--status`).

topo: event `gpu_topology`, fields `cards` (number), `links` ({"0-1": "NV18"}), `nics`, `kind` (fastest class: NVLink, PIX, PXB, PHB, NODE,
SYS), `uneven` (pairs whose number of NVLinks is lower than that of most); fact `gpu.topology`.
nvlink: event `nvlink_state` per GPU: `active`, `inactive` (link numbers), `speed` (GB/s).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from parsers.base import Context, Line, LineParser, Rows, lazy
from parsers.snapshots import once

MAX_CARDS = 64
ORDER = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")  # fastest first

_CELL = lazy(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|X")


def _columns(text: str) -> list[str]:
    """Names of a header row: GPU0 … and NICs, up to the affinity columns."""
    names = []
    for cell in re.split(r"\t|\s{2,40}", text.strip()[:4000]):
        name = cell.strip()
        if not re.fullmatch(r"GPU\d{1,3}|NIC\d{1,3}|mlx\d_\d{1,3}|(?:rdma|bnxt_re|efa|rocep?|ibp|irdma)\w{0,20}", name):
            break
        names.append(name)
    return names


def _topo(line: Line, rows: Rows, context: Context) -> None:
    columns = _columns(line.text)
    cards = [name for name in columns if name.startswith("GPU")]
    if not 1 <= len(cards) <= MAX_CARDS or ("Affinity" not in line.text and len(columns) < 2):
        return
    links: dict[str, str] = {}
    read = 0
    for near in context.following(len(columns) + 4):
        cells = near.text.split()
        if not cells or cells[0] not in columns:
            if read:
                break
            continue
        read += 1
        if not cells[0].startswith("GPU"):
            continue
        for name, cell in zip(columns, cells[1:], strict=False):
            if _CELL.fullmatch(cell) is None:
                break
            if name.startswith("GPU") and int(name[3:]) > int(cells[0][3:]):
                links[f"{cells[0][3:]}-{name[3:]}"] = "SYS" if cell == "SOC" else cell
    if not links:
        return
    classes = [cell.rstrip("0123456789") for cell in links.values()]
    kind = next((name for name in ORDER if name in classes), "")
    bonds = {pair: int(cell[2:]) for pair, cell in links.items() if cell.startswith("NV")}
    usual = max(Counter(bonds.values()).items(), key=lambda item: (item[1], item[0]))[0] if bonds else 0
    uneven = {pair: count for pair, count in bonds.items() if count < usual}
    # A pair without NVLink among cards that all have some: only where nearly every pair has one (no cube mesh, no bridges in pairs).
    if bonds and len(bonds) >= 0.7 * len(links):
        uneven |= {pair: 0 for pair, cell in links.items() if not cell.startswith("NV")}
    fields: dict[str, Any] = {
        "cards": len(cards),
        "links": links,
        "nics": len(columns) - len(cards),
        "kind": "NVLink" if kind == "NV" else kind,
        "uneven": uneven if len(uneven) < 0.5 * len(links) else {},
        "usual": usual,
    }
    rows.event(line, "gpu_topology", "info", fields=fields)
    spread = ", ".join(f"{cell} × {count}" for cell, count in Counter(links.values()).most_common(6))
    once(rows, context, line, "gpu.topology", spread)


_LINK = lazy(r"\A\s{1,20}Link (?P<link>\d{1,2}): (?:(?P<speed>\d{1,4}(?:\.\d{1,4})?) GB/s|(?P<down><inactive>))")


def _nvlink(line: Line, rows: Rows, context: Context) -> None:
    found = re.match(r"\A\s{0,4}GPU (\d{1,3}): ", line.text[:40])
    if found is None:
        return
    active: list[int] = []
    inactive: list[int] = []
    speeds: set[float] = set()
    for near in context.following(40):
        link = _LINK.match(near.text[:100])
        if link is None:
            break
        (inactive if link["down"] else active).append(int(link["link"]))
        if link["speed"]:
            speeds.add(float(link["speed"]))
    if active or inactive:
        fields = {"active": len(active), "inactive": inactive, "speed": max(speeds, default=None)}
        rows.event(line, "nvlink_state", "warning" if inactive and active else "info", gpu=found[1], fields=fields)


PARSER = (
    LineParser("nvidia-smi topo", ("\tGPU0\t", "GPU0\tGPU1", "        GPU0  "), _topo),
    LineParser("nvidia-smi nvlink", (" (UUID: GPU-",), _nvlink),
)
