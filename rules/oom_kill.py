"""Memory kills by the kernel or a user-space killer: whose process died, whose limit was hit, and whether it ended this run.

`constraint=` (or the old wording) tells a cgroup's limit from the whole node's.  A kill counts when its victim is a process of
this run: by pid, by job id in the cgroup's path, or by its name and the instant training stopped.  Containers show other pids
than the kernel, so an unknown pid alone clears nobody.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rules.base import Finding, Rule
from rules.kernel_view import NEAR, View, missing, ordered, view_of

if TYPE_CHECKING:
    from forensics.run import Run
    from parsers.base import Event

JOB = re.compile(r"/job_?(\d{1,12})\b|/slurm/uid_\d+/job_(\d{1,12})")
TOGETHER = 30.0  # seconds within which several victims of one shortage are one episode
SIGKILL = "SIGKILL"


def judge(run: Run) -> Iterable[Finding]:
    """Findings `oom.*`."""
    kills = ordered(run.kind("oom_kill"))
    if not kills:
        yield from missing(run, "oom.missing", "infra/host-oom-kill")
    view = view_of(run)
    jobs = job_ids(run)
    ours: dict[str, list[tuple[Event, float]]] = defaultdict(list)
    for event in kills:
        reason, weight = verdict(view, event, jobs)
        if reason:
            yield view.excluded("oom.aside", [event], cause_of(event), reason, facts=_facts(view, event))
        elif weight < 0.4:
            yield view.finding("oom.near", [event], cause_of(event), "consequence", weight, facts=_facts(view, event))
        else:
            ours[cause_of(event)].append((event, weight))
    for cause, group in ours.items():
        yield from _episode(view, cause, group)
    yield from _units(view, bool(ours))


def job_ids(run: Run) -> set[str]:
    """Batch job ids the run's own lines and file names tell (Slurm prints them, and names its output after them)."""
    found: set[str] = set()
    for key, _, value, _ in run.facts:
        if key in ("slurm.job_id", "job_id", "SLURM_JOB_ID", "env.SLURM_JOB_ID", "slurm.JobId"):
            found.add(str(value).split(".")[0])
    for event in run.kind("slurm"):
        identity = str(event.fields.get("id") or "").split(".")[0]
        if identity.isdigit():
            found.add(identity)
    for path in run.files:
        name = path.rsplit("/", 1)[-1]
        match = re.search(r"(?:slurm|job|log)[-_.](\d{4,12})", name) or re.search(r"[-_](\d{5,12})\.(?:out|err|log)$", name)
        if match:
            found.add(match[1])
    return found


def cause_of(event: Event) -> str:
    """Limit of a group, or memory of the node (a NUMA restriction is the node's memory as far as the job may use it)."""
    return "infra/cgroup-oom-kill" if event.fields.get("scope") == "cgroup" else "infra/host-oom-kill"


def verdict(view: View, event: Event, jobs: set[str]) -> tuple[str, float]:
    """(reason to set the kill aside, "" if none; weight that it ended this run)."""
    if view.earlier_boot(event):
        return "boot", 0.0
    phase = view.phase(event)
    if phase == "before":
        return phase, 0.0
    groups = " ".join(str(event.fields.get(name) or "") for name in ("memcg", "task_memcg"))
    told = {a or b for a, b in JOB.findall(groups)}
    if told and jobs and not told & jobs:
        return "other-job", 0.0
    mine = view.ours(event.fields.get("victim"), str(event.fields.get("comm") or ""))
    if event.fields.get("child") in view.pids:
        mine = True
    if told & jobs:
        mine = True
    if phase == "after" and mine is not True:
        return phase, 0.0
    if view.went_on(event):
        return "went-on", 0.0
    if event.fields.get("no_victim"):
        return "", 0.8
    if mine is True:
        return "", 0.97
    if event.fields.get("killer") == "systemd-oomd" and event.fields.get("victim") is None:
        mine = None
    close = view.at_end(event)
    if mine is None and (close or phase == "unknown"):
        killed = any(e.fields.get("signal") == SIGKILL for e in view.run.kind("exit"))
        return "", 0.9 if killed and close else 0.8 if close else 0.5
    if mine is False and close and event.fields.get("scope") != "cgroup":
        return "", 0.3  # the node was short of memory when training stopped, though another process was chosen
    if mine is False:
        return "other-process", 0.0
    return ("", 0.45) if view.run.last_progress is None else ("not-at-end", 0.0)


def _episode(view: View, cause: str, group: list[tuple[Event, float]]) -> Iterator[Finding]:
    events = [event for event, _ in group]
    lead = events[0]
    weight = max(w for _, w in group)
    facts = _facts(view, lead)
    ranks = sorted({rank for event in events if (rank := view.rank(event, event.fields.get("victim"))) is not None})
    together = [e for e in events if e.time is None or lead.time is None or e.time - lead.time <= TOGETHER]
    facts["victims"] = len(together)
    top = lead.fields.get("top") or []
    rule = "oom.cgroup" if cause.endswith("cgroup-oom-kill") else "oom.host"
    if top and not cause.endswith("cgroup-oom-kill"):
        hog = top[0]
        size = (lead.fields.get("anon_kb") or 0) // 1024
        if hog["pid"] != lead.fields.get("victim") and view.ours(hog["pid"], hog["name"]) is False and hog["rss_mb"] > 1.5 * max(size, 1):
            rule = "oom.foreign-hog"
    if str(lead.fields.get("comm") or "").startswith("pt_data"):
        facts["loader"] = True
        rule = "oom.loader" if rule != "oom.foreign-hog" else rule
    finding = view.finding(rule, together, cause, "root", weight, facts=facts, rank=ranks[0] if len(ranks) == 1 else None, severity="fatal")
    finding.ranks = ranks
    yield finding


def _units(view: View, known: bool) -> Iterator[Finding]:
    """systemd's and the group killer's notes: they name a unit, not a process."""
    groups = [e for e in view.run.kind("oom_group", "oom_unit") if view.phase(e) in ("during", "unknown") and not view.went_on(e)]
    if not groups:
        return
    first = groups[0]
    name = first.fields.get("unit") or first.fields.get("memcg") or "?"
    near = view.at_end(first, NEAR)
    yield view.finding(
        "oom.unit",
        groups,
        "infra/cgroup-oom-kill",
        "precursor" if known or not near else "consequence",
        0.5 if near else 0.2,
        facts={"unit": name},
    )


def _facts(view: View, event: Event) -> dict[str, Any]:
    fields = event.fields
    top = fields.get("top") or []
    facts: dict[str, Any] = {
        "comm": fields.get("comm") or "?",
        "victim": fields.get("victim") if fields.get("victim") is not None else "?",
        "killer": fields.get("killer", "kernel"),
        "rss_gb": round((fields.get("anon_kb") or 0) / 1048576, 1) if fields.get("anon_kb") else "?",
        "group": fields.get("memcg") or fields.get("task_memcg") or "?",
        "first_line": fields.get("first_line"),
    }
    if fields.get("limit_kb"):
        facts["limit_gb"] = round(fields["limit_kb"] / 1048576, 1)
    if top:
        facts |= {"hog": top[0]["name"], "hog_pid": top[0]["pid"], "hog_gb": round(top[0]["rss_mb"] / 1024, 1)}
    return facts


RULES = (Rule("oom-kill", judge, covers=("L0.6", "S1", "S12")),)
