"""Ray's own words about actors, workers and nodes (2.0 to 2.60).

Events: `ray_death` (fields `what`: actor | worker | node | task, `exit_type`, `detail`, `actor_id`, `class_name`, pid, ip), `ray_oom` (Ray's own
memory monitor), `ray_wait` (no resources for a request), `exit` with source `ray` where a worker's exit code is told.  Ray's list of guesses
((1) OOM killer, (2) ray stop, (3) segfault) is generic text and never read as evidence.
"""

from __future__ import annotations

from typing import Any

import regex

from parsers.base import Context, Line, LineParser, Rows, lazy_regex
from parsers.exit_codes import exit_event
from parsers.values import number

TYPE = lazy_regex(r"[Ww]orker exit type: (?P<type>[A-Z_]{3,40})(?:.{0,6}[Ww]orker exit detail: (?P<detail>.{1,600}))?")
RAYLET = lazy_regex(
    r"exit_type=(?P<type>[A-Z_]{3,40}), ?exit_detail=(?P<detail>.{1,400})|has_creation_task_exception=(?P<created>true|false)"
)
FIELD = lazy_regex(r"^\s*(?P<key>class_name|actor_id|pid|name|namespace|ip): (?P<value>\S.{0,200})$")
OOM = lazy_regex(
    r"(?P<count>\d{1,9}) [Ww]orkers?(?: ?\(tasks ?/ ?actors\)|\(s\))? (?:were )?killed due to (?:memory pressure|the node running low on memory)|"
    r"(?:Task|Actor|Worker)\b.{0,160}was killed due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|"
    r"[Kk]illing worker .{0,200}(?:memory usage above|because the node was running low)|Memory on the node \(IP: (?P<ip>[\w.:]{1,80})"
)
USED = lazy_regex(
    r"was (?P<used>[\d.]{1,12}) ?GB / (?P<total>[\d.]{1,12}) ?GB \((?P<share>[\d.]{1,12})\), which exceeds the memory usage threshold of (?P<limit>[\d.]{1,8})"
)
NODE = lazy_regex(
    r"(?:The node with node id|Node|node) .{0,200}?(?:has been marked dead|missed too many heartbeats|marked as dead|is dead)"
)
# The dead node's own address (`and address: 10.0.0.7 and node name: …`; older versions `and ip: …`).
ADDRESS = lazy_regex(r"\b(?:address|ip|IP): (?P<ip>[0-9A-Za-z][\w.:-]{1,80}?)(?=[\s,)]|$)")
RAYLET_GONE = lazy_regex(
    r"Raylet is terminated|raylet process died|The raylet .{0,40}died|Failed to connect to GCS|gcs_server.{0,60}(?:died|unavailable)|GCS.{0,20}is (?:down|dead)"
)
WAIT = lazy_regex(
    r"The following resource request cannot be scheduled right now: (?P<want>\{[^}]{1,300}\})|cannot be scheduled right now.{0,10}(?P<want2>\{[^}]{1,300}\})|"
    r"Error: No available node types can fulfill resource request(?:s)? (?P<want3>.{1,200})|Insufficient resources.{0,200}|Total available GPUs (?P<have>\S+) is less than total desired GPUs (?P<need>\d+)"
)
DIED = lazy_regex(
    r"(?:ray\.exceptions\.)?(?P<name>ActorDiedError|RayActorError|WorkerCrashedError|ActorUnavailableError|LocalRayletDiedError|NodeDiedError|ObjectLostError|OwnerDiedError|RaySystemError|GetTimeoutError)\b(?:: (?P<text>.{0,600}))?"
)


def _detail(line: Line, context: Context, limit: int = 12) -> dict[str, Any]:
    """The indented block under an actor's death."""
    fields: dict[str, Any] = {}
    for below in context.following(limit):
        row = FIELD.match(below.text)
        if row:
            fields.setdefault(row["key"], row["value"].strip())
            continue
        kind = TYPE.search(below.text)
        if kind:
            fields.update(exit_type=kind["type"], detail=(kind["detail"] or "")[:400])
            break
        if not below.text[:1].isspace() and "actor" not in below.text:
            break
    return fields


def _parse(line: Line, rows: Rows, context: Context) -> None:
    text = line.text
    if (found := OOM.search(text)) is not None:
        fields: dict[str, Any] = {"count": int(found["count"]) if found["count"] else 1, "ip": found["ip"]}
        for part in [line, *context.following(4)]:
            used = USED.search(part.text)
            if used:
                told = (("used_gb", "used"), ("total_gb", "total"), ("threshold", "limit"))
                fields.update((key, value) for key, name in told if (value := number(used[name].rstrip("."))) is not None)
                break
        if found["count"] == "0":
            return
        rows.event(line, "ray_oom", "error", host=found["ip"], fields=fields)
    elif (found := DIED.search(text)) is not None:
        if "RayTaskError" in text and "Traceback" in text:
            return
        fields = {
            "what": "worker" if "Worker" in found["name"] else "node" if "Node" in found["name"] or "Raylet" in found["name"] else "actor",
            "exception": found["name"],
        }
        fields.update(_detail(line, context))
        own = TYPE.search(text)
        if own:
            fields.update(exit_type=own["type"], detail=(own["detail"] or "")[:400])
        pid = fields.get("pid")
        lost = ADDRESS.search(text) if fields["what"] == "node" else None
        if lost:
            rows.event(line, "ray_death", "error", host=lost["ip"], fields=fields)
            return
        rows.event(line, "ray_death", "error", pid=int(pid) if isinstance(pid, str) and pid.isdigit() else line.pid, fields=fields)
    elif (found := TYPE.search(text)) is not None:
        code = regex.search(r"exit code (\d{1,4})", found["detail"] or "")
        if "A worker died or was killed" in text or "worker process has died" in text or found["type"] != "INTENDED_USER_EXIT":
            rows.event(
                line,
                "ray_death",
                "error",
                fields={
                    "what": "worker",
                    "exit_type": found["type"],
                    "detail": (found["detail"] or "")[:400],
                    "code": int(code[1]) if code else None,
                },
            )
    elif (found := RAYLET.search(text)) is not None and found["type"]:
        if found["type"] not in ("INTENDED_USER_EXIT", "INTENDED_SYSTEM_EXIT"):
            rows.event(line, "ray_death", "warning", fields={"what": "worker", "exit_type": found["type"], "detail": found["detail"][:400]})
    elif NODE.search(text) or RAYLET_GONE.search(text):
        where = ADDRESS.search(text)
        more = {"host": where["ip"]} if where else {}
        rows.event(line, "ray_death", "error", fields={"what": "node"}, **more)
    elif (found := WAIT.search(text)) is not None:
        want = found["want"] or found["want2"] or found["want3"] or (f"GPU: {found['need']}, have {found['have']}" if found["need"] else "")
        rows.event(line, "ray_wait", "warning", fields={"want": want[:300]})
    elif "exit code" in text and "worker" in text:
        code = regex.search(r"[Ww]orker.{0,200}exit(?:ed)?(?: with)? (?:exit )?code (-?\d{1,4})", text)
        if code:
            exit_event(line, rows, "ray", int(code[1]))


PARSER = LineParser(
    name="ray",
    triggers=(
        "orker exit type: ",
        "exit_type=",
        "killed due to memory pressure",
        "node running low on memory",
        "ray.exceptions.OutOfMemoryError",
        "Memory on the node (IP",
        "illing worker ",
        "has been marked dead",
        "missed too many heartbeats",
        "marked as dead",
        "Raylet is terminated",
        "raylet process died",
        "connect to GCS",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
        "ActorUnavailableError",
        "LocalRayletDiedError",
        "NodeDiedError",
        "OwnerDiedError",
        "ObjectLostError",
        "cannot be scheduled right now",
        "can fulfill resource request",
        "less than total desired GPUs",
    ),
    parse=_parse,
    kind="train",
)
