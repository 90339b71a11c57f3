"""Limits and state of the host (L0.6, L4.3, Q2, Q9): containers, shared memory, quotas, processes, network ports, bucket size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Evidence, Finding, Rule
from rules.environment import facts, speaks, undecided
from rules.full_disk import FULL, WRITES
from rules.process_view import order

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

SMALL_SHM = 0.07  # GiB: docker's default of 64 MiB
NEARLY = 95  # percent of a file system
QUOTA = 98.0  # percent of a quota


def _places(events: list[Event], limit: int = 3) -> list[Evidence]:
    return [Evidence(e.source, e.line, e.text[:300], e.time) for e in events[:limit]]


def _numbers(run: Run, name: str) -> list[tuple[float, Evidence]]:
    return [(float(v), e) for v, e in facts(run, name) if isinstance(v, int | float) and not isinstance(v, bool)]


def containers(run: Run) -> Iterator[Finding]:
    """Limits of the container beside the host's, and what the container's own records say of kills."""
    for event in run.kind("container_state"):
        if event.fields.get("oom_killed"):
            told = {"name": event.fields.get("name") or "?", "code": event.fields.get("exit_code")}
            yield Finding(
                "env.container-killed",
                cause="infra/cgroup-oom-kill",
                weight=0.72,
                time=event.time,
                evidence=_places([event]),
                host=event.host,
                facts=told,
            )
    kills = run.kind("cgroup_kills")
    if kills:
        told = {"count": max(int(e.fields.get("oom_kill", 0)) for e in kills)}
        yield Finding(
            "env.cgroup-kills",
            "found",
            "infra/cgroup-oom-kill",
            "precursor",
            0.4,
            "warning",
            evidence=_places(kills),
            host=kills[0].host,
            facts=told,
        )
    limits, hosts = _numbers(run, "container.memory"), _numbers(run, "host.memory_gib")
    cpus, all_cpus = _numbers(run, "container.cpus"), _numbers(run, "host.cpus")
    if not limits and not cpus:
        if not facts(run, "container.memory"):
            yield undecided("env.container-limits", "infra/cgroup-oom-kill", "memory.max, cpu.max")
        return
    told = {
        "memory": f"{limits[0][0]:g}" if limits else "–",
        "host": f"{hosts[0][0]:g}" if hosts else "?",
        "cpus": f"{cpus[0][0]:g}" if cpus else "–",
        "host_cpus": f"{all_cpus[0][0]:g}" if all_cpus else "?",
    }
    where = [e for group in (limits, hosts, cpus, all_cpus) for _, e in group[:1]]
    yield Finding("env.container-limits.shown", "found", None, "context", 0.0, "info", evidence=where, facts=told)


def shared_memory(run: Run) -> Iterator[Finding]:
    """/dev/shm at docker's default of 64 MiB."""
    sizes = _numbers(run, "shm.size")
    if not sizes:
        return
    size, where = min(sizes, key=lambda item: item[0])
    if size <= SMALL_SHM:
        role: Any = "precursor"
        yield Finding(
            "env.shm-small", "found", "infra/shm-too-small", role, 0.3, "warning", evidence=[where], facts={"size": f"{size * 1024:g}"}
        )
    else:
        yield Finding("env.shm", "excluded", "infra/shm-too-small", "context", 0.0, "info", evidence=[where], facts={"size": f"{size:g}"})


def disks(run: Run) -> Iterator[Finding]:
    """File systems and quotas near their end (a full one is judged with the failed write by rules.full_disk)."""
    near = [e for e in run.kind("disk_usage") if NEARLY <= int(e.fields.get("percent", 0)) < FULL]
    if near:
        event = max(near, key=lambda e: int(e.fields["percent"]))
        told = {"mount": event.fields.get("mount"), "percent": event.fields.get("percent")}
        cause = "infra/inode-exhausted" if event.fields.get("what") == "inodes" else "infra/disk-full"
        yield Finding("env.disk-nearly-full", "found", cause, "context", 0.1, "info", evidence=_places([event]), facts=told)
    quotas = [e for e in run.kind("quota_usage") if e.fields.get("over") or float(e.fields.get("percent", 0)) >= QUOTA]
    if quotas:
        event = quotas[0]
        told = {name: event.fields.get(name) for name in ("mount", "used", "limit", "percent")}
        error = speaks(run, re.compile("|".join(re.escape(words) for words in WRITES)))
        if error is not None:
            yield Finding(
                "env.quota-reached.write", cause="infra/quota-exceeded", weight=0.85, time=error[0].time, evidence=[error[1], *_places(quotas)],
                rank=error[0].rank, host=error[0].host, facts=told,
            )  # fmt: skip
        else:
            yield Finding(
                "env.quota-reached", "found", "infra/quota-exceeded", "precursor", 0.35, "warning", evidence=_places(quotas), facts=told
            )
    elif (
        not near
        and (run.kind("disk_usage") or run.kind("quota_usage"))
        and not [e for e in run.kind("disk_usage") if int(e.fields.get("percent", 0)) >= FULL]
    ):
        first = [*run.kind("disk_usage"), *run.kind("quota_usage")]
        top = max(first, key=lambda e: float(e.fields.get("percent", 0)))
        told = {"mount": top.fields.get("mount"), "percent": top.fields.get("percent")}
        yield Finding("env.disks", "excluded", "infra/disk-full", "context", 0.0, "info", evidence=_places([top]), facts=told)


def processes(run: Run) -> Iterator[Finding]:
    """Process lists: orphans of an earlier run, processes stuck in the kernel, and very many dataloader workers."""
    listed = sorted(run.kind("ps_process"), key=order)
    if not listed:
        yield undecided("env.processes", "data/dataloader-deadlock", "ps -eo pid,ppid,stat,rss,args")
        return
    holding = {int(e.fields["pid"]) for e in run.kind("compute_app") if isinstance(e.fields.get("pid"), int)}
    ours = {pid for info in run.ranks.values() for pid in info.pids}
    orphans = [e for e in listed if e.fields.get("ppid") == 1 and e.fields.get("pid") not in ours and e.fields.get("pid") in holding]
    stuck = [e for e in listed if str(e.fields.get("state", "")).startswith("D")]
    again = [e for e in stuck if sum(o.fields.get("pid") == e.fields.get("pid") for o in stuck) > 1]
    found = False
    if orphans:
        found = True
        yield Finding(
            "env.orphans", "found", "infra/device-held-by-stale-process", "precursor", 0.4, "warning", time=orphans[0].time, evidence=_places(orphans),
            host=orphans[0].host, facts={"count": len(orphans), "pid": orphans[0].fields["pid"]},
        )  # fmt: skip
    if stuck:
        found = True
        yield Finding(
            "env.stuck-processes", "found", "infra/filesystem-stall", "precursor" if again else "context", 0.35 if again else 0.15, "warning",
            time=stuck[0].time, evidence=_places(again or stuck), host=stuck[0].host,
            facts={"count": len({e.fields.get("pid") for e in stuck}), "wchan": stuck[0].fields.get("wchan") or "?"},
        )  # fmt: skip
    yield from _workers(run, listed)
    if not found:
        told = {"count": len({e.fields.get("pid") for e in listed})}
        yield Finding(
            "env.processes",
            "excluded",
            "infra/device-held-by-stale-process",
            "context",
            0.0,
            "info",
            evidence=_places(listed, 1),
            facts=told,
        )


def _workers(run: Run, listed: list[Event]) -> Iterator[Finding]:
    """Children of one training process that run the same command: dataloader workers.  More than the processors are too many."""
    parents = {e.fields.get("pid"): e for e in listed}
    families: Counter[int] = Counter()
    for event in {e.fields.get("pid"): e for e in listed}.values():
        parent = parents.get(event.fields.get("ppid"))
        same = parent is not None and event.fields.get("command") == parent.fields.get("command")
        if parent is not None and (same or "pt_data_worker" in str(event.fields.get("command"))):
            families[int(parent.fields["pid"])] += 1
    total = sum(families.values())
    cpus = _numbers(run, "container.cpus") or _numbers(run, "host.cpus")
    if not total or not cpus or total <= cpus[0][0]:
        return
    lead = families.most_common(1)[0][0]
    still = run.last_step is None or run.last_step <= 1
    yield Finding(
        "env.many-workers", "found", "data/dataloader-deadlock", "precursor" if still else "context", 0.25, "warning",
        evidence=_places([parents[lead]]), pid=lead, facts={"count": total, "cpus": f"{cpus[0][0]:g}", "families": len(families)},
    )  # fmt: skip


def ports(run: Run) -> Iterator[Finding]:
    """InfiniBand ports that are down or slower than their fellows of one host."""
    listed = run.kind("ib_port")
    if not listed:
        yield undecided("env.ib-ports", "infra/nic-failure", "ibstat")
        return
    active = [e for e in listed if e.fields.get("state") == "Active"]
    starting = [e for e in listed if e.fields.get("state") in ("Initializing", "Armed")]
    down = [e for e in listed if e.fields.get("state") == "Down"]
    polling = [e for e in down if e.fields.get("physical") in ("Polling", "Linkerrorrecovery", "LinkErrorRecovery")]
    rates = [float(e.fields["rate"]) for e in active if isinstance(e.fields.get("rate"), int | float)]
    usual = max(Counter(rates).items(), key=lambda item: (item[1], item[0]))[0] if rates else 0.0
    slow = [e for e in active if isinstance(e.fields.get("rate"), int | float) and float(e.fields["rate"]) < usual / 2 and len(rates) >= 3]
    # A port that nobody plugged in is down on most hosts: only one whose fellows are nearly all up stands out.
    lone = polling if polling and len(active) >= 3 * len(down) else []
    odd = [*starting, *lone, *slow]
    if odd:
        first = odd[0]
        told = {
            "device": first.fields.get("device"),
            "port": first.fields.get("port"),
            "state": first.fields.get("state"),
            "rate": first.fields.get("rate") or "?",
        }
        yield Finding(
            "env.ib-port-odd", "found", "infra/nic-failure", "precursor", 0.3, "warning", evidence=_places(odd), host=first.host, facts=told
        )
    else:
        told = {"active": len(active), "down": len(down), "rate": f"{usual:g}"}
        yield Finding(
            "env.ib-ports", "excluded", "infra/nic-failure", "context", 0.0, "info", evidence=_places(active or listed, 2), facts=told
        )


def nodes(run: Run) -> Iterator[Finding]:
    """Nodes of the run that the scheduler has down or drained.  A node may be drained long before or after: support only."""
    listed = run.kind("node_state")
    if not listed:
        return
    ours = [e for e in listed if not run.hosts or e.fields["node"] in run.hosts]
    down = [e for e in ours if re.search(r"DOWN|FAIL|NOT_RESPONDING|\*", str(e.fields.get("state")))]
    drained = [e for e in ours if e not in down and "DRAIN" in str(e.fields.get("state"))]
    for group, weight in ((down, 0.4), (drained, 0.2)):
        if group:
            first = group[0]
            told = {
                "node": first.fields["node"],
                "state": first.fields.get("state"),
                "reason": first.fields.get("reason") or "–",
                "count": len(group),
            }
            yield Finding(
                "env.node-unfit", "found", "infra/node-down", "precursor", weight, "warning", evidence=_places(group), host=first.fields["node"],
                facts=told,
            )  # fmt: skip
            return
    told = {"count": len(ours)}
    yield Finding("env.nodes", "excluded", "infra/node-down", "context", 0.0, "info", evidence=_places(ours or listed, 1), facts=told)


NEAR_LIMIT = 0.9  # share of the memory limit that one process holds


def process_memory(run: Run) -> Iterator[Finding]:
    """Resident and peak memory of a process (/proc/PID/status) against what the container or the host has.

    VmPeak counts address space, which CUDA reserves by the hundred GiB: shown, never judged.
    """
    listed = [e for e in run.kind("proc_status") if isinstance(e.fields.get("vm_rss_mib"), int | float)]
    if not listed:
        yield undecided("env.process-memory", "infra/host-memory-exhausted", "/proc/PID/status")
        return
    top = max(listed, key=lambda e: float(e.fields["vm_rss_mib"]))
    peak = float(top.fields.get("vm_hwm_mib") or top.fields["vm_rss_mib"])
    limits = _numbers(run, "container.memory") or _numbers(run, "host.memory_gib")
    told = {
        "pid": top.fields.get("pid") or "?",
        "rss": f"{float(top.fields['vm_rss_mib']) / 1024:.1f}",
        "peak": f"{peak / 1024:.1f}",
        "virtual": f"{float(top.fields.get('vm_peak_mib') or 0) / 1024:.0f}",
        "limit": f"{limits[0][0]:g}" if limits else "?",
    }
    where = [*_places([top]), *[e for _, e in limits[:1]]]
    if limits and peak / 1024 >= NEAR_LIMIT * limits[0][0]:
        cause = "infra/cgroup-oom-kill" if _numbers(run, "container.memory") else "infra/host-oom-kill"
        yield Finding(
            "env.process-memory.near-limit",
            "found",
            cause,
            "precursor",
            0.3,
            "warning",
            time=top.time,
            evidence=where,
            host=top.host,
            facts=told,
        )
    else:
        yield Finding("env.process-memory", "excluded", "infra/host-memory-exhausted", "context", 0.0, "info", evidence=where, facts=told)


BUCKET_NAMES = ("bucket_cap_mb", "ddp_bucket_cap_mb", "reduce_bucket_size", "allgather_bucket_size", "ddp_bucket_size")


def bucket(run: Run) -> Iterator[Finding]:
    """The size of gradient buckets as it was set (torch's default is 25 MiB)."""
    for name in BUCKET_NAMES:
        for key, file, value, line in run.facts:
            if key in (f"setting.{name}", name, f"config.{name}"):
                told = {"name": name, "value": value}
                yield Finding(
                    "env.bucket.shown",
                    "found",
                    None,
                    "context",
                    0.0,
                    "info",
                    evidence=[Evidence(file, line, f"{name} = {value}")],
                    facts=told,
                )
                return
    yield undecided("env.bucket", "training/slow-step", "bucket_cap_mb")


RULES = (
    Rule("env.containers", containers, ("L0.6",)),
    Rule("env.shared-memory", shared_memory, ("L0.6",)),
    Rule("env.disks", disks, ("S1",)),
    Rule("env.processes", processes, ("Q2", "L4.4")),
    Rule("env.ib-ports", ports, ("Q9", "S6")),
    Rule("env.nodes", nodes, ("S1",)),
    Rule("env.process-memory", process_memory, ("L0.6",)),
    Rule("env.bucket", bucket, ("L4.3",)),
)
