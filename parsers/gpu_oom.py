"""Allocation failures of accelerators, every wording: torch (1.x to 2.x), HIP, Ascend NPU, TensorFlow/XLA, vLLM's own check.

Event `gpu_oom`, sizes in MiB where the text names them: `tried`, `capacity`, `free`, `used` (this process in total),
`allocated` (live tensors), `reserved` (held by the allocator), `unallocated` (reserved but not used), `private` (graph pools),
`other` (list of {pid, used} for further processes), `device`, `flavour` (cuda hip npu xpu xla engine), `zero_alloc` (the driver itself refused).
Event `memory_summary`: the table of `torch.cuda.memory_summary()`: current, peak (MiB), `ooms`, `retries`.
"""

from __future__ import annotations

from typing import Any

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.values import number

UNITS = {
    "b": 1 / 1048576,
    "bytes": 1 / 1048576,
    "k": 1 / 1024,
    "kib": 1 / 1024,
    "kb": 1 / 1024,
    "mib": 1.0,
    "mb": 1.0,
    "m": 1.0,
    "gib": 1024.0,
    "gb": 1024.0,
    "g": 1024.0,
    "tib": 1048576.0,
}
SIZE = r"(-?\d{1,18}(?:\.\d{1,9})?) ?([KMGT]i?B|bytes|B)"

TRIED = lazy_regex(r"Tried to allocate " + SIZE)
DEVICE = lazy_regex(r"\b(?:GPU|NPU|XPU) (\d{1,6})[ ;.]")
FIELDS: tuple[tuple[str, regex.Pattern], ...] = (
    ("capacity", lazy_regex(SIZE + r" total capacity|total capacity of " + SIZE)),
    ("free", lazy_regex(r"(?:of which )?" + SIZE + r" (?:is )?free\b")),
    ("used", lazy_regex(r"(?:this process|[Pp]rocess \d{1,9} \(this\)) has " + SIZE)),
    ("allocated", lazy_regex(SIZE + r" already allocated|[Oo]f the allocated memory,? " + SIZE + r" is allocated by")),
    ("reserved", lazy_regex(SIZE + r" reserved in total|" + SIZE + r" reserved by PyTorch(?! but)")),
    ("unallocated", lazy_regex(SIZE + r" is reserved by PyTorch but unallocated")),
    ("private", lazy_regex(SIZE + r" (?:allocated )?in private pools")),
    ("in_use", lazy_regex(SIZE + r" memory in use")),
    ("limit", lazy_regex(SIZE + r" allowed")),
)
OTHER = lazy_regex(r"[Pp]rocess (\d{1,9}) has " + SIZE + r" memory in use")
PLAIN_USED = lazy_regex(r"Including non-PyTorch memory, this process has " + SIZE)
VLLM_UTIL = lazy_regex(
    r"Free memory on device (?:\S{1,40} )?\(([\d.]{1,20})/([\d.]{1,20}) GiB\)(?: on startup)? is less than desired GPU memory utilization \(([\d.]{1,20}), ([\d.]{1,20}) GiB\)"
)
XLA = lazy_regex(r"RESOURCE_EXHAUSTED: .{0,40}[Oo]ut of memory.{0,60}?allocat\w{1,12} (\d{1,18})(?: bytes)?")
ROW = lazy_regex(r"^\|\s{0,20}([A-Z][A-Za-z -]{1,60}?)\s{0,40}\|" + r"\s{0,20}(\d{1,18})\s{0,4}([KMG]i?B|B)?\s{0,20}\|" * 2)

TEXTS = (
    "out of memory. Tried to allocate",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "out of memory on device",
    "Free memory on device",
    "RESOURCE_EXHAUSTED",
    "No available memory for the cache blocks",
    "KV cache is needed, which is larger than the available",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "NPU out of memory",
    "HIP out of memory",
    "CUDA out of memory",
)
SUMMARY = "PyTorch CUDA memory summary"


def mib(number: str, unit: str | None) -> float:
    """A size in MiB from its number and unit (decimal and binary prefixes are read alike, as torch prints binary)."""
    return float(number) * UNITS.get((unit or "b").lower(), 1.0)


def sizes(text: str) -> dict[str, Any]:
    """The sizes in MiB that an allocator's message names."""
    fields: dict[str, Any] = {}
    tried = TRIED.search(text)
    if tried:
        fields["tried"] = mib(tried[1], tried[2])
    for name, pattern in FIELDS:
        found = pattern.search(text)
        if found:
            number, unit = (part for part in (found.groups() + (None,) * 2) if part) if len(found.groups()) > 2 else found.groups()
            fields[name] = mib(number, unit)
    own = PLAIN_USED.search(text)
    if own:
        fields["used"] = mib(own[1], own[2])
    others = [{"pid": int(pid), "used": mib(number, unit)} for pid, number, unit in OTHER.findall(text)[:16]]
    if others:
        fields["other"] = others
    if "allocated" in fields and "reserved" in fields and "unallocated" not in fields:
        fields["unallocated"] = max(0.0, fields["reserved"] - fields["allocated"])
    if "unallocated" in fields and "allocated" in fields and "reserved" not in fields:
        fields["reserved"] = fields["allocated"] + fields["unallocated"]
    return fields


def _flavour(text: str) -> str:
    for word, name in (("HIP", "hip"), ("NPU", "npu"), ("XPU", "xpu"), ("RESOURCE_EXHAUSTED", "xla")):
        if word in text:
            return name
    return "engine" if "cache" in text or "Free memory on device" in text else "cuda"


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if SUMMARY in text:
        _summary(line, rows, context)
        return
    at = max(text.find("out of memory"), 0)
    text = text[max(0, at - 300) : at + 4000]
    if "|" in text[:3] or regex.search(r'^\s*(?:raise |except|if |#|print\(|"")', text):
        return  # a table or source code
    exact = TRIED.search(text) is not None
    if "RESOURCE_EXHAUSTED" in text and XLA.search(text) is None and not exact and "memory" not in text:
        return
    for below in context.following(6):
        # Newer messages break over lines only when a logger wraps them; rank prefixes must agree.
        if below.rank != line.rank or not below.text.startswith(("Of the allocated", "Including non-PyTorch", "Process ", "If reserved")):
            break
        text += " " + below.text
    fields: dict[str, Any] = {"flavour": _flavour(text), **sizes(text)}
    engine = VLLM_UTIL.search(text)
    if engine:
        told = [number(value) for value in engine.groups()]
        scale = (("free", 1024.0), ("capacity", 1024.0), ("utilization", 1.0), ("tried", 1024.0))
        fields.update((name, value * factor) for (name, factor), value in zip(scale, told, strict=True) if value is not None)
    xla = XLA.search(text)
    if xla:
        fields["tried"] = int(xla[1]) / 1048576
    device = DEVICE.search(text)
    fields["device"] = device[1] if device else None
    # No allocator figures: the driver, a library or the very first context could not get memory.
    fields["zero_alloc"] = not exact and not engine
    rows.event(line, "gpu_oom", "error", gpu=fields["device"], fields=fields)


def _summary(line: Line, rows: Rows, context: Context) -> None:
    fields: dict[str, Any] = {}
    last = line.number
    for below in context.following(60):
        last = below.number
        counts = regex.search(r"CUDA OOMs: (\d+)\s*\|\s*cudaMalloc retries: (\d+)", below.text)
        if counts:
            fields.update(ooms=int(counts[1]), retries=int(counts[2]))
            continue
        device = regex.search(r"device ID (\d+)", below.text)
        if device:
            fields["device"] = device[1]
        row = ROW.match(below.text.strip())
        if row:
            name = row[1].strip().lower().replace(" ", "_").replace("-", "_")
            unit = row[3]
            if unit:
                fields.setdefault(name, {"current": mib(row[2], unit), "peak": mib(row[4], row[5])})
            else:
                fields.setdefault(name, {"current": int(row[2]), "peak": int(row[4])})
        elif below.text.startswith("|===") and len(fields) > 6:
            break
    rows.event(line, "memory_summary", "info", gpu=fields.get("device"), fields=fields, end_line=last)


PARSER = LineParser(name="gpu-oom", triggers=(*TEXTS, SUMMARY), parse=_parse, kind="train")
