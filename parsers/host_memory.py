"""Memory and processors of the host and of the container: `free`, /proc/meminfo, `lscpu`, cgroup files, `docker inspect`.

Facts `host.memory_gib`, `host.memory_available_gib`, `host.swap_gib`, `host.cpus`, `container.memory` (GiB or `unlimited`),
`container.cpus`, `shm.size` (GiB).  Events: `cgroup_kills` (field `oom_kill`, from memory.events), `container_state` (fields
`oom_killed`, `exit_code`, `name`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from parsers.base import Context, FileParser, Head, Line, LineParser, Rows, Source, lazy
from parsers.snapshots import gib, number, once, size_bytes

UNLIMITED = 1 << 60  # cgroup v1 prints its largest page-aligned number where nothing is set

_MEMINFO = lazy(r"\A(?P<key>MemTotal|MemAvailable|SwapTotal|Shmem|HugePages_Total):\s{1,20}(?P<value>\d{1,15})(?: kB)?\s{0,4}\Z")
_MEMINFO_KEYS = {"MemTotal": "host.memory_gib", "MemAvailable": "host.memory_available_gib", "SwapTotal": "host.swap_gib"}


def _meminfo(line: Line, rows: Rows, context: Context) -> None:
    found = _MEMINFO.match(line.text[:100])
    if found and found["key"] in _MEMINFO_KEYS:
        once(rows, context, line, _MEMINFO_KEYS[found["key"]], gib(float(found["value"]) * 1024))


def _free(line: Line, rows: Rows, context: Context) -> None:
    """`Mem:` below its header.  Without units the size of the number tells KiB, MiB, GiB and bytes apart (a host has 8 GiB to 8 TiB)."""
    head = next(iter(context.preceding(1)), None)
    if head is None or "total" not in head.text or "used" not in head.text:
        return
    names, cells = head.text.split(), line.text.split()[1:]
    values = dict(zip(names, cells, strict=False))
    total = values.get("total", "")
    if total.isdigit():
        amount = float(total)
        scale = 2.0**30 if amount < 8192 else 2.0**20 if amount < 8192 * 1024 else 1024.0 if amount < 8192 * 1024**2 else 1.0
    else:
        scale = 1.0
    for name, key in (("total", "host.memory_gib"), ("available", "host.memory_available_gib")):
        text = values.get(name, "")
        value = float(text) * scale if text.isdigit() else size_bytes(text)
        if value:
            once(rows, context, line, key, gib(value))


_CPUS = lazy(r"\ACPU\(s\):\s{1,30}(?P<value>\d{1,5})\s{0,4}\Z")


def _lscpu(line: Line, rows: Rows, context: Context) -> None:
    found = _CPUS.match(line.text[:80])
    if found is None:
        return
    once(rows, context, line, "host.cpus", int(found["value"]))
    for near in context.following(40):
        name, _, value = near.text[:200].partition(":")
        if name.strip() == "Model name" and value.strip():
            once(rows, context, near, "host.cpu_model", value.strip())
        elif name.strip() == "NUMA node(s)" and value.strip().isdigit():
            once(rows, context, near, "host.numa_nodes", int(value))


# ------------------------------------------------------------------------------------------------------------ cgroups

_CGROUP = lazy(
    r"(?:\A|[\s/])(?P<file>memory\.max|memory\.limit_in_bytes|memory\.high|memory\.current|memory\.peak|cpu\.max|cpu\.cfs_quota_us|pids\.max|pids\.current)"
    r"(?:\s{0,4}[:=]\s{0,4}(?P<value>\S{1,24}(?: \d{1,9})?))?\s{0,4}\Z"
)
_CGROUP_VALUE = lazy(r"\s{0,4}(?:max|-1|\d{1,20})(?: \d{1,9})?\s{0,4}")


def _cgroup_fact(rows: Rows, line: Line | int, name: str, text: str, context: Context) -> None:
    words = text.split()
    if not words or not (words[0] in ("max", "-1") or words[0].isdigit()):
        return
    amount = None if words[0] in ("max", "-1") else float(words[0][:20])
    if name in ("memory.max", "memory.limit_in_bytes"):
        once(rows, context, line, "container.memory", "unlimited" if amount is None or amount >= UNLIMITED else gib(amount))
    elif name in ("memory.current", "memory.peak") and amount is not None:
        once(rows, context, line, f"container.memory_{name[7:]}", gib(amount))
    elif name == "cpu.max":
        period = number(words[1]) if len(words) > 1 else 100_000.0
        once(rows, context, line, "container.cpus", "unlimited" if amount is None or not period else round(amount / period, 2))
    elif name == "cpu.cfs_quota_us":
        once(rows, context, line, "container.cpus", "unlimited" if amount is None else round(amount / 100_000, 2))
    elif name == "pids.max":
        once(rows, context, line, "limit.container_pids", "unlimited" if amount is None else int(amount))


def _cgroup(line: Line, rows: Rows, context: Context) -> None:
    found = _CGROUP.search(line.text[:400])
    if found is None:
        return
    if found["value"]:
        _cgroup_fact(rows, line, found["file"], found["value"], context)
        return
    answer = next(iter(context.following(1)), None)
    if answer is not None and _CGROUP_VALUE.fullmatch(answer.text[:40]):
        _cgroup_fact(rows, answer, found["file"], answer.text, context)


def _kills(line: Line, rows: Rows, context: Context) -> None:
    """`oom_kill N` of memory.events, among its fellows."""
    found = re.fullmatch(r"\s{0,4}(?:\S{0,200}memory\.events(?:\.local)?:)?oom_kill (\d{1,9})\s{0,4}", line.text[:300])
    if found and int(found[1]) and any(re.search(r"\b(?:oom|max|high) \d", near.text[:300]) for near in context.preceding(4)):
        rows.event(line, "cgroup_kills", "warning", fields={"oom_kill": int(found[1])})


def _file_recognises(head: Head) -> float:
    name = head.path.rsplit("/", 1)[-1].removesuffix(".txt")
    known = ("memory.max", "memory.limit_in_bytes", "memory.current", "memory.peak", "cpu.max", "cpu.cfs_quota_us", "pids.max")
    return (
        0.9 if any(name.endswith(k) for k in known) and len(head.text) < 60 and _CGROUP_VALUE.fullmatch(head.text.strip("\n")[:40]) else 0.0
    )


def _file_parse(source: Source, rows: Rows) -> None:
    name = source.path.rsplit("/", 1)[-1].removesuffix(".txt")
    kinds = ("memory.max", "memory.limit_in_bytes", "memory.current", "memory.peak", "cpu.max", "cpu.cfs_quota_us", "pids.max")
    known = next((k for k in kinds if name.endswith(k)), None)
    if known is None:
        raise ValueError("not a control file that is read")
    _cgroup_fact(rows, 1, known, source.text()[:60], Context(lambda _: iter(()), lambda _: iter(())))


# ----------------------------------------------------------------------------------------------------- docker inspect


def _docker_recognises(head: Head) -> float:
    text = head.text.lstrip()
    return 0.95 if text.startswith("[") and '"HostConfig"' in text and '"State"' in text else 0.0


def _lines(text: str) -> dict[str, int]:
    """Key of each line of pretty-printed JSON -> its first line."""
    out: dict[str, int] = {}
    for at, line in enumerate(text.split("\n")[:20_000], 1):
        if found := re.match(r'\s{0,60}"(\w{1,60})":', line):
            out.setdefault(found[1], at)
    return out


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _docker_parse(source: Source, rows: Rows) -> None:
    text = source.text()
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    at = _lines(text)
    for item in data[:20] if isinstance(data, list) else []:
        container = _dict(item)
        host, state, config = (_dict(container.get(key)) for key in ("HostConfig", "State", "Config"))
        memory, shm, nano = host.get("Memory"), host.get("ShmSize"), host.get("NanoCpus")
        if isinstance(memory, int):
            rows.fact(at.get("Memory", 1), "container.memory", gib(memory) if memory > 0 else "unlimited")
        if isinstance(shm, int) and shm > 0:
            rows.fact(at.get("ShmSize", 1), "shm.size", gib(shm))
        quota, period = host.get("CpuQuota"), host.get("CpuPeriod")
        if isinstance(nano, int) and nano > 0:
            rows.fact(at.get("NanoCpus", 1), "container.cpus", round(nano / 1e9, 2))
        elif isinstance(quota, int) and quota > 0:
            rows.fact(
                at.get("CpuQuota", 1), "container.cpus", round(quota / (period if isinstance(period, int) and period > 0 else 100_000), 2)
            )
        if isinstance(host.get("IpcMode"), str):
            rows.fact(at.get("IpcMode", 1), "container.ipc", host["IpcMode"][:80])
        if isinstance(config.get("Image"), str):
            rows.fact(at.get("Image", 1), "container.image", config["Image"][:300])
        for entry in host["Ulimits"][:100] if isinstance(host.get("Ulimits"), list) else []:
            name, soft = _dict(entry).get("Name"), _dict(entry).get("Soft")
            key = {"nofile": "limit.open_files", "memlock": "limit.memlock", "nproc": "limit.processes"}.get(str(name))
            if key and isinstance(soft, int):
                rows.fact(at.get("Ulimits", 1), key, "unlimited" if soft < 0 else soft // 1024 if key == "limit.memlock" else soft)
        for entry in (config.get("Env") or [])[:400] if isinstance(config.get("Env"), list) else []:
            from parsers.environment_variables import kept

            name, _, value = str(entry).partition("=")
            if kept(name):
                rows.fact(at.get("Env", 1), f"env.{name}", value[:300])
        if state.get("OOMKilled") is True or isinstance(state.get("ExitCode"), int):
            number_ = at.get("OOMKilled", at.get("State", 1))
            words = f"container {str(container.get('Name', '')).lstrip('/')[:80]}: OOMKilled {state.get('OOMKilled')}, exit code {state.get('ExitCode')}"
            fields = {"oom_killed": state.get("OOMKilled") is True, "exit_code": state.get("ExitCode"), "name": container.get("Name")}
            rows.event(
                Line(source.path, number_, words, words), "container_state", "warning" if fields["oom_killed"] else "info", fields=fields
            )


PARSER = (
    LineParser("meminfo", ("MemTotal:", "MemAvailable:", "SwapTotal:"), _meminfo),
    LineParser("free", ("Mem: ",), _free),
    LineParser("lscpu", ("CPU(s): ",), _lscpu),
    LineParser(
        "cgroup",
        ("memory.max", "memory.limit_in_bytes", "memory.current", "memory.peak", "cpu.max", "cpu.cfs_quota_us", "pids.max"),
        _cgroup,
    ),
    LineParser("memory.events", ("oom_kill ",), _kills),
    FileParser("cgroup file", "environment", _file_recognises, _file_parse),
    FileParser("docker inspect", "environment", _docker_recognises, _docker_parse),
)
