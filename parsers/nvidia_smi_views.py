"""`nvidia-smi` without options (driver 390 to 595), `nvidia-smi -L`, and `--query-compute-apps` as CSV.

The table gives one sample per GPU and one event `compute_app` per process, at its latest table: fields `gpu`, `pid`, `name`, `memory_mib`.  A GPU whose
temperature, state or power cell reads `ERR!` gives an event `gpu_status`; a fan cell alone says nothing of the card.
"""

from __future__ import annotations

import re
from typing import Any

from parsers.base import Context, Event, FileParser, Head, Line, LineParser, Rows, Source, lazy, mostly
from parsers.nvidia_smi import canonical_pci
from parsers.prefixes import clean
from parsers.snapshots import add_samples, number, once

MAX_LINES = 700  # of one table: 16 cards of three lines and some hundred processes
MAX_APPS = 4000

_VERSIONS = lazy(r"NVIDIA-SMI\s{1,8}(?P<smi>[\d.]{3,20})")
_DRIVER = lazy(r"(?:Driver|KMD) Version:\s{0,8}(?P<driver>\d{2,4}(?:\.\d{1,4}){1,3})")
_CUDA = lazy(r"CUDA (?:UMD )?Version:\s{0,8}(?P<cuda>\d{1,2}\.\d{1,2})")
_CARD = lazy(r"\s{0,6}(?P<gpu>\d{1,3})\s{1,4}(?P<name>\S.{0,60}?)(?:\s{1,40}(?:On|Off|N/A|Enabled|Disabled))?\s{0,40}\Z")
_BUS = lazy(r"\s{0,4}(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_MEMORY = lazy(r"(?P<used>\d{1,8})MiB\s{0,6}/\s{0,6}(?P<total>\d{1,8})MiB")
_POWER = lazy(r"(?P<power>\d{1,5})W\s{0,6}/\s{0,6}(?P<limit>\d{1,5})W")
_PROCESS = lazy(
    r"\|\s{1,6}(?P<gpu>\d{1,3})\s{1,6}(?:(?:N/A|\d{1,3})\s{1,6}(?:N/A|\d{1,3})\s{1,6})?(?P<pid>\d{1,9})\s{1,6}(?P<type>C\+G|M\+C|C|G)\s{1,6}"
    r"(?P<name>\S.{0,120}?)\s{1,60}(?P<used>\d{1,8})MiB\s{0,4}\|"
)


def _cells(text: str) -> list[str]:
    return text.strip().strip("|").split("|")


def _table(line: Line, rows: Rows, context: Context) -> None:
    found = _VERSIONS.search(line.text[:300])
    if found is None or "|" not in line.text:
        return
    if driver := _DRIVER.search(line.text[:300]):
        once(rows, context, line, "version.driver", driver["driver"])
    if cuda := _CUDA.search(line.text[:300]):
        once(rows, context, line, "version.cuda_driver", cuda["cuda"])
    cards: list[dict[str, Any]] = []
    processes = False
    count = 0
    for near in context.following(MAX_LINES):
        text = near.text[:400]
        if not text.startswith(("|", "+")):
            if not text.strip():
                if cards and processes:
                    break
                continue
            if text.startswith("No running processes"):
                break
            break
        if "NVIDIA-SMI" in text:
            break
        if "Processes:" in text:
            processes = True
            continue
        if processes:
            if process := _PROCESS.match(text):
                count += 1
                _app(near, rows, context, process["gpu"], int(process["pid"]), process["name"], float(process["used"]))
            elif text.startswith("+-") and count:
                break
            continue
        cells = _cells(text)
        if len(cells) < 3:
            continue
        bus, card = _BUS.match(cells[1]), _CARD.match(cells[0])
        if bus and card:
            errors = number(cells[2])
            cards.append({"gpu": card["gpu"], "pci": canonical_pci(bus["bus"]), "line": near.number, "ecc_uncorrected": errors})
            once(rows, context, near, "gpu.name", re.sub(r"\s{1,40}(?:On|Off)\Z", "", card["name"]))
        elif cards and (memory := _MEMORY.search(cells[1])):
            _values(near, rows, context, cards[-1], cells, memory)
        elif cards and "ERR!" in cells[0]:
            _failed(near, rows, context, cards[-1])
    if cards:
        once(rows, context, line, "gpu.count", len(cards))
        add_samples(rows, cards, line)


def _values(line: Line, rows: Rows, context: Context, card: dict[str, Any], cells: list[str], memory: re.Match[str]) -> None:
    card["memory_used"], card["memory_total"] = float(memory["used"]), float(memory["total"])
    if heat := re.search(r"(\d{1,3})C\b", cells[0]):
        card["temperature"] = float(heat[1])
    if power := _POWER.search(cells[0]):
        card["power"], card["power_limit"] = float(power["power"]), float(power["limit"])
    if use := re.search(r"(\d{1,3})%", cells[2]):
        card["utilization"] = float(use[1])
    if "ERR!" in cells[0][5:]:
        _failed(line, rows, context, card)


def _failed(line: Line, rows: Rows, context: Context, card: dict[str, Any]) -> None:
    """Marks the sample, with an event at the card's first failure in the file."""
    card["status"] = "ERR!"
    failed: set[str] = context.state.setdefault("failed", set())
    if card["gpu"] not in failed:
        failed.add(card["gpu"])
        rows.event(line, "gpu_status", "error", gpu=card["gpu"], fields={"status": "ERR!", "pci": card["pci"], "view": "table"})


def _app(line: Line, rows: Rows, context: Context, gpu: str | None, pid: int, name: str, memory: float) -> None:
    known: dict[tuple[str | None, int], Event] = context.state.setdefault("apps", {})
    event = known.get((gpu, pid))
    if event is not None:  # a later table: the event follows
        event.line, event.text, event.stamp, event.inherited = line.number, line.text[:2000], line.stamp, line.inherited
        event.fields["memory_mib"] = memory
    elif len(known) < MAX_APPS:
        known[gpu, pid] = emit_app(line, rows, gpu, pid, name, memory)


def emit_app(line: Line, rows: Rows, gpu: str | None, pid: int, name: str, memory: float) -> Event:
    """The event `compute_app`: a process (named without its path) that holds `memory` MiB of a GPU (index, PCI id or UUID)."""
    fields = {"gpu": gpu, "pid": pid, "name": name.split()[0].rsplit("/", 1)[-1][:80] if name.strip() else "", "memory_mib": memory}
    return rows.event(line, "compute_app", "info", pid=None, gpu=gpu, fields=fields)


# ------------------------------------------------------------------------------------------------- nvidia-smi -L

_LISTED = lazy(r"\A\s{0,4}GPU (?P<gpu>\d{1,3}): (?P<name>[^()]{2,80}) \(UUID: (?P<uuid>GPU-[0-9a-f-]{8,40})\)")


def _list(line: Line, rows: Rows, context: Context) -> None:
    found = _LISTED.match(line.text[:200])
    if found is None:
        return
    once(rows, context, line, "gpu.name", found["name"].strip())
    if int(found["gpu"]) == 0:
        count = 1
        for near in context.following(400):
            other = _LISTED.match(near.text[:200])
            if other is None:
                if near.text[:1].isspace():  # links or MIG instances of the card above
                    continue
                break
            count += 1
        once(rows, context, line, "gpu.count", count)


# -------------------------------------------------------------------------------------- --query-compute-apps CSV

# Printed header without its unit -> meaning.
APP_COLUMNS = {
    "pid": "pid",
    "process_name": "name",
    "name": "name",
    "used_memory": "memory",
    "used_gpu_memory": "memory",
    "gpu_uuid": "gpu",
    "gpu_bus_id": "gpu",
    "gpu_serial": "",
    "gpu_name": "",
    "timestamp": "",
    "gpu_uid": "gpu",
}
_BARE_APP = lazy(
    r"\A\s{0,4}(?:(?P<gpu>GPU-[0-9a-f-]{8,40}|[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]), )?(?P<pid>\d{1,9}), (?:(?P<name>[^\n]{1,300}), )?(?P<memory>\d{1,8})(?P<unit> MiB)?\s{0,4}\Z"
)


def app_header(text: str) -> list[str] | None:
    """Meaning of each column of a header of `--query-compute-apps`, None for any other line."""
    names = [re.sub(r"\s{0,4}\[[^\]]{0,20}\]\s{0,4}\Z", "", cell).strip().lower() for cell in text[:400].split(",")]
    if "pid" not in names or not {"used_memory", "used_gpu_memory"} & set(names):
        return None
    return [APP_COLUMNS[name] for name in names] if all(name in APP_COLUMNS for name in names) else None


def split_app(text: str, columns: list[str]) -> dict[str, str] | None:
    """Cells by meaning.  A process name may hold commas and is never quoted, so the row is split from both ends."""
    cells = [cell.strip() for cell in text.split(",")]
    extra = len(cells) - len(columns)
    if extra < 0 or (extra and "name" not in columns):
        return None
    if extra:
        at = columns.index("name")
        cells = [*cells[:at], ", ".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]
    return dict(zip(columns, cells, strict=True))


def _apps(line: Line, rows: Rows, context: Context) -> None:
    columns = app_header(line.text)
    if columns is None:
        return
    for near in context.following(MAX_LINES):
        cells = split_app(near.text[:600], columns)
        if cells is None or not cells["pid"].isdigit() or len(cells["pid"]) > 9:
            break
        memory = number(cells["memory"])
        if memory is not None:
            _app(near, rows, context, cells.get("gpu"), int(cells["pid"]), cells.get("name", ""), memory)


def _bare_recognises(head: Head) -> float:
    lines = head.written[:200]
    if not mostly(lines, lambda line: _BARE_APP.match(line[:400])):
        return 0.0
    rows = [match for line in lines if (match := _BARE_APP.match(line[:400]))]
    named = re.search(r"(?i)compute[-_]?apps|gpu[-_]?(?:apps|proc)", head.path) is not None
    # Without units two numbers could be anything: only the file's name or a process with a GPU id settles it.
    sure = all(match["unit"] for match in rows) or all(match["gpu"] and match["name"] for match in rows)
    return 0.85 if named or sure else 0.0


def _bare_parse(source: Source, rows: Rows) -> None:
    for at, raw in enumerate(source.text().splitlines()[:MAX_APPS], 1):
        text = clean(raw.encode("utf-8", "replace"))
        found = _BARE_APP.match(text[:400])
        if found:
            line = Line(source.path, at, text, text)
            emit_app(line, rows, found["gpu"], int(found["pid"]), found["name"] or "", float(found["memory"]))


PARSER = (
    LineParser("nvidia-smi table", ("| NVIDIA-SMI ",), _table),
    LineParser("nvidia-smi -L", (" (UUID: GPU-",), _list),
    LineParser("compute apps", ("used_memory [MiB]", "used_gpu_memory [MiB]"), _apps),
    FileParser("compute apps without header", "gpu", _bare_recognises, _bare_parse),
)
