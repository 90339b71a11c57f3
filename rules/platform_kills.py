"""What the scheduler, the container platform or Ray's monitor did to the job: memory kills, evictions, lost nodes, refusals.

A scheduler's memory record outranks tracebacks about data loaders and lost peers.  Ray's monitor kills from user space, so the
kernel log is silent then (L0.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rules.base import Evidence, Finding, Rule
from rules.process_view import finding, order, went_on

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

SLURM: dict[str, tuple[str, str, float]] = {
    "oom": ("platform.cgroup-memory", "infra/cgroup-oom-kill", 0.88),
    "memory-limit": ("platform.cgroup-memory", "infra/cgroup-oom-kill", 0.88),
    "node-fail": ("platform.node-lost", "infra/node-down", 0.82),
    "launch-failed": ("platform.refused", "infra/resources-unavailable", 0.7),
    "prolog": ("platform.node-refused", "infra/node-down", 0.6),
    "node-hold": ("platform.node-refused", "infra/node-down", 0.5),
}
PLATFORM: dict[str, tuple[str, str, float]] = {
    "memory": ("platform.cgroup-memory", "infra/cgroup-oom-kill", 0.86),
    "oom": ("platform.cgroup-memory", "infra/cgroup-oom-kill", 0.86),
    "node-fail": ("platform.node-lost", "infra/node-down", 0.7),
    "unschedulable": ("platform.refused", "infra/resources-unavailable", 0.6),
    "start-failed": ("platform.start-failed", "infra/resources-unavailable", 0.5),
    "processes": ("platform.processes", "infra/pids-limit", 0.75),
}
STATES = {"OUT_OF_MEMORY": "oom", "NODE_FAIL": "node-fail", "BOOT_FAIL": "node-fail"}


def _places(events: list[Event]) -> list[Evidence]:
    return [Evidence(e.source, e.line, e.text[:400], e.time) for e in events[:5]]


def _judge(run: Run) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[tuple[Event, float]]] = {}
    for event in sorted(run.kind("slurm", "platform"), key=order):
        what = str(event.fields.get("what"))
        if event.kind == "slurm":
            what = STATES.get(str(event.fields.get("state")), what)
            told = SLURM.get(what)
        else:
            told = PLATFORM.get(what)
            if what == "evicted":
                told = _evicted(str(event.fields.get("why") or ""))
            elif what == "oom" and event.fields.get("why") == "node":
                told = "platform.node-memory", "infra/host-oom-kill", 0.84
        if told is None or (what in ("unschedulable", "start-failed") and (went_on(run, event) or _unplaced(run, event))):
            continue
        groups.setdefault(told[:2], []).append((event, told[2]))
    for (rule, cause), found in groups.items():
        events = [e for e, _ in found]
        if rule == "platform.node-lost":
            # `STEP … ON node CANCELLED … DUE TO NODE FAILURE` names the step's first node, the other lines the one that failed.
            named = [e for e in events if "CANCELLED" not in e.text and (e.fields.get("node") or e.host)]
            lead = named[0] if named else events[0]
            for event in events:
                event.host = lead.host or lead.fields.get("node") if named else event.host
        fields = events[0].fields
        facts = {
            "why": fields.get("why") or "",
            "used": fields.get("used") or "",
            "limit": fields.get("limit") or "",
            "node": fields.get("node") or events[0].host or "",
        }
        if rule == "platform.cgroup-memory" and fields.get("limit"):
            rule = "platform.memory-limit"
        yield finding(rule, events, _places(events), cause=cause, weight=max(w for _, w in found), facts=facts, covers=("L0.6",))
    yield from _ray(run)


def _unplaced(run: Run, event: Event) -> bool:
    """Whether nothing tells that the event came after the training: a pod that trained was given its resources, so it is another's."""
    at = run.last_progress_at
    return at is not None and at.file != event.source and (event.time is None or run.last_progress is None)


def _evicted(resource: str) -> tuple[str, str, float]:
    if resource.lower().startswith("memory"):
        return "platform.evicted-memory", "infra/host-oom-kill", 0.8
    if "inode" in resource:
        return "platform.evicted-disk", "infra/inode-exhausted", 0.85
    if "pid" in resource:
        return "platform.processes", "infra/pids-limit", 0.85
    if resource:
        return "platform.evicted-disk", "infra/disk-full", 0.86
    return "platform.evicted", "infra/preempted", 0.4


def _ray(run: Run) -> Iterator[Finding]:
    killed = [e for e in run.kind("ray_oom") if not went_on(run, e)]
    if killed:
        first = next((e for e in killed if e.fields.get("used_gb")), killed[0])
        facts = {k: first.fields.get(k, "") for k in ("used_gb", "total_gb", "threshold")}
        yield finding(
            "ray.memory-monitor" if first.fields.get("used_gb") else "ray.memory-kill",
            killed,
            _places(killed),
            cause="infra/host-oom-kill",
            weight=0.82,
            facts=facts,
            covers=("L0.6",),
        )
    deaths = sorted((e for e in run.kind("ray_death") if not went_on(run, e)), key=order)
    nodes = [e for e in deaths if e.fields.get("what") == "node"]
    if nodes:
        yield finding("ray.node-lost", nodes, _places(nodes), cause="infra/node-down", role="consequence", weight=0.45)
    oom = [e for e in deaths if e.fields.get("exit_type") == "NODE_OUT_OF_MEMORY"]
    if oom:
        yield finding("ray.memory-kill", oom, _places(oom), cause="infra/host-oom-kill", weight=0.82, covers=("L0.6",))
    dead = [e for e in deaths if e.fields.get("what") in ("actor", "worker") and e not in oom]
    if dead:
        system = [e for e in dead if e.fields.get("exit_type") == "SYSTEM_ERROR"]
        facts = {
            "actor": (system or dead)[0].fields.get("class_name") or "",
            "exit_type": (system or dead)[0].fields.get("exit_type") or "",
        }
        yield finding(
            "ray.actor-died", system or dead, _places(system or dead), cause=None, role="symptom", weight=0.1, facts=facts, covers=("L4.4",)
        )
    waiting = [e for e in run.kind("ray_wait") if not went_on(run, e)]
    if waiting and not deaths:
        facts = {"want": waiting[-1].fields.get("want", "")}
        yield finding(
            "ray.waiting",
            waiting,
            _places(waiting),
            cause="comms/ray-placement",
            weight=0.6 if run.last_progress_at is None else 0.3,
            facts=facts,
        )


RULES = (Rule("platform-kills", _judge, covers=("L0.6",)),)
